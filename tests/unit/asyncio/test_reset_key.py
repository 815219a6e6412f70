"""Keys that servers keep: the same at the next start, never with two servers at a time, never known to others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from multi.asyncio.reset_key import ResetKey, kept_in, reset_key_of
from multi.config import Config, load_config


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def server(**listen: Any) -> Config:
    return load_config({"listen": {"host": "127.0.0.1", "port": 7788} | listen})


def path_of(config: Config) -> Path:
    assert config.listen is not None
    path = kept_in(config.listen)
    assert path is not None
    return path


def used_once(config: Config) -> bytes:
    key = reset_key_of(config)
    key.release()
    return key.value


def test_the_next_server_at_an_address_has_the_key_of_the_last() -> None:
    key = used_once(server())
    assert len(key) == 32
    assert used_once(server()) == key
    assert used_once(server(port=7789)) != key
    assert used_once(server(host="::")) != key
    assert path_of(server()).stat().st_mode & 0o777 == 0o600
    assert path_of(server()).parent.stat().st_mode & 0o777 == 0o700


def test_a_second_server_has_another_key_as_long_as_the_first_may_have_sessions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = reset_key_of(server())
    second = reset_key_of(server())
    assert second.value != first.value
    assert "another server that is running has it" in caplog.text
    second.release()
    assert used_once(server()) != first.value
    first.release()
    first.release()
    assert used_once(server()) == first.value


def test_a_key_that_nobody_has_any_more_is_released() -> None:
    def forgotten() -> bytes:
        return reset_key_of(server()).value

    assert forgotten() == forgotten()


def test_the_lock_ends_with_a_process_that_is_killed() -> None:
    program = (
        "import sys, time; from multi.asyncio.reset_key import reset_key_of; from multi.config import load_config\n"
        "key = reset_key_of(load_config({'listen': {'host': '127.0.0.1', 'port': 7788}}))\n"
        "print(key.value.hex(), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        value = bytes.fromhex(process.stdout.readline())
        assert used_once(server()) != value
        process.kill()
    assert used_once(server()) == value


def test_a_copy_of_the_file_on_another_machine_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    key = used_once(server())
    monkeypatch.setattr(socket, "gethostname", lambda: "copy")
    assert used_once(server()) != key


@pytest.mark.parametrize(
    "spoiled", [b"", b"ab" * 20, b"not hex" * 9 + b"\n", b"ab" * 64], ids=["empty", "short", "words", "long"]
)
def test_a_file_that_was_written_in_part_is_replaced(spoiled: bytes) -> None:
    key = used_once(server())
    path_of(server()).write_bytes(spoiled)
    fresh = used_once(server())
    assert fresh != key
    assert used_once(server()) == fresh


def test_a_key_that_others_could_read_is_replaced() -> None:
    key = used_once(server())
    path_of(server()).chmod(0o640)
    fresh = used_once(server())
    assert fresh != key
    assert path_of(server()).stat().st_mode & 0o777 == 0o600
    assert used_once(server()) == fresh


def not_a_directory(state: Path) -> None:
    state.write_text("")


def a_link(state: Path) -> None:
    path_of(server()).parent.mkdir(parents=True)
    path_of(server()).symlink_to("/dev/null")


def a_directory(state: Path) -> None:
    path_of(server()).mkdir(parents=True)


def a_device(state: Path) -> None:
    path_of(server()).parent.mkdir(parents=True)
    os.mkfifo(path_of(server()))


@pytest.mark.parametrize("prepare", [not_a_directory, a_link, a_directory, a_device])
def test_where_no_key_can_be_kept_it_is_said_and_each_start_has_its_own(
    prepare: Any, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(state)
    before = len(os.listdir("/proc/self/fd"))
    assert used_once(server()) != used_once(server())
    assert len(os.listdir("/proc/self/fd")) == before
    assert caplog.text.count(f"no reset key is kept: {path_of(server())}: ") == 2


def test_without_a_home_it_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    assert used_once(server()) != used_once(server())
    assert "neither XDG_STATE_HOME nor a home directory is set" in caplog.text


def test_named_keys_and_ports_that_the_system_chooses_leave_nothing(state: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("5a" * 32)
    assert used_once(server(reset_key_file=str(tmp_path / "key"))) == b"\x5a" * 32
    assert used_once(server(port=0)) != used_once(server(port=0))
    assert not state.exists()


def test_a_key_without_a_lock_may_be_released() -> None:
    ResetKey(b"of a worker").release()
