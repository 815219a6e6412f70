"""The UDP socket under QUIC: what it does when the system takes no more, what it tells of late reading and of paths."""

from __future__ import annotations

import asyncio
import socket
import sys
import time

import pytest

from multi.transports.quic import udp_port
from multi.transports.quic.udp_port import (
    DATAGRAMS_AT_ONCE,
    SEGMENTS_PER_SEND,
    WAITED_LATELY,
    Burst,
    PeerAddress,
    UdpPort,
    largest_datagram_to,
)
from tests.integration.support import until
from tests.integration.transports.test_contract import ipv6_works

SIZE = 1200  # bytes


class User:
    """Counts what a port tells it."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.calls: list[int] = []
        """How many bytes each brought."""
        self.came_at: list[float] = []
        self.writable = 0
        self.failures: list[OSError] = []

    def datagrams_received(self, data: bytes, segment: int, address: PeerAddress, at: float) -> None:
        self.received += [data[start : start + segment] for start in range(0, len(data), segment)]
        self.calls.append(len(data))
        self.came_at.append(at)

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
    address = PeerAddress(here.getsockname())
    receiving, sending = UdpPort(here), UdpPort(there, address)
    receiving.start(receiver)
    sending.start(sender)
    return receiving, receiver, sending, sender, address


async def test_full_socket_keeps_datagrams_and_sends_them_in_order_later(monkeypatch: pytest.MonkeyPatch) -> None:
    port, receiver, sending, sender, address = ports()
    refusals = 2
    real = sending._send_run

    def full(run: list[bytes | memoryview], first: Burst) -> int | None:
        nonlocal refusals
        refusals -= 1
        return None if refusals >= 0 else real(run, first)

    monkeypatch.setattr(sending, "_send_run", full)
    datagrams = [number.to_bytes(2, "big").ljust(SIZE, b".") for number in range(2 * SEGMENTS_PER_SEND + 5)]
    sending.send([Burst(data, SIZE, address) for data in datagrams[:-1]])
    assert sending.blocked
    sending.send([Burst(datagrams[-1], SIZE, address)])
    await until(lambda: len(receiver.received) == len(datagrams))
    assert receiver.received == datagrams
    assert not sending.blocked
    assert sender.writable == 1
    assert not sender.failures
    # Nobody waits for the socket any more: a writer left behind would be called for ever.
    assert not asyncio.get_running_loop().remove_writer(sending._fd)
    port.close()
    sending.close()


@pytest.mark.parametrize("segmented", [True, False], ids=["segmented", "one by one"])
@pytest.mark.parametrize("most", [1, 3, SEGMENTS_PER_SEND])
async def test_bursts_arrive_as_their_datagrams_however_they_are_cut(most: int, segmented: bool) -> None:
    port, receiver, sending, _, address = ports()
    sending._segments = sending._segments and segmented
    datagrams = [number.to_bytes(2, "big").ljust(SIZE, b".") for number in range(12)]
    short = b"short"
    bursts = [Burst(b"".join(datagrams[:7]), SIZE, address), Burst(datagrams[7], SIZE, address)]
    bursts += [Burst(short, len(short), address), Burst(b"".join(datagrams[8:]) + short, SIZE, address)]
    sending.send(bursts, most)
    await until(lambda: len(receiver.received) == 14)
    assert receiver.received == [*datagrams[:8], short, *datagrams[8:], short]
    assert not sending.blocked
    port.close()
    sending.close()


@pytest.mark.parametrize("together", [True, False])
async def test_what_came_together_is_handed_over_together(monkeypatch: pytest.MonkeyPatch, together: bool) -> None:
    """Each datagram had a call of its own where the kernel does not gather them: 33,000 a second were too many."""
    monkeypatch.setattr(udp_port, "TOGETHER", 10.0 if together else -1.0)
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.setblocking(False)
    bound.bind(("127.0.0.1", 0))
    port, receiver = UdpPort(bound), User()
    lengths = [SIZE] * (DATAGRAMS_AT_ONCE + 2) + [700, 700, 900, 0, SIZE, SIZE]
    datagrams = [bytes([number]) * length for number, length in enumerate(lengths)]
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as two,
    ):
        for sock, each in [(one, each) for each in datagrams] + [(two, datagrams[0]), (one, datagrams[1])]:
            sock.sendto(each, bound.getsockname())
    port.start(receiver)
    await until(lambda: sum(receiver.calls) == sum(lengths) + 2 * SIZE)
    assert receiver.received == [each for each in datagrams if each] + datagrams[:2]
    apart = [DATAGRAMS_AT_ONCE * SIZE, 2 * SIZE + 700, 700, 900, 0, 2 * SIZE, SIZE, SIZE]
    assert receiver.calls == (apart if together else [*lengths, SIZE, SIZE])
    port.close()


async def test_nothing_came_before_it_was_sent_though_the_reader_is_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round trip of nothing was taken for the shortest one from then on, and for one that is not known."""
    port, receiver, sending, _, address = ports()
    real = time.time

    def held_up() -> float:
        time.sleep(0.05)
        return real()

    monkeypatch.setattr(time, "time", held_up)
    sent = time.monotonic()
    sending.send([Burst(bytes(SIZE), SIZE, address)])
    await until(lambda: len(receiver.received) == 1)
    (came_at,) = receiver.came_at
    assert sent <= came_at <= time.monotonic()
    port.close()
    sending.close()


async def test_late_reading_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    port, receiver, sending, _, address = ports()
    sent = time.monotonic()
    sending.send([Burst(bytes(SIZE), SIZE, address)])
    time.sleep(0.4)  # noqa: ASYNC251 - the event loop is held up
    await until(lambda: len(receiver.received) == 1)
    now = time.monotonic()
    assert 0.03 < port.waited(now) < now - sent
    assert port.waited(now + WAITED_LATELY) == 0
    port.close()
    sending.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system is not asked")
@pytest.mark.parametrize(("host", "most"), [("127.0.0.1", 65_507), ("::1", 65_488), ("::ffff:127.0.0.1", 65_507)])
def test_datagrams_are_no_larger_than_the_path(host: str, most: int) -> None:
    if host == "::1" and not ipv6_works():
        pytest.skip("no IPv6 loopback here")
    peer = (host, 7788, 0, 0) if ":" in host else (host, 7788)
    assert largest_datagram_to(peer, 65_527) == most
    assert largest_datagram_to(peer, 1350) == 1350
