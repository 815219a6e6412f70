"""What stands in the way of TCP, before anything is dialled."""

from __future__ import annotations

from pathlib import Path

import pytest

from multi.transports.base import TlsSettings, TransportSettings
from multi.transports.tcp.settings import TcpSettings
from multi.transports.tcp.transport import Tcp


@pytest.mark.parametrize(
    ("settings", "listening", "expected"),
    [
        (TransportSettings(), False, ""),
        (TransportSettings(), True, ""),
        (TransportSettings(tls=TlsSettings(verify=False)), False, ""),
        (TransportSettings(tls=TlsSettings(verify=False)), True, "TLS needs ssl_config.cert and ssl_config.key"),
        (TransportSettings(tls=TlsSettings(ca=Path("/no/ca.pem"))), False, "cannot read /no/ca.pem: no such file"),
        (TransportSettings({"tcp": TcpSettings(congestion="nosuch")}), False, "congestion control 'nosuch' is not"),
    ],
)
def test_an_obstacle_is_told_without_a_network(settings: TransportSettings, listening: bool, expected: str) -> None:
    found = Tcp().obstacle(settings, listening=listening)
    assert found.startswith(expected)
    assert bool(found) == bool(expected)
