"""`mpquic_config`: what it takes, and which engine follows from it."""

from __future__ import annotations

import pytest

import multi
from multi.errors import ConfigError
from multi.transports import transport
from multi.transports.base import TransportSettings
from multi.transports.mpquic.settings import MpquicSettings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("paths", 9),
        ("paths", 0),
        ("scheduler", "redundant"),
        ("scheduler", "nobody"),
        ("congestion", "x"),
        ("ack_path", 1),
    ],
)
def test_what_it_cannot_do_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"mpquic_config.{key}"):
        multi.load_config(
            {"connection_priority": [["mpquic", "ipv4", "any"]], "remote_host": "h", "mpquic_config": {key: value}}
        )


def test_private_modes_are_a_list_in_a_configuration() -> None:
    config = {"connection_priority": [["mpquic", "ipv4", "any"]], "remote_host": "h"}
    loaded = multi.load_config({**config, "mpquic_config": {"private_modes": ["uniflows"]}})
    assert loaded.section_of("mpquic") == MpquicSettings(private_modes=("uniflows",))


@pytest.mark.parametrize("built", [True, False])
def test_the_engine_is_the_native_one_where_it_is_built(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi.transports.mpquic.settings.find_spec", lambda name: object() if built else None)
    assert MpquicSettings().chosen_engine == ("noq" if built else "aioquic")
    assert MpquicSettings(engine="aioquic").chosen_engine == "aioquic"
    assert MpquicSettings(ack_path="all").chosen_engine == "aioquic"
    assert MpquicSettings(congestion="bbr").chosen_engine == "noq"
    assert MpquicSettings(private_modes=("uniflows",)).chosen_engine == "aioquic"
    choice = transport("mpquic").choice(TransportSettings())
    assert choice == ("engine noq" if built else "engine aioquic")


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"engine": "aioquic", "congestion": "bbr"}, "congestion"),
        ({"engine": "noq", "ack_path": "all"}, "ack_path"),
        ({"congestion": "bbr", "ack_path": "all"}, "ack_path"),
        ({"engine": "qh3"}, "engine"),
        ({"engine": "noq", "private_modes": ["uniflows"]}, "private_modes"),
        ({"congestion": "bbr", "private_modes": ["uniflows"]}, "private_modes"),
        ({"private_modes": ["biflows"]}, "private_modes"),
    ],
)
def test_what_no_engine_has_together_is_refused(given: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=f"mpquic_config.{key}"):
        multi.load_config(
            {"connection_priority": [["mpquic", "ipv4", "any"]], "remote_host": "h", "mpquic_config": given}
        )
