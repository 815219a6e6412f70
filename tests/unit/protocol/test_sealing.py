"""Sealing: nothing altered, replayed, dropped or moved is opened, and no nonce is used twice under one key."""

from __future__ import annotations

import hashlib
import hmac
from itertools import product

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from multi.errors import RemoteProtocolError
from multi.protocol.handshake import SessionKeys, psk_binder
from multi.protocol.sealing import RECORDS_PER_KEY, Cipher, Opener, Sealer, expand
from multi.protocol.segment import MAX_DATA_PAYLOAD, TAG_LENGTH, SegmentType, encode_header
from multi.types import SessionId, StreamId

SESSION = SessionId(bytes(16))
SECRET = hashlib.sha256(b"secret").digest()
every_cipher = pytest.mark.parametrize("cipher", list(Cipher), ids=lambda c: c.name)


def header_for(payload: bytes, sequence: int = 0) -> bytes:
    return encode_header(SegmentType.DATA, SESSION, sequence, StreamId(0), len(payload) + TAG_LENGTH)


def opened(opener: Opener, header: bytes, sealed: bytes) -> bytes:
    return opener.open(memoryview(header), memoryview(sealed))


@every_cipher
@pytest.mark.parametrize("payload", [b"", b"x", b"hello" * 1000, bytes(MAX_DATA_PAYLOAD)])
def test_what_was_sealed_opens_again(cipher: Cipher, payload: bytes) -> None:
    sealer, opener = Sealer(SECRET, cipher, 0), Opener(SECRET, cipher, 0)
    header = header_for(payload)
    for _ in range(3):
        sealed = sealer.seal(header, (payload,))
        assert len(sealed) == len(payload) + TAG_LENGTH
        assert opened(opener, header, sealed) == payload


@every_cipher
def test_a_payload_in_pieces_is_sealed_as_one(cipher: Cipher) -> None:
    header = header_for(b"abcdef")
    pieces = Sealer(SECRET, cipher, 0).seal(header, (b"ab", bytearray(b"cd"), memoryview(b"ef")))
    assert pieces == Sealer(SECRET, cipher, 0).seal(header, (b"abcdef",))


@every_cipher
def test_any_altered_byte_of_header_payload_or_tag_is_refused(cipher: Cipher) -> None:
    header = header_for(b"payload")
    sealed = Sealer(SECRET, cipher, 0).seal(header, (b"payload",))
    record = header + sealed
    for position in range(len(record)):
        altered = bytearray(record)
        altered[position] ^= 1
        with pytest.raises(RemoteProtocolError, match="altered"):
            opened(Opener(SECRET, cipher, 0), bytes(altered[: len(header)]), bytes(altered[len(header) :]))


@every_cipher
@pytest.mark.parametrize("order", [(1,), (1, 0), (0, 0), (0, 2)], ids=["dropped", "swapped", "replayed", "gap"])
def test_records_out_of_order_are_refused(cipher: Cipher, order: tuple[int, ...]) -> None:
    sealer, opener = Sealer(SECRET, cipher, 0), Opener(SECRET, cipher, 0)
    header = header_for(b"record")
    records = [sealer.seal(header, (b"record",)) for _ in range(3)]
    for index in order[:-1]:
        if index == 0:
            opened(opener, header, records[index])
        else:
            with pytest.raises(RemoteProtocolError):
                opened(opener, header, records[index])
            return
    with pytest.raises(RemoteProtocolError, match="altered"):
        opened(opener, header, records[order[-1]])


@every_cipher
def test_a_record_of_another_lane_direction_cipher_or_secret_is_refused(cipher: Cipher) -> None:
    header = header_for(b"x")
    sealed = Sealer(SECRET, cipher, 0).seal(header, (b"x",))
    other_cipher = next(c for c in Cipher if c is not cipher)
    for opener in (
        Opener(SECRET, cipher, 1),
        Opener(SECRET, other_cipher, 0),
        Opener(hashlib.sha256(b"other").digest(), cipher, 0),
    ):
        with pytest.raises(RemoteProtocolError, match="altered"):
            opened(opener, header, sealed)


@pytest.mark.parametrize("length", [0, 1, TAG_LENGTH - 1])
def test_a_segment_without_room_for_a_tag_is_refused(length: int) -> None:
    with pytest.raises(RemoteProtocolError, match="without its tag"):
        opened(Opener(SECRET, Cipher.AES_128_GCM, 0), header_for(b""), bytes(length))


# --- keys  ---


def test_expand_is_one_block_of_hkdf_expand() -> None:
    reference = HKDFExpand(hashes.SHA256(), 32, b"multi1 label").derive(SECRET)
    assert expand(SECRET, b"label") == reference


@every_cipher
def test_records_are_sealed_as_documented(cipher: Cipher) -> None:
    """An implementation from the document: docs/wire-format.md, "Sealing"."""

    def hkdf(secret: bytes, label: bytes) -> bytes:
        return hmac.digest(secret, b"multi1 " + label + b"\x01", "sha256")

    per_key, sealer = 3, Sealer(SECRET, cipher, 1, 3)
    secret = hkdf(SECRET, b"lane\x01")
    for record in range(10):
        if record and record % per_key == 0:
            secret = hkdf(secret, b"update")
        key, iv = hkdf(secret, b"key"), hkdf(secret, b"iv")[:12]
        nonce = bytes(a ^ b for a, b in zip(iv, (record % per_key).to_bytes(12, "big"), strict=True))
        aead = AESGCM(key[:16]) if cipher is Cipher.AES_128_GCM else ChaCha20Poly1305(key)
        header = header_for(b"record", record)
        assert sealer.seal(header, (b"record",)) == aead.encrypt(nonce, b"record", header)


@every_cipher
def test_keys_are_updated_on_both_sides_at_the_same_record(cipher: Cipher) -> None:
    sealer, opener = Sealer(SECRET, cipher, 0, 4), Opener(SECRET, cipher, 0, 4)
    never = Opener(SECRET, cipher, 0, 1000)
    header = header_for(b"r")
    for number in range(20):
        sealed = sealer.seal(header, (b"r",))
        assert opened(opener, header, sealed) == b"r"
        if number < 4:
            assert opened(never, header, sealed) == b"r"
        elif number == 4:
            with pytest.raises(RemoteProtocolError):
                opened(never, header, sealed)


def test_a_key_protects_at_most_2_to_the_36_bytes() -> None:
    assert RECORDS_PER_KEY * MAX_DATA_PAYLOAD == 1 << 36


def test_no_key_and_nonce_is_ever_used_twice() -> None:
    """Over connections, directions, lanes, ciphers' key prefixes and key updates."""
    keys = SessionKeys(SESSION, b"hello", b"accept", b"shared", b"")
    seen: set[tuple[bytes, bytes]] = set()
    count = 0
    for number, direction, lane in product(range(8), (b"C", b"S"), range(3)):
        secret = expand(keys.traffic_secret(direction, number, b"c" * 32, b"s" * 32), b"lane" + bytes([lane]))
        for _ in range(4):
            key, iv = expand(secret, b"key"), int.from_bytes(expand(secret, b"iv")[:12], "big")
            for counter in range(5):
                seen.add((key[:16], (iv ^ counter).to_bytes(12, "big")))
                count += 1
            secret = expand(secret, b"update")
    assert len(seen) == count
    assert len({key for key, _ in seen}) == count // 5


def test_nonces_follow_the_counter_and_keys_its_wrap() -> None:
    sealer = Sealer(SECRET, Cipher.AES_128_GCM, 0, 5)
    opener = Opener(SECRET, Cipher.AES_128_GCM, 0, 1000)
    records = [sealer.seal(b"header", [b"the same"]) for _ in range(23)]
    secret = expand(SECRET, b"lane\x00")
    for number, record in enumerate(records):
        if number and number % 5 == 0:
            secret = expand(secret, b"update")
        counter = int.from_bytes(expand(secret, b"iv")[:12], "big") ^ (number % 5)
        key = AESGCM(expand(secret, b"key")[:16])
        assert key.decrypt(counter.to_bytes(12, "big"), record, b"header") == b"the same"
    assert [bytes(opener.open(memoryview(b"header"), memoryview(record))) for record in records[:5]] == [
        b"the same"
    ] * 5
    with pytest.raises(RemoteProtocolError):
        opener.open(memoryview(b"header"), memoryview(records[5]))


def test_session_keys_depend_on_every_input() -> None:
    inputs = (SESSION, b"hello", b"accept", b"shared", b"psk")
    base = SessionKeys(*inputs)
    secrets = {base.traffic_secret(b"C", 0, b"c" * 32, b"s" * 32)}
    proofs = {base.join_proof(b"C", b"j", b"c", b"n", b"")}
    for index in range(5):
        changed = list(inputs)
        changed[index] = bytes(16) + b"!" if index == 0 else changed[index] + b"!"
        keys = SessionKeys(SessionId(changed[0]), *changed[1:])
        secrets.add(keys.traffic_secret(b"C", 0, b"c" * 32, b"s" * 32))
        proofs.add(keys.join_proof(b"C", b"j", b"c", b"n", b""))
    assert len(secrets) == len(proofs) == 6


def test_the_key_schedule_is_the_documented_one() -> None:
    """An implementation from the document: docs/wire-format.md, "Key schedule"."""

    def mac(key: bytes, *parts: bytes) -> bytes:
        return hmac.digest(key, b"".join(len(p).to_bytes(4, "big") + p for p in parts), "sha256")

    def expand_(secret: bytes, label: bytes) -> bytes:
        return HKDFExpand(hashes.SHA256(), 32, b"multi1 " + label).derive(secret)

    session, shared, psk, cn, sn = b"i" * 16, b"x" * 32, b"key", b"c" * 32, b"s" * 32
    keys = SessionKeys(SessionId(session), b"hello part", b"accept part", shared, psk)
    transcript = hashlib.sha256(session + b"hello part" + b"accept part").digest()
    prk = hmac.digest(transcript, shared + psk, "sha256")
    confirm, join = expand_(prk, b"confirm"), expand_(prk, b"join")
    for side in (b"S", b"C"):
        parts = (b"terms", b"connection part", b"binding")
        assert keys.hello_proof(side, *parts) == mac(confirm, side, transcript, *parts)
        assert keys.join_proof(side, b"join", b"part", sn, b"b") == mac(join, side, session, b"join", b"part", sn, b"b")
        traffic = expand_(prk, b"traffic" + side + (7).to_bytes(4, "big") + cn + sn)
        assert keys.traffic_secret(side, 7, cn, sn) == traffic
    binder_key = expand_(hmac.digest(bytes(32), psk, "sha256"), b"binder")
    assert psk_binder(psk, b"part", b"binding") == hmac.digest(binder_key, b"\0\0\0\4part" + b"binding", "sha256")


def test_traffic_secrets_depend_on_direction_number_and_both_nonces() -> None:
    keys = SessionKeys(SESSION, b"hello", b"accept", b"shared", b"")
    variants = [
        (b"C", 0, b"c" * 32, b"s" * 32),
        (b"S", 0, b"c" * 32, b"s" * 32),
        (b"C", 1, b"c" * 32, b"s" * 32),
        (b"C", 0, b"d" * 32, b"s" * 32),
        (b"C", 0, b"c" * 32, b"t" * 32),
    ]
    assert len({keys.traffic_secret(*v) for v in variants}) == len(variants)


def test_proofs_do_not_confuse_sides_stages_or_where_a_part_ends() -> None:
    keys = SessionKeys(SESSION, b"hello", b"accept", b"shared", b"")
    proofs = [
        keys.hello_proof(b"S", b"ab", b"c", b""),
        keys.hello_proof(b"C", b"ab", b"c", b""),
        keys.hello_proof(b"S", b"a", b"bc", b""),
        keys.hello_proof(b"S", b"ab", b"", b"c"),
        keys.join_proof(b"S", b"ab", b"c", b"", b""),
        keys.join_proof(b"S", b"a", b"bc", b"", b""),
        keys.join_proof(b"C", b"ab", b"c", b"", b""),
    ]
    assert len(set(proofs)) == len(proofs)
