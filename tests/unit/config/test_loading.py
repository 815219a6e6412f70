"""Reading a configuration: from files, from dicts, and everything that can be wrong with the file itself."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from multi.config import Config, Entry, load_config, load_entry
from multi.errors import ConfigError, MultiError

CLIENT = {"connection_priority": [["tcp", "ipv4", "eth0"]], "remote_host": "server.example"}


def written(directory: Path, text: str | bytes) -> Path:
    path = directory / "client.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(config: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(config)
    return caught.value


def test_a_file_and_a_dict_of_the_same_shape_give_the_same_settings(tmp_path: Path) -> None:
    from_file = load_config(written(tmp_path, json.dumps(CLIENT)))
    assert from_file.model_dump() == load_config(CLIENT).model_dump()


def test_a_file_may_be_named_by_text_or_path(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(CLIENT))
    assert load_config(str(path)) == load_config(path)


def test_a_ready_config_is_returned_as_it_is() -> None:
    config = load_config(CLIENT)
    assert load_config(config) is config


def test_a_config_cannot_be_changed() -> None:
    config = load_config(CLIENT)
    with pytest.raises(ValueError, match="frozen"):
        config.remote_port = 1


def test_changing_the_dict_afterwards_does_not_change_the_config() -> None:
    interfaces = ["eth0"]
    config = load_config({"connection_priority": [["tcp", "ipv4", interfaces]], "remote_host": "server.example"})
    interfaces.append("wlan0")
    assert config.connection_priority[0].interface == ("eth0",)


def test_file_names_are_relative_to_the_config_file(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, json.dumps(CLIENT)))
    assert config.resolve("") == tmp_path
    assert config.resolve("ca.pem") == tmp_path / "ca.pem"
    assert config.resolve("/etc/ca.pem") == Path("/etc/ca.pem")


def test_file_names_stay_right_when_the_current_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, json.dumps(CLIENT))
    monkeypatch.chdir(tmp_path)
    config = load_config("client.json")
    monkeypatch.chdir("/")
    assert config.resolve("ca.pem") == tmp_path / "ca.pem"


def test_file_names_of_a_dict_are_relative_to_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(CLIENT).resolve("ca.pem") == tmp_path / "ca.pem"


def test_a_dict_loads_even_when_the_current_directory_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load_config(CLIENT).resolve("/etc/ca.pem") == Path("/etc/ca.pem")


def test_loading_opens_no_other_file(tmp_path: Path) -> None:
    ssl = {"cert": "missing-cert.pem", "key": "missing-key.pem", "ca": "missing-ca.pem"}
    auth = {"psk_file": "missing.psk"}
    config = load_config(written(tmp_path, json.dumps({**CLIENT, "ssl_config": ssl, "auth": auth})))
    assert config.psk_path == tmp_path / "missing.psk"


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    assert not load_config(written(tmp_path, b"\xef\xbb\xbf" + json.dumps(CLIENT).encode())).is_server


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path / "nothing.json")
    assert "nothing.json" in str(error)
    assert "No such file" in str(error)


@pytest.mark.parametrize("address", ["server.example:7788", "http://server.example"])
def test_an_address_in_place_of_a_file_is_told_how_to_be_written(address: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*; a server's address is written multi://HOST:PORT$"):
        load_config(address)


def test_a_directory_is_no_config(tmp_path: Path) -> None:
    assert "directory" in str(refused(tmp_path)).lower()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_a_config_error(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(CLIENT))
    path.chmod(0)
    assert "Permission denied" in str(refused(path))


def test_a_name_with_a_nul_is_a_config_error() -> None:
    assert "cannot read" in str(refused("a\0b"))


def test_a_file_that_is_not_utf_8_says_where(tmp_path: Path) -> None:
    assert "offset 2" in str(refused(written(tmp_path, b'{"\xff": 1}')))


def test_a_file_that_is_not_json_says_line_and_column(tmp_path: Path) -> None:
    error = refused(written(tmp_path, '{\n  "remote_host": "x"\n  "remote_port": 1}'))
    assert "line 3, column 3" in str(error)


@pytest.mark.parametrize("text", ["", "   ", "{", '{"a": 1}}', "{'a': 1}", "\0"])
def test_broken_json_is_a_config_error(tmp_path: Path, text: str) -> None:
    assert "no JSON" in str(refused(written(tmp_path, text)))


@pytest.mark.parametrize(
    ("text", "found"), [("[]", "an empty list"), ("7", "7"), ('"x"', '"x"'), ("null", "null"), ("NaN", "NaN")]
)
def test_json_that_is_no_object_is_refused(tmp_path: Path, text: str, found: str) -> None:
    assert f"found {found}; allowed" in str(refused(written(tmp_path, text)))


def test_a_key_written_twice_is_refused_with_its_place(tmp_path: Path) -> None:
    text = '{"tcp_config": {"nagle": true, "nagle": false}, "remote_host": "a", "remote_host": "b"}'
    error = refused(written(tmp_path, text))
    assert error.key_path == "remote_host"
    assert "tcp_config.nagle: found twice" in str(error)


def test_a_key_written_twice_inside_a_list_is_found(tmp_path: Path) -> None:
    text = '{"connection_priority": [["tcp", "ipv4", "eth0"], {"role": "active", "role": "backup"}]}'
    assert refused(written(tmp_path, text)).key_path == "connection_priority[1].role"


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"remote_host":['])
def test_deep_nesting_is_a_config_error(tmp_path: Path, opening: str) -> None:
    refused(written(tmp_path, opening * 100_000))
    closing = {"[": "]", '{"a":': "}", '{"remote_host":[': "]}"}[opening]
    refused(written(tmp_path, opening * 50_000 + "1" + closing * 50_000))


@pytest.mark.parametrize("depth", [300, 900, 990])
def test_nesting_near_the_limit_of_the_interpreter_is_a_config_error(tmp_path: Path, depth: int) -> None:
    refused(written(tmp_path, '{"remote_host":' + "[" * depth + "]" * depth + "}"))


def test_a_dict_that_contains_itself_is_refused() -> None:
    circular: dict[str, object] = {}
    circular["tcp_config"] = circular
    assert refused(circular).key_path.startswith("tcp_config")


def test_a_number_with_too_many_digits_is_a_config_error(tmp_path: Path) -> None:
    refused(written(tmp_path, '{"remote_port": ' + "9" * 10_000 + "}"))


@pytest.mark.parametrize("section", ["remote_port", "session_id", "limits", "auth", "connection_priority"])
def test_a_number_that_python_cannot_print_is_a_config_error(section: str) -> None:
    assert "more than 18 digits" in str(refused({**CLIENT, section: 10**5000}))


def test_a_file_without_end_is_not_read_to_the_end(tmp_path: Path) -> None:
    assert "bytes" in str(refused(written(tmp_path, b" " * (2 << 20))))


def test_an_error_names_the_file_in_a_note(tmp_path: Path) -> None:
    error = refused(written(tmp_path, '{"remote_prt": 1}'))
    assert any("client.json" in note for note in error.__notes__)


@pytest.mark.parametrize("config", [None, 7, 1.5, True, [], ["a.json"], b"a.json", object()])
def test_anything_but_a_file_a_dict_or_a_config_is_refused(config: object) -> None:
    assert "allowed: a file name" in str(refused(config))


def test_keys_that_are_no_text_are_refused() -> None:
    assert "found the key 1" in str(refused({1: 2}))
    assert refused({**CLIENT, "tcp_config": {1: 2}}).key_path == "tcp_config[1]"


def test_keys_that_are_names_of_python_parameters_are_only_unknown() -> None:
    assert refused({**CLIENT, "self": 1}).key_path == "self"
    assert refused({**CLIENT, "data": 1}).key_path == "data"


def test_a_config_error_is_a_value_error_and_a_multi_error() -> None:
    error = refused({})
    assert isinstance(error, ValueError)
    assert isinstance(error, MultiError)


def test_building_a_config_from_keywords_raises_the_same_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        Config(remote_prt=1, **CLIENT)
    assert caught.value.key_path == "remote_prt"


def test_what_was_said_can_be_dumped_and_loaded_again() -> None:
    config = load_config(
        {
            "connection_priority": [
                ["mptcp", "ipv6", ["eth", "wifi"]],
                {"transport": "tcp", "ip": "any", "interface": "cellular", "role": "backup"},
            ],
            "remote_host": "server.example",
            "multi_config": {"scheduler": {"name": "top_throughput", "n": 2}},
        }
    )
    dumped = config.model_dump(mode="json", exclude_unset=True)
    assert dumped["connection_priority"][1]["role"] == "backup"
    assert load_config(json.loads(json.dumps(dumped))) == config


def test_doubtful_settings_are_logged_when_loading(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="multi.config"):
        load_config({"listen": {}, "session_id": "a", "multi_config": {"wait": "all", "mode": "switch"}})
    assert "session_id: not used: it is for clients" in caplog.text
    assert "multi_config.wait: not used: it is for clients" in caplog.text
    assert "multi_config.mode: not used: it is for clients" in caplog.text


def test_an_entry_can_be_loaded_alone() -> None:
    assert load_entry(["tcp", "ipv4", "eth0"]) == load_entry({"transport": "tcp", "ip": "ipv4", "interface": ["eth0"]})
    entry = load_entry(["quic", "any", ["wifi"]])
    assert isinstance(entry, Entry)
    assert load_entry(entry) is entry


@pytest.mark.parametrize(
    ("entry", "key_path"),
    [
        (["tcp", "ipv5", "eth0"], "[1]"),
        ({"transport": "tcp", "ip": "any", "interface": "eth0", "rle": 1}, "rle"),
        (["tcp"], ""),
        (7, ""),
    ],
)
def test_a_wrong_entry_is_a_config_error(entry: object, key_path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_entry(entry)
    assert caught.value.key_path == key_path


TEXT = st.text(max_size=20) | st.sampled_from(
    [
        "tcp",
        "quic",
        "ipv4",
        "any",
        "eth",
        "RR",
        "random",
        "",
        "::",
        "127.0.0.1",
        "\ud800",
        "a" * 300,
        "{0}",
        "a:b",
    ]
)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([-(10**400), 10**18, 65_536]) | TEXT
KEYS = st.sampled_from(
    [
        *Config.model_fields,
        *Entry.model_fields,
        "name",
        "n",
        "port",
        "host",
        "transports",
        "eth",
        "cert",
        "key",
    ]
)
JSON_VALUE = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | TEXT, inner, max_size=5),
    max_leaves=20,
)


@given(JSON_VALUE | st.dictionaries(KEYS, JSON_VALUE))
@example({"connection_priority": [["tcp", "any", ["eth", "\ud800"]]], "remote_host": "a"})
@example({"listen": {"port": 1}, "\ud800": 1})
def test_any_value_either_loads_or_is_a_config_error(value: Any) -> None:
    try:
        config = load_config(value)
    except ConfigError as error:
        str(error)
    else:
        config.transport_settings()
        config.warnings()


SECTIONS = sorted(set(Config.model_fields) - {"connection_priority", "listen"})


@given(st.sampled_from(SECTIONS), JSON_VALUE | st.dictionaries(KEYS, SCALAR))
def test_any_value_of_a_section_either_loads_or_is_a_config_error(section: str, value: object) -> None:
    try:
        load_config({**CLIENT, section: value})
    except ConfigError as error:
        str(error)


@given(JSON_VALUE)
def test_any_entry_either_loads_or_is_a_config_error(value: object) -> None:
    try:
        load_entry(value)
    except ConfigError as error:
        str(error)
