"""Payloads of acknowledgements, keep-alives, CLOSE and control: what is understood has one encoding only."""

from __future__ import annotations

from collections.abc import Callable

from multi.errors import RemoteProtocolError
from multi.protocol import handshake, payloads
from multi.protocol.handshake import NONCE_LENGTH, Ticket, decode_tickets, encode_tickets
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
from multi.protocol.segment import SegmentType
from multi.types import Role, StreamId
from tests.fuzz.target import Target, check
from tests.unit.protocol.wiring import whole_ack


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


DECODERS: dict[SegmentType, Callable[[bytes], bytes]] = {
    SegmentType.ACK: lambda payload: whole_ack(decode_ack(memoryview(payload))),
    SegmentType.KEEPALIVE: lambda payload: encode_keepalive(decode_keepalive(memoryview(payload))),
    SegmentType.CLOSE: _close,
    SegmentType.POLICY: _policy,
    SegmentType.RATE: lambda payload: encode_rate(*decode_rate(payload)),
    SegmentType.STEER: lambda payload: encode_scheduler(*decode_scheduler(payload)),
    SegmentType.ROLE: lambda payload: encode_role(*decode_role(payload)),
    SegmentType.DRAIN: lambda payload: encode_drain(*decode_drain(payload)),
    SegmentType.AWAY: lambda payload: encode_away(decode_away(payload)),
    SegmentType.ADDRESS: lambda payload: encode_addresses(decode_addresses(payload)),
    SegmentType.FIN: _unsigned(8),
    SegmentType.RESET: _unsigned(8, 4),
    SegmentType.OPEN: lambda payload: _unsigned(1, 4)(payload) if len(payload) > 1 else _unsigned(1)(payload),
    SegmentType.STOP_SENDING: _unsigned(4, 8),
    SegmentType.MAX_STREAMS: _unsigned(8),
    SegmentType.TICKETS: lambda payload: encode_tickets(decode_tickets(payload)),
}
"""Each decodes a payload, or raises RemoteProtocolError, and encodes it again."""

SEEDS: dict[SegmentType, list[bytes]] = {
    SegmentType.ACK: [
        whole_ack(Ack(1 << 17, 5, ((7, 8),), (StreamAck(StreamId(0), 4096, 1 << 16, ((8192, 12288),)),))),
        whole_ack(Ack(MAX_OFFSET, MAX_OFFSET, (), tuple(StreamAck(StreamId(n), n, n) for n in range(0, 40, 2)))),
        whole_ack(Ack(0, 0, tuple((2 * n + 1, 2 * n + 2) for n in range(32)))),
    ],
    SegmentType.KEEPALIVE: [
        encode_keepalive(Keepalive(9, wants_ack=True)),
        encode_keepalive(Keepalive((1 << 64) - 1, pong=True)),
    ],
    SegmentType.CLOSE: [
        encode_close(Close(1, "aborted")),
        encode_close(Close(0)),
        encode_close(Close(2, "\u00e4" * 100)),
    ],
    SegmentType.POLICY: [
        encode_policy(Policy("WRR", (("n", 240.0), ("alpha", -0.0)), switch=True, reinject="rescue")),
        encode_policy(Policy()),
        encode_policy(Policy("s" * 255, tuple(("p" * 64, 1e308) for _ in range(16)))),
    ],
    SegmentType.RATE: [encode_rate(5, 1e6)],
    SegmentType.STEER: [encode_scheduler("steering.latency", (("max_rtt", 0.1),)), encode_scheduler("", ())],
    SegmentType.ROLE: [encode_role(5, Role.BACKUP)],
    SegmentType.DRAIN: [encode_drain(5, step) for step in DrainStep],
    SegmentType.AWAY: [encode_away(25.0)],
    SegmentType.ADDRESS: [
        encode_addresses([("192.0.2.7", 7788), ("2001:db8::7", 1)]),
        encode_addresses([("::ffff:1.2.3.4", 1)] * 4),
    ],
    SegmentType.FIN: [encode_unsigned((4660, 8))],
    SegmentType.RESET: [encode_unsigned((4660, 8), (7, 4))],
    SegmentType.OPEN: [b"\3", encode_unsigned((3, 1), (250, 4))],
    SegmentType.STOP_SENDING: [encode_unsigned((7, 4), (4660, 8))],
    SegmentType.MAX_STREAMS: [encode_unsigned((128, 8))],
    SegmentType.TICKETS: [encode_tickets([Ticket(5, bytes(range(NONCE_LENGTH)))])],
}


def _run(decoder: Callable[[bytes], bytes], payload: bytes) -> None:
    try:
        again = decoder(payload)
    except RemoteProtocolError as error:
        check(str(error).isprintable(), "a complaint with control characters")
        return
    check(again == payload, "a payload that has two encodings")


def _target(kind: SegmentType) -> Target:
    decoder, found, name = DECODERS[kind], SEEDS[kind], kind.name.lower().replace("_", "-")
    modules = payloads, handshake
    return Target(f"payload-{name}", lambda data: _run(decoder, data), lambda: found, modules, short=500, longest=1100)


TARGETS = tuple(map(_target, DECODERS))
