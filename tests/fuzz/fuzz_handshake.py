"""Messages of the handshake, keys of strangers, and the table that gives new connections to sessions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from multi.errors import RemoteProtocolError
from multi.protocol import acceptor as session_table
from multi.protocol import handshake, sealing
from multi.protocol.acceptor import Refused, SessionTable
from multi.protocol.handshake import (
    Accept,
    Challenge,
    Hello,
    Join,
    KeyPair,
    Refuse,
    RefuseCode,
    SessionKeys,
    common_version,
    decode_proof,
    psk_binder,
)
from multi.protocol.sealing import Cipher, Opener, Sealer
from multi.protocol.segment import (
    HANDSHAKE_TYPES,
    HEADER_LENGTH,
    SUPPORTED_VERSIONS,
    SegmentType,
    encode,
    encode_header,
)
from multi.types import SessionId, StreamId
from tests.fuzz.mutation import Choices
from tests.fuzz.target import Target, check, may_raise
from tests.unit.protocol.wiring import CLEAR, QUIC, TLS, Ends

SESSION = SessionId(bytes(range(16, 32)))


@cache
def spoken() -> dict[SegmentType, tuple[bytes, ...]]:
    """What two honest ends have said to open a session, over several kinds of connections, in clear."""
    found: dict[SegmentType, list[bytes]] = {}
    for settings in (CLEAR, None):
        for facts in ((), (TLS,), (QUIC,)):
            ends = Ends(settings, settings)
            lines = [ends.connect(*facts) for _ in range(2)]
            ends.pump()
            lines.append(ends.connect(*facts))
            ends.advance(0.1)
            for line in lines:
                for segment in line.sent_up + line.sent_down:
                    kind = SegmentType(segment[1])
                    header = int.from_bytes(segment[2:4], "big")
                    if kind in HANDSHAKE_TYPES or settings is CLEAR:
                        found.setdefault(kind, []).append(segment[header:])
    refusals = [Refuse(code, limit="max_sessions") for code in RefuseCode]
    refusals.append(Refuse(RefuseCode.UNKNOWN, token=bytes(range(32))))
    refusals.append(Refuse(RefuseCode.ELSEWHERE, address=("192.0.2.1", 7788)))
    found[SegmentType.REFUSE] = [refusal.encode() for refusal in refusals]
    return {kind: tuple(dict.fromkeys(payloads)) for kind, payloads in found.items()}


def _hello(payload: bytes) -> bytes:
    hello = Hello.decode(memoryview(payload))
    hello.terms.choose_cipher(tuple(Cipher))
    check(common_version(hello.versions) in (None, *SUPPORTED_VERSIONS), "a version nobody supports")
    SessionKeys(SESSION, hello.session_part(), b"", b"", b"")
    psk_binder(b"k" * 16, hello.session_part(), b"")
    return hello.encode()


def _refuse(payload: bytes) -> bytes:
    refuse = Refuse.decode(payload)
    check(refuse.reason.isprintable(), "a refusal with control characters")
    return refuse.encode()


DECODERS: dict[SegmentType, Callable[[bytes], bytes]] = {
    SegmentType.HELLO: _hello,
    SegmentType.ACCEPT: lambda payload: Accept.decode(payload).encode(),
    SegmentType.JOIN: lambda payload: Join.decode(payload).encode(),
    SegmentType.CHALLENGE: lambda payload: Challenge.decode(payload).encode(),
    SegmentType.CONFIRM: decode_proof,
    SegmentType.REFUSE: _refuse,
}


def _message(kind: SegmentType) -> Target:
    def run(payload: bytes) -> None:
        try:
            again = DECODERS[kind](payload)
        except RemoteProtocolError as error:
            check(str(error).isprintable(), "a complaint with control characters")
            return
        # Proofs are computed over encodings; a REFUSE is in none, and a later version may say more in it.
        same = payload.startswith(again) if kind is SegmentType.REFUSE else again == payload
        check(same, "a message that has two encodings")

    return Target(f"handshake-{kind.name.lower()}", run, lambda: spoken()[kind], (handshake,), short=300, longest=1000)


# --- keys  ---

_PAIR = KeyPair(bytes(range(32)))
SMALL_ORDER = (bytes(32), b"\1" + bytes(31), b"\xed" + b"\xff" * 30 + b"\x7f", b"\xec" + b"\xff" * 30 + b"\x7f")


def run_key(data: bytes) -> None:
    key = data[:32].ljust(32, b"\0")
    with may_raise(RemoteProtocolError):
        check(any(_PAIR.agree(key)), "a secret of zeros")


# --- sealed records  ---


def run_opener(data: bytes) -> None:
    """An honest sender, and somebody in between who alters what it sends."""
    choices = Choices(data)
    cipher, lane, records = choices.pick(tuple(Cipher)), choices.below(3), choices.pick((1, 2, 1 << 20))
    sealer, opener = Sealer(b"s" * 32, cipher, lane, records), Opener(b"s" * 32, cipher, lane, records)
    before = b""
    while choices.left:
        payload = choices.some()
        header = encode_header(SegmentType.DATA, SESSION, choices.edge(), StreamId(choices.below(2)), len(payload) + 16)
        record = header + sealer.seal(header, (payload[:3], payload[3:]))
        arriving = choices.pick((record, record, record, record, before or record, header + payload))
        arriving = choices.damaged(arriving)
        before = record
        try:
            opened = opener.open(memoryview(arriving)[: len(header)], memoryview(arriving)[len(header) :])
        except RemoteProtocolError:
            check(arriving != record, "an honest record does not open")
            return
        check(arriving == record, "an altered record opens")
        check(opened == payload, "a record opens to something else")


# --- the table  ---


MAX_SESSIONS = 4


def run_table(data: bytes) -> None:
    """Connections whose first bytes come in pieces, from few sources, with sessions that end now and then."""
    choices = Choices(data)
    table: SessionTable[SessionId] = SessionTable(
        lambda session_id, _source: session_id,
        lambda _: ("max_sessions", "enough") if len(table) >= MAX_SESSIONS else None,
    )
    waiting: dict[int, bytes] = {}
    while choices.left:
        connection = choices.below(4)
        first = waiting.get(connection, b"") + _first_bytes(choices)
        waiting[connection] = first
        try:
            routed = table.route(choices.pick((bytes, bytearray, memoryview))(first), f"source {choices.below(3)}")
        except RemoteProtocolError:
            check(len(first) > 0, "nothing is refused")
        else:
            whole = max(HEADER_LENGTH, int.from_bytes(first[4:8], "big"))
            check(routed is not None or len(first) < whole, "a whole segment is not enough")
            if isinstance(routed, Refused):
                check(len(routed.reply) < 64, "an answer larger than what it answers")
                kind, named = routed.reply[1], routed.reply[8:24]
                check(kind == SegmentType.REFUSE and named == first[8:24], "a refusal of something else")
            elif routed is not None:
                check(routed == first[8:24], "a connection of another session")
            if routed is None:
                continue
        del waiting[connection]
        check(len(table) <= MAX_SESSIONS, "more sessions than allowed")
        if choices.chance(8) and table.values():
            table.remove(choices.pick(table.values()))
        if choices.chance(64):
            table.refuse_new()


def _first_bytes(choices: Choices) -> bytes:
    if choices.chance(6):
        return choices.some()
    kind = choices.pick((SegmentType.HELLO, SegmentType.HELLO, SegmentType.JOIN, *SegmentType))
    payload = choices.pick(spoken().get(kind, (b"",)))
    return choices.damaged(encode(kind, SessionId(bytes([choices.below(8)]) * 16), payload))


TARGETS = (
    *(_message(kind) for kind in DECODERS),
    Target("handshake-key", run_key, lambda: SMALL_ORDER, (handshake,), short=100, longest=32),
    Target(
        "sealed-records",
        run_opener,
        lambda: [bytes([cipher, 0, keys]) + b"\5hello" * 20 for cipher in (0, 1) for keys in (0, 1, 2)],
        (sealing,),
        short=300,
        longest=600,
    ),
    Target(
        "session-table",
        run_table,
        lambda: [bytes(n) + bytes(range(200)) for n in range(6)],
        (session_table,),
        short=500,
        longest=400,
    ),
)
