"""What is set on stream sockets."""

from __future__ import annotations

import socket
import sys

import pytest

from multi.errors import TransportError
from multi.transports.tcp.channel import channel_info
from multi.transports.tcp.settings import TcpSettings
from multi.transports.tcp.tuning import (
    USER_TIMEOUT_MS,
    available_congestion_controls,
    check_congestion,
    fills_queues,
    tune_stream,
)


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="needs TCP_CONGESTION")
def test_a_congestion_control_that_is_not_there_is_named_with_those_that_are() -> None:
    check_congestion(TcpSettings())
    check_congestion(TcpSettings(congestion="reno"))
    with pytest.raises(
        TransportError, match=r"^tcp_config: congestion control 'nosuch' is not available; available: .*reno"
    ):
        check_congestion(TcpSettings(congestion="nosuch"), "tcp_config: ")


@pytest.mark.skipif(sys.platform != "linux", reason="options of Linux")
@pytest.mark.parametrize(
    ("settings", "remote", "congestion"),
    [
        (TcpSettings(), "127.0.0.1", b"reno"),
        (TcpSettings(congestion="cubic"), "127.0.0.1", b"cubic"),
        (TcpSettings(congestion="cubic", nagle=True), "192.0.2.1", b"cubic"),
    ],
)
def test_a_connection_has_the_options_of_its_settings(settings: TcpSettings, remote: str, congestion: bytes) -> None:
    with socket.socket() as sock:
        tune_stream(sock, settings, remote)
        kernels = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
        assert kernels == congestion
        assert bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) is not settings.nagle
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == USER_TIMEOUT_MS


@pytest.mark.skipif(sys.platform != "linux", reason="options of Linux")
def test_what_waits_for_losses_fills_queues() -> None:
    with socket.socket() as sock:
        for name in available_congestion_controls():
            tune_stream(sock, TcpSettings(congestion=name), "192.0.2.1")
            assert fills_queues(sock) is (name in ("reno", "cubic")), name
        tune_stream(sock, TcpSettings(congestion="reno"), "192.0.2.1")
        assert fills_queues(sock)
    assert fills_queues(sock), "who does not tell has what nearly all have"


@pytest.mark.skipif(sys.platform != "linux", reason="options of Linux")
def test_an_open_connection_says_so_and_one_of_subflows_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        tune_stream(sock, TcpSettings(congestion="reno"), "127.0.0.1")
        assert channel_info(sock, "tcp").fills_queues
        assert not channel_info(sock, "mptcp").fills_queues, "each has a queue of its own"
