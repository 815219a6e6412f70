"""Addresses and errors of sockets in words."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from multi.errors import TransportError
from multi.transports.sockets import (
    format_address,
    is_loopback,
    listening_socket,
    socket_address,
    transport_error,
    try_option,
    words,
)


def test_addresses_are_written_as_people_write_them() -> None:
    assert format_address(("127.0.0.1", 80)) == "127.0.0.1:80"
    assert format_address(("::ffff:10.0.0.1", 80, 0, 0)) == "10.0.0.1:80"
    assert format_address(("fe80::1%eth0", 80, 0, 2)) == "[fe80::1%eth0]:80"


def test_link_local_address_takes_its_scope_from_zone_or_interface() -> None:
    index = socket.if_nametoindex("lo")
    assert socket_address("fe80::1", 7, "lo") == ("fe80::1", 7, 0, index)
    assert socket_address("fe80::1%lo", 7) == ("fe80::1", 7, 0, index)
    assert socket_address("2001:db8::1", 7, "lo") == ("2001:db8::1", 7, 0, 0)
    with pytest.raises(TransportError, match="no interface named 'nosuch0'"):
        socket_address("fe80::1", 7, "nosuch0")


def test_loopback_is_known_in_all_its_forms() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("10.0.0.1", "::", "fe80::1")))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ECONNREFUSED, "connection refused"),
        (errno.EHOSTUNREACH, "no route to host"),
        (errno.EMFILE, "too many open files"),
        (errno.EADDRINUSE, "address already in use"),
        (errno.ETIMEDOUT, "timed out"),
        (errno.ENODEV, "no such interface"),
    ],
)
def test_errors_of_sockets_read_as_people_say_them(code: int, expected: str) -> None:
    error = OSError(code, os.strerror(code))
    assert words(error) == expected
    wrapped = transport_error(error, "cannot do it")
    assert (str(wrapped), wrapped.errno) == (f"cannot do it: {expected}", code)
    assert transport_error(wrapped, "again") is wrapped


def test_an_option_that_does_not_exist_here_is_no_error() -> None:
    with socket.socket() as sock:
        try_option(sock, "TCP_NO_SUCH_OPTION", 1)
        try_option(sock, 9999, 1)
        try_option(sock, "TCP_NODELAY", 1)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_and_a_name_nobody_knows_are_told() -> None:
    def stream(family: int) -> socket.socket:
        return socket.socket(family, socket.SOCK_STREAM)

    with listening_socket("127.0.0.1", 0, stream) as first:
        first.listen()
        place = format_address(first.getsockname())
        with pytest.raises(TransportError, match=f"cannot listen on {place}: address already in use"):
            listening_socket("127.0.0.1", first.getsockname()[1], stream)
    with pytest.raises(TransportError, match=r"cannot listen on 'no-such-host\.invalid'"):
        listening_socket("no-such-host.invalid", 0, stream)
