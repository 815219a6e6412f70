"""Who may be part of a session: the client's and the server's side of HELLO and JOIN, per connection.

It decides when a connection is authenticated, when data may flow on it and which keys protect it. What follows from
that (states, rescue, events) is the session's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple, Protocol

from multi.errors import RemoteProtocolError
from multi.protocol.connection import Connection, Connections
from multi.protocol.control import Outbox
from multi.protocol.handshake import (
    DATAGRAMS,
    GOING_AWAY,
    MAX_TICKETS,
    NOWHERE,
    PROOF_LENGTH,
    STEERING,
    WHEREABOUTS,
    Accept,
    Admit,
    Challenge,
    Choice,
    ConnectionTerms,
    Extensions,
    Hello,
    Join,
    KeyPair,
    Refuse,
    RefuseCode,
    SessionKeys,
    Ticket,
    Whereabouts,
    common_version,
    decode_proof,
    encode_tickets,
    origin_of,
    psk_binder,
    reset_commitment,
    reset_token,
    same,
)
from multi.protocol.payloads import Policy
from multi.protocol.sealing import Cipher
from multi.protocol.segment import Segment, SegmentType, encode
from multi.protocol.settings import SessionSettings
from multi.protocol.state import Step
from multi.reasons import Cause, Reason
from multi.types import ConnectionFacts, ConnectionId, SessionId, Side

MIN_HELLO_PATIENCE = 0.2  # seconds without ACCEPT after which HELLO is repeated on a waiting connection
MAX_HELLO_PATIENCE = 1.0


class AuthenticatedSession(Protocol):
    """What handshakes know of the session they are for, and what they make happen to it."""

    side: Side
    session_id: SessionId
    settings: SessionSettings
    entropy: Callable[[int], bytes]
    """Gives as many random bytes as asked for."""
    connections: Connections
    outbox: Outbox

    def may_send(self, connection: Connection, *, receives: bool = False) -> None:
        """Data may be written on `connection` before the peer has proved itself; `receives`: and is taken, too."""

    def peer_known(
        self, window: int, max_streams: int, resume_timeout: float, policy: Policy | None, extensions: Extensions
    ) -> None:
        """The peer's HELLO or ACCEPT has come; it will wait or try `resume_timeout` seconds for the session."""

    def peer_lives(self) -> None:
        """Whatever it has closed, it dials: it has the whole `resume_timeout` to come back."""

    def admitted(self, connection: Connection) -> None:
        """What comes on `connection` is the peer's, but perhaps said before: nothing is sent until it has answered."""

    def authenticated(self, connection: Connection) -> None:
        """The peer has proved itself: the connection becomes ACTIVE."""

    def start_over(self, connection: Connection) -> None:
        """The peer cannot read what was sent on `connection` so far: all of it is said again."""

    def join_elsewhere(self, connection: Connection) -> None:
        """The server that has answered on `connection` takes further ones only at addresses that it tells."""

    def refused(self, connection: Connection, refuse: Refuse) -> None:
        """The server refused HELLO or JOIN on this connection."""

    def disconnect(self, connection: Connection, reason: Reason, *, abort: bool) -> None:
        """Give up one connection; what it carried is rescued."""


class Authenticator(ABC):
    """Common to both sides."""

    def __init__(self, session: AuthenticatedSession) -> None:
        self.session = session
        self.keys: SessionKeys | None = None
        self.psk_id = b""
        self.psk_proved = False
        """The client's HELLO alone proved it; otherwise CONFIRM does."""

    def opened(self, connection: Connection, now: float) -> None:  # noqa: B027 - a server waits for the client's word
        """A transport connection is there."""

    @abstractmethod
    def handle(self, connection: Connection, segment: Segment, now: float) -> None:
        """A handshake segment has come; raises RemoteProtocolError when it does not belong here."""

    @abstractmethod
    def lost(self, connection: Connection, now: float) -> None:
        """A connection is gone."""

    def take_tickets(self, tickets: Sequence[Ticket]) -> None:
        """TICKETS has come."""
        raise RemoteProtocolError("only a server hands out tickets")

    def hand_out_tickets(self, connection: Connection) -> None:  # noqa: B027 - only a server has any
        """The peer has proved itself on `connection`."""

    def knows_reset(self, token: bytes) -> bool:
        """`token` proves that the server that accepted the session no longer holds it."""
        return False

    def may_join(self, join: Join, binding: bytes) -> bool:
        """Whoever says this JOIN holds the session's keys, or has heard it from somebody who does."""
        return False

    @property
    def whereabouts(self) -> Whereabouts:
        """Where further connections shall go, as far as it is known."""
        return NOWHERE

    def next_timer(self) -> float | None:
        return None

    def handle_timer(self, now: float) -> None:  # noqa: B027 - only a client waits for anything
        """Do what `next_timer` announced."""

    def _chosen(
        self, connection: Connection, choice: Choice, client_nonce: bytes, server_nonce: bytes
    ) -> tuple[bytes | None, bytes | None]:
        """Number a connection; return the secrets of what leaves on it and of what comes, None = not sealed."""
        connection.number = choice.number
        if not choice.sealed:
            return None, None
        assert self.keys is not None
        nonces = client_nonce, server_nonce
        to_server, to_client = (self.keys.traffic_secret(end, choice.number, *nonces) for end in (b"C", b"S"))
        return (to_server, to_client) if self.session.side is Side.CLIENT else (to_client, to_server)


# --- client  ---


class ClientAuthenticator(Authenticator):
    """Says HELLO once, on the first connection, repeats it where that one dies, and JOINs with all others."""

    def __init__(self, session: AuthenticatedSession) -> None:
        super().__init__(session)
        self._pair = KeyPair(session.entropy(32))
        settings = session.settings
        self._hello = Hello(
            nonce=session.entropy(32),
            key=self._pair.public,
            window=settings.initial_window,
            max_streams=settings.max_streams,
            policy=settings.peer_policy or settings.policy,
            terms=ConnectionTerms(sealed=True),
            psk_id=settings.psk_id,
            resume_timeout=_milliseconds(settings.resume_timeout),
            extensions=(*_extensions(settings), (GOING_AWAY, b"")),
        )
        self._origin = b""
        """Once ACCEPT has come."""
        self._reset = b""
        """The server's commitment to its reset token."""
        self.psk_id = settings.psk_id
        self._greeted: dict[ConnectionId, tuple[ConnectionTerms, float]] = {}
        """Connections on which HELLO was sent and ACCEPT is awaited, with what was asked for and the time."""
        self._joins: dict[ConnectionId, Join] = {}
        self._admissions: dict[ConnectionId, tuple[bytes, bytes, bytes, bytes]] = {}
        """Connections that joined with a ticket: what the proof of ADMIT has to cover, besides its nonce."""
        self._tickets: list[Ticket] = []
        self._cipher: Cipher | None = None
        """The server's choice, which it will make again."""
        self._waiting: list[Connection] = []
        self._accepted_part = b""
        self._whereabouts = NOWHERE

    @property
    def whereabouts(self) -> Whereabouts:
        return self._whereabouts

    def opened(self, connection: Connection, now: float) -> None:
        if self.keys is not None:
            self._join(connection, now)
        elif self._greeted:
            self._waiting.append(connection)
        else:
            self._greet(connection, now)

    def lost(self, connection: Connection, now: float) -> None:
        self._greeted.pop(connection.id, None)
        self._joins.pop(connection.id, None)
        self._admissions.pop(connection.id, None)
        if connection in self._waiting:
            self._waiting.remove(connection)
        if self.keys is None and not self._greeted and self._waiting:
            self._greet(self._waiting.pop(0), now)

    def next_timer(self) -> float | None:
        if self.keys is not None or not self._waiting or not self._greeted:
            return None
        # An answer takes a round trip, a busy server somewhat more; where the round trip is unknown it may be long.
        rtt = max(self.session.connections[c].rtt if c in self.session.connections else 0.0 for c in self._greeted)
        patience = max(MIN_HELLO_PATIENCE, 4 * rtt) if rtt else MAX_HELLO_PATIENCE
        return max(at for _, at in self._greeted.values()) + min(patience, MAX_HELLO_PATIENCE)

    def handle_timer(self, now: float) -> None:
        due = self.next_timer()
        if due is not None and due <= now:
            self._greet(self._waiting.pop(0), now)

    def _terms_for(self, connection: Connection) -> ConnectionTerms:
        return ConnectionTerms(
            sealed=self.session.settings.protect.seals(connection.facts.secure),
            ciphers=tuple(self.session.settings.ciphers),
            role=connection.role,
            weight=connection.weight,
            max_rate=connection.max_rate,
            cost=connection.cost,
        )

    def _greet(self, connection: Connection, now: float) -> None:
        terms = self._terms_for(connection)
        hello = replace(self._hello, terms=terms)
        psk = self.session.settings.psk
        if psk and connection.facts.secure:
            binder = psk_binder(psk, hello.session_part(), connection.facts.channel_binding)
            hello = replace(hello, binder=binder)
        self._greeted[connection.id] = terms, now
        connection.send(SegmentType.HELLO, hello.encode(), now)
        # Where somebody else may end TLS, a key of our own shall keep him out: nothing before the server has proved it.
        if not terms.sealed and (not psk or connection.facts.peer_verified):
            self.session.may_send(connection)

    def take_tickets(self, tickets: Sequence[Ticket]) -> None:
        """The server has handed out tickets; the newest are kept."""
        self._tickets = [*self._tickets, *tickets][-MAX_TICKETS:]

    def _join(self, connection: Connection, now: float) -> None:
        terms = self._terms_for(connection)
        assert self.keys is not None
        # In clear, whoever hears a ticket could be first to use it.
        with_ticket = self._tickets and self._cipher in terms.ciphers and (terms.sealed or connection.facts.secure)
        ticket = self._tickets.pop(0) if with_ticket else None
        join = Join(self._origin, self.session.entropy(32), terms, ticket.nonce if ticket is not None else b"")
        join = replace(join, proof=self.keys.join_request_proof(join, connection.facts.channel_binding))
        self._joins[connection.id] = join
        connection.send_join(join.encode(), self._whereabouts.route, now)
        if ticket is not None:
            self._expect_admission(connection, join, ticket)

    def _expect_admission(self, connection: Connection, join: Join, ticket: Ticket) -> None:
        """Everything is known that the server would say: data may follow in the same flight."""
        assert self._cipher is not None
        choice, binding = Choice(ticket.number, join.terms.sealed, self._cipher), connection.facts.channel_binding
        self._admissions[connection.id] = (join.request(), choice.encode(), ticket.nonce, binding)
        outgoing, incoming = self._chosen(connection, choice, join.nonce, ticket.nonce)
        connection.protect(choice.cipher, outgoing=outgoing, incoming=incoming)
        if _trusts(connection.facts, sealed=choice.sealed):
            self.session.may_send(connection)

    def handle(self, connection: Connection, segment: Segment, now: float) -> None:
        match segment.type:
            case SegmentType.ACCEPT if connection.id in self._greeted:
                self._accept(connection, Accept.decode(segment.payload), now)
            case SegmentType.CHALLENGE if connection.id in self._joins:
                self._challenge(connection, Challenge.decode(segment.payload), now)
            case SegmentType.ADMIT if connection.id in self._admissions:
                self._admitted(connection, Admit.decode(segment.payload), now)
            case SegmentType.REFUSE:
                refuse = Refuse.decode(segment.payload)
                if connection.authenticated and refuse.meaning is not RefuseCode.BUSY:
                    raise RemoteProtocolError("a refusal after the proof")
                self.session.refused(connection, refuse)
            case _:
                raise RemoteProtocolError(f"unexpected {SegmentType(segment.type).name}")

    def _accept(self, connection: Connection, accept: Accept, now: float) -> None:
        terms, _ = self._greeted[connection.id]
        _check_choice(terms, accept.choice)
        if accept.version not in self._hello.versions:
            raise RemoteProtocolError(f"the server chose version {accept.version}", Cause.BAD_CHOICE)
        keys = self.keys
        if keys is None:
            session, shared = self.session, self._pair.agree(accept.key)
            hello, part = self._hello.session_part(), accept.session_part()
            keys = SessionKeys(session.session_id, hello, part, shared, session.settings.psk)
        elif accept.session_part() != self._accepted_part:
            raise RemoteProtocolError("another server answered the repeated HELLO")
        parts = (terms.encode(), accept.choice.encode(), connection.facts.channel_binding)
        _check_proof(keys.hello_proof(b"S", *parts), accept.proof)
        first, self.keys = self.keys is None, keys
        self._accepted_part, self._cipher = accept.session_part(), accept.choice.cipher
        self._origin = origin_of(self._hello.session_part(), accept.nonce)
        self._reset = accept.reset
        if first:
            self._whereabouts = _whereabouts(accept)
        del self._greeted[connection.id]
        self._prove(connection, SegmentType.CONFIRM, keys.hello_proof(b"C", *parts), accept, self._hello.nonce, now)
        if first:
            timeout = accept.resume_timeout / 1000
            self.session.peer_known(accept.window, accept.max_streams, timeout, None, accept.extensions)
        self.session.authenticated(connection)
        waiting, self._waiting = self._waiting, []
        if self._whereabouts.elsewhere:
            self.session.join_elsewhere(connection)  # what waits has reached who knows which server
            return
        for other in waiting:
            self._join(other, now)

    def _admitted(self, connection: Connection, admit: Admit, now: float) -> None:
        assert self.keys is not None
        request, part, ticket, binding = self._admissions.pop(connection.id)
        _check_proof(self.keys.join_proof(b"A", request, part, ticket + admit.nonce, binding), admit.proof)
        del self._joins[connection.id]
        if not connection.facts.secure:
            proof = self.keys.join_proof(b"C", request, part, ticket + admit.nonce, binding)
            connection.send(SegmentType.PROVE, proof, now)
        self.session.authenticated(connection)

    def knows_reset(self, token: bytes) -> bool:
        return bool(token) and same(reset_commitment(token), self._reset)

    def _challenge(self, connection: Connection, challenge: Challenge, now: float) -> None:
        assert self.keys is not None
        join = self._joins.pop(connection.id)
        _check_choice(join.terms, challenge.choice)
        parts = (join.encode(), challenge.choice.encode(), challenge.nonce, connection.facts.channel_binding)
        _check_proof(self.keys.join_proof(b"S", *parts), challenge.proof)
        if self._admissions.pop(connection.id, None) is not None and join.terms.sealed:
            self.session.start_over(connection)  # the ticket was not taken, and what is sealed with it cannot be read
        self._prove(connection, SegmentType.PROVE, self.keys.join_proof(b"C", *parts), challenge, join.nonce, now)
        self.session.authenticated(connection)

    def _prove(
        self,
        connection: Connection,
        type_: SegmentType,
        proof: bytes,
        answer: Accept | Challenge,
        nonce: bytes,
        now: float,
    ) -> None:
        connection.send(type_, proof, now)
        outgoing, incoming = self._chosen(connection, answer.choice, nonce, answer.nonce)
        connection.protect(answer.choice.cipher, outgoing=outgoing, incoming=incoming)


def _check_choice(terms: ConnectionTerms, choice: Choice) -> None:
    if choice.sealed != terms.sealed:
        raise RemoteProtocolError("the server changed the protection that was asked for", Cause.BAD_CHOICE)
    if choice.cipher not in terms.ciphers:
        raise RemoteProtocolError("the server chose a cipher that was not offered", Cause.BAD_CHOICE)


def _extensions(settings: SessionSettings) -> Extensions:
    return ((DATAGRAMS, b""),) if settings.datagrams else ()


def _whereabouts(accept: Accept) -> Whereabouts:
    return next((Whereabouts.decode(value) for kind, value in accept.extensions if kind == WHEREABOUTS), NOWHERE)


def _milliseconds(seconds: float) -> int:
    return min(round(seconds * 1000), (1 << 32) - 1)


def _check_proof(expected: bytes, found: bytes) -> None:
    if not same(expected, found):
        raise RemoteProtocolError("the server's proof is wrong", Cause.BAD_PROOF)


def _trusts(facts: ConnectionFacts, *, sealed: bool) -> bool:
    """Whether data may follow a ticket before the server has proved itself on this connection."""
    if sealed:
        # What another lane brings too early could not be told from the rest, and nobody shall get more than a first
        # flight of us because a server has told his address.
        return facts.lanes == 1 and (facts.proved or not facts.told)
    return facts.peer_verified  # TLS may end at somebody else's


# --- server  ---


class _Expected(NamedTuple):
    """The proof a connection has to bring, and the secret of what follows it; None = that is not sealed."""

    type: SegmentType
    proof: bytes
    incoming: bytes | None
    cipher: Cipher


class ServerAuthenticator(Authenticator):
    """Answers HELLO and JOIN. `psk` maps the id in HELLO to the key that must be proved, when keys are required."""

    def __init__(self, session: AuthenticatedSession, psk: Callable[[bytes], bytes | None] | None) -> None:
        super().__init__(session)
        self._psk = psk
        self._hello_part: bytes | None = None
        self._origin = b""
        self._accept: Accept | None = None
        self._confirmed = False
        self._numbers = count()
        self._expected: dict[ConnectionId, _Expected] = {}
        self._tickets: dict[bytes, int] = {}
        """Handed out and not used: nonce to number."""

    def lost(self, connection: Connection, now: float) -> None:
        self._expected.pop(connection.id, None)

    def handle(self, connection: Connection, segment: Segment, now: float) -> None:
        expected = self._expected.get(connection.id)
        if connection.authenticated:
            raise RemoteProtocolError(f"unexpected {SegmentType(segment.type).name}")
        match segment.type:
            case SegmentType.HELLO if expected is None:
                self._hello(connection, Hello.decode(segment.payload), now)
            case SegmentType.JOIN if expected is None:
                self._join(connection, Join.decode(segment.payload), now)
            case SegmentType.CONFIRM | SegmentType.PROVE if expected is not None:
                if expected.type != segment.type or not same(expected.proof, decode_proof(segment.payload)):
                    self._refuse(connection, RefuseCode.REFUSED)
                    return
                del self._expected[connection.id]
                self._confirmed = True
                if segment.type == SegmentType.PROVE and not connection.receives:
                    self._tickets.clear()  # the client had to be asked: what it was given has been lost on the way
                connection.protect(expected.cipher, incoming=expected.incoming)
                self.session.authenticated(connection)
            case _:
                raise RemoteProtocolError(f"unexpected {SegmentType(segment.type).name}")

    def _refuse(self, connection: Connection, code: int) -> None:
        refuse = Refuse(code)
        # In clear even where segments are sealed by now: whoever failed cannot open a sealed one, and the answer to
        # every failed JOIN has to be the same bytes.
        connection.send_clear(encode(SegmentType.REFUSE, self.session.session_id, refuse.encode()))
        self.session.disconnect(connection, refuse.reason, abort=False)

    def _cipher_for(self, connection: Connection, terms: ConnectionTerms) -> Cipher | None:
        """The cipher for these terms; None when this side does not agree to them."""
        settings = self.session.settings
        if terms.sealed != settings.protect.seals(connection.facts.secure):
            return None
        return terms.choose_cipher(settings.ciphers)

    def _hello(self, connection: Connection, hello: Hello, now: float) -> None:
        part = hello.session_part()
        repeat = self._hello_part is not None
        if repeat and (self._confirmed or part != self._hello_part):
            self._refuse(connection, RefuseCode.REFUSED)
            return
        version = common_version(hello.versions)
        if version is None:
            self._refuse(connection, RefuseCode.VERSION)
            return
        cipher = self._cipher_for(connection, hello.terms)
        if cipher is None:
            self._refuse(connection, RefuseCode.PROTECTION)
            return
        psk = b""
        if self._psk is not None:
            # For a name without a key there is one that nobody has: strangers do not learn which names there are.
            psk = self._psk(hello.psk_id) or self.session.entropy(32)
        binding = connection.facts.channel_binding
        proved_by_binder = bool(psk) and connection.facts.secure
        if proved_by_binder and not same(hello.binder, psk_binder(psk, part, binding)):
            self._refuse(connection, RefuseCode.REFUSED)
            return
        choice = Choice(next(self._numbers), hello.terms.sealed, cipher)
        if not repeat:
            self._agree(hello, part, version, psk, choice)
            self.psk_proved = proved_by_binder
        assert self._accept is not None
        assert self.keys is not None
        accept = replace(self._accept, choice=choice)
        parts = (hello.terms.encode(), choice.encode(), binding)
        accept = replace(accept, proof=self.keys.hello_proof(b"S", *parts))
        proof = self.keys.hello_proof(b"C", *parts)
        self._answer(connection, hello, accept, proof, now)
        if not repeat:
            timeout = hello.resume_timeout / 1000
            self.session.peer_known(hello.window, hello.max_streams, timeout, hello.policy, hello.extensions)
        # A repeated HELLO may be somebody's replay: nothing but ACCEPT leaves, and nothing counts, before CONFIRM.
        if not repeat and (not psk or proved_by_binder):
            self.session.may_send(connection, receives=not hello.terms.sealed)

    def _agree(self, hello: Hello, part: bytes, version: int, psk: bytes, choice: Choice) -> None:
        session, settings = self.session, self.session.settings
        pair, nonce = KeyPair(session.entropy(32)), session.entropy(32)
        self._origin = origin_of(part, nonce)
        self._accept = Accept(
            version,
            nonce=nonce,
            key=pair.public,
            window=settings.initial_window,
            max_streams=settings.max_streams,
            choice=choice,
            resume_timeout=_milliseconds(settings.resume_timeout),
            reset=self._reset_commitment(),
            extensions=(*_extensions(settings), *self._where(), (STEERING, b"")),
        )
        shared = pair.agree(hello.key)
        self._hello_part = part
        self.psk_id = hello.psk_id if psk else b""
        self.keys = SessionKeys(session.session_id, part, self._accept.session_part(), shared, psk)

    def _where(self) -> Extensions:
        where = self.session.settings.whereabouts
        return ((WHEREABOUTS, where.encode()),) if where != NOWHERE else ()

    def _reset_commitment(self) -> bytes:
        settings = self.session.settings
        if not settings.reset_key:
            return bytes(PROOF_LENGTH)
        route = settings.whereabouts.route
        return reset_commitment(reset_token(settings.reset_key, self.session.session_id, self._origin, route))

    def may_join(self, join: Join, binding: bytes) -> bool:
        if self.keys is None or join.origin != self._origin:
            return False
        return same(self.keys.join_request_proof(join, binding), join.proof)

    def _join(self, connection: Connection, join: Join, now: float) -> None:
        cipher = self._cipher_for(connection, join.terms)
        if self.keys is None or cipher is None or not self.may_join(join, connection.facts.channel_binding):
            self._refuse(connection, RefuseCode.REFUSED)
            return
        self.session.peer_lives()  # its proof may take longer than a dead client is waited for, or be lost again
        if join.ticket:
            if self._admit(connection, join, cipher, now):
                return
            if join.terms.sealed:
                connection.step(Step.IGNORE_EARLY)
        challenge = Challenge(Choice(next(self._numbers), join.terms.sealed, cipher), self.session.entropy(32))
        parts = (join.encode(), challenge.choice.encode(), challenge.nonce, connection.facts.channel_binding)
        challenge = replace(challenge, proof=self.keys.join_proof(b"S", *parts))
        self._answer(connection, join, challenge, self.keys.join_proof(b"C", *parts), now)

    def _answer(
        self, connection: Connection, asked: Hello | Join, answer: Accept | Challenge, proof: bytes, now: float
    ) -> None:
        """Send ACCEPT or CHALLENGE; what follows is sealed if it was asked for, and `proof` has to come first."""
        accepts = isinstance(answer, Accept)
        connection.send(SegmentType.ACCEPT if accepts else SegmentType.CHALLENGE, answer.encode(), now)
        self._apply(connection, asked.terms)
        outgoing, incoming = self._chosen(connection, answer.choice, asked.nonce, answer.nonce)
        connection.protect(answer.choice.cipher, outgoing=outgoing)
        expected = SegmentType.CONFIRM if accepts else SegmentType.PROVE
        self._expected[connection.id] = _Expected(expected, proof, incoming, answer.choice.cipher)

    def _admit(self, connection: Connection, join: Join, cipher: Cipher, now: float) -> bool:
        """Take a JOIN with a ticket; False where the ticket is not good any more, and the client has to be asked."""
        assert self.keys is not None
        sealed, binding = join.terms.sealed, connection.facts.channel_binding
        if not sealed and not connection.facts.secure:
            return False  # whoever hears a ticket could be first to use it
        number = self._tickets.pop(join.ticket, None)
        if number is None:
            return False
        self._apply(connection, join.terms)
        choice, nonce = Choice(number, sealed, cipher), self.session.entropy(32)
        parts = (join.request(), choice.encode(), join.ticket + nonce, binding)
        connection.send(SegmentType.ADMIT, Admit(nonce, self.keys.join_proof(b"A", *parts)).encode(), now)
        outgoing, incoming = self._chosen(connection, choice, join.nonce, join.ticket)
        connection.protect(cipher, outgoing=outgoing, incoming=incoming)
        if connection.facts.secure:
            self.session.authenticated(connection)
            return True
        # Somebody may have heard it and been faster: what was said is the client's, who said it is still to be seen.
        proof = self.keys.join_proof(b"C", *parts)
        self._expected[connection.id] = _Expected(SegmentType.PROVE, proof, None, cipher)
        self.session.admitted(connection)
        return True

    def hand_out_tickets(self, connection: Connection) -> None:
        """See that the client has as many tickets as it may have."""
        if not connection.facts.secure and connection.openers is None:
            return
        if self.session.outbox.full:
            return  # without them the client is asked, which costs it a round trip
        fresh = [Ticket(next(self._numbers), self.session.entropy(32)) for _ in range(MAX_TICKETS - len(self._tickets))]
        if fresh:
            self._tickets |= {ticket.nonce: ticket.number for ticket in fresh}
            self.session.outbox.add(SegmentType.TICKETS, encode_tickets(fresh))

    @staticmethod
    def _apply(connection: Connection, terms: ConnectionTerms) -> None:
        if not connection.role_pending:
            connection.role = terms.role
        connection.weight, connection.cost = terms.weight, terms.cost
        connection.set_max_rate(terms.max_rate)
