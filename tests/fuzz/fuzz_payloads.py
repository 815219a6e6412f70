"""Payloads of acknowledgements, keep-alives, CLOSE and control: what is understood has one encoding only."""

from __future__ import annotations

from collections.abc import Callable

from multi.errors import RemoteProtocolError
from multi.protocol import payloads
from multi.protocol.payloads import (
    MAX_OFFSET,
    Ack,
    Close,
    DrainStep,
    Fields,
    Keepalive,
    Policy,
    StreamAck,
    decode_ack,
    decode_addresses,
    decode_away,
    decode_close,
    decode_drain,
    decode_keepalive,
    decode_policy,
    decode_rate,
    decode_role,
    decode_scheduler,
    decode_unsigned,
    encode_ack,
    encode_addresses,
    encode_away,
    encode_close,
    encode_drain,
    encode_keepalive,
    encode_policy,
    encode_rate,
    encode_role,
    encode_scheduler,
    encode_unsigned,
)
from multi.types import Role, StreamId
from tests.fuzz.target import Target, check


def _policy(payload: bytes) -> bytes:
    fields = Fields(payload)
    policy = decode_policy(fields)
    check(policy.scheduler.isprintable(), "a scheduler's name with control characters")
    return encode_policy(policy) + fields.take(fields.remaining)  # what follows is read by others


def _close(payload: bytes) -> bytes:
    close = decode_close(payload)
    check(close.reason.isprintable(), "a reason with control characters")
    return encode_close(close)


def _unsigned(*sizes: int) -> Callable[[bytes], bytes]:
    return lambda payload: encode_unsigned(*zip(decode_unsigned(payload, *sizes), sizes, strict=True))


DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "ack": lambda payload: encode_ack(decode_ack(memoryview(payload))),
    "keepalive": lambda payload: encode_keepalive(decode_keepalive(memoryview(payload))),
    "close": _close,
    "policy": _policy,
    "rate": lambda payload: encode_rate(*decode_rate(payload)),
    "steer": lambda payload: encode_scheduler(*decode_scheduler(payload)),
    "role": lambda payload: encode_role(*decode_role(payload)),
    "drain": lambda payload: encode_drain(*decode_drain(payload)),
    "away": lambda payload: encode_away(decode_away(payload)),
    "address": lambda payload: encode_addresses(decode_addresses(payload)),
    "fin": _unsigned(8),
    "reset": _unsigned(8, 4),
    "open": _unsigned(1),
}
"""Each decodes a payload, or raises RemoteProtocolError, and encodes it again."""

SEEDS: dict[str, list[bytes]] = {
    "ack": [
        encode_ack(Ack(1 << 17, 5, ((7, 8),), (StreamAck(StreamId(0), 4096, 1 << 16, ((8192, 12288),)),))),
        encode_ack(Ack(MAX_OFFSET, MAX_OFFSET, (), tuple(StreamAck(StreamId(n), n, n) for n in range(0, 40, 2)))),
        encode_ack(Ack(0, 0, tuple((2 * n + 1, 2 * n + 2) for n in range(32)))),
    ],
    "keepalive": [
        encode_keepalive(Keepalive(9, wants_ack=True)),
        encode_keepalive(Keepalive((1 << 64) - 1, pong=True)),
    ],
    "close": [encode_close(Close(1, "aborted")), encode_close(Close(0)), encode_close(Close(2, "\u00e4" * 100))],
    "policy": [
        encode_policy(Policy("WRR", (("n", 240.0), ("alpha", -0.0)), switch=True, reinject="rescue")),
        encode_policy(Policy()),
        encode_policy(Policy("s" * 255, tuple(("p" * 64, 1e308) for _ in range(16)))),
    ],
    "rate": [encode_rate(5, 1e6)],
    "steer": [encode_scheduler("steering.latency", (("max_rtt", 0.1),)), encode_scheduler("", ())],
    "role": [encode_role(5, Role.BACKUP)],
    "drain": [encode_drain(5, step) for step in DrainStep],
    "away": [encode_away(25.0)],
    "address": [
        encode_addresses([("192.0.2.7", 7788), ("2001:db8::7", 1)]),
        encode_addresses([("::ffff:1.2.3.4", 1)] * 4),
    ],
    "fin": [encode_unsigned((4660, 8))],
    "reset": [encode_unsigned((4660, 8), (7, 4))],
    "open": [b"\3"],
}


def _run(decoder: Callable[[bytes], bytes], payload: bytes) -> None:
    try:
        again = decoder(payload)
    except RemoteProtocolError as error:
        check(str(error).isprintable(), "a complaint with control characters")
        return
    check(again == payload, "a payload that has two encodings")


def _target(name: str) -> Target:
    decoder, found = DECODERS[name], SEEDS[name]
    return Target(
        f"payload-{name}", lambda data: _run(decoder, data), lambda: found, (payloads,), short=500, longest=1100
    )


TARGETS = tuple(_target(name) for name in DECODERS)
