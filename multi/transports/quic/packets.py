"""What a server does with packets before there is a connection: read them, validate addresses, refuse.

aioquic's functions, whichever engine the connections themselves use: they are always installed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from aioquic._buffer import Buffer as QuicBuffer
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.packet_builder import QuicPacketBuilder
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from multi.transports.quic.connection_ids import PLAIN_IDS, TOKEN_LENGTH, ConnectionIds
from multi.transports.quic.udp_port import MIN_DATAGRAM

TOKEN_LIFETIME = 30.0  # seconds; clients return a retry token at once (RFC 9000 section 8.1.4)
LONG_HEADER = 0x80  # RFC 9000 section 17.2
SHORT_HEADER = 0x40  # with the six bits that follow at random; RFC 9000 section 10.3 for this and the next two
MIN_RESET = 5 + TOKEN_LENGTH  # bytes
MAX_RESET = 42  # bytes, more than it needs to look like any other packet
MIN_FIRST_ID = 8  # bytes a client makes up for the server; fewer could be guessed (RFC 9000 section 7.2)


def connection_of_all(data: bytes, segment: int, id_length: int = PLAIN_IDS.length) -> bytes | None:
    """The destination id of datagrams of `segment` bytes each, if all are packets with short headers for the same.

    That is what they are once the handshake is done. None for anything else.
    """
    if max(data[::segment], default=LONG_HEADER) >= LONG_HEADER:
        return None
    first = data[1 : 1 + id_length]
    for start in range(segment, len(data), segment):
        if data[start + 1 : start + 1 + id_length] != first:
            return None
    return first


def header_of(data: bytes, id_length: int = PLAIN_IDS.length) -> QuicHeader | None:
    """Of a datagram's first packet; None if that is none of QUIC. Ids of this side have `id_length` bytes."""
    try:
        return pull_quic_header(QuicBuffer(data=data), host_cid_length=id_length)
    except ValueError:
        return None


def may_begin_connection(header: QuicHeader) -> bool:
    """An Initial; its datagram also has to have `MIN_DATAGRAM` bytes."""
    return header.packet_type is QuicPacketType.INITIAL and len(header.destination_cid) >= MIN_FIRST_ID


def version_negotiation(header: QuicHeader, versions: Sequence[int]) -> bytes | None:
    """The answer to a version that is not one of `versions`, else None."""
    # Version 0 is itself a Version Negotiation packet: answering one with another makes two servers loop.
    if not header.version or header.version in versions:
        return None
    return encode_quic_version_negotiation(
        source_cid=header.destination_cid, destination_cid=header.source_cid, supported_versions=list(versions)
    )


def stateless_reset(answered: int, token: bytes) -> bytes:
    """The answer to a datagram of `answered` bytes for a connection that is gone, shorter than that one is.

    Two ends that both know nothing would answer each other for ever else. Empty if it is too short for an answer.
    """
    length = min(answered - 1, MAX_RESET)
    if length < MIN_RESET:
        return b""
    random = os.urandom(length - TOKEN_LENGTH)
    return bytes([SHORT_HEADER | random[0] >> 2]) + random[1:] + token


def refusal(header: QuicHeader, error_code: QuicErrorCode) -> bytes:
    """An Initial packet that closes a connection before it exists (RFC 9000 section 5.2.2)."""
    version = header.version or 1
    crypto = CryptoPair()
    crypto.setup_initial(cid=header.destination_cid, is_client=False, version=version)
    builder = QuicPacketBuilder(
        host_cid=header.destination_cid,
        is_client=False,
        max_datagram_size=MIN_DATAGRAM,
        peer_cid=header.source_cid,
        version=version,
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    buffer = builder.start_frame(QuicFrameType.TRANSPORT_CLOSE, capacity=32)
    buffer.push_uint_var(error_code)
    buffer.push_uint_var(QuicFrameType.PADDING)
    buffer.push_uint_var(0)
    datagrams, _ = builder.flush()
    return datagrams[0]


class RetryTokens:
    """Address validation before any state is kept (RFC 9000 section 8.1.2)."""

    def __init__(self, ids: ConnectionIds = PLAIN_IDS) -> None:
        self._ids = ids
        self._cipher = AESGCM(AESGCM.generate_key(bit_length=128))

    def retry(self, header: QuicHeader, address: str, now: float) -> bytes:
        """The Retry packet that makes the client come back with a token."""
        source_id = self._ids.new()
        issued = int(now * 1000).to_bytes(8, "big")
        plain = issued + source_id + header.destination_cid
        nonce = os.urandom(12)
        token = nonce + self._cipher.encrypt(nonce, plain, address.encode())
        return encode_quic_retry(
            version=header.version or 1,
            source_cid=source_id,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )

    def original_id(self, header: QuicHeader, address: str, now: float) -> bytes | None:
        """The destination id of the client's first packet, or None if the token is not ours or too old."""
        token = header.token
        try:
            plain = self._cipher.decrypt(token[:12], token[12:], address.encode())
        except (InvalidTag, ValueError):
            return None
        issued = int.from_bytes(plain[:8], "big") / 1000
        source_id = plain[8 : 8 + self._ids.length]
        if now - issued > TOKEN_LIFETIME or source_id != header.destination_cid:
            return None
        return plain[8 + self._ids.length :]
