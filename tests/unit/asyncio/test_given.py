"""Which of the sockets that are bound before a server starts goes to which of its listeners."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from multi.asyncio.given import GivenSockets

STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM


def bound(kind: socket.SocketKind) -> tuple[socket.socket, int]:
    sock = socket.socket(type=kind)
    sock.bind(("127.0.0.1", 0))
    return sock, sock.getsockname()[1]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_listener_gets_the_socket_of_its_kind_and_port_once(stack: ExitStack) -> None:
    (one, port), (other, own), (datagrams, udp) = (bound(kind) for kind in (STREAM, STREAM, DATAGRAM))
    for sock in (one, other, datagrams):
        stack.enter_context(sock)
    given = GivenSockets([other, one, datagrams], (port, own))
    assert given.take(STREAM, own) is other
    assert given.take(STREAM, port) is one
    assert given.take(STREAM, port) is None
    assert given.take(DATAGRAM, own) is None
    assert given.take(DATAGRAM, port) is datagrams
    assert udp not in (port, own)
    assert not one.getblocking()


def test_a_single_one_is_for_the_main_port_whatever_it_is_bound_to(stack: ExitStack) -> None:
    (sock, _), (second, _) = bound(STREAM), bound(STREAM)
    stack.enter_context(sock)
    stack.enter_context(second)
    assert GivenSockets([sock], (7788, 7801)).take(STREAM, 7801) is None
    assert GivenSockets([sock], (7788, 7801)).take(STREAM, 7788) is sock
    assert GivenSockets([sock], (0,)).take(STREAM, 0) is sock
    assert GivenSockets([sock, second], (7788,)).take(STREAM, 7788) is None, "which of them is not known"


def test_what_nobody_takes_is_closed_and_named(caplog: pytest.LogCaptureFixture) -> None:
    sock, port = bound(DATAGRAM)
    given = GivenSockets([sock], (7788,))
    given.close()
    assert sock.fileno() == -1
    assert f"is not used: UDP 127.0.0.1:{port}" in caplog.text
    given.close()


def test_a_unix_socket_is_for_no_listener(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "sock")
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    given = GivenSockets([sock], (7788,))
    assert given.take(STREAM, 7788) is None
    given.close()
    assert sock.fileno() == -1
    assert f"is not used: AF_UNIX '{path}'" in caplog.text
