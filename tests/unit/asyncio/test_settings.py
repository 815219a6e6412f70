"""What a configuration tells the core."""

from __future__ import annotations

import pytest

from multi.asyncio.settings import session_settings
from multi.config import Config, load_config
from multi.transports import base
from multi.transports.tcp.transport import Tcp


def client(**limits: int) -> Config:
    entry = ["tcp", "ipv4", "any"]
    return Config.model_validate({"connection_priority": [entry], "remote_host": "server.example", "limits": limits})


def test_windows_begin_larger_on_clients_than_on_servers() -> None:
    server = Config.model_validate({"listen": {"host": "::", "port": 0, "transports": ["tcp"]}})
    assert session_settings(server).initial_window == 64 * 1024
    assert session_settings(client()).initial_window == 1024 * 1024


@pytest.mark.parametrize(
    ("own", "follows"),
    [
        ({}, (True, True)),
        ({"multi_config": {"scheduler": "RR"}}, (False, True)),
        ({"multi_config": {"reinject": "off"}}, (True, False)),
        ({"multi_config": {"resume_timeout": 5, "mode": "switch"}}, (True, True)),
        ({"steering": "latency"}, (False, True)),
    ],
)
def test_a_server_follows_its_clients_in_what_it_does_not_set(
    own: dict[str, object], follows: tuple[bool, bool]
) -> None:
    """What re-injects, or a mode, had it ignore a client's scheduler as well."""
    listen = {"host": "::", "port": 0, "transports": ["tcp"]}
    settings = session_settings(Config.model_validate({"listen": listen} | own))
    assert (settings.follow_peer_policy, settings.follow_peer_reinject) == follows


def test_a_window_begins_no_larger_than_it_may_become() -> None:
    assert session_settings(client(max_stream_window=200_000)).initial_window == 200_000
    assert session_settings(client(max_session_window=100_000)).initial_window == 100_000


def test_a_registered_transport_has_the_idle_timeout_of_its_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_types", dict(base._types))

    @base.register_transport("pigeon")
    class Pigeon(Tcp):
        name = "pigeon"

        def warnings(self, settings: base.TransportSettings) -> list[str]:
            return ["the wind is strong"]

    entry = ["pigeon", "any", "any"]
    config = load_config({"connection_priority": [entry], "remote_host": "a", "pigeon_config": {"idle_timeout": 7}})
    settings = session_settings(config)
    assert dict(settings.idle_timeouts) == {"tcp": 60.0, "mptcp": 60.0, "quic": 60.0, "mpquic": 60.0, "pigeon": 7.0}
    assert settings.warnings == ("the wind is strong",)
