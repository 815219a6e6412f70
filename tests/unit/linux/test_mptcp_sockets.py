"""Which MPTCP connections there are: asked of the kernel about real ones."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from multi.linux.mptcp_pm import IPPROTO_MPTCP, mptcp_available
from multi.linux.mptcp_sockets import MptcpSockets

pytestmark = pytest.mark.skipif(not mptcp_available(), reason="this kernel has no MPTCP")

HERE, LISTENING = "127.88.7.1", "127.88.7.2"


class Sockets:
    """A listener for both IP versions, and what is connected to it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._listener = self.open(socket.AF_INET6, f"::ffff:{LISTENING}")
        self._listener.listen()

    def open(self, family: int, address: str) -> socket.socket:
        made = self._stack.enter_context(socket.socket(family, socket.SOCK_STREAM, IPPROTO_MPTCP))
        made.bind((address, 0))
        return made

    def connected(self, family: int, address: str, to: str = LISTENING) -> socket.socket:
        made = self.open(family, address)
        made.connect((to, self._listener.getsockname()[1]))
        return made


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    with ExitStack() as stack:
        yield Sockets(stack)


def test_a_connection_is_found_where_it_began_while_somebody_holds_it(sockets: Sockets) -> None:
    with MptcpSockets() as kernel:
        assert not kernel.begun_at(HERE)
        held = sockets.connected(socket.AF_INET, HERE)
        assert kernel.begun_at(HERE)
        held.close()  # the other end does not: it is not over for the kernel
        assert not kernel.begun_at(HERE)


def test_a_listener_is_no_connection(sockets: Sockets) -> None:
    with MptcpSockets() as kernel:
        assert not kernel.begun_at(LISTENING)


def test_ipv4_in_a_socket_of_ipv6_is_ipv4(sockets: Sockets) -> None:
    sockets.connected(socket.AF_INET6, f"::ffff:{HERE}", f"::ffff:{LISTENING}")
    with MptcpSockets() as kernel:
        assert kernel.begun_at(HERE)


def test_a_kernel_that_does_not_tell_knows_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[bytes]:
        raise FileNotFoundError(errno.ENOENT, "no such file or directory")

    monkeypatch.setattr(MptcpSockets, "dump", refuse)
    with MptcpSockets() as kernel:
        assert not kernel.begun_at(HERE)
