"""Where the first bytes of a connection go."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi.errors import RemoteProtocolError
from multi.protocol.acceptor import Refused, SessionTable
from multi.protocol.handshake import ConnectionTerms, Hello, Join, Refuse, RefuseCode, origin_of, reset_token
from multi.protocol.payloads import Policy
from multi.protocol.segment import HEADER_LENGTH, SegmentDecoder, SegmentType, encode, encode_routed
from multi.types import SessionId

CLIENT_HELLO_OF_TLS = bytes.fromhex("16030100c8010000c40303") + bytes(60)
HTTP = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"


def table(full: Callable[[str], tuple[str, str] | None] = lambda _: None) -> tuple[SessionTable[str], list[SessionId]]:
    created: list[SessionId] = []

    def create(session_id: SessionId, source: str) -> str:
        created.append(session_id)
        return f"{session_id.hex()} from {source}"

    return SessionTable(create, full), created


ACCEPT_NONCE = b"\xac" * 32


def sid(number: int) -> SessionId:
    return SessionId(number.to_bytes(16, "big"))


def hello(number: int, nonce: bytes = bytes(32)) -> bytes:
    return encode(SegmentType.HELLO, sid(number), _hello(nonce).encode())


def join(number: int, nonce: bytes = bytes(32)) -> bytes:
    """What the client says later that has said `hello`."""
    origin = origin_of(_hello(nonce).session_part(), ACCEPT_NONCE)
    return encode(SegmentType.JOIN, sid(number), Join(origin, bytes(32), ConnectionTerms(True)).encode())


def _hello(nonce: bytes) -> Hello:
    return Hello(nonce, bytes(32), 1, 1, Policy(), ConnectionTerms(True))


def refusal(answer: object) -> Refuse:
    assert isinstance(answer, Refused)
    (segment,) = SegmentDecoder().feed(memoryview(answer.reply))
    assert segment.type == SegmentType.REFUSE
    return Refuse.decode(segment.payload)


def test_hello_creates_a_session_and_everything_later_leads_to_it() -> None:
    sessions, created = table()
    first = sessions.route(hello(1), "a")
    assert first == f"{sid(1).hex()} from a"
    assert sessions.route(hello(1), "b") is first
    assert sessions.route(join(1), "c") is first
    assert created == [sid(1)]
    assert sessions.values() == [first]
    assert len(sessions) == 1


def test_a_session_is_made_for_a_whole_hello_and_found_by_a_header() -> None:
    sessions, created = table()
    for length in range(len(hello(1))):
        assert sessions.route(hello(1)[:length], "a") is None
    assert not created
    made = sessions.route(bytearray(hello(1)), "a")
    assert made is not None
    assert sessions.route(bytearray(join(1)[:-1]), "a") is None
    assert sessions.route(bytearray(join(1)), "a") is made


def test_join_for_an_unknown_session_is_told_so_and_why_that_can_be_believed() -> None:
    sessions, created = table()
    assert refusal(sessions.route(join(1), "a")) == Refuse(RefuseCode.UNKNOWN)
    keyed: SessionTable[str] = SessionTable(lambda session_id, _: session_id.hex(), reset_key=b"key")
    origin = origin_of(_hello(bytes(32)).session_part(), ACCEPT_NONCE)
    expected = Refuse(RefuseCode.UNKNOWN, token=reset_token(b"key", sid(1), origin))
    assert refusal(keyed.route(join(1), "a")) == expected
    keyed.route(hello(1), "a")
    assert isinstance(keyed.route(join(1), "a"), str), "it lives: nobody is told the token"
    assert not created


def test_a_join_that_names_another_server_is_told_where_that_is() -> None:
    peers = {b"\x0a\x0b": ("192.0.2.7", 7788)}
    sessions: SessionTable[str] = SessionTable(lambda session_id, source: "mine", peers=peers)
    sessions.route(hello(1), "a")
    payload = Join(origin_of(_hello(bytes(32)).session_part(), ACCEPT_NONCE), bytes(32), ConnectionTerms(True)).encode()
    mine, foreign = (encode_routed(SegmentType.JOIN, sid(number), payload, b"\x0a\x0b") for number in (1, 2))
    assert sessions.route(mine, "a") == "mine", "what is held here is not looked for elsewhere"
    refused = refusal(sessions.route(foreign, "a"))
    assert (refused.meaning, refused.address) == (RefuseCode.ELSEWHERE, ("192.0.2.7", 7788))
    peers[b"\x0a\0"] = peers[b"\0"] = peers[b"\x0a\x0b"]
    sessions = SessionTable(lambda session_id, source: "mine", peers=peers)
    for server, worker in product((b"\x0a\x0b", b"\x0a\0", b"\0"), (b"\0", b"\x03")):
        joining = encode_routed(SegmentType.JOIN, sid(2), payload, server.ljust(7, b"\0") + worker)
        refused = refusal(sessions.route(joining, "a"))
        assert (refused.meaning, refused.address) == (RefuseCode.ELSEWHERE, ("192.0.2.7", 7788))
    nobody = encode_routed(SegmentType.JOIN, sid(2), payload, b"\x0a\x0c")
    assert refusal(sessions.route(nobody, "a")).meaning is RefuseCode.UNKNOWN
    assert refusal(sessions.route(join(2), "a")).meaning is RefuseCode.UNKNOWN


def test_nothing_is_said_of_sessions_that_another_process_with_the_same_key_has() -> None:
    """A reset token ends a session at once: a JOIN that goes astray must not get one."""
    theirs, own = b"server\0\x01", b"server\0\x00"
    sessions: SessionTable[str] = SessionTable(
        lambda session_id, source: "mine", reset_key=b"key", elsewhere=lambda route: route == theirs
    )
    payload = Join(origin_of(_hello(bytes(32)).session_part(), ACCEPT_NONCE), bytes(32), ConnectionTerms(True)).encode()
    astray = refusal(sessions.route(encode_routed(SegmentType.JOIN, sid(1), payload, theirs), "a"))
    assert (astray.meaning, astray.token, astray.address) == (RefuseCode.ELSEWHERE, b"", None)
    told = set()
    for route in (own, b"", b"server\0\x02"):
        gone = refusal(sessions.route(encode_routed(SegmentType.JOIN, sid(1), payload, route), "a"))
        assert gone.meaning is RefuseCode.UNKNOWN
        assert gone.token == reset_token(
            b"key", sid(1), origin_of(_hello(bytes(32)).session_part(), ACCEPT_NONCE), route
        )
        told.add(gone.token)
    assert len(told) == 3, "a stranger may show any route: what is said under one proves nothing under another"


def test_whoever_confirms_first_owns_a_session_id() -> None:
    sessions, created = table()
    squatter, honest = (sessions.route(hello(1, nonce), nonce.hex()) for nonce in (b"s" * 32, b"h" * 32))
    assert isinstance(honest, str)
    assert squatter != honest
    assert created == [sid(1), sid(1)]
    assert sessions.confirmed(honest) == [squatter]
    assert refusal(sessions.route(hello(1, b"t" * 32), "c")).code == RefuseCode.REFUSED
    assert sessions.route(hello(1, b"h" * 32), "c") is honest
    sessions.remove(honest)
    assert isinstance(sessions.route(hello(1, b"t" * 32), "c"), str)


@pytest.mark.parametrize("type_", sorted(set(SegmentType) - {SegmentType.HELLO, SegmentType.JOIN}))
def test_a_connection_starts_with_hello_or_join(type_: SegmentType) -> None:
    sessions, created = table()
    with pytest.raises(RemoteProtocolError, match=type_.name):
        sessions.route(encode(type_, sid(1)), "a")
    assert not created


def test_a_removed_session_is_unknown_and_its_place_is_free() -> None:
    sessions, created = table()
    made = sessions.route(hello(1), "a")
    assert isinstance(made, str)
    sessions.remove(made)
    sessions.remove(made)
    sessions.remove("another")
    assert len(sessions) == 0
    assert refusal(sessions.route(join(1), "a")).code == RefuseCode.UNKNOWN
    assert isinstance(sessions.route(hello(1), "a"), str)
    assert created == [sid(1), sid(1)]


def test_where_there_is_no_room_the_limit_is_named_and_known_sessions_are_found() -> None:
    room = {"a": 1, "b": 2}
    sessions, created = table(lambda source: None if room[source] > len(created) else ("max_sessions", source))
    living = sessions.route(hello(1), "a")
    busy = refusal(sessions.route(hello(2), "a"))
    assert (busy.code, busy.limit) == (RefuseCode.BUSY, "max_sessions")
    assert sessions.route(hello(1), "a") is living
    assert sessions.route(join(1), "a") is living
    assert isinstance(sessions.route(hello(2), "b"), str)
    assert created == [sid(1), sid(2)]


def test_a_closing_server_takes_joins_and_no_new_sessions() -> None:
    sessions, _ = table()
    living = sessions.route(hello(1), "a")
    sessions.refuse_new()
    assert sessions.route(join(1), "a") is living
    assert sessions.route(hello(1), "a") is living
    assert refusal(sessions.route(hello(2), "a")).code == RefuseCode.GOING_AWAY


@pytest.mark.parametrize("version", [2, 3, 15])
def test_a_later_version_hears_which_versions_are_spoken_here(version: int) -> None:
    sessions, created = table()
    raw = bytes([version]) + hello(1)[1:]
    assert sessions.route(raw[: HEADER_LENGTH - 1], "a") is None
    answer = refusal(sessions.route(raw, "a"))
    assert answer == Refuse(RefuseCode.VERSION, (1,))
    assert not created


@pytest.mark.parametrize("first", [HTTP, CLIENT_HELLO_OF_TLS, b"SSH-2.0-OpenSSH\r\n", bytes(40), b"\xff" * 40])
def test_bytes_that_are_not_multi_are_refused_with_the_first_of_them(first: bytes) -> None:
    sessions, created = table()
    for length in (1, 8, len(first)):
        with pytest.raises(RemoteProtocolError, match="unknown version"):
            sessions.route(first[:length], "a")
    assert not created


@given(st.binary(max_size=80), st.booleans())
def test_random_bytes_give_an_answer_or_a_protocol_error(data: bytes, like_multi: bool) -> None:
    sessions, created = table()
    if like_multi:
        data = b"\x01" + data
    try:
        answer = sessions.route(data, "a")
    except RemoteProtocolError:
        assert not created
        return
    assert answer is None or isinstance(answer, (str, Refused))
    assert len(created) == isinstance(answer, str)
    assert answer is not None or len(data) < HEADER_LENGTH
