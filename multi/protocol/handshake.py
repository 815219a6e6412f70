"""The handshake: messages, key agreement and proofs. Pure: random bytes are injected.

    HELLO      client -> server   versions, nonce, X25519 key, window, policy, how long it will try to come back,
                                  extensions; what this connection is for
    ACCEPT     server -> client   version, nonce, X25519 key, window, how long it will wait for the client, reset
                                  commitment, extensions; number of this connection; proof
    CONFIRM    client -> server   proof

    JOIN       client -> server   origin of the session, nonce; what this connection is for; a ticket if there is one;
                                  proof
    CHALLENGE  server -> client   number of this connection, nonce, proof
    PROVE      client -> server   proof

    ADMIT      server -> client   nonce, proof; instead of CHALLENGE, where the ticket was good; answered by PROVE on
                                  plain connections

    TICKETS    server -> client   on an authenticated connection: numbers and nonces for connections to come

    REFUSE     server -> client   why not; a reset token where the server holds no such session

HELLO and ACCEPT have a session part, which the keys cover and which is the same when a HELLO is repeated on another
connection, and a connection part, which the proofs cover. Proofs also cover the channel binding of the connection, so
a HELLO or JOIN relayed through another TLS or QUIC certificate is refused. The key schedule is in docs/wire-format.md.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from multi.errors import RemoteProtocolError
from multi.protocol.payloads import (
    Fields,
    Policy,
    check_rate,
    decode_address,
    decode_policy,
    decode_role_value,
    encode_address,
    encode_policy,
)
from multi.protocol.sealing import Cipher, expand
from multi.protocol.segment import SUPPORTED_VERSIONS
from multi.reasons import Cause, Reason
from multi.types import ROUTE_LENGTH, Address, Role, SessionId

NONCE_LENGTH = 32
KEY_LENGTH = 32
PROOF_LENGTH = 32
MAX_TICKETS = 4  # a client holds at a time; each is good for one JOIN
MAX_PSK_ID = 64  # bytes of a pre-shared key's name
MAX_WINDOW = 1 << 30
GREETING_LENGTH = 8
ORIGIN_LENGTH = 16
_SEALED, _HAS_COST = 1, 2  # flags of connection terms
MAX_EXTENSIONS = 512  # bytes of all extensions in a HELLO or ACCEPT

DATAGRAMS = 1
"""Kind of the extension, without a value, that says: this side takes DATAGRAM segments."""
GOING_AWAY = 3
"""The same for AWAY; of a client only."""
STEERING = 5
"""The same for STEER; of a server only."""

WHEREABOUTS = 4
"""The same of ACCEPT's alone, with a value: where the server is. See `Whereabouts`."""

Extensions = tuple[tuple[int, bytes], ...]
"""(kind, value), kinds rising. What a side can do; unknown kinds mean nothing."""


def _encode_extensions(extensions: Extensions) -> bytes:
    values = b"".join(struct.pack("!HH", kind, len(value)) + value for kind, value in extensions)
    return len(values).to_bytes(2, "big") + values


def _decode_extensions(fields: Fields) -> Extensions:
    length = fields.unsigned(2)
    if length > MAX_EXTENSIONS:
        raise RemoteProtocolError(f"{length} bytes of extensions")
    inner = Fields(fields.take(length))
    found: list[tuple[int, bytes]] = []
    while inner.remaining:
        kind = inner.unsigned(2)
        if found and kind <= found[-1][0]:
            raise RemoteProtocolError("extensions out of order")
        found.append((kind, inner.take(inner.unsigned(2))))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where further connections of a session shall go, so that they reach its server and no other one."""

    route: bytes = b""
    """What tells this server from others behind the same address, at most ROUTE_LENGTH bytes; empty = nothing does."""
    elsewhere: bool = False
    """Not where HELLO went, but to the addresses that the server tells (compare the C flag of RFC 8684 section 3.1)."""

    def encode(self) -> bytes:
        return bytes([self.elsewhere]) + self.route

    @staticmethod
    def decode(value: bytes) -> Whereabouts:
        fields = Fields(value)
        flags = fields.unsigned(1)
        if fields.remaining > ROUTE_LENGTH:
            raise RemoteProtocolError(f"a route of {fields.remaining} bytes")
        return Whereabouts(fields.take(fields.remaining), bool(flags & 1))  # a later version may have further flags


NOWHERE = Whereabouts()
"""What a server means that says nothing of it."""


@dataclass(frozen=True, slots=True)
class ConnectionTerms:
    """What a client wants of one connection; travels in HELLO and JOIN."""

    sealed: bool
    ciphers: tuple[int, ...] = (Cipher.AES_128_GCM, Cipher.CHACHA20_POLY1305)
    role: Role = Role.ACTIVE
    weight: float = 1.0
    max_rate: float = 0.0
    """Bytes per second, 0 = no cap."""
    cost: float = 0.0

    def encode(self) -> bytes:
        flags = (_SEALED if self.sealed else 0) | (_HAS_COST if self.cost else 0)
        numbers = [self.weight, self.max_rate, *([self.cost] if self.cost else ())]
        return bytes([flags, len(self.ciphers), *self.ciphers, self.role]) + struct.pack(f"!{len(numbers)}d", *numbers)

    @staticmethod
    def decode(fields: Fields) -> ConnectionTerms:
        flags = fields.unsigned(1)
        if flags > _SEALED | _HAS_COST:
            raise RemoteProtocolError(f"unknown connection flags {flags:#x}")
        count = fields.unsigned(1)
        ciphers = tuple(fields.take(count))
        role = decode_role_value(fields.unsigned(1))
        weight, max_rate = fields.real(), fields.real()
        if not 0 < weight <= 1e6:
            raise RemoteProtocolError("weight out of range")
        check_rate(max_rate)
        cost = 0.0
        if flags & _HAS_COST:
            cost = fields.real()
            if not 0 < cost <= 1e6:
                raise RemoteProtocolError("cost out of range")
        return ConnectionTerms(bool(flags & _SEALED), ciphers, role, weight, max_rate, cost)

    def choose_cipher(self, allowed: Sequence[Cipher]) -> Cipher | None:
        """The first offered cipher that is allowed here."""
        return next((Cipher(c) for c in self.ciphers if c in allowed), None)


@dataclass(frozen=True, slots=True)
class Hello:
    nonce: bytes
    key: bytes
    window: int
    """Initial stream and session window the client grants, bytes."""
    max_streams: int
    policy: Policy
    terms: ConnectionTerms
    versions: tuple[int, ...] = SUPPORTED_VERSIONS
    psk_id: bytes = b""
    binder: bytes = b""
    """Proof of the pre-shared key, sent where the transport itself encrypts; empty otherwise."""
    resume_timeout: int = 0
    """Milliseconds the client will try to come back for."""
    extensions: Extensions = ()

    def session_part(self) -> bytes:
        return (
            bytes([len(self.versions), *self.versions])
            + self.nonce
            + self.key
            + struct.pack("!III", self.window, self.max_streams, self.resume_timeout)
            + bytes([len(self.psk_id)])
            + self.psk_id
            + encode_policy(self.policy)
            + _encode_extensions(self.extensions)
        )

    def encode(self) -> bytes:
        session = self.session_part()
        return len(session).to_bytes(2, "big") + session + self.terms.encode() + bytes([len(self.binder)]) + self.binder

    @staticmethod
    def decode(payload: bytes | memoryview) -> Hello:
        outer = Fields(payload)
        fields = Fields(outer.take(outer.unsigned(2)))
        versions = tuple(fields.take(fields.unsigned(1)))
        nonce, key = fields.take(NONCE_LENGTH), fields.take(KEY_LENGTH)
        window, max_streams, resume_timeout = _window(fields), fields.unsigned(4), fields.unsigned(4)
        length = fields.unsigned(1)
        if length > MAX_PSK_ID:
            raise RemoteProtocolError(f"a key name of {length} bytes")
        psk_id = fields.take(length)
        policy = decode_policy(fields)
        extensions = _decode_extensions(fields)
        fields.end()
        terms = ConnectionTerms.decode(outer)
        binder = outer.take(outer.unsigned(1))
        outer.end()
        return Hello(
            nonce, key, window, max_streams, policy, terms, versions, psk_id, binder, resume_timeout, extensions
        )


def _window(fields: Fields) -> int:
    window = fields.unsigned(4)
    if window > MAX_WINDOW:
        raise RemoteProtocolError(f"an initial window of {window} bytes")
    return window


@dataclass(frozen=True, slots=True)
class Choice:
    """What the server decides about a connection; the proofs cover it."""

    number: int
    """Of this connection in the session, never reused; enters its keys."""
    sealed: bool
    cipher: Cipher

    def encode(self) -> bytes:
        return struct.pack("!IBB", self.number, self.sealed, self.cipher)

    @staticmethod
    def decode(fields: Fields) -> Choice:
        number, sealed, cipher = fields.unsigned(4), fields.unsigned(1), fields.unsigned(1)
        if sealed > 1 or cipher not in set(Cipher):
            raise RemoteProtocolError("unknown cipher or flags")
        return Choice(number, bool(sealed), Cipher(cipher))


@dataclass(frozen=True, slots=True)
class Accept:
    version: int
    nonce: bytes
    key: bytes
    window: int
    max_streams: int
    choice: Choice
    proof: bytes = b""
    resume_timeout: int = 0
    """Milliseconds the server will wait for a client that has no connection left."""
    reset: bytes = bytes(PROOF_LENGTH)
    """Commitment: the SHA-256 of the token with which this server would say that it no longer holds the session."""
    extensions: Extensions = ()

    def session_part(self) -> bytes:
        return (
            bytes([self.version])
            + self.nonce
            + self.key
            + struct.pack("!III", self.window, self.max_streams, self.resume_timeout)
            + self.reset
            + _encode_extensions(self.extensions)
        )

    def encode(self) -> bytes:
        return self.session_part() + self.choice.encode() + self.proof

    @staticmethod
    def decode(payload: bytes | memoryview) -> Accept:
        fields = Fields(payload)
        version = fields.unsigned(1)
        nonce, key = fields.take(NONCE_LENGTH), fields.take(KEY_LENGTH)
        window, max_streams, resume_timeout = _window(fields), fields.unsigned(4), fields.unsigned(4)
        reset, extensions = fields.take(PROOF_LENGTH), _decode_extensions(fields)
        choice, proof = Choice.decode(fields), fields.take(PROOF_LENGTH)
        fields.end()
        return Accept(version, nonce, key, window, max_streams, choice, proof, resume_timeout, reset, extensions)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A server's nonce and connection number, handed out in advance: one JOIN with it needs no CHALLENGE.

    It is no secret: whoever uses it must hold the session's keys.
    """

    number: int
    nonce: bytes


def encode_tickets(tickets: Sequence[Ticket]) -> bytes:
    return bytes([len(tickets)]) + b"".join(struct.pack("!I", ticket.number) + ticket.nonce for ticket in tickets)


def decode_tickets(payload: bytes | memoryview) -> list[Ticket]:
    fields = Fields(payload)
    count = fields.unsigned(1)
    if count > MAX_TICKETS:
        raise RemoteProtocolError(f"{count} tickets at once")
    tickets = [Ticket(fields.unsigned(4), fields.take(NONCE_LENGTH)) for _ in range(count)]
    fields.end()
    return tickets


@dataclass(frozen=True, slots=True)
class Join:
    origin: bytes
    """Which HELLO and ACCEPT the session began with: `origin_of` them."""
    nonce: bytes
    terms: ConnectionTerms
    ticket: bytes = b""
    """Nonce of a ticket; empty = none, the server will ask."""
    proof: bytes = bytes(PROOF_LENGTH)
    """That the client holds the session's keys. Without a ticket somebody else may repeat it, and gets no further."""

    def request(self) -> bytes:
        """The part that the proof covers."""
        return self.origin + self.nonce + self.terms.encode()

    def encode(self) -> bytes:
        return self.request() + bytes([len(self.ticket)]) + self.ticket + self.proof

    @staticmethod
    def decode(payload: bytes | memoryview) -> Join:
        fields = Fields(payload)
        origin, nonce = fields.take(ORIGIN_LENGTH), fields.take(NONCE_LENGTH)
        terms = ConnectionTerms.decode(fields)
        length = fields.unsigned(1)
        if length not in (0, NONCE_LENGTH):
            raise RemoteProtocolError(f"a ticket of {length} bytes")
        join = Join(origin, nonce, terms, fields.take(length), fields.take(PROOF_LENGTH))
        fields.end()
        return join


def greeting_of(hello_part: bytes) -> bytes:
    """What tells two sessions of one Session ID apart: a short hash of the session part of HELLO."""
    return hashlib.sha256(hello_part).digest()[:GREETING_LENGTH]


def origin_of(hello_part: bytes, accept_nonce: bytes) -> bytes:
    """What the client shows of the session's beginning, with a part that nobody knows before the server holds it."""
    return greeting_of(hello_part) + accept_nonce[: ORIGIN_LENGTH - GREETING_LENGTH]


def reset_token(key: bytes, session_id: SessionId, origin: bytes, route: bytes = b"") -> bytes:
    """What only a server with `key` can say of a session: that it holds it no longer (compare RFC 9000 10.3).

    `route` is that of the server, or of the process of one, that accepted the session: others with the same key do not
    know what it holds, and whoever asks them with another route gets a token that proves nothing.
    """
    return hmac.digest(key, b"multi1 reset" + session_id + origin + route, "sha256")


def reset_commitment(token: bytes) -> bytes:
    """What ACCEPT says in advance, so that the token itself stays unknown until it is used."""
    return hashlib.sha256(token).digest()


@dataclass(frozen=True, slots=True)
class Challenge:
    choice: Choice
    nonce: bytes
    proof: bytes = b""

    def encode(self) -> bytes:
        return self.choice.encode() + self.nonce + self.proof

    @staticmethod
    def decode(payload: bytes | memoryview) -> Challenge:
        fields = Fields(payload)
        challenge = Challenge(Choice.decode(fields), fields.take(NONCE_LENGTH), fields.take(PROOF_LENGTH))
        fields.end()
        return challenge


@dataclass(frozen=True, slots=True)
class Admit:
    nonce: bytes
    """What a client on a plain connection has to answer with a PROVE over it: others may have heard its JOIN."""
    proof: bytes

    def encode(self) -> bytes:
        return self.nonce + self.proof

    @staticmethod
    def decode(payload: bytes | memoryview) -> Admit:
        fields = Fields(payload)
        admit = Admit(fields.take(NONCE_LENGTH), fields.take(PROOF_LENGTH))
        fields.end()
        return admit


class RefuseCode(IntEnum):
    """Why a server says no. The high four bits are the class: what an unknown code of it means, too."""

    REFUSED = 0x10
    """It does not fit, or a proof is wrong."""
    VERSION = 0x11
    PROTECTION = 0x12
    BUSY = 0x20
    """A limit is reached; later it may be different."""
    GOING_AWAY = 0x21
    """This server takes no new sessions any more; another, or its successor, does."""
    UNKNOWN = 0x30
    """This server holds no such session."""
    ELSEWHERE = 0x40
    """Another server holds it."""


_REFUSALS = {
    RefuseCode.REFUSED: (Cause.REFUSED, "the server refused the session or the proof"),
    RefuseCode.VERSION: (Cause.REFUSED_VERSION, "the server speaks other versions of MULTI"),
    RefuseCode.PROTECTION: (
        Cause.REFUSED_PROTECTION,
        "client and server disagree on protection: one has `ssl_config`, or another `protect`",
    ),
    RefuseCode.BUSY: (Cause.REFUSED_BUSY, "the server has reached a limit; try again later"),
    RefuseCode.GOING_AWAY: (Cause.GOING_AWAY, "the server is being stopped; try another one, or later"),
    RefuseCode.UNKNOWN: (Cause.REFUSED_UNKNOWN, "the server says that it does not know this session"),
    RefuseCode.ELSEWHERE: (Cause.REFUSED_ELSEWHERE, "another server holds this session"),
}
MAX_LIMIT_NAME = 64  # bytes


@dataclass(frozen=True, slots=True)
class Refuse:
    code: int
    versions: tuple[int, ...] = SUPPORTED_VERSIONS
    limit: str = ""
    """Name of the limit that was reached (`limits` of a configuration), or empty."""
    token: bytes = b""
    """With UNKNOWN: the proof that the server ACCEPT came from has said this; see `reset_token`."""
    address: Address | None = None
    """With ELSEWHERE: where that server is, if it is known. Whoever says so has proved nothing."""

    def encode(self) -> bytes:
        limit = self.limit.encode()
        return (
            bytes([self.code, len(self.versions), *self.versions, len(limit)])
            + limit
            + bytes([len(self.token)])
            + self.token
            + (encode_address(self.address) if self.address is not None else b"")
        )

    @staticmethod
    def decode(payload: bytes | memoryview) -> Refuse:
        fields = Fields(payload)
        code = fields.unsigned(1)
        versions = tuple(fields.take(fields.unsigned(1)))
        length = fields.unsigned(1)
        if length > MAX_LIMIT_NAME:
            raise RemoteProtocolError(f"a limit's name of {length} bytes")
        limit = fields.text(length)
        length = fields.unsigned(1)
        if length not in (0, PROOF_LENGTH):
            raise RemoteProtocolError(f"a reset token of {length} bytes")
        token = fields.take(length)
        address = decode_address(fields) if code == RefuseCode.ELSEWHERE and fields.remaining else None
        return Refuse(code, versions, limit, token, address)  # a later version may say more

    @property
    def meaning(self) -> RefuseCode:
        """The code, or where it is not known its class."""
        known = (code for code in (self.code, self.code & 0xF0) if code in set(RefuseCode))
        return RefuseCode(next(known, RefuseCode.REFUSED))

    @property
    def reason(self) -> Reason:
        cause, text = _REFUSALS[self.meaning]
        if self.code == RefuseCode.VERSION:
            text += f" ({', '.join(map(str, self.versions))})"
        if self.limit:
            text += f" ({self.limit})"
        return Reason(cause, text)


def decode_proof(payload: bytes | memoryview) -> bytes:
    fields = Fields(payload)
    proof = fields.take(PROOF_LENGTH)
    fields.end()
    return proof


class KeyPair:
    """An ephemeral X25519 key from 32 injected random bytes."""

    def __init__(self, random: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(random)
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, peer: bytes) -> bytes:
        """Return the shared secret; a key of small order is refused."""
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError:
            raise RemoteProtocolError("an X25519 key of small order") from None


class SessionKeys:
    """The session's key schedule: proofs of the handshake and of JOIN, traffic secrets of each connection."""

    def __init__(self, session_id: SessionId, hello_part: bytes, accept_part: bytes, shared: bytes, psk: bytes) -> None:
        self._session_id = session_id
        self._transcript = hashlib.sha256(session_id + hello_part + accept_part).digest()
        self._prk = hmac.digest(self._transcript, shared + psk, "sha256")
        self._confirm = expand(self._prk, b"confirm")
        self._join = expand(self._prk, b"join")

    def hello_proof(self, side: bytes, terms: bytes, accept: bytes, binding: bytes) -> bytes:
        """Proof in ACCEPT (`side` b"S") and CONFIRM (b"C")."""
        return self._mac(self._confirm, side, self._transcript, terms, accept, binding)

    def join_proof(self, side: bytes, join: bytes, challenge: bytes, nonce: bytes, binding: bytes) -> bytes:
        """Proof in CHALLENGE (`side` b"S"), ADMIT (b"A") and PROVE (b"C")."""
        return self._mac(self._join, side, self._session_id, join, challenge, nonce, binding)

    def join_request_proof(self, join: Join, binding: bytes) -> bytes:
        """Proof in JOIN."""
        return self._mac(self._join, b"J", self._session_id, join.request(), join.ticket, binding)

    def traffic_secret(self, direction: bytes, number: int, client_nonce: bytes, server_nonce: bytes) -> bytes:
        """Secret of one connection in one direction (b"C" = client to server)."""
        return expand(self._prk, b"traffic" + direction + number.to_bytes(4, "big") + client_nonce + server_nonce)

    @staticmethod
    def _mac(key: bytes, *parts: bytes) -> bytes:
        # Each part carries its length, so that no two different lists of parts give the same bytes.
        return hmac.digest(key, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")


def psk_binder(psk: bytes, session_part: bytes, binding: bytes) -> bytes:
    """Proof of a pre-shared key inside HELLO, for transports that encrypt."""
    key = expand(hmac.digest(bytes(32), psk, "sha256"), b"binder")
    return hmac.digest(key, len(session_part).to_bytes(4, "big") + session_part + binding, "sha256")


same = hmac.compare_digest  # in constant time


def common_version(offered: Sequence[int]) -> int | None:
    return max((v for v in offered if v in SUPPORTED_VERSIONS), default=None)
