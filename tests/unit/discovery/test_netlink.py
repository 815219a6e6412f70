"""Requests to the kernel over netlink."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from multi.discovery import netlink
from multi.discovery.netlink import ANSWER_TIMEOUT, NLMSG_ERROR, NetlinkSocket, message


class BusyKernel:
    """Does what it is asked only after others have let it, which holds up whoever sends; then its answer is there."""

    now = 0.0

    def __init__(self) -> None:
        self._answers: list[bytes] = []

    def settimeout(self, timeout: float) -> None:
        assert timeout > 0

    def send(self, data: bytes) -> None:
        BusyKernel.now += 10 * ANSWER_TIMEOUT
        sequence = netlink.HEADER.unpack_from(data)[3]
        self._answers.append(message(NLMSG_ERROR, 0, sequence, bytes(4)))

    def recv(self, size: int) -> bytes:
        return self._answers.pop()


def test_an_answer_that_is_there_is_read_however_long_the_kernel_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "time", SimpleNamespace(monotonic=lambda: BusyKernel.now))
    assert NetlinkSocket(BusyKernel).exchange(16, b"") == []  # type: ignore[arg-type] # what is used of a socket
