"""Traces of real sessions: what stands in them, what does not, how large they become, and a disk that takes nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.asyncio import tracing
from multi.cli.main import main
from tests.integration.cli_runner import prepare_to_fork, run_forked
from tests.integration.hostile import Stranger, greeting, said
from tests.integration.support import Pair, Way, event_of, multi_pair, run, until
from tests.unit.lab.traces import two_networks

SEALED = Way(Path())
TWO = [["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"]]
SIZE = 300_000
KEY = "5f" * 32
SECRET = b"what nobody else shall read"

Record = dict[str, Any]


def records(path: Path) -> list[Record]:
    """The records of a whole trace."""
    parts = path.read_bytes().split(b"\x1e")
    assert parts[0] == b""
    assert all(part.endswith(b"\n") for part in parts[1:])
    return [json.loads(part) for part in parts[1:]]


def traces(directory: Path) -> tuple[Path, Path]:
    """(client's, server's) of the only session."""
    (client,), (server,) = directory.glob("*-client.sqlog"), directory.glob("*-server.sqlog")
    return client, server


async def two_connections(pair: Pair) -> None:
    await event_of(pair.session, lambda _: sum(c.state.value == "active" for c in pair.session.connections) == 2)


def figures(found: list[Record], path: str | None = None) -> Record:
    """What the samples of a path, or of the session, say at the end."""
    name = "multi:session_sampled" if path is None else "multi:connection_sampled"
    known: Record = {}
    for record in found:
        if record.get("name") == name and record.get("path") == path:
            known |= record["data"]
    return known


def test_both_ends_tell_what_the_session_did_and_nothing_of_what_it_carried(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"default:{KEY}\n")
    keys.chmod(0o600)
    trace: dict[str, Any] = {"trace": {"dir": str(tmp_path / "traces")}, "auth": {"psk_file": str(keys)}}

    async def scenario() -> tuple[multi.SessionStats, multi.SessionStats]:
        async with multi_pair(SEALED, server=trace, connection_priority=TWO, **trace) as pair:
            await two_connections(pair)
            pair.writer.write(SECRET * (SIZE // len(SECRET)))
            await pair.server_reader.readexactly(SIZE // len(SECRET) * len(SECRET))
            pair.session.set_role(1, "backup")
            pair.session.set_scheduler("RR")
            await event_of(pair.server_session, lambda event: isinstance(event, multi.SchedulerChanged))
            return pair.session.stats(), pair.server_session.stats()

    both = run(scenario())
    for path, side, stats in zip(traces(tmp_path / "traces"), ("client", "server"), both, strict=True):
        assert path.stat().st_mode & 0o777 == 0o600
        header, *found = records(path)
        assert header["qlog_format"] == "JSON-SEQ"
        assert header["trace"]["vantage_point"]["type"] == side
        assert header["trace"]["common_fields"]["group_id"] == stats.id
        assert [record["time"] for record in found] == sorted(record["time"] for record in found)
        names = [record["name"] for record in found]
        assert names[0] == "multi:session_started"
        assert names[-1] == "multi:session_ended"
        assert found[-1]["data"]["cause"]
        assert {"multi:session_confirmed", "multi:role_changed", "multi:scheduler_changed"} <= set(names)
        opened = {
            r["path"]: r["data"] for r in found if r["name"] == "multi:connection_changed" and "local" in r["data"]
        }
        assert {data["transport"] for data in opened.values()} == {"tcp"}
        assert len(opened) == 2
        total = figures(found)
        assert (total["bytes_sent"], total["payload_received"]) == (stats.bytes_sent, stats.payload_received)
        for connection in stats.connections:
            known = figures(found, str(connection.id))
            assert (known["bytes_sent"], known["payload_received"]) == (
                connection.bytes_sent,
                connection.payload_received,
            )
            assert known["state"] in ("closed", "lost")
        content = path.read_bytes()
        assert SECRET[:12] not in content
        assert KEY not in content.decode()


def test_attempts_that_fail_and_a_session_that_never_opens_are_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = SEALED.client(1, connection_priority=TWO[:1], trace={"dir": str(tmp_path)})
        with pytest.raises(multi.NoUsableConnection):
            await multi.open_connection(config)

    run(scenario())
    (path,) = tmp_path.glob("*.sqlog")
    names = [record.get("name") for record in records(path)]
    assert "multi:attempt_failed" in names
    assert names[-1] == "multi:session_ended"


def test_a_trace_is_never_larger_than_allowed_and_still_tells_the_end(tmp_path: Path) -> None:
    trace = {"dir": str(tmp_path), "max_mb": 0.25}

    async def scenario() -> None:
        async with multi_pair(SEALED, trace=trace) as pair:
            for _ in range(1000):
                for role in ("backup", "active"):
                    pair.session.set_role(0, role)

    run(scenario())
    (path,) = tmp_path.glob("*.sqlog")
    assert 240_000 < path.stat().st_size <= 250_000
    names = [record.get("name") for record in records(path)]
    assert names[-1] == "multi:session_ended"
    assert names.count("multi:trace_full") == 1


def test_what_cannot_be_written_is_said_once_and_sessions_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "traces"
    server = {"trace": {"dir": str(directory)}}

    async def scenario() -> None:
        async with multi_pair(SEALED, server=server) as pair, multi_pair(SEALED, server=server) as other:
            await until(lambda: len(list(directory.glob("*.sqlog"))) == 2)
            shutil.rmtree(directory)
            directory.write_text("in the way")
            for each in (pair, other):
                each.writer.write(bytes(SIZE))
                await each.server_reader.readexactly(SIZE)
            await until(lambda: "no trace can be written" in caplog.text)
            for each in (pair, other):
                each.server_writer.write(b"all is well\n")
                assert await each.reader.readline() == b"all is well\n"
        async with multi_pair(SEALED, server=server) as later:
            later.writer.write(b"x")
            await later.server_reader.readexactly(1)

    with caplog.at_level(logging.WARNING, "multi"):
        run(scenario())
    told = [record.getMessage() for record in caplog.records if "no trace" in record.getMessage()]
    assert told == [f"no trace can be written in {directory}: not a directory"]


def test_what_a_disk_that_hangs_does_not_take_is_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, write = threading.Event(), tracing._write
    most = 20_000

    def hang(*arguments: Any, **options: Any) -> OSError | None:
        works.wait(20)
        return write(*arguments, **options)

    monkeypatch.setattr(tracing, "_write", hang)
    monkeypatch.setattr(tracing, "LOST", most)

    async def scenario() -> None:
        async with multi_pair(SEALED, trace={"dir": str(tmp_path)}) as pair:
            for _ in range(100):
                for role in ("backup", "active"):
                    pair.session.set_role(0, role)
            pair.writer.write(b"all is well\n")
            assert await pair.server_reader.readline() == b"all is well\n"
            await until(lambda: "what is to be written waits for too long" in caplog.text)
            works.set()

    with caplog.at_level(logging.WARNING, "multi"):
        run(scenario())
    assert sum(path.stat().st_size for path in tmp_path.glob("*.sqlog")) <= most + 1000


def test_strangers_leave_no_files_and_take_no_room_from_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
            await reader.read()

        async with await multi.start_server(on_client, SEALED.server(trace={"dir": str(tmp_path)})) as server:
            hello = said(greeting())
            first = await Stranger.at(server.port, hello)
            await until(lambda: server.stats().sessions_opened == 1)
            for _ in range(40):  # each is told of
                await (await Stranger.at(server.port, hello)).leave()
            assert 0 < tracing._directory(tmp_path).waiting <= tracing.STRANGER + 1000
            await first.leave()
            server.abort()
            await server.wait_closed()

    run(scenario())
    assert not list(tmp_path.glob("*.sqlog"))


FORKING = """
import asyncio, multi, os, signal, sys
trace = {"dir": sys.argv[1]}

async def conversation():
    async def on_client(reader, writer):
        await reader.read()
        writer.close()
    async with await multi.start_server(on_client, "127.0.0.1", 0) as server:
        async with multi.connect("127.0.0.1", server.port, trace=trace) as session:
            session.writer.write(b"x")

asyncio.run(conversation())
if not (child := os.fork()):
    signal.alarm(20)
    asyncio.run(conversation())
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_was_forked_writes_traces_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKING, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    ended = [records(path)[-1]["name"] for path in tmp_path.glob("*.sqlog")]
    assert ended == ["multi:session_ended"] * 2


def test_commands_write_traces_where_they_are_told_and_say_at_once_where_they_cannot(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
            await reader.read()
            writer.close()

        async with await multi.start_server(on_client, SEALED.server()) as server:
            config = tmp_path / "client.json"
            config.write_text(json.dumps(SEALED.client(server.port, connection_priority=TWO)))
            done = await asyncio.to_thread(run_forked, "ping", str(config), "--trace", str(tmp_path / "new" / "traces"))
            assert done.returncode == 0, done.stderr
            failed = await asyncio.to_thread(run_forked, "ping", str(config), "--trace", str(config))
            assert failed.returncode == 1
            assert "file exists" in failed.stderr
            server.abort()

    prepare_to_fork()
    run(scenario())
    (path,) = (tmp_path / "new" / "traces").glob("*-client.sqlog")
    assert records(path)[-1]["name"] == "multi:session_ended"


def test_a_trace_is_told_and_drawn(tmp_path: Path) -> None:
    trace = {"dir": str(tmp_path)}

    async def scenario() -> multi.SessionStats:
        async with multi_pair(SEALED, trace=trace, connection_priority=TWO) as pair:
            await two_connections(pair)
            pair.writer.write(bytes(SIZE))
            await pair.server_reader.readexactly(SIZE)
            return pair.session.stats()

    stats = run(scenario())
    (path,) = tmp_path.glob("*.sqlog")
    told = run_forked("trace", path, "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert (found["session"], found["bytes_sent"]) == (stats.id, stats.bytes_sent)
    assert [c["bytes_sent"] for c in found["connections"]] == [c.bytes_sent for c in stats.connections]
    assert all(c["ended"] and c["up_seconds"] > 0 for c in found["connections"])
    words = run_forked("trace", path)
    assert words.returncode == 0, words.stderr
    assert words.stdout.startswith(f"client of session {stats.id[:8]}, began 2")
    pytest.importorskip("matplotlib", reason="pictures need matplotlib: pip install 'multi-session[plot]'")
    picture = tmp_path / "trace.png"
    assert main(["trace", str(path), "-o", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["trace", str(path), "-o", str(tmp_path / "trace.doc")]) == 2


def test_without_matplotlib_the_trace_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = two_networks(tmp_path / "a.sqlog")
    monkeypatch.setitem(sys.modules, "multi.lab.trace.picture", None)
    assert main(["trace", str(path), "-o", str(tmp_path / "a.png")]) == 1
    out, error = capsys.readouterr()
    assert "ended: the session is closed" in out
    assert "pip install 'multi-session[plot]'" in error
    assert not (tmp_path / "a.png").exists()


def test_what_is_no_trace_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("{}")
    for name, text in (("a", "is no trace"), ("missing", "no such file or directory")):
        done = run_forked("trace", tmp_path / name)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("multi: ")
        assert text in done.stderr
        assert done.stderr.count("\n") == 1
