"""What a configuration tells the core."""

from __future__ import annotations

from multi.asyncio.settings import session_settings
from multi.config import Config


def client(**limits: int) -> Config:
    entry = ["tcp", "ipv4", "any"]
    return Config.model_validate({"connection_priority": [entry], "remote_host": "server.example", "limits": limits})


def test_windows_begin_larger_on_clients_than_on_servers() -> None:
    server = Config.model_validate({"listen": {"host": "::", "port": 0, "transports": ["tcp"]}})
    assert session_settings(server).initial_window == 64 * 1024
    assert session_settings(client()).initial_window == 1024 * 1024


def test_a_window_begins_no_larger_than_it_may_become() -> None:
    assert session_settings(client(max_stream_window=200_000)).initial_window == 200_000
    assert session_settings(client(max_session_window=100_000)).initial_window == 100_000
