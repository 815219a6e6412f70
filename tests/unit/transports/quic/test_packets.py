"""What a server answers before there is a connection."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode, QuicHeader

from multi.transports.quic.packets import (
    TOKEN_LIFETIME,
    RetryTokens,
    connection_of_all,
    header_of,
    may_begin_connection,
    refusal,
    stateless_reset,
    version_negotiation,
)

SERVER = ("127.0.0.1", 1)


def client() -> tuple[QuicConnection, QuicHeader]:
    """One that has begun to dial, and the header of its first packet."""
    connection = QuicConnection(configuration=QuicConfiguration(server_name="localhost"))
    connection.connect(SERVER, now=0.0)
    header = header_of(connection.datagrams_to_send(now=0.0)[0][0])
    assert header is not None
    return connection, header


def test_retry_makes_a_client_come_back_with_a_token_of_its_address_alone() -> None:
    connection, first = client()
    tokens = RetryTokens()
    connection.receive_datagram(tokens.retry(first, "here", 5.0), SERVER, now=0.0)
    again = header_of(connection.datagrams_to_send(now=0.0)[0][0])
    assert again is not None
    assert may_begin_connection(again)
    assert tokens.original_id(again, "here", 5.0 + TOKEN_LIFETIME) == first.destination_cid
    assert tokens.original_id(again, "there", 5.0) is None
    assert tokens.original_id(again, "here", 5.1 + TOKEN_LIFETIME) is None
    assert tokens.original_id(replace(again, destination_cid=bytes(8)), "here", 5.0) is None
    assert tokens.original_id(replace(again, token=b""), "here", 5.0) is None
    assert RetryTokens().original_id(again, "here", 5.0) is None


def test_refusal_ends_the_connection_a_client_has_begun() -> None:
    connection, first = client()
    connection.receive_datagram(refusal(first, QuicErrorCode.CONNECTION_REFUSED), SERVER, now=0.0)
    assert connection._close_event is not None
    assert connection._close_event.error_code == QuicErrorCode.CONNECTION_REFUSED


@pytest.mark.parametrize(("version", "negotiated"), [(1, False), (0x1A2A3A4A, True), (0, False), (None, False)])
def test_only_other_versions_are_negotiated(version: int | None, negotiated: bool) -> None:
    _, first = client()
    answer = version_negotiation(replace(first, version=version), [1])
    assert (answer is not None) == negotiated
    if answer is not None:
        header = header_of(answer)
        assert header is not None
        assert header.supported_versions == [1]
        assert header.destination_cid == first.source_cid


def test_datagrams_of_one_connection_are_told_by_their_short_headers() -> None:
    one, other = b"\x40" + b"a" * 99, b"\x40" + b"b" * 99
    assert connection_of_all(one + one + one[:50], 100) == b"a" * 8
    assert connection_of_all(one + other, 100) is None
    assert connection_of_all(b"\xc0" + one[1:], 100) is None
    assert connection_of_all(one + b"\xc0" + one[1:], 100) is None
    assert connection_of_all(b"", 1) is None


def test_what_is_no_packet_has_no_header() -> None:
    assert header_of(b"") is None
    assert header_of(b"\x00" * 1200) is None


def test_a_reset_looks_like_any_packet_and_is_shorter_than_what_it_answers() -> None:
    token = bytes(range(16))
    for answered in (22, 30, 43, 1200):
        made = stateless_reset(answered, token)
        assert 21 <= len(made) < answered
        assert made.endswith(token)
        assert made[0] & 0xC0 == 0x40
    assert len({stateless_reset(1200, token) for _ in range(20)}) == 20
    assert stateless_reset(21, token) == b""
