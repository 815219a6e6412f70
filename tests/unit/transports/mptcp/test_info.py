"""What the kernel says about an MPTCP connection, read from bytes."""

from __future__ import annotations

import socket
import struct

import pytest

from multi.transports.mptcp.info import parse_address


def six(text: str) -> bytes:
    return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", 1, 0) + socket.inet_pton(socket.AF_INET6, text)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (struct.pack("=H", socket.AF_INET) + struct.pack("!H", 1) + bytes((10, 0, 0, 1)) + bytes(16), "10.0.0.1"),
        (six("::ffff:10.0.0.2"), "10.0.0.2"),
        (six("fd00::1"), "fd00::1"),
        (bytes(24), ""),
    ],
)
def test_the_address_a_subflow_leaves_from_is_read_from_a_socket_address(data: bytes, expected: str) -> None:
    assert parse_address(data) == expected
