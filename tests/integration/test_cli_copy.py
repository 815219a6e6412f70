"""`multi get`, `multi put` and `multi ls` against `multi serve`, in processes of their own, over real connections."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import multi
from multi.lab.files import client
from multi.lab.files.protocol import Begin, Item, encode
from tests.integration.cli_runner import Files, Forked, command, interrupt, started, wait_for_line
from tests.integration.cli_runner import run_forked as run

MEGABYTE = 1_000_000
PROGRESS = r" of .* \(\d+ %\)"
SLOW = 16  # Mbit/s: with 2 MB/s, 8 MB are under way when the first line of progress comes, after 2 s


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def port(files: Files) -> Iterator[int]:
    """A server that takes files."""
    with files.serving("--allow-put") as (_, port):
        yield port


def content(size: int) -> bytes:
    return hashlib.shake_128(b"multi").digest(size)


@pytest.mark.parametrize("transports", [("tcp",), ("mptcp",), ("quic",), ("tcp", "mptcp", "quic")], ids="+".join)
def test_files_of_all_sizes_and_names_go_up_and_come_back(files: Files, port: int, transports: tuple[str, ...]) -> None:
    config = files.client_config(port, *transports)
    for name, size in [("empty", 0), ("one byte", 1), ("größer als ok.bin", 3 * MEGABYTE)]:
        original = files.here / name
        original.write_bytes(content(size))
        put = run("put", config, original)
        assert put.returncode == 0, put.stderr
        assert (files.served / name).read_bytes() == content(size)
        got = run("get", config, name, "-o", files.here / "back")
        assert got.returncode == 0, got.stderr
        assert (files.here / "back").read_bytes() == content(size)
        digest = hashlib.sha256(content(size)).hexdigest()
        assert f"{name}: {size} bytes" in got.stdout
        assert digest in got.stdout
        assert digest in put.stdout
        for transport in transports:
            assert f": {transport} over 127.0.0." in got.stdout
    assert [p.name for p in files.served.iterdir() if p.name.startswith(".")] == []
    assert not list(files.here.glob("*.multi-part"))


def test_names_lead_into_existing_subdirectories_only(files: Files, port: int) -> None:
    config = files.client_config(port)
    (files.served / "sub").mkdir()
    (files.here / "f").write_bytes(b"x")
    assert run("put", config, files.here / "f", "--as", "sub/f").returncode == 0
    assert (files.served / "sub" / "f").read_bytes() == b"x"
    assert run("get", config, "sub/f", "--force", cwd=files.here).returncode == 0
    missing = run("put", config, files.here / "f", "--as", "other/f")
    assert (missing.returncode, "there is no directory other" in missing.stderr) == (1, True)


def test_mode_is_kept_without_set_user_id(files: Files, port: int) -> None:
    config = files.client_config(port)
    script = files.here / "script"
    script.write_bytes(b"#!/bin/sh\n")
    script.chmod(0o4755)
    assert run("put", config, script).returncode == 0
    assert (files.served / "script").stat().st_mode & 0o7777 == 0o755
    assert run("get", config, "script", "-o", files.here / "back").returncode == 0
    assert (files.here / "back").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("options", [("--force",), ("-o", "f"), ("-o", ".", "--force")], ids=" ".join)
def test_get_replaces_an_existing_file_at_once(files: Files, port: int, options: tuple[str, ...]) -> None:
    (files.served / "f").write_bytes(b"new")
    (files.here / "f").write_bytes(b"old and longer")
    assert run("get", files.client_config(port), "f", *options, cwd=files.here).returncode == 0
    assert (files.here / "f").read_bytes() == b"new"


@pytest.mark.parametrize("options", [(), ("-o", ".")], ids=" ".join)
def test_get_replaces_no_file_that_was_not_named(files: Files, port: int, options: tuple[str, ...]) -> None:
    (files.served / "f").write_bytes(b"new")
    (files.here / "f").write_bytes(b"old")
    done = run("get", files.client_config(port), "f", *options, cwd=files.here)
    assert (done.returncode, done.stderr) == (1, "multi: f: it exists already (--force replaces it)\n")
    assert [(path.name, path.read_bytes()) for path in files.here.iterdir()] == [("f", b"old")]


def test_standard_output_gets_nothing_but_the_whole_file(files: Files, port: int) -> None:
    (files.served / "f").write_bytes(content(3 * MEGABYTE))
    arguments = command("get", files.client_config(port), "f", "-o", "-")
    done = subprocess.run(arguments, capture_output=True, timeout=60, cwd=files.here, check=True)
    assert done.stdout == content(3 * MEGABYTE)
    assert hashlib.sha256(done.stdout).hexdigest().encode() in done.stderr
    absent = run("get", files.client_config(port), "absent", "-o", "-", cwd=files.here)
    assert (absent.returncode, absent.stdout) == (1, "")
    assert list(files.here.iterdir()) == []


def test_a_full_standard_output_is_an_error(files: Files, port: int) -> None:
    (files.served / "f").write_bytes(content(MEGABYTE))
    arguments = command("get", files.client_config(port), "f", "-o", "-")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, timeout=60, cwd=files.here)
    assert (done.returncode, b"no space left" in done.stderr) == (1, True)


def test_interrupted_get_says_how_to_go_on_and_is_resumed(files: Files, port: int) -> None:
    (files.served / "big").write_bytes(content(8 * MEGABYTE))
    target = files.here / "big"
    slow = files.client_config(port, "tcp", "quic", max_rate_mbps=SLOW / 2)
    with started("get", slow, "big", "-o", target) as process:
        wait_for_line(process, PROGRESS)
        before = time.monotonic()
        code, errors = interrupt(process)
        took = time.monotonic() - before
    partial = files.here / "big.multi-part"
    kept = partial.stat().st_size
    assert code == 130
    assert took < 5.0, "at once, not when the copy is done"
    assert 0 < kept < 8 * MEGABYTE
    assert f"{kept} bytes are kept in {partial}, the same command goes on from there" in errors
    assert not target.exists()
    again = run("get", files.client_config(port, "tcp", "quic"), "big", "-o", target)
    assert again.returncode == 0, again.stderr
    assert f"({kept} were there already)" in again.stdout
    assert target.read_bytes() == content(8 * MEGABYTE)
    assert not partial.exists()


def test_interrupted_put_is_resumed(files: Files, port: int) -> None:
    original = files.here / "big"
    original.write_bytes(content(8 * MEGABYTE))
    slow = files.client_config(port, "tcp", "quic", max_rate_mbps=SLOW / 2)
    with started("put", slow, original) as process:
        wait_for_line(process, PROGRESS)
        code, errors = interrupt(process)
    assert code == 130
    assert "the server keeps what has arrived, the same command goes on from there" in errors
    assert not (files.served / "big").exists()
    again = run("put", files.client_config(port, "tcp", "quic"), original)
    assert again.returncode == 0, again.stderr
    assert "were there already" in again.stdout
    assert (files.served / "big").read_bytes() == content(8 * MEGABYTE)
    assert [p.name for p in files.served.iterdir()] == ["big"]


def test_partial_file_of_something_else_is_not_built_upon(files: Files, port: int) -> None:
    (files.served / "f").write_bytes(content(MEGABYTE))
    (files.here / "f.multi-part").write_bytes(b"something else")
    got = run("get", files.client_config(port), "f", cwd=files.here)
    assert got.returncode == 0, got.stderr
    assert (files.here / "f").read_bytes() == content(MEGABYTE)
    assert "already" not in got.stdout


def test_server_that_dies_leaves_a_partial_file(files: Files) -> None:
    (files.served / "big").write_bytes(content(8 * MEGABYTE))
    with files.serving() as (server, port):
        config = files.client_config(port, max_rate_mbps=SLOW)
        with started("get", config, "big", cwd=files.here) as process:
            wait_for_line(process, PROGRESS)
            server.kill()
            output, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "no connection is left; waiting up to 1 s" in output
    assert errors.startswith("multi: ")
    assert "bytes are kept in big.multi-part" in errors
    assert (files.here / "big.multi-part").stat().st_size > 0


def test_second_put_of_a_name_under_way_is_refused(files: Files, port: int) -> None:
    (files.here / "f").write_bytes(content(5 * MEGABYTE))
    with started("put", files.client_config(port, max_rate_mbps=SLOW / 2), files.here / "f") as first:
        wait_for_line(first, PROGRESS)
        first.send_signal(signal.SIGSTOP)  # it stays under way, however long the other takes
        second = run("put", files.client_config(port, name="second.json"), files.here / "f")
        first.send_signal(signal.SIGCONT)
        assert (second.returncode, second.stderr) == (1, "multi: f: another transfer of it is under way\n")
        first.communicate(timeout=60)
    assert first.returncode == 0
    assert (files.served / "f").read_bytes() == content(5 * MEGABYTE)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "absent: no such file"),
        ("../secret", "'..' is refused"),
        ("link", "link: it is a symbolic link"),
        ("pipe", "pipe: it is not a regular file"),
    ],
)
def test_nothing_but_regular_files_inside_is_served(files: Files, port: int, name: str, reason: str) -> None:
    (files.root / "secret").write_text("secret")
    (files.served / "link").symlink_to("../secret")
    os.mkfifo(files.served / "pipe")
    got = run("get", files.client_config(port), name, "-o", files.here / "out")
    assert got.returncode == 1
    assert got.stderr.startswith("multi: ")
    assert reason in got.stderr
    assert list(files.here.iterdir()) == []


def test_ls_prints_what_get_takes(files: Files, port: int) -> None:
    config = files.client_config(port)
    (files.served / "sub").mkdir()
    for name, size in [("a", 1), ("größer", 12_345), ("sub/b", 7), ("sub/\x1b[2J", 3)]:
        (files.served / name).write_bytes(content(size))
        os.utime(files.served / name, (0, 1_700_000_000))
    (files.served / "link").symlink_to("a")
    (files.root / "secret").write_text("secret")
    (files.served / "out").symlink_to("..")

    listed = run("ls", config)
    assert (listed.returncode, listed.stderr) == (0, "")
    lines = [re.fullmatch(r" *(\d+)  (\d{4}-\d\d-\d\d \d\d:\d\d)  (.*)", line) for line in listed.stdout.splitlines()]
    assert [(line[1], line[3]) for line in lines if line] == [
        ("1", "a"),
        ("12345", "größer"),
        ("3", r"sub/\x1b[2J"),
        ("7", "sub/b"),
    ]
    below = json.loads(run("ls", config, "sub/", "--json").stdout)
    assert below == {
        "files": [
            {"name": "sub/\x1b[2J", "size": 3, "modified": "2023-11-14T22:13:20+00:00"},
            {"name": "sub/b", "size": 7, "modified": "2023-11-14T22:13:20+00:00"},
        ],
        "complete": True,
    }
    outside = run("ls", config, "out")
    assert (outside.returncode, outside.stderr) == (1, "multi: out: out is a symbolic link\n")
    absent = run("ls", config, "absent", "--json")
    assert (absent.returncode, absent.stdout) == (1, "")


async def test_listings_that_make_no_sense_are_refused(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = encode(Item("x", 1, 1))
    answers = [
        (entry * 20, "more than 10 files"),
        (entry.replace(b'"modified": 1', b'"modified": -1'), "no valid 'modified'"),
        (encode(Begin(0)), "unexpected message 'begin'"),
        (entry, "ended the session before everything"),
    ]
    given = iter(answers)

    async def strange(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        await reader.readline()
        writer.write(next(given)[0])
        writer.write_eof()
        await reader.read()
        writer.close()

    monkeypatch.setattr(client, "MAX_ENTRIES", 10)
    server = await multi.start_server(strange, files.server_config())
    for _, reason in answers:
        with pytest.raises(multi.MultiError, match=reason):
            await client.list_files(files.client_config(server.port))
    server.abort()
    await server.wait_closed()


def test_read_only_server_takes_no_files(files: Files) -> None:
    (files.here / "f").write_text("x")
    with files.serving() as (_, port):
        put = run("put", files.client_config(port), files.here / "f")
    assert (put.returncode, "read-only (it runs without --allow-put)" in put.stderr) == (1, True)
    assert list(files.served.iterdir()) == []


def test_put_replaces_nothing_without_force(files: Files, port: int) -> None:
    config = files.client_config(port)
    (files.here / "f").write_text("new")
    (files.served / "f").write_text("old")
    refused = run("put", config, files.here / "f")
    assert (refused.returncode, "exists already (--force replaces it)" in refused.stderr) == (1, True)
    assert (files.served / "f").read_text() == "old"
    forced = run("put", config, files.here / "f", "--force")
    assert forced.returncode == 0, forced.stderr
    assert (files.served / "f").read_text() == "new"


@pytest.mark.parametrize(("arguments", "reason"), [
    (("put", "absent"), "absent: no such file"),
    (("put", "."), ".: it is a directory"),
    (("get", "f", "-o", "absent/f"), "directory absent: no such file"),
])  # fmt: skip
def test_local_files_that_cannot_be_used_are_named(
    files: Files, port: int, arguments: tuple[str, ...], reason: str
) -> None:
    (files.served / "f").write_text("x")
    verb, *rest = arguments
    done = run(verb, files.client_config(port), *rest, cwd=files.here)
    assert (done.returncode, done.stderr) == (1, f"multi: {reason}\n")


def test_stopping_server_says_so_and_leaves_in_order(files: Files) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
        with files.serving() as (server, port):
            assert run("get", files.client_config(port), "absent", cwd=files.here).returncode == 1
            server.send_signal(number)
            output, errors = server.communicate(timeout=10)
        assert (server.returncode, errors) == (code, "")
        assert "get absent (127.0.0.2): refused: absent: no such file" in output
        assert output.endswith("stopped\n")


@contextmanager
def transfer(files: Files, size: int) -> Iterator[tuple[Forked, Forked]]:
    """A server and a client that fetches a file from it, in the middle of that."""
    (files.served / "big").write_bytes(content(size))
    with (
        files.serving() as (server, port),
        started("get", files.client_config(port, max_rate_mbps=SLOW), "big", cwd=files.here) as client,
    ):
        wait_for_line(client, PROGRESS)
        yield server, client


def test_server_stopped_in_a_transfer_ends_it_soon(files: Files) -> None:
    with transfer(files, 32 * MEGABYTE) as (server, client):
        server.send_signal(signal.SIGINT)
        output, _ = server.communicate(timeout=10)
        _, errors = client.communicate(timeout=10)
    assert server.returncode == 130
    assert "1 transfers under way" in output
    assert client.returncode == 1
    assert "the server stops" in errors
    assert "bytes are kept in big.multi-part" in errors


def test_a_drained_server_lets_a_transfer_finish(files: Files) -> None:
    with transfer(files, 6 * MEGABYTE) as (server, client):
        server.send_signal(signal.SIGTERM)
        wait_for_line(server, "^draining: 1 session to end within 25 s$")
        _, errors = client.communicate(timeout=10)
        output, _ = server.communicate(timeout=10)
    assert (client.returncode, errors) == (0, "")
    assert (server.returncode, output.splitlines()[-1]) == (0, "stopped")
    assert "get big (127.0.0.2): done" in output


def test_a_second_signal_ends_what_is_left(files: Files) -> None:
    with transfer(files, 32 * MEGABYTE) as (server, client):
        for _ in range(2):
            server.send_signal(signal.SIGTERM)
            wait_for_line(server, "^(draining|get big .* stopped): ")
        server.communicate(timeout=10)
        _, errors = client.communicate(timeout=10)
    assert server.returncode == 0
    assert client.returncode == 1
    assert "bytes are kept in big.multi-part" in errors


def test_a_server_that_is_drained_by_its_control_socket_leaves_in_order(files: Files) -> None:
    path = files.root / "control.sock"
    with files.serving(control={"socket": str(path)}) as (server, _):
        assert run("top", path, "--do", "drain").stdout == "drain for 0 sessions\n"
        output, errors = server.communicate(timeout=10)
    assert (server.returncode, errors) == (0, "")
    assert output.endswith("stopped\n")


def in_small_disk(directory: Path, shell: str) -> list[str]:
    """A command line in a mount namespace of its own where `directory` has room for 3 MB."""
    mount = f"mount -t tmpfs -o size=3m tmpfs {shlex.quote(str(directory))}"
    return ["unshare", "-m", "--propagation", "private", "sh", "-c", f"{mount} && {shell}"]


@pytest.fixture
def mounts(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    probe.mkdir()
    if shutil.which("unshare") is None or subprocess.run(in_small_disk(probe, "true"), capture_output=True).returncode:
        pytest.skip("NOT TESTED: a full disk, mounting a small file system is not allowed here")


@pytest.mark.usefixtures("mounts")
def test_get_onto_a_full_disk_keeps_what_fitted(files: Files, port: int) -> None:
    (files.served / "big").write_bytes(content(8 * MEGABYTE))
    get = shlex.join(command("get", files.client_config(port), "big", "-o", files.here / "big"))
    script = f"{get}; code=$?; ls {shlex.quote(str(files.here))}; exit $code"
    done = subprocess.run(in_small_disk(files.here, script), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no space left on the disk" in done.stderr
    assert "bytes are kept in" in done.stderr
    assert done.stdout.endswith("big.multi-part\n")


@pytest.mark.usefixtures("mounts")
def test_put_onto_a_full_disk_is_told_to_the_client(files: Files) -> None:
    (files.here / "big").write_bytes(content(8 * MEGABYTE))
    serve = shlex.join(command("serve", files.server_config(), "--dir", files.served, "--allow-put"))
    arguments = in_small_disk(files.served, f"exec {serve}")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            port = int(wait_for_line(server, r"^serving .* port (\d+) \(").group(1))
            put = run("put", files.client_config(port), files.here / "big")
        finally:
            server.terminate()
            server.communicate(timeout=10)
    assert put.returncode == 1
    assert put.stderr.startswith("multi: big: no space left on the disk")
