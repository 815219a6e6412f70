"""The key schedule of `docs/wire-format.md`, computed a second time from the document, and what proofs cover."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from itertools import combinations

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from multi.errors import RemoteProtocolError
from multi.protocol.handshake import (
    ConnectionTerms,
    Hello,
    KeyPair,
    Refuse,
    SessionKeys,
    Ticket,
    common_version,
    decode_tickets,
    encode_tickets,
    psk_binder,
    same,
)
from multi.protocol.payloads import Policy
from multi.protocol.sealing import Cipher
from multi.reasons import Cause
from multi.types import SessionId

ID = SessionId(bytes(range(16)))
SHARED, PSK = b"s" * 32, b"a key that both have"
CLIENT, SERVER = KeyPair(b"c" * 32), KeyPair(b"v" * 32)
HELLO = Hello(b"n" * 32, CLIENT.public, 65_536, 128, Policy(), ConnectionTerms(sealed=True))


def keys(**changes: bytes) -> SessionKeys:
    parts = {"hello": b"hello part", "accept": b"accept part", "shared": SHARED, "psk": PSK} | changes
    return SessionKeys(ID, parts["hello"], parts["accept"], parts["shared"], parts["psk"])


def documented_expand(secret: bytes, label: bytes) -> bytes:
    return HKDFExpand(SHA256(), 32, b"multi1 " + label).derive(secret)


def documented_mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")


TRANSCRIPT = hashlib.sha256(ID + b"hello part" + b"accept part").digest()
PRK = hmac.digest(TRANSCRIPT, SHARED + PSK, "sha256")


@pytest.mark.parametrize("side", [b"C", b"S"])
def test_proofs_of_opening_are_those_of_the_document(side: bytes) -> None:
    expected = documented_mac(documented_expand(PRK, b"confirm"), side, TRANSCRIPT, b"terms", b"choice", b"binding")
    assert keys().hello_proof(side, b"terms", b"choice", b"binding") == expected


@pytest.mark.parametrize("side", [b"C", b"S", b"T", b"A"])
def test_proofs_of_joining_are_those_of_the_document(side: bytes) -> None:
    expected = documented_mac(documented_expand(PRK, b"join"), side, ID, b"join", b"choice", b"nonce", b"binding")
    assert keys().join_proof(side, b"join", b"choice", b"nonce", b"binding") == expected


def test_traffic_secrets_are_those_of_the_document_and_all_different() -> None:
    expected = documented_expand(PRK, b"trafficC" + (7).to_bytes(4, "big") + b"c" * 32 + b"s" * 32)
    assert keys().traffic_secret(b"C", 7, b"c" * 32, b"s" * 32) == expected
    secrets = {keys().traffic_secret(d, n, b"c" * 32, b"s" * 32) for d in (b"C", b"S") for n in range(20)}
    assert len(secrets) == 40


def test_the_binder_is_that_of_the_document() -> None:
    key = documented_expand(hmac.digest(bytes(32), PSK, "sha256"), b"binder")
    part = HELLO.session_part()
    assert psk_binder(PSK, part, b"binding") == hmac.digest(
        key, len(part).to_bytes(4, "big") + part + b"binding", "sha256"
    )


def test_both_ends_agree_and_nobody_else_does() -> None:
    shared = CLIENT.agree(SERVER.public)
    assert shared == SERVER.agree(CLIENT.public)
    assert shared != KeyPair(b"e" * 32).agree(SERVER.public)


def test_agreeing_with_a_key_of_small_order_is_an_error_of_the_peer() -> None:
    with pytest.raises(RemoteProtocolError, match="small order"):
        CLIENT.agree(bytes(32))


@pytest.mark.parametrize("part", ["hello", "accept", "shared", "psk"])
def test_whatever_differs_between_the_ends_gives_other_keys(part: str) -> None:
    ours, theirs = keys(), keys(**{part: b"other"})
    assert ours.hello_proof(b"S", b"", b"", b"") != theirs.hello_proof(b"S", b"", b"", b"")
    assert ours.join_proof(b"S", b"", b"", b"", b"") != theirs.join_proof(b"S", b"", b"", b"", b"")
    assert ours.traffic_secret(b"C", 0, b"", b"") != theirs.traffic_secret(b"C", 0, b"", b"")


def test_no_part_of_a_proof_can_be_moved_into_its_neighbour() -> None:
    lists = [(b"ab", b"", b""), (b"a", b"b", b""), (b"", b"ab", b""), (b"", b"", b"ab"), (b"a", b"", b"b")]
    proofs = [keys().hello_proof(b"C", *parts) for parts in lists]
    assert all(not same(one, other) for one, other in combinations(proofs, 2))


def test_what_a_connection_is_for_does_not_enter_the_session_part() -> None:
    """A HELLO that is repeated on another connection leads to the same keys."""
    repeated = replace(HELLO, terms=ConnectionTerms(sealed=False, weight=3.0), binder=b"b" * 32)
    assert repeated.session_part() == HELLO.session_part()
    assert repeated.encode() != HELLO.encode()


def test_the_first_offered_cipher_that_is_allowed_is_taken() -> None:
    terms = ConnectionTerms(True, (99, Cipher.CHACHA20_POLY1305, Cipher.AES_128_GCM))
    assert terms.choose_cipher(tuple(Cipher)) is Cipher.CHACHA20_POLY1305
    assert terms.choose_cipher((Cipher.AES_128_GCM,)) is Cipher.AES_128_GCM
    assert terms.choose_cipher(()) is None


def test_the_highest_version_both_speak_is_taken() -> None:
    assert common_version((1, 2, 200)) == 1
    assert common_version((2, 3)) is None
    assert common_version(()) is None


def test_tickets_are_bounded_and_arrive_as_they_were() -> None:
    tickets = [Ticket(number, bytes([number]) * 32) for number in range(4)]
    assert decode_tickets(encode_tickets(tickets)) == tickets
    with pytest.raises(RemoteProtocolError, match="5 tickets at once"):
        decode_tickets(encode_tickets([*tickets, tickets[0]]))


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (0x10, Cause.REFUSED),
        (0x11, Cause.REFUSED_VERSION),
        (0x12, Cause.REFUSED_PROTECTION),
        (0x20, Cause.REFUSED_BUSY),
        (0x30, Cause.REFUSED_UNKNOWN),
        (0x40, Cause.REFUSED_ELSEWHERE),
        (0x1F, Cause.REFUSED),
        (0x21, Cause.GOING_AWAY),
        (0x2F, Cause.REFUSED_BUSY),
        (0x3F, Cause.REFUSED_UNKNOWN),
        (0xF0, Cause.REFUSED),
    ],
)
def test_every_refusal_has_a_cause_for_programs(code: int, cause: Cause) -> None:
    assert Refuse(code).reason.cause is cause
