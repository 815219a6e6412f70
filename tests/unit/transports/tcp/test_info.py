"""TCP_INFO, read from bytes and from a socket of this kernel."""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from math import inf

import pytest

from multi.transports.tcp.info import parse_tcp_info, read_tcp_info

LAYOUT = "=8B24I4Q6I4Q2I2Q"


def tcp_info(**changed: int) -> bytes:
    """As the kernel writes it; numbers by their place in the structure."""
    values = [0] * 54
    for place, value in changed.items():
        values[int(place[1:])] = value
    return struct.pack(LAYOUT, *values[: len(struct.unpack(LAYOUT, bytes(struct.calcsize(LAYOUT))))])


def test_times_are_seconds_and_windows_bytes() -> None:
    found = parse_tcp_info(tcp_info(_0=1, _2=3, _10=1448, _23=20_000, _24=5_000, _26=10, _34=1000, _39=18_000))
    assert (found.state, found.retransmits) == (1, 3)
    assert (found.rtt, found.rtt_variation, found.min_rtt) == (0.02, 0.005, 0.018)
    assert (found.congestion_window, found.bytes_acked) == (14_480, 1000)


def test_what_waits_at_the_peer_for_something_lost_is_told_in_bytes() -> None:
    found = parse_tcp_info(tcp_info(_10=1448, _13=7, _34=1000, _48=50_000))
    assert (found.unacked, found.arrived) == (49_000, 7 * 1448)


def test_a_minimum_and_a_rate_that_were_not_measured_are_zero() -> None:
    found = parse_tcp_info(tcp_info(_34=1000, _39=0xFFFFFFFF, _42=3_000_000_000))
    assert (found.min_rtt, found.rate) == (0.0, 0.0)
    assert parse_tcp_info(tcp_info(_34=1_000_000, _42=3_000_000)).rate == 3_000_000.0


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_what_has_come_is_told_with_its_time_read_or_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        other, _ = server.accept()
        with other:
            found = read_tcp_info(client)
            assert found is not None
            assert found.received_ago == inf, "nothing yet"
            other.sendall(bytes(1234))
            select.select([client], [], [])
            time.sleep(0.05)
            found = read_tcp_info(client)
            assert found is not None
            assert 0.03 < found.received_ago < inf


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_closed_socket_and_one_that_is_not_tcp_tell_nothing() -> None:
    with socket.socket() as sock:
        assert read_tcp_info(sock) is not None
    assert read_tcp_info(sock) is None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        assert read_tcp_info(datagrams) is None
