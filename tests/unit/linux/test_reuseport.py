"""Which process of several on one UDP port gets a datagram: asked of the kernel itself, on loopback."""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from multi.linux.reuseport import PlaceInId, share_port, steer_by_connection_id

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="SO_ATTACH_REUSEPORT_CBPF is Linux's")

PLACES = 3
IDS = PlaceInId(first=0x10, length=17, position=8)


@pytest.fixture
def group() -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        made: list[socket.socket] = []
        for _ in range(PLACES):
            sock = share_port(stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
            sock.bind(("127.0.0.1", made[0].getsockname()[1] if made else 0))
            sock.setblocking(False)
            made.append(sock)
        steer_by_connection_id(made[0], IDS, PLACES)
        yield made


def connection_id(place: int, first: int = IDS.first) -> bytes:
    return bytes([first]) + os.urandom(IDS.position - 1) + bytes([place]) + os.urandom(8)


def short(connection_id: bytes) -> bytes:
    return b"\x40" + connection_id + b"payload"


def long(connection_id: bytes) -> bytes:
    return b"\xc0\0\0\0\1" + bytes([len(connection_id)]) + connection_id + b"payload"


def takers(group: list[socket.socket], packet: bytes, ports: int) -> Counter[int]:
    """Who gets it, from so many ports."""
    found: Counter[int] = Counter()
    for _ in range(ports):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(packet, group[0].getsockname())
        for place, sock in enumerate(group):
            try:
                assert sock.recv(2048) == packet
            except BlockingIOError:
                continue
            found[place] += 1
    return found


@pytest.mark.parametrize("header", [short, long])
@pytest.mark.parametrize("place", range(PLACES))
def test_a_packet_reaches_the_place_its_id_names_from_whatever_port(
    group: list[socket.socket], header: object, place: int
) -> None:
    assert callable(header)
    assert takers(group, header(connection_id(place)), 20) == {place: 20}


@pytest.mark.parametrize(
    "packet",
    [
        short(connection_id(PLACES)),
        short(connection_id(0, first=0x11)),
        long(connection_id(0)[:16]),
        long(connection_id(0, first=0x50)),
        long(connection_id(255)),
        b"\x40",
        short(connection_id(0))[: IDS.length],
        b"\xc0\0\0\0\1",
        b"",
    ],
    ids=[
        "no such place",
        "foreign",
        "short id",
        "long and foreign",
        "last place",
        "one byte",
        "cut",
        "cut long",
        "empty",
    ],
)
def test_what_names_no_place_is_spread_by_the_port_it_comes_from(group: list[socket.socket], packet: bytes) -> None:
    assert set(takers(group, packet, 64)) == set(range(PLACES))  # one of them missed: once in 10^11


def test_a_socket_that_shares_its_port_with_nobody_cannot_be_steered() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as alone:
        alone.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="Invalid argument"):
            steer_by_connection_id(alone, IDS, 1)
