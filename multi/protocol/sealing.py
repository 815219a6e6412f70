"""Sealing of segments on connections that the transport does not protect.

A record is one segment: its header is authenticated in clear, its payload encrypted. Transports deliver in order, so
the record counter is implicit and a replayed, dropped or reordered record fails like an altered one. Every lane of a
connection and each direction has a key of its own; keys are updated after 2^18 records, which with payloads of at
most 256 KiB is 2^36 bytes, far inside the limits of AES-GCM (NIST SP 800-38D, RFC 9001 section 6.6).
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from enum import IntEnum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from multi.errors import RemoteProtocolError
from multi.protocol.segment import TAG_LENGTH

RECORDS_PER_KEY = 1 << 18  # with the longest payload it bounds the bytes under one key to 2^36
NONCE_LENGTH = 12


class Cipher(IntEnum):
    """AEADs, in wire numbers."""

    AES_128_GCM = 1
    CHACHA20_POLY1305 = 2


def expand(secret: bytes, label: bytes) -> bytes:
    """HKDF-Expand (RFC 5869) for one block of 32 bytes."""
    return hmac.digest(secret, b"multi1 " + label + b"\x01", "sha256")


class _RecordKeys:
    """Key and nonce sequence of one lane and direction."""

    __slots__ = ("_aead", "_cipher", "_iv", "_record", "_records_per_key", "_secret")

    def __init__(self, secret: bytes, cipher: Cipher, lane: int, records_per_key: int = RECORDS_PER_KEY) -> None:
        self._cipher = cipher
        self._records_per_key = records_per_key
        self._secret = expand(secret, b"lane" + bytes([lane]))
        self._record = 0
        """Number of the next record under this key; it makes its nonce."""
        self._derive()

    def _derive(self) -> None:
        key = expand(self._secret, b"key")
        self._aead = AESGCM(key[:16]) if self._cipher is Cipher.AES_128_GCM else ChaCha20Poly1305(key)
        self._iv = int.from_bytes(expand(self._secret, b"iv")[:NONCE_LENGTH], "big")

    def _update(self) -> int:
        """Go on with the next key; return the number of its first record."""
        self._secret = expand(self._secret, b"update")
        self._derive()
        return 0


class Sealer(_RecordKeys):
    """Encrypts the segments one side sends on one lane."""

    __slots__ = ()

    def seal(self, header: bytes, payload: Sequence[bytes | bytearray | memoryview]) -> bytes:
        """Return ciphertext and tag. `header` must already count TAG_LENGTH in its segment length."""
        clear = payload[0] if len(payload) == 1 else b"".join(payload)
        record = self._record if self._record < self._records_per_key else self._update()
        self._record = record + 1
        return self._aead.encrypt((self._iv ^ record).to_bytes(NONCE_LENGTH, "big"), clear, header)


class Opener(_RecordKeys):
    """Decrypts the segments one side receives on one lane."""

    __slots__ = ()

    def open(self, header: memoryview, payload: bytes | memoryview) -> bytes:
        """Return the clear payload; raises RemoteProtocolError when anything was altered."""
        if len(payload) < TAG_LENGTH:
            raise RemoteProtocolError("a sealed segment without its tag")
        record = self._record if self._record < self._records_per_key else self._update()
        self._record = record + 1
        try:
            return self._aead.decrypt((self._iv ^ record).to_bytes(NONCE_LENGTH, "big"), payload, header)
        except InvalidTag:
            raise RemoteProtocolError("a sealed segment was altered") from None
