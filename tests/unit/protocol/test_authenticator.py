"""Who gets into a session and who does not, on every kind of connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from multi.protocol.acceptor import Refused, SessionTable
from multi.protocol.authenticator import ClientAuthenticator, ServerAuthenticator
from multi.protocol.control import MAX_AHEAD
from multi.protocol.handshake import (
    MAX_TICKETS,
    WHEREABOUTS,
    Accept,
    Challenge,
    ConnectionTerms,
    Hello,
    Join,
    KeyPair,
    Refuse,
    RefuseCode,
    Ticket,
    Whereabouts,
    origin_of,
    reset_token,
)
from multi.protocol.payloads import Policy
from multi.protocol.sealing import Cipher
from multi.protocol.segment import HEADER_LENGTH, SegmentDecoder, SegmentType, encode, route_of
from multi.protocol.session import UNKNOWN_SAID
from multi.protocol.settings import AHEAD_OF_PROOF, Protect, SessionSettings
from multi.types import STREAM_ZERO, ConnectionFacts, SessionId

from .wiring import CLEAR, PLAIN, QUIC, TLS, Change, Ends, Line, Node, kinds

SECRET_TEXT = b"a secret of the application"
ALWAYS = SessionSettings(protect=Protect.ALWAYS)
T = SegmentType

every_connection = pytest.mark.parametrize(
    ("settings", "facts"),
    [(SessionSettings(), PLAIN), (SessionSettings(), TLS), (SessionSettings(), QUIC), (CLEAR, PLAIN), (ALWAYS, QUIC)],
    ids=["sealed", "tls", "quic", "clear", "sealed in quic"],
)


def opened(settings: SessionSettings | None = None, facts: ConnectionFacts = PLAIN) -> tuple[Ends, Line]:
    """A session with one authenticated connection."""
    ends = Ends(settings, settings)
    line = ends.connect(facts)
    ends.pump()
    assert ends.client.states()[line.id] == ends.server.states()[line.id] == "active"
    return ends, line


def payload(segment: bytes) -> bytes:
    return segment[HEADER_LENGTH:]


def origin(ends: Ends) -> bytes:
    """Of the client's session: whoever hears its HELLO and ACCEPT knows it."""
    return ends.client.session._auth._origin  # type: ignore[attr-defined,no-any-return]


def first(line: Line, type_: SegmentType, *, down: bool = False) -> bytes:
    return next(s for s in (line.sent_down if down else line.sent_up) if s[1] == type_)


def changing(type_: SegmentType, change: Callable[[bytes], bytes]) -> Change:
    """Rewrite the payload of the segments of one type in flight."""

    def apply(segment: bytes) -> bytes:
        if segment[1] != type_:
            return segment
        return encode(type_, SessionId(segment[8:24]), change(payload(segment)))

    return apply


def heard_from_stranger(ends: Ends, *segments: bytes, facts: ConnectionFacts = PLAIN) -> Line:
    """A connection of somebody who says `segments`, perhaps captured ones; `sent_down` is the answer."""
    line = ends.stranger(facts)
    line.inject(*segments)
    ends.pump()
    return line


def answered_by_somebody_else(ends: Ends, answer: bytes, facts: ConnectionFacts = PLAIN) -> Line:
    """A connection whose first words never get to the server."""
    line = ends.connect(facts)
    line.captured = True
    ends.pump()
    line.answer(answer)
    ends.pump()
    return line


def refusal(ends: Ends) -> bytes:
    """The one answer to everybody who fails."""
    return ends.segment(T.REFUSE, Refuse(RefuseCode.REFUSED).encode())


def choosing(**other: Any) -> Change:
    """Rewrite what ACCEPT says of the connection."""

    def change(data: bytes) -> bytes:
        accept = Accept.decode(data)
        return replace(accept, choice=replace(accept.choice, **other)).encode()

    return changing(T.ACCEPT, change)


def flipping(type_: SegmentType, position: int) -> Change:
    def flip(data: bytes) -> bytes:
        altered = bytearray(data)
        altered[position] ^= 1
        return bytes(altered)

    return changing(type_, flip)


def assert_closed_to(ends: Ends, line: Line) -> None:
    """Neither side treats the connection as part of the session."""
    assert ends.client.states().get(line.id) != "active"
    if line.server is not None:
        assert line.server.states()[line.id] == "lost"


# --- the good cases  ---


@every_connection
def test_a_session_opens_and_carries_data_both_ways(settings: SessionSettings, facts: ConnectionFacts) -> None:
    ends, _ = opened(settings, facts)
    ends.write(ends.client, b"question")
    ends.write(ends.server, b"answer")
    assert (ends.server.got(), ends.client.got()) == (b"question", b"answer")
    assert ends.client.session.confirmed
    assert ends.server.session.confirmed


@every_connection
def test_a_second_connection_joins_with_keys_of_its_own(settings: SessionSettings, facts: ConnectionFacts) -> None:
    ends, first_line = opened(settings, facts)
    second = ends.connect(facts)
    ends.pump()
    assert ends.client.states() == ends.server.states() == {first_line.id: "active", second.id: "active"}
    assert kinds(second.sent_up)[0] == T.JOIN
    assert (T.PROVE in kinds(second.sent_up)) is not facts.secure, "on plain connections somebody may repeat a JOIN"
    assert kinds(second.sent_down)[0] == (T.CHALLENGE if settings is CLEAR else T.ADMIT)
    numbers = [c.number for c in ends.client.session.connections.values()]
    assert numbers == [c.number for c in ends.server.session.connections.values()] == [0, 1]


@every_connection
def test_without_a_ticket_the_server_asks(settings: SessionSettings, facts: ConnectionFacts) -> None:
    ends, first_line = opened(settings, facts)
    spend_tickets(ends)
    second = ends.connect(facts)
    ends.pump()
    assert ends.client.states() == ends.server.states() == {first_line.id: "active", second.id: "active"}
    assert kinds(second.sent_up)[:2] == [T.JOIN, T.PROVE]
    assert kinds(second.sent_down)[0] == T.CHALLENGE


@pytest.mark.parametrize(
    ("settings", "facts", "at_once"),
    [
        (SessionSettings(), PLAIN, True),
        (SessionSettings(), replace(TLS, peer_verified=True), True),
        (SessionSettings(), replace(QUIC, peer_verified=True), True),
        (SessionSettings(), replace(TLS, peer_verified=False), False),
        (ALWAYS, QUIC, False),
        (CLEAR, PLAIN, False),
        (SessionSettings(), replace(PLAIN, told=True), False),
        (SessionSettings(), replace(TLS, peer_verified=True, told=True), True),
    ],
    ids=[
        *("sealed", "verified tls", "verified quic", "tls of somebody", "sealed in quic", "clear"),
        *("sealed, where a server sends its clients", "verified tls, where a server sends its clients"),
    ],
)
def test_data_follows_a_ticket_where_nobody_else_can_read_it(
    settings: SessionSettings, facts: ConnectionFacts, at_once: bool
) -> None:
    ends, line = opened(settings, facts)
    ends.lose(line)
    second = ends.connect(facts)
    second.hold_down = True
    ends.client.session.write(STREAM_ZERO, b"at once", now=ends.now)
    ends.pump()
    assert (ends.server.got() == b"at once") is at_once
    second.hold_down = False
    ends.pump()
    assert ends.server.got() == b"at once"


@pytest.mark.parametrize("where", [Whereabouts(b"\x0a\x0b"), Whereabouts(b"", True), Whereabouts(bytes(8), True)])
def test_what_a_server_says_of_its_place_is_part_of_what_it_proves(where: Whereabouts) -> None:
    ends = Ends(None, replace(SessionSettings(), whereabouts=where))
    line = ends.connect()
    ends.pump()
    assert ends.client.session.route == where.route
    ends.connect()
    ends.pump()
    assert route_of(ends.lines[-1].sent_up[0]) == where.route

    forged = Ends(None, replace(SessionSettings(), whereabouts=where))
    line = forged.connect()

    def move(segment: bytes) -> bytes:
        if segment[1] != T.ACCEPT:
            return segment
        accept = Accept.decode(payload(segment))
        elsewhere = replace(where, elsewhere=not where.elsewhere).encode()
        extensions = tuple((kind, elsewhere if kind == WHEREABOUTS else value) for kind, value in accept.extensions)
        return encode(T.ACCEPT, forged.session_id, replace(accept, extensions=extensions).encode())

    line.change_down = move
    forged.pump()
    assert "proof is wrong" in forged.client.ended[line.id]


def test_the_server_sends_with_its_answer_to_a_ticket() -> None:
    ends, line = opened()
    ends.lose(line)
    ends.server.session.write(STREAM_ZERO, b"waiting", now=ends.now)
    ends.connect()
    ends.pump()
    assert ends.client.got() == b"waiting"


def test_a_client_holds_four_tickets_and_gets_new_ones_for_those_it_uses() -> None:
    ends, _ = opened()
    for _ in range(10):
        assert len(tickets_of(ends.client)) == len(tickets_of(ends.server)) == MAX_TICKETS
        line = ends.connect()
        ends.pump()
        assert T.ADMIT in kinds(line.sent_down)
        ends.lose(line)
    numbers = [c.number for c in ends.client.session.connections.values()]
    assert len(numbers) == len(set(numbers))


def test_a_ticket_is_good_for_one_join() -> None:
    ends, _ = opened()
    joined = ends.connect()
    ends.pump()
    replay = heard_from_stranger(ends, *joined.sent_up)
    assert kinds(replay.sent_down)[0] == T.CHALLENGE
    assert ends.server.states()[replay.id] != "active"


def test_a_client_whose_joins_were_lost_gets_tickets_again() -> None:
    ends, _ = opened()
    for _ in range(MAX_TICKETS):
        lost = ends.connect()
        lost.captured = True
        ends.pump()
        ends.lose(lost)
    assert not tickets_of(ends.client)
    asked = ends.connect()
    ends.pump()
    assert T.CHALLENGE in kinds(asked.sent_down)
    assert len(tickets_of(ends.client)) == MAX_TICKETS
    again = ends.connect()
    ends.pump()
    assert kinds(again.sent_down)[0] == T.ADMIT


def test_a_client_that_acknowledges_nothing_gets_no_tickets_until_it_does() -> None:
    ends, line = opened(CLEAR, TLS)
    unacknowledged = ends.server.session.outbox

    def join() -> Line:
        line = ends.connect(TLS)
        line.change_up = lambda segment: None if segment[1] == T.ACK else segment
        ends.pump()
        return line

    for _ in range(MAX_AHEAD + 10):
        ends.lose(line)
        line = join()
    assert len(unacknowledged) == MAX_AHEAD
    while tickets_of(ends.client):
        line = join()
    line.change_up = None
    ends.connect(TLS)
    ends.advance(1.0)
    assert unacknowledged.empty
    ends.connect(TLS)
    ends.pump()
    assert len(tickets_of(ends.client)) == MAX_TICKETS


def test_who_is_faster_with_a_join_he_has_heard_gets_nothing() -> None:
    ends, line = opened()
    joined = ends.connect()
    joined.captured = True
    ends.client.session.write(STREAM_ZERO, b"the client's own", now=ends.now)
    line.hold_up = line.hold_down = True
    ends.pump()
    thief = ends.stranger()
    thief.inject(*joined.sent_up)
    ends.server.session.write(STREAM_ZERO, SECRET_TEXT, now=ends.now)
    ends.pump()
    assert kinds(thief.sent_down) == [T.ADMIT]
    assert ends.server.states()[thief.id] == "authenticating"
    ends.advance(6)
    assert ends.server.states()[thief.id] == "lost"


def test_a_ticket_of_somebody_who_cannot_prove_anything_stays_good() -> None:
    ends, _ = opened()
    stolen = tickets_of(ends.client)[0]
    thief = ends.stranger()
    join = Join(origin(ends), bytes(32), ConnectionTerms(sealed=True), stolen.nonce, bytes(32))
    thief.inject(ends.segment(T.JOIN, join.encode()))
    ends.pump()
    assert kinds(thief.sent_down) == [T.REFUSE]
    honest = ends.connect()
    ends.pump()
    assert kinds(honest.sent_down)[0] == T.ADMIT


@every_connection
def test_what_followed_a_ticket_the_server_has_forgotten_is_sent_again(
    settings: SessionSettings, facts: ConnectionFacts
) -> None:
    ends, line = opened(settings, facts)
    ends.lose(line)
    authenticator = ends.server.session._auth
    assert isinstance(authenticator, ServerAuthenticator)
    authenticator._tickets.clear()
    second = ends.connect(facts)
    ends.client.session.write(STREAM_ZERO, SECRET_TEXT * 100, now=ends.now)
    ends.pump()
    assert kinds(second.sent_down)[0] == T.CHALLENGE
    assert ends.server.got() == SECRET_TEXT * 100
    ends.write(ends.server, b"answer")
    assert ends.client.got() == b"answer"


def test_what_nobody_can_read_before_the_proof_is_bounded() -> None:
    ends, _ = opened()
    line = ends.connect()
    ends.pump()
    flood = heard_from_stranger(ends, first(line, T.JOIN))  # heard on the way: its ticket has been used
    assert kinds(flood.sent_down) == [T.CHALLENGE]
    for _ in range(10):
        flood.inject(ends.segment(T.DATA, bytes(60_000)))
    ends.pump()
    assert ends.server.states()[flood.id] == "lost"
    assert not ends.server.session.connections[flood.id].held


def test_tickets_relayed_through_another_certificate_open_nothing() -> None:
    ends, _ = opened(None, TLS)
    line = ends.connect(TLS, replace(TLS, channel_binding=b"another"))
    ends.pump()
    assert kinds(line.sent_down) == [T.REFUSE]
    assert ends.client.states()[line.id] == "lost"
    assert ends.server.states()[line.id] != "active"


def tickets_of(node: Node) -> list[Ticket]:
    authenticator = node.session._auth
    if isinstance(authenticator, ClientAuthenticator):
        return authenticator._tickets
    assert isinstance(authenticator, ServerAuthenticator)
    return [Ticket(number, nonce) for nonce, number in authenticator._tickets.items()]


def spend_tickets(ends: Ends) -> None:
    """The client has no ticket and gets no more."""
    tickets_of(ends.client).clear()
    ends.server.session._auth.hand_out_tickets = lambda connection: None  # type: ignore[method-assign]


def test_sealed_connections_carry_data_after_one_round_trip_and_nothing_readable() -> None:
    ends = Ends()
    line = ends.connect(PLAIN)
    line.hold_down = True
    ends.pump()
    assert not ends.client.opened
    assert kinds(line.sent_up) == [T.HELLO]
    assert ends.server.opened
    ends.write(ends.server, SECRET_TEXT)
    assert kinds(line.sent_down)[:2] == [T.ACCEPT, T.DATA]
    line.hold_down = False
    ends.pump()
    assert ends.client.got() == SECRET_TEXT
    ends.write(ends.client, SECRET_TEXT)
    assert ends.server.got() == SECRET_TEXT
    assert not any(SECRET_TEXT in segment for segment in line.sent_up + line.sent_down)


@pytest.mark.parametrize(("settings", "facts"), [(None, TLS), (None, QUIC), (CLEAR, PLAIN)])
def test_elsewhere_data_follows_hello_at_once(settings: SessionSettings | None, facts: ConnectionFacts) -> None:
    ends = Ends(settings, settings)
    line = ends.connect(facts)
    line.hold_down = True
    ends.pump()
    assert ends.client.opened
    ends.write(ends.client, b"x" * 100_000)
    assert ends.server.got() == b"x" * AHEAD_OF_PROOF
    assert T.ACCEPT not in kinds(line.sent_up)
    line.hold_down = False
    ends.pump()
    assert len(ends.server.got()) == 100_000


@pytest.mark.parametrize("cipher", list(Cipher), ids=lambda c: c.name)
def test_the_cipher_is_one_that_both_sides_allow(cipher: Cipher) -> None:
    ends = Ends(None, SessionSettings(ciphers=(cipher,)))
    line = ends.connect(PLAIN)
    ends.pump()
    assert Accept.decode(payload(first(line, T.ACCEPT, down=True))).choice.cipher is cipher
    ends.write(ends.client, b"data")
    assert ends.server.got() == b"data"


def test_no_cipher_in_common_is_refused() -> None:
    ends = Ends(SessionSettings(ciphers=(Cipher.AES_128_GCM,)), SessionSettings(ciphers=(Cipher.CHACHA20_POLY1305,)))
    line = ends.connect(PLAIN)
    ends.pump()
    assert Refuse.decode(payload(line.sent_down[0])).code == RefuseCode.PROTECTION
    assert not ends.server.opened


@pytest.mark.parametrize(
    ("client", "server", "secure"), list(product(Protect, Protect, [False, True])), ids=lambda v: getattr(v, "value", v)
)
def test_sides_that_disagree_on_protection_refuse_each_other(client: Protect, server: Protect, secure: bool) -> None:
    ends = Ends(SessionSettings(protect=client), SessionSettings(protect=server))
    line = ends.connect(TLS if secure else PLAIN)
    ends.pump()
    if client.seals(secure) == server.seals(secure):
        ends.write(ends.client, SECRET_TEXT)
        assert ends.server.got() == SECRET_TEXT
        clear = any(SECRET_TEXT in segment for segment in line.sent_up)
        assert clear == (not client.seals(secure))
    else:
        assert_closed_to(ends, line)
        assert Refuse.decode(payload(line.sent_down[0])) == Refuse(RefuseCode.PROTECTION)
        assert "protect" in ends.client.session.connections[line.id].reason
        assert not ends.server.opened
        assert not ends.server.got()


# --- altered in flight  ---


@pytest.mark.parametrize("facts", [PLAIN, TLS], ids=["sealed", "tls"])
@pytest.mark.parametrize("type_", [T.HELLO, T.ACCEPT, T.CONFIRM], ids=lambda t: t.name)
def test_no_byte_of_the_first_handshake_can_be_altered(facts: ConnectionFacts, type_: SegmentType) -> None:
    _, sample = opened(None, facts)
    down = type_ == T.ACCEPT
    for position in range(len(payload(first(sample, type_, down=down)))):
        ends = Ends()
        line = ends.connect(facts)
        setattr(line, "change_down" if down else "change_up", flipping(type_, position))
        ends.pump()
        assert not ends.server.session.confirmed, position
        assert ends.server.states().get(line.id) != "active"
        if type_ != T.CONFIRM:
            assert ends.client.states()[line.id] != "active"
            assert not ends.client.session.confirmed


@pytest.mark.parametrize("facts", [PLAIN, TLS], ids=["sealed", "tls"])
@pytest.mark.parametrize("type_", [T.JOIN, T.CHALLENGE, T.PROVE, T.ADMIT], ids=lambda t: t.name)
def test_no_byte_of_a_join_can_be_altered(facts: ConnectionFacts, type_: SegmentType) -> None:
    ends, living = opened(None, facts)
    if type_ != T.ADMIT:
        spend_tickets(ends)
    sample = ends.connect(facts)
    ends.pump()
    down = type_ in (T.CHALLENGE, T.ADMIT)
    for position in range(len(payload(first(sample, type_, down=down)))):
        line = ends.connect(facts)
        setattr(line, "change_down" if down else "change_up", flipping(type_, position))
        ends.pump()
        if type_ != T.ADMIT:  # the client had proved itself before
            assert ends.server.states().get(line.id) != "active", position
        if type_ != T.PROVE:
            assert ends.client.states()[line.id] != "active"
        honest = ends.connect(facts)  # brings the client tickets for those that were of no use
        ends.pump()
        ends.lose(line)
        ends.lose(honest)
        for node, over in product((ends.client, ends.server), (line, honest)):
            node.session.forget_connection(over.id)
    assert ends.client.states()[living.id] == ends.server.states()[living.id] == "active"
    ends.write(ends.client, b"alive")
    assert ends.server.got() == b"alive"


def rewritten_hello(**changes: object) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        return replace(Hello.decode(data), **changes).encode()  # type: ignore[arg-type]

    return change


@pytest.mark.parametrize(
    "change",
    [
        rewritten_hello(terms=ConnectionTerms(sealed=True, ciphers=(Cipher.CHACHA20_POLY1305,))),
        rewritten_hello(versions=(1, 2)),
        rewritten_hello(policy=Policy("redundant")),
        rewritten_hello(window=1 << 20),
        rewritten_hello(key=KeyPair(b"\x07" * 32).public),
        rewritten_hello(psk_id=b"somebody"),
    ],
    ids=["cipher", "versions", "policy", "window", "key", "key name"],
)
def test_a_hello_rewritten_on_the_way_is_noticed_by_the_client(change: Callable[[bytes], bytes]) -> None:
    ends = Ends()
    line = ends.connect(PLAIN)
    line.change_up = changing(T.HELLO, change)
    ends.pump()
    assert ends.client.states()[line.id] == "lost"
    assert "proof" in ends.client.ended[line.id]
    assert T.CONFIRM not in kinds(line.sent_up)


def test_sealing_cannot_be_negotiated_away() -> None:
    """The `sealed` flag is cleared in HELLO and set again in ACCEPT: both sides still notice."""
    ends = Ends(None, CLEAR)
    line = ends.connect(PLAIN)

    def clear(data: bytes) -> bytes:
        hello = Hello.decode(data)
        return replace(hello, terms=replace(hello.terms, sealed=False)).encode()

    line.change_up = changing(T.HELLO, clear)
    line.change_down = choosing(sealed=True)
    ends.pump()
    assert ends.client.states()[line.id] == "lost"
    ends.write(ends.client, SECRET_TEXT)
    assert not any(SECRET_TEXT in s for s in line.sent_up)


def test_a_server_that_answers_unsealed_is_left() -> None:
    ends = Ends()
    line = ends.connect(PLAIN)
    line.change_down = choosing(sealed=False)
    ends.pump()
    assert "changed the protection" in ends.client.ended[line.id]


def test_a_cipher_that_was_not_offered_is_refused_by_the_client() -> None:
    ends = Ends(SessionSettings(ciphers=(Cipher.AES_128_GCM,)))
    line = ends.connect(PLAIN)
    line.change_down = choosing(cipher=Cipher.CHACHA20_POLY1305)
    ends.pump()
    assert "not offered" in ends.client.ended[line.id]


def test_a_version_that_was_not_offered_is_refused_by_the_client() -> None:
    ends = Ends()
    line = ends.connect(PLAIN)
    line.change_down = changing(T.ACCEPT, lambda data: replace(Accept.decode(data), version=7).encode())
    ends.pump()
    assert "version 7" in ends.client.ended[line.id]


def test_a_hello_without_a_common_version_hears_which_there_are() -> None:
    ends = Ends()
    line = ends.connect(TLS)
    line.change_up = changing(T.HELLO, rewritten_hello(versions=(9,)))
    ends.pump()
    assert Refuse.decode(payload(line.sent_down[0])) == Refuse(RefuseCode.VERSION, (1,))


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31)], ids=["zero", "one"])
def test_keys_of_small_order_are_refused_by_both_sides(key: bytes) -> None:
    ends = Ends()
    line = ends.connect(TLS)
    line.change_up = changing(T.HELLO, rewritten_hello(key=key))
    ends.pump()
    assert "small order" in ends.server.ended[line.id]
    assert not ends.server.opened

    ends = Ends()
    line = ends.connect(TLS)
    line.change_down = changing(T.ACCEPT, lambda data: replace(Accept.decode(data), key=key).encode())
    ends.pump()
    assert "small order" in ends.client.ended[line.id]


@pytest.mark.parametrize("type_", [T.HELLO, T.JOIN], ids=lambda t: t.name)
def test_a_relay_with_another_certificate_is_noticed(type_: SegmentType) -> None:
    through_relay = replace(TLS, channel_binding=b"\x22" * 32)
    ends = Ends()
    if type_ == T.JOIN:
        ends.connect(TLS)
        ends.pump()
    line = ends.connect(through_relay, TLS)
    ends.pump()
    assert ends.client.states()[line.id] == "lost"
    assert "proof" in ends.client.ended[line.id]
    assert ends.server.states()[line.id] != "active"


# --- replays and strangers  ---


def test_a_recorded_join_does_not_join_again() -> None:
    ends, _ = opened()
    spend_tickets(ends)
    joined = ends.connect(PLAIN)
    ends.pump()
    replay = heard_from_stranger(ends, first(joined, T.JOIN), first(joined, T.PROVE))
    assert kinds(replay.sent_down) == [T.CHALLENGE, T.REFUSE]
    assert ends.server.states()[replay.id] == "lost"
    used = {c.number for c in ends.client.session.connections.values()}
    assert Challenge.decode(payload(replay.sent_down[0])).choice.number not in used


@pytest.mark.parametrize("facts", [PLAIN, TLS], ids=["sealed", "tls"])
def test_a_recorded_hello_is_refused_once_the_session_is_confirmed(facts: ConnectionFacts) -> None:
    ends, line = opened(None, facts)
    replay = heard_from_stranger(ends, *[s for s in line.sent_up if s[1] in (T.HELLO, T.CONFIRM)], facts=facts)
    assert replay.sent_down == [refusal(ends)]
    assert ends.server.states() == {line.id: "active", replay.id: "lost"}


@pytest.mark.parametrize(("settings", "facts"), [(None, PLAIN), (None, TLS), (CLEAR, PLAIN)])
def test_a_hello_replayed_before_confirm_learns_and_changes_nothing(
    settings: SessionSettings | None, facts: ConnectionFacts
) -> None:
    ends = Ends(settings, settings)
    line = ends.connect(facts)
    line.hold_down = True
    ends.pump()
    replay = ends.stranger(facts)
    replay.inject(first(line, T.HELLO))
    if not (settings or SessionSettings()).protect.seals(facts.secure):
        replay.inject(ends.segment(T.DATA, b"forged"), ends.segment(T.FIN, bytes(8)))
    ends.pump()
    ends.write(ends.server, SECRET_TEXT)
    assert kinds(replay.sent_down) == [T.ACCEPT]
    assert ends.server.got() == b""
    line.hold_down = False
    ends.pump()
    assert ends.client.got() == SECRET_TEXT
    ends.write(ends.client, b"genuine")
    assert ends.server.got() == b"genuine"
    replay.inject(first(line, T.CONFIRM))
    ends.pump()
    assert ends.server.states() == {line.id: "active", replay.id: "lost"}
    assert kinds(replay.sent_down) == [T.ACCEPT, T.REFUSE]
    assert ends.server.got() == b"genuine"


def test_another_hello_for_a_living_session_is_refused() -> None:
    ends = Ends()
    line = ends.connect(PLAIN)
    ends.pump()
    ends.table.confirmed(ends.server)
    thief = Hello(b"n" * 32, KeyPair(b"k" * 32).public, 65536, 128, Policy(), ConnectionTerms(sealed=True))
    other = heard_from_stranger(ends, ends.segment(T.HELLO, thief.encode()))
    assert len(ends.servers) == 1
    assert other.sent_down == [refusal(ends)]
    assert ends.server.states()[line.id] == "active"


def test_another_hello_for_an_unconfirmed_session_is_a_session_of_its_own() -> None:
    ends = Ends()
    line = ends.connect(PLAIN)
    line.hold_down = True
    ends.pump()
    thief = Hello(b"n" * 32, KeyPair(b"k" * 32).public, 65536, 128, Policy(), ConnectionTerms(sealed=True))
    other = heard_from_stranger(ends, ends.segment(T.HELLO, thief.encode()))
    assert kinds(other.sent_down) == [T.ACCEPT]
    line.hold_down = False
    ends.pump()
    honest, squatter = ends.servers
    assert honest.states()[line.id] == "active"
    assert not squatter.session.confirmed


@pytest.mark.parametrize("facts", [PLAIN, TLS], ids=["sealed", "tls"])
def test_every_failed_join_gets_the_same_answer(facts: ConnectionFacts) -> None:
    """Unknown session, session before its keys, wrong proof, wrong kind of proof, other protection: one answer."""
    ends, _ = opened(None, facts)
    sealed = not facts.secure
    terms = ConnectionTerms(sealed=sealed)
    forged = Join(origin(ends), b"j" * 32, terms).encode()
    joined = ends.connect(facts)
    ends.pump()
    heard = payload(first(joined, T.JOIN))
    other_terms = replace(Join.decode(heard), terms=replace(terms, sealed=not sealed)).encode()
    answers = []
    for injected in (
        [ends.segment(T.JOIN, forged)],
        [ends.segment(T.JOIN, other_terms)],
        [ends.segment(T.JOIN, heard), ends.segment(T.PROVE, bytes(32))],
        [ends.segment(T.JOIN, heard), ends.segment(T.CONFIRM, bytes(32))],
    ):
        line = heard_from_stranger(ends, *injected, facts=facts)
        assert ends.server.states()[line.id] == "lost"
        answers.append(line.sent_down[-1])

    assert set(answers) == {refusal(ends)}


@pytest.mark.parametrize("facts", [PLAIN, TLS], ids=["sealed", "tls"])
def test_a_join_for_a_session_that_is_not_there_is_told_so(facts: ConnectionFacts) -> None:
    ends, _ = opened(None, facts)
    for session_origin, table in ((origin(ends), ends.new_table()), (bytes(16), ends.table)):
        unknown = ends.stranger(facts)
        unknown.table = table
        unknown.inject(ends.segment(T.JOIN, Join(session_origin, bytes(32), ConnectionTerms(True)).encode()))
        ends.pump()
        (answer,) = unknown.sent_down
        assert Refuse.decode(payload(answer)).meaning is RefuseCode.UNKNOWN


def test_knowing_the_session_id_is_not_enough() -> None:
    ends, line = opened(CLEAR)
    for proof in (bytes(32), b"\xff" * 32, ends.session_id * 2):
        stranger = ends.stranger()
        stranger.inject(
            ends.segment(T.JOIN, Join(origin(ends), b"j" * 32, ConnectionTerms(sealed=False), b"", proof).encode()),
            ends.segment(T.DATA, b"forged"),
            ends.segment(T.PROVE, proof),
            ends.segment(T.DATA, b"forged"),
        )
        ends.pump()
        assert kinds(stranger.sent_down) == [T.REFUSE]
        assert ends.server.states()[stranger.id] == "lost"
    assert ends.server.got() == b""
    assert ends.server.states()[line.id] == "active"


@pytest.mark.parametrize("type_", sorted(set(T) - {T.HELLO, T.JOIN}), ids=lambda t: t.name)
def test_nothing_but_a_handshake_opens_a_connection_to_a_living_session(type_: SegmentType) -> None:
    ends, line = opened(CLEAR)
    stranger = heard_from_stranger(ends, ends.segment(type_, bytes(8)))
    assert type_.name in stranger.error
    assert ends.server.states() == {line.id: "active"}


@pytest.mark.parametrize("type_", [T.CHALLENGE, T.PROVE, T.CONFIRM, T.JOIN, T.HELLO, T.ACCEPT], ids=lambda t: t.name)
def test_a_client_takes_only_the_answer_it_waits_for(type_: SegmentType) -> None:
    ends = Ends()
    line = answered_by_somebody_else(ends, ends.segment(type_, bytes(32)))
    assert ends.client.states()[line.id] == "lost"
    assert not ends.client.opened


def test_a_replayed_refusal_costs_one_connection_and_not_the_session() -> None:
    ends, line = opened()
    for _ in range(5):
        attempt = answered_by_somebody_else(ends, refusal(ends))
        assert ends.client.states()[attempt.id] == "lost"
    assert ends.client.closed is None
    ends.write(ends.client, b"alive")
    assert ends.server.got() == b"alive"
    line.answer(refusal(ends))
    ends.pump()
    assert ends.client.states()[line.id] == "lost"
    assert ends.client.closed is None


@pytest.mark.parametrize("code", set(RefuseCode) - {RefuseCode.UNKNOWN}, ids=lambda code: code.name)
@pytest.mark.parametrize("facts", [PLAIN, TLS], ids=["sealed", "verified"])
def test_without_a_connection_nothing_but_an_unknown_session_ends_it(facts: ConnectionFacts, code: RefuseCode) -> None:
    ends, line = opened(None, facts)
    ends.lose(line)
    for _ in range(10):
        answered_by_somebody_else(ends, ends.segment(T.REFUSE, Refuse(code, token=bytes(32)).encode()), facts)
    assert ends.client.closed is None


def test_a_wrong_reset_token_is_no_proof_and_silence_on_another_network_is_no_answer() -> None:
    ends, line = opened(SessionSettings(reset_key=b"k" * 32))
    ends.lose(line)
    ends.client.session.paths = Networks("wifi", "cellular")  # type: ignore[assignment]
    for network, ended in (("wifi", False), ("cellular", True)):
        for _ in range(UNKNOWN_SAID if ended else 10):
            assert ends.client.closed is None
            answered_by_somebody_else(
                ends,
                ends.segment(T.REFUSE, Refuse(RefuseCode.UNKNOWN, token=bytes(32)).encode()),
                replace(PLAIN, interface=network),
            )
        assert (ends.client.closed is not None) is ended


@pytest.mark.parametrize(("facts", "ended"), [(TLS, True), (PLAIN, False)], ids=["verified", "sealed"])
def test_a_server_that_is_verified_is_believed_over_any_network_of_its_connection(
    facts: ConnectionFacts, ended: bool
) -> None:
    """What goes over several is answered over the nearest one, and the others never say anything."""
    ends, line = opened(None, facts)
    ends.lose(line)
    ends.client.session.paths = Networks("wifi")  # type: ignore[assignment]
    unknown = ends.segment(T.REFUSE, Refuse(RefuseCode.UNKNOWN, token=bytes(32)).encode())
    for _ in range(UNKNOWN_SAID):
        assert ends.client.closed is None
        answered_by_somebody_else(ends, unknown, replace(facts, interface="cellular", more_interfaces=("wifi",)))
    assert (ends.client.closed is not None) is ended


def test_a_stranger_who_is_faster_than_a_hello_is_told_no_token_of_its_session() -> None:
    """Whoever hears HELLO on one network may ask for its session by a shorter way, before there is one."""
    ends = Ends(None, SessionSettings(reset_key=b"k" * 32))
    auth = ends.client.session._auth
    assert isinstance(auth, ClientAuthenticator)
    greeting = auth._hello.session_part()
    empty: SessionTable[str] = SessionTable(lambda session_id, _: session_id.hex(), reset_key=b"k" * 32)

    def told(origin: bytes) -> bytes:
        answer = empty.route(ends.segment(T.JOIN, Join(origin, bytes(32), ConnectionTerms(True)).encode()), "a")
        assert isinstance(answer, Refused)
        (segment,) = SegmentDecoder().feed(memoryview(answer.reply))
        return Refuse.decode(segment.payload).token

    early = {told(origin_of(greeting, guess)) for guess in (bytes(32), auth._hello.nonce, auth._hello.key)}
    ends.connect()
    ends.pump()
    assert len(early) == 3
    assert not any(auth.knows_reset(token) for token in early)
    assert auth.knows_reset(told(origin(ends))), "what a server says that has forgotten the session"


def test_a_reset_token_counts_only_under_the_route_of_the_server_that_holds_the_session() -> None:
    """Processes of a server share the key: those that do not hold a session may be asked for it by anybody."""
    key, mine = b"k" * 32, b"\x0a\x01"
    settings = SessionSettings(reset_key=key, whereabouts=Whereabouts(mine))
    ends, line = opened(settings)
    ends.lose(line)
    for route, ended in ((b"", False), (b"\x0a\x02", False), (mine, True)):
        token = reset_token(key, ends.session_id, origin(ends), route)
        answered_by_somebody_else(ends, ends.segment(T.REFUSE, Refuse(RefuseCode.UNKNOWN, token=token).encode()))
        assert (ends.client.closed is not None) is ended


@pytest.mark.parametrize(("told", "away", "ended"), [(False, False, False), (False, True, True), (True, False, True)])
def test_other_servers_behind_the_same_address_end_no_session_while_its_own_may_live(
    told: bool, away: bool, ended: bool
) -> None:
    ends = Ends(None, replace(SessionSettings(), whereabouts=Whereabouts(elsewhere=True)))
    line = ends.connect()
    ends.pump()
    ends.lose(line)
    networks = Networks("")
    networks.away = away
    ends.client.session.paths = networks  # type: ignore[assignment]
    unknown = ends.segment(T.REFUSE, Refuse(RefuseCode.UNKNOWN).encode())
    for _ in range(2 * UNKNOWN_SAID):
        if ends.client.closed is None:
            answered_by_somebody_else(ends, unknown, replace(PLAIN, told=told))
    assert (ends.client.closed is not None) is ended


class Networks:
    """A path manager as far as the session asks it which networks there are."""

    pending = ()
    away = False

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def networks(self) -> set[str]:
        return self.names

    def effects(self) -> list[object]:
        return []

    def connection_changed(self, *_: object) -> None: ...

    def retry_unfilled(self, _: float) -> None: ...

    def stop(self) -> None: ...


# --- repeated HELLO  ---


@pytest.mark.parametrize(("settings", "facts"), [(None, TLS), (None, QUIC), (CLEAR, PLAIN), (None, PLAIN)])
def test_a_lost_accept_and_a_repeated_hello_double_nothing(
    settings: SessionSettings | None, facts: ConnectionFacts
) -> None:
    ends = Ends(settings, settings)
    line = ends.connect(facts)
    line.hold_down = True
    ends.pump()
    data = bytes(range(256)) * 100
    ends.write(ends.client, data[:20_000])
    line.down.clear()
    again = ends.connect(facts)
    ends.lose(line)
    assert kinds(again.sent_up)[0] == T.HELLO
    ends.write(ends.client, data[20_000:])
    ends.pump()
    assert ends.server.got() == data
    assert ends.server.states()[again.id] == ends.client.states()[again.id] == "active"
    ends.write(ends.server, b"answer")
    assert ends.client.got() == b"answer"


def test_much_early_data_in_tiny_pieces_survives_a_repeated_hello() -> None:
    ends = Ends()
    line = ends.connect(TLS)
    line.hold_down = True
    ends.pump()
    for _ in range(6000):
        ends.write(ends.client, b"x")
    again = ends.connect(TLS)
    ends.lose(line)
    assert ends.client.states()[again.id] == ends.server.states()[again.id] == "active"
    assert ends.server.got() == b"x" * 6000


def test_a_silent_first_connection_makes_the_next_one_repeat_hello() -> None:
    ends = Ends()
    line, waiting = ends.connect(TLS), ends.connect(TLS)
    line.hold_up = True
    ends.pump()
    assert not waiting.sent_up
    ends.advance(1.1)
    assert kinds(waiting.sent_up)[0] == T.HELLO
    assert ends.client.session.confirmed
    line.hold_up = False
    ends.pump()
    assert kinds(line.sent_down) == [T.REFUSE]
    assert ends.server.states()[waiting.id] == "active"


def test_both_answers_to_a_repeated_hello_may_be_used() -> None:
    ends = Ends()
    line, again = ends.connect(TLS), ends.connect(TLS)
    line.hold_down = again.hold_down = True
    ends.advance(1.1)
    line.hold_down = again.hold_down = False
    ends.pump()
    assert set(ends.client.states().values()) == set(ends.server.states().values()) == {"active"}
    ends.write(ends.client, b"once")
    assert ends.server.got() == b"once"


def test_another_server_that_answers_a_repeated_hello_is_left() -> None:
    ends = Ends()
    line, again = ends.connect(TLS), ends.connect(TLS)
    again.table = ends.new_table()
    line.hold_down = again.hold_down = True
    ends.advance(1.1)
    assert len(ends.servers) == 2
    line.hold_down = again.hold_down = False
    ends.pump()
    assert ends.client.states()[line.id] == "active"
    assert "another server" in ends.client.ended[again.id]
    assert not ends.servers[1].session.confirmed


# --- pre-shared keys  ---

KEY, OTHER = b"k" * 32, b"o" * 32
KEYS = {b"alice": KEY, b"empty": b""}.get


@every_connection
def test_the_right_key_opens_the_session(settings: SessionSettings, facts: ConnectionFacts) -> None:
    ends = Ends(replace(settings, psk=KEY, psk_id=b"alice"), settings, psk=KEYS)
    ends.connect(facts)
    ends.pump()
    ends.write(ends.client, b"hello")
    assert ends.server.got() == b"hello"
    second = ends.connect(facts)
    ends.pump()
    assert ends.server.states()[second.id] == "active"


@every_connection
@pytest.mark.parametrize(
    ("name", "key"),
    [(b"alice", OTHER), (b"bob", KEY), (b"", b""), (b"alice", b""), (b"empty", b""), (b"empty", KEY)],
    ids=["wrong key", "unknown name", "none", "name alone", "empty key", "key for an empty one"],
)
def test_without_the_right_key_the_application_never_sees_the_client(
    settings: SessionSettings, facts: ConnectionFacts, name: bytes, key: bytes
) -> None:
    ends = Ends(replace(settings, psk=key, psk_id=name), settings, psk=KEYS)
    line = ends.connect(facts)
    ends.pump()
    if ends.client.opened and ends.client.states()[line.id] != "lost":
        ends.write(ends.client, b"hello")
    assert not ends.server.opened
    assert not ends.server.got()
    assert not ends.server.session.confirmed
    assert not ends.client.session.confirmed


@pytest.mark.parametrize("settings", [SessionSettings(), CLEAR], ids=["sealed", "clear"])
def test_on_plain_connections_a_key_is_proved_before_the_application_sees_the_client(settings: SessionSettings) -> None:
    ends = Ends(replace(settings, psk=KEY, psk_id=b"alice"), settings, psk=KEYS)
    line = ends.connect(PLAIN)
    line.hold_down = True
    ends.pump()
    line.inject(*([ends.segment(T.DATA, b"early")] if settings is CLEAR else []))
    ends.pump()
    assert not ends.server.opened
    assert not ends.server.got()
    assert kinds(line.sent_down) == [T.ACCEPT]
    line.hold_down = False
    ends.pump()
    assert ends.server.opened
    assert ends.server.got() == (b"early" if settings is CLEAR else b"")


def test_a_client_that_wants_a_key_leaves_a_server_without_it() -> None:
    ends = Ends(SessionSettings(psk=KEY, psk_id=b"alice"))
    line = ends.connect(TLS)
    ends.pump()
    assert "proof" in ends.client.ended[line.id]
    assert not ends.client.session.confirmed


def test_a_binder_made_for_another_certificate_is_refused() -> None:
    """A relay in front of an unverified client cannot use its HELLO at the real server."""
    settings = SessionSettings(psk=KEY, psk_id=b"alice")
    ends = Ends(settings, psk=KEYS)
    line = ends.connect(replace(TLS, channel_binding=b"\x22" * 32, peer_verified=False), TLS)
    ends.pump()
    assert kinds(line.sent_down) == [T.REFUSE]
    assert not ends.server.opened


def test_a_server_knows_what_the_client_wants_of_each_connection() -> None:
    """It did not know costs, and so sent most of a download over the network that was to be spared."""
    ends = Ends(CLEAR, CLEAR)
    for facts in (replace(PLAIN, weight=2.0), replace(PLAIN, cost=10.0, max_rate=1e6)):
        ends.connect(facts)
        ends.pump()
    found = [(c.weight, c.cost, c.max_rate) for c in ends.server.session.connections.values()]
    assert found == [(2.0, 0.0, 0.0), (1.0, 10.0, 1e6)]
