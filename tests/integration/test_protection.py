"""What a session says about protection and about settings that have no effect."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import multi
from multi.lab.cert import write_development_certificates


async def _idle(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
    await reader.read()
    writer.close()


async def test_a_server_with_certificates_refuses_plain_connections_with_a_reason(tmp_path: Path) -> None:
    write_development_certificates(tmp_path, [])
    config = {
        "listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]},
        "ssl_config": {"cert": str(tmp_path / "server-cert.pem"), "key": str(tmp_path / "server-key.pem")},
    }
    server = await multi.start_server(_idle, config)
    plain = {"connection_priority": [["tcp", "ipv4", "any"]], "remote_host": "127.0.0.1", "remote_port": server.port}
    with pytest.raises(multi.SessionRefused, match="protection"):
        await multi.open_connection(plain)
    async with multi.connect({**plain, "ssl_config": {"ca": str(tmp_path / "ca.pem")}}) as session:
        await session.confirmed()
        assert session.connections[0].secure
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("transport", ["tcp", "quic"])
async def test_a_client_may_trust_the_certificate_of_a_server_itself(tmp_path: Path, transport: str) -> None:
    """As in the paper's Figure 2, whoever issued it: one that was not its own issuer was refused."""
    write_development_certificates(tmp_path, [])
    cert = str(tmp_path / "server-cert.pem")
    config = {
        "listen": {"host": "127.0.0.1", "port": 0, "transports": [transport]},
        "ssl_config": {"cert": cert, "key": str(tmp_path / "server-key.pem")},
    }
    server = await multi.start_server(_idle, config)
    client = {
        "connection_priority": [[transport, "ipv4", "any"]],
        "remote_host": "127.0.0.1",
        "remote_port": server.port,
        "ssl_config": {"cert": cert},
    }
    async with multi.connect(client) as session:
        await session.confirmed()
        assert session.connections[0].secure
    with pytest.raises(multi.MultiError, match="unknown issuer"):
        await multi.open_connection({**client, "ssl_config": {"ca": str(tmp_path / "client-cert.pem")}})
    server.close()
    await server.wait_closed()


async def test_a_setting_without_effect_is_a_warning_in_the_log_and_an_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listen = {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}
    server = await multi.start_server(_idle, {"listen": listen})
    config = {
        "connection_priority": [["tcp", "ipv4", "any"]],
        "remote_host": "127.0.0.1",
        "remote_port": server.port,
        "wifi_config": {"power_savings": False},
    }
    with caplog.at_level(logging.WARNING, logger="multi"):
        async with multi.connect(config) as session:
            seen = []
            async for event in session.events():
                seen.append(event)
                if isinstance(event, multi.Warned):
                    break
    assert isinstance(seen[0], multi.ConnectionChanged)
    assert isinstance(seen[-1], multi.Warned)
    assert "power_savings: no WiFi interface" in seen[-1].message
    assert "power_savings: no WiFi interface" in caplog.text
    server.close()
    await server.wait_closed()
