"""The UDP socket under QUIC: what it does when the system takes no more, and what it tells of late reading."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from multi.transports.quic.udp_port import SEGMENTS_PER_SEND, WAITED_LATELY, PeerAddress, UdpPort
from tests.integration.test_transport_contract import until

SIZE = 1200  # bytes


class User:
    """Counts what a port tells it."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.writable = 0
        self.failures: list[OSError] = []

    def datagrams_received(self, data: bytes, segment: int, address: PeerAddress, at: float) -> None:
        self.received += [data[start : start + segment] for start in range(0, len(data), segment)]

    def burst_finished(self) -> None:
        pass

    def port_writable(self) -> None:
        self.writable += 1

    def port_failed(self, error: OSError) -> None:
        self.failures.append(error)


def ports() -> tuple[UdpPort, User, UdpPort, User, PeerAddress]:
    """A port, one that is connected to it, and the users of both."""
    here, there = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    for sock in (here, there):
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
    there.connect(here.getsockname())
    receiver, sender = User(), User()
    address = PeerAddress(*here.getsockname())
    return UdpPort(here, receiver), receiver, UdpPort(there, sender, address), sender, address


async def test_full_socket_keeps_datagrams_and_sends_them_in_order_later(monkeypatch: pytest.MonkeyPatch) -> None:
    port, receiver, sending, sender, address = ports()
    refusals = 2
    real = sending._send_run

    def full(run: list[bytes], to: PeerAddress) -> bool:
        nonlocal refusals
        refusals -= 1
        return refusals < 0 and real(run, to)

    monkeypatch.setattr(sending, "_send_run", full)
    datagrams = [number.to_bytes(2, "big").ljust(SIZE, b".") for number in range(2 * SEGMENTS_PER_SEND + 5)]
    sending.send([(data, address) for data in datagrams[:-1]])
    assert sending.blocked
    sending.send([(datagrams[-1], address)])
    await until(lambda: len(receiver.received) == len(datagrams))
    assert receiver.received == datagrams
    assert not sending.blocked
    assert sender.writable == 1
    assert not sender.failures
    # Nobody waits for the socket any more: a writer left behind would be called for ever.
    assert not asyncio.get_running_loop().remove_writer(sending._fd)
    port.close()
    sending.close()


async def test_late_reading_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    port, receiver, sending, _, address = ports()
    sent = time.monotonic()
    sending.send([(bytes(SIZE), address)])
    time.sleep(0.4)  # noqa: ASYNC251 - the event loop is held up
    await until(lambda: len(receiver.received) == 1)
    now = time.monotonic()
    assert 0.03 < port.waited(now) < now - sent
    assert port.waited(now + WAITED_LATELY) == 0
    port.close()
    sending.close()
