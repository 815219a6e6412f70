"""What the kernel says about an MPTCP connection, read from bytes."""

from __future__ import annotations

import socket
import struct

from multi.transports.mptcp.info import local_addresses


def test_the_addresses_subflows_leave_from_are_read_from_socket_addresses() -> None:
    def address(text: str) -> bytes:
        head = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", 1, 0)
        return (head + socket.inet_pton(socket.AF_INET6, text)).ljust(128, b"\0")

    plain = (struct.pack("=H", socket.AF_INET) + struct.pack("!H", 1) + bytes((10, 0, 0, 1))).ljust(128, b"\0")
    ends = [(plain, address("fd00::9")), (address("::ffff:10.0.0.2"), plain), (address("fd00::1"), plain)]
    names = b"".join(bytes(8) + local + remote for local, remote in ends) + bytes(264)
    assert local_addresses(names) == ("10.0.0.1", "10.0.0.2", "fd00::1", "")
    assert local_addresses(b"") == ()
