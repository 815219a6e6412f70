"""The control socket and the port for metrics: who may ask, what is answered, what a command does."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.asyncio.control import COMMANDS, MAX_CONNECTIONS, SERVER_COMMANDS, control_sockets
from multi.asyncio.metrics import metric_families
from tests.integration.support import Inbox, Way, event_of, multi_pair, no_descriptors, run, until

SEALED = Way(Path())
SAMPLE = re.compile(r'([a-z_]+)(\{[a-z_]+="[^"\\\n]*"(?:,[a-z_]+="[^"\\\n]*")*\})? ([0-9.e+-]+)')


async def ask(where: Path | int, request: str, body: object = None) -> tuple[int, str]:
    """(status, body) of one request to a Unix socket or a port."""
    if isinstance(where, int):
        reader, writer = await asyncio.open_connection("127.0.0.1", where)
    else:
        reader, writer = await asyncio.open_unix_connection(str(where))
    payload = b"" if body is None else json.dumps(body).encode()
    writer.write(f"{request} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(payload)}\r\n\r\n".encode() + payload)
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, text = answer.partition("\r\n\r\n")
    assert f"Content-Length: {len(text.encode())}" in head
    return int(head.split()[1]), text


def samples(text: str) -> dict[str, float]:
    """Every sample of an exposition; each line has to be one or a comment."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] + (match[2] or "") not in found
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


def test_metrics_are_what_the_client_has_counted_and_name_no_session(tmp_path: Path) -> None:
    control = {"socket": str(tmp_path / "control.sock"), "metrics_port": 0}

    async def scenario() -> None:
        inbox = Inbox()
        async with await multi.start_server(inbox.on_client, SEALED.server(control=control)) as server:
            _, writer = await multi.open_connection(SEALED.client(server.port))
            their_reader, their_writer = await inbox.next()
            writer.write(bytes(100_000))
            await their_reader.readexactly(100_000)
            mine = writer.get_extra_info("session").stats()
            await until(lambda: server.stats().sessions.get("open") == 1)
            status, text = await ask(server.control.metrics_port, "GET /metrics")
            assert status == 200
            found = samples(text)
            assert found['multi_received_payload_bytes_total{transport="tcp"}'] == mine.bytes_sent == 100_000
            assert found['multi_sessions{state="open"}'] == found["multi_sessions_opened_total"] == 1
            assert found['multi_sessions{state="detached"}'] == 0
            assert found['multi_connections{transport="tcp",state="active"}'] == 1
            assert found["multi_accepting"] == 1
            assert found['multi_limit_hits_total{limit="max_memory"}'] == 0
            assert mine.id[:8] not in text
            assert "127.0.0.1" not in text
            assert server.control.path is not None
            again = samples((await ask(server.control.path, "GET /metrics"))[1])
            assert list(again) == list(found)
            assert again['multi_received_payload_bytes_total{transport="tcp"}'] == 100_000
            for request in ("GET /stats", "GET /sessions", "POST /command", "POST /metrics"):
                assert (await ask(server.control.metrics_port, request))[0] == 404
            for each in (writer, their_writer):
                each.close()

    run(scenario())


def test_only_the_own_user_may_open_the_control_socket_and_it_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"

    async def scenario() -> None:
        before = os.umask(0)
        try:
            server = await multi.start_server(print, SEALED.server(control={"socket": str(path)}))
        finally:
            os.umask(before)
        async with server:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with pytest.raises(multi.TransportError, match="another process answers on it"):
                await multi.start_server(print, SEALED.server(control={"socket": str(path)}))
            assert (await ask(path, "GET /stats"))[0] == 200  # the second one has taken nothing away
        assert not path.exists()

    run(scenario())


def test_the_socket_of_a_process_that_was_killed_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    dead, precious = tmp_path / "dead.sock", tmp_path / "precious"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(dead))
    precious.write_text("mine")

    async def scenario() -> None:
        async with await multi.start_server(print, SEALED.server(control={"socket": str(dead)})):
            assert (await ask(dead, "GET /stats"))[0] == 200
        with pytest.raises(multi.TransportError, match="no socket"):
            await multi.start_server(print, SEALED.server(control={"socket": str(precious)}))
        with pytest.raises(multi.TransportError, match="no such file or directory"):
            await multi.start_server(print, SEALED.server(control={"socket": str(tmp_path / "not" / "there")}))

    run(scenario())
    assert precious.read_text() == "mine"


def test_automatic_sockets_are_in_the_runtime_directory_one_for_each_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def scenario() -> None:
        config = SEALED.server(control={"socket": "auto"})
        async with await multi.start_server(print, config) as one, await multi.start_server(print, config) as other:
            assert set(control_sockets()) == {one.control.path, other.control.path}
            assert stat.S_IMODE((tmp_path / "multi").stat().st_mode) == 0o700
        assert control_sockets() == []

    run(scenario())


def test_a_metrics_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(multi.TransportError, match=f"metrics on 127.0.0.1 port {port}: address already in use"):
                await multi.start_server(print, SEALED.server(control={"socket": str(path), "metrics_port": port}))
        assert not path.exists()

    run(scenario())


def test_commands_change_the_session_they_name(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    two = [["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"]]

    async def command(**wanted: Any) -> tuple[int, Any]:
        status, text = await ask(path, "POST /command", wanted)
        return status, json.loads(text)

    async def scenario() -> None:
        async with multi_pair(SEALED, server={"control": {"socket": str(path)}}, connection_priority=two) as pair:
            theirs = pair.server_session
            await event_of(theirs, lambda _: sum(c.state.value == "active" for c in theirs.connections) == 2)
            name = theirs.id.hex()
            done = await command(command="role", session=name[:6], connection=theirs.connections[1].id, role="backup")
            assert done == (200, {"done": "role for 1 session", "sessions": 1})
            await until(lambda: sorted(c.role.name.lower() for c in pair.session.connections) == ["active", "backup"])
            assert (await command(command="scheduler", session="all", scheduler="RR"))[0] == 200
            assert theirs.scheduler == "RR"
            shown = json.loads((await ask(path, "GET /sessions?limit=5"))[1])
            assert [(s["id"], s["scheduler"], len(s["connections"])) for s in shown] == [(name, "RR", 2)]
            assert 0 <= shown[0]["idle"] < 60
            for beginning, found in ((name[:6].upper(), [name]), ("x", [])):
                begun = json.loads((await ask(path, f"GET /sessions?begins={beginning}"))[1])
                assert [session["id"] for session in begun] == found

            for wrong, text in (
                ({"command": "role", "session": name, "connection": 99, "role": "backup"}, "living: 0, 1"),
                (
                    {"command": "role", "session": name, "connection": True, "role": "backup"},
                    "found True; living: 0, 1",
                ),
                ({"command": "role", "session": name, "connection": 0, "role": "boss"}, "none of 'active', 'primary'"),
                ({"command": "scheduler", "session": name, "scheduler": "fast"}, "fast"),
                ({"command": "scheduler", "session": "zz", "scheduler": "RR"}, "no sessions begin with 'zz'"),
                ({"command": "scheduler", "session": name}, "takes session, scheduler"),
                ({"command": "dance", "session": name}, "allowed: role"),
            ):
                status, answer = await command(**wrong)
                assert status == 400
                assert text in answer["error"]
            assert theirs.scheduler == "RR"

            assert (await command(command="abort", session=name))[0] == 200
            with pytest.raises(multi.SessionLost, match="ended by who runs the server"):
                await pair.reader.read()

    run(scenario())


def test_what_is_no_request_is_refused_and_the_server_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"

    async def scenario() -> None:
        async with await multi.start_server(print, SEALED.server(control={"socket": str(path)})):
            for first, status in (
                (b"hello\r\n\r\n", b"400"),
                (b"GET /" + b"x" * 40_000, b"431"),
                (b"POST /command HTTP/1.1\r\nContent-Length: 99999\r\n\r\n", b"413"),
                (b"POST /command HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"413"),
                (b"POST /command HTTP/1.1\r\nContent-Length: 2\r\n\r\n[]", b"400"),
                (b"GET /sessions?limit=x HTTP/1.1\r\n\r\n", b"400"),
                (b"GET http://[ HTTP/1.1\r\n\r\n", b"400"),
                (b"POST /command HTTP/1.1\r\nContent-Length: 9999\r\n\r\n" + b"[" * 9999, b"400"),
                (b"GET /nothing HTTP/1.1\r\n\r\n", b"404"),
            ):
                reader, writer = await asyncio.open_unix_connection(str(path))
                writer.write(first)
                assert (await reader.readline()).split()[1] == status, first
                writer.close()
            assert (await ask(path, "GET /stats"))[0] == 200

    run(scenario())


def test_who_holds_connections_keeps_nobody_from_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"

    async def scenario() -> None:
        control = {"socket": str(path), "metrics_port": 0}
        async with await multi.start_server(print, SEALED.server(control=control)) as server:
            port = server.control.metrics_port
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
            for _, writer in held:
                writer.write(b"GET /met")
            assert (await ask(path, "GET /stats"))[0] == 200
            for _ in range(2):
                assert (await ask(port, "GET /metrics"))[0] == 200
            assert await held[0][0].read() == b""
            for _, writer in held:
                writer.close()

    run(scenario())


def test_who_comes_when_no_descriptor_is_left_does_not_fill_the_log(tmp_path: Path) -> None:
    path, complaints = tmp_path / "control.sock", list[dict[str, Any]]()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        control = {"socket": str(path), "metrics_port": 0}
        async with await multi.start_server(print, SEALED.server(control=control)) as server:
            both: list[tuple[int, Any]] = [
                (socket.AF_UNIX, str(path)),
                (socket.AF_INET, ("127.0.0.1", server.control.metrics_port)),
            ]
            crowd = [(socket.socket(family), where) for family, where in both for _ in range(5)]
            with no_descriptors():
                for sock, where in crowd:
                    sock.connect(where)
                await until(lambda: len(complaints) >= 2)
                for _ in range(10):
                    await asyncio.sleep(0)
                assert len(complaints) == 2
            for sock, _ in crowd:
                sock.close()

    run(scenario())


def test_the_documents_name_every_metric_and_every_command() -> None:
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    stats = multi.ServerStats(transports={"tcp": multi.TransportStats()})
    assert set(re.findall(r"^\| `(multi_\w+)`", text, re.MULTILINE)) == {f.name for f in metric_families(stats)}
    _, _, commands = text.partition("| command |")
    assert set(re.findall(r"^\| `(\w+)` \|", commands.partition("## ")[0], re.MULTILINE)) == {
        *COMMANDS,
        *SERVER_COMMANDS,
    }
