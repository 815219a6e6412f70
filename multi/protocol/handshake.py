"""The handshake: messages, key agreement and proofs. Pure: random bytes are injected.

    HELLO      client -> server   versions, nonce, X25519 key, window, policy; what this connection is for
    ACCEPT     server -> client   version, nonce, X25519 key, window; number of this connection; proof
    CONFIRM    client -> server   proof

    JOIN       client -> server   nonce; what this connection is for; a ticket and a proof, if there is one
    CHALLENGE  server -> client   number of this connection, nonce, proof
    PROVE      client -> server   proof

    ADMIT      server -> client   proof; instead of CHALLENGE and PROVE, where the ticket was good

    TICKETS    server -> client   on an authenticated connection: numbers and nonces for connections to come

    REFUSE     server -> client   one constant code for every failed JOIN

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

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from multi.errors import RemoteProtocolError
from multi.protocol.payloads import Fields, Policy, decode_policy, decode_role_value, encode_policy
from multi.protocol.sealing import Cipher, expand
from multi.protocol.segment import SUPPORTED_VERSIONS
from multi.reasons import Cause, Reason
from multi.types import Role, SessionId

NONCE_LENGTH = 32
KEY_LENGTH = 32
PROOF_LENGTH = 32
MAX_TICKETS = 4  # a client holds at a time; each is good for one JOIN
MAX_PSK_ID = 64  # bytes of a pre-shared key's name
MAX_WINDOW = 1 << 30


@dataclass(frozen=True, slots=True)
class ConnectionTerms:
    """What a client wants of one connection; travels in HELLO and JOIN."""

    sealed: bool
    ciphers: tuple[int, ...] = (Cipher.AES_128_GCM, Cipher.CHACHA20_POLY1305)
    role: Role = Role.ACTIVE
    weight: float = 1.0
    max_rate: float = 0.0
    """Bytes per second, 0 = no cap."""

    def encode(self) -> bytes:
        return bytes([self.sealed, len(self.ciphers), *self.ciphers, self.role]) + struct.pack(
            "!dd", self.weight, self.max_rate
        )

    @staticmethod
    def decode(fields: Fields) -> ConnectionTerms:
        flags = fields.unsigned(1)
        if flags > 1:
            raise RemoteProtocolError(f"unknown connection flags {flags:#x}")
        count = fields.unsigned(1)
        ciphers = tuple(fields.take(count))
        role = decode_role_value(fields.unsigned(1))
        weight, max_rate = fields.real(), fields.real()
        if not 0 < weight <= 1e6 or not 0 <= max_rate <= 1e15:
            raise RemoteProtocolError("weight or rate out of range")
        return ConnectionTerms(bool(flags), ciphers, role, weight, max_rate)

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

    def session_part(self) -> bytes:
        return (
            bytes([len(self.versions), *self.versions])
            + self.nonce
            + self.key
            + struct.pack("!II", self.window, self.max_streams)
            + bytes([len(self.psk_id)])
            + self.psk_id
            + encode_policy(self.policy)
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
        window, max_streams = _window(fields), fields.unsigned(4)
        length = fields.unsigned(1)
        if length > MAX_PSK_ID:
            raise RemoteProtocolError(f"a key name of {length} bytes")
        psk_id = fields.take(length)
        policy = decode_policy(fields)
        fields.end()
        terms = ConnectionTerms.decode(outer)
        binder = outer.take(outer.unsigned(1))
        outer.end()
        return Hello(nonce, key, window, max_streams, policy, terms, versions, psk_id, binder)


def _window(fields: Fields) -> int:
    window = fields.unsigned(4)
    if window > MAX_WINDOW:
        raise RemoteProtocolError(f"an initial window of {window} bytes")
    return window


@dataclass(frozen=True, slots=True)
class Accept:
    version: int
    nonce: bytes
    key: bytes
    window: int
    max_streams: int
    number: int
    """Number of this connection in the session, never reused; enters its keys."""
    sealed: bool
    cipher: Cipher
    proof: bytes = b""

    def session_part(self) -> bytes:
        return bytes([self.version]) + self.nonce + self.key + struct.pack("!II", self.window, self.max_streams)

    def connection_part(self) -> bytes:
        return choice_part(self.number, self.sealed, self.cipher)

    def encode(self) -> bytes:
        return self.session_part() + self.connection_part() + self.proof

    @staticmethod
    def decode(payload: bytes | memoryview) -> Accept:
        fields = Fields(payload)
        version = fields.unsigned(1)
        nonce, key = fields.take(NONCE_LENGTH), fields.take(KEY_LENGTH)
        window, max_streams = _window(fields), fields.unsigned(4)
        number, sealed, cipher = _number_sealed_cipher(fields)
        proof = fields.take(PROOF_LENGTH)
        fields.end()
        return Accept(version, nonce, key, window, max_streams, number, sealed, cipher, proof)


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


def choice_part(number: int, sealed: bool, cipher: Cipher) -> bytes:
    """What the server decides about a connection, as the proofs cover it."""
    return struct.pack("!IBB", number, sealed, cipher)


@dataclass(frozen=True, slots=True)
class Join:
    nonce: bytes
    terms: ConnectionTerms
    ticket: bytes = b""
    """Nonce of a ticket; empty = none, the server will ask."""
    proof: bytes = b""
    """With a ticket: that the client holds the session's keys."""

    def request(self) -> bytes:
        """The part that the proof covers."""
        return self.nonce + self.terms.encode()

    def encode(self) -> bytes:
        return self.request() + bytes([len(self.ticket)]) + self.ticket + self.proof

    @staticmethod
    def decode(payload: bytes | memoryview) -> Join:
        fields = Fields(payload)
        nonce, terms = fields.take(NONCE_LENGTH), ConnectionTerms.decode(fields)
        length = fields.unsigned(1)
        if length not in (0, NONCE_LENGTH):
            raise RemoteProtocolError(f"a ticket of {length} bytes")
        ticket = fields.take(length)
        join = Join(nonce, terms, ticket, fields.take(PROOF_LENGTH) if ticket else b"")
        fields.end()
        return join


@dataclass(frozen=True, slots=True)
class Challenge:
    number: int
    nonce: bytes
    sealed: bool
    cipher: Cipher
    proof: bytes = b""

    def connection_part(self) -> bytes:
        return choice_part(self.number, self.sealed, self.cipher)

    def encode(self) -> bytes:
        return self.connection_part() + self.nonce + self.proof

    @staticmethod
    def decode(payload: bytes | memoryview) -> Challenge:
        fields = Fields(payload)
        number, sealed, cipher = _number_sealed_cipher(fields)
        challenge = Challenge(number, fields.take(NONCE_LENGTH), sealed, cipher, fields.take(PROOF_LENGTH))
        fields.end()
        return challenge


def _number_sealed_cipher(fields: Fields) -> tuple[int, bool, Cipher]:
    number, sealed, cipher = fields.unsigned(4), fields.unsigned(1), fields.unsigned(1)
    if sealed > 1 or cipher not in set(Cipher):
        raise RemoteProtocolError("unknown cipher or flags")
    return number, bool(sealed), Cipher(cipher)


REFUSED = 1
REFUSED_VERSION = 2
REFUSED_PROTECTION = 3
REFUSED_BUSY = 4
_REFUSALS = {
    REFUSED: (Cause.REFUSED, "the server refused the session or the proof"),
    REFUSED_VERSION: (Cause.REFUSED_VERSION, "the server speaks other versions of MULTI"),
    REFUSED_PROTECTION: (
        Cause.REFUSED_PROTECTION,
        "client and server disagree on protection (see the `protect` setting of both)",
    ),
    REFUSED_BUSY: (Cause.REFUSED_BUSY, "the server has reached a limit; try again later"),
}


@dataclass(frozen=True, slots=True)
class Refuse:
    code: int
    versions: tuple[int, ...] = SUPPORTED_VERSIONS

    def encode(self) -> bytes:
        return bytes([self.code, len(self.versions), *self.versions])

    @staticmethod
    def decode(payload: bytes | memoryview) -> Refuse:
        fields = Fields(payload)
        code = fields.unsigned(1)
        versions = tuple(fields.take(fields.unsigned(1)))
        fields.end()
        return Refuse(code, versions)

    @property
    def reason(self) -> Reason:
        cause, text = _REFUSALS.get(self.code, (Cause.REFUSED, f"refused with code {self.code}"))
        if self.code == REFUSED_VERSION:
            text += f" ({', '.join(map(str, self.versions))})"
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
        """Proof in CHALLENGE (`side` b"S") and PROVE (b"C"); with a ticket in JOIN (b"T") and ADMIT (b"A")."""
        return self._mac(self._join, side, self._session_id, join, challenge, nonce, binding)

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
