"""`multi top` against a running server: what is shown, what orders do, what is said when nobody answers."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path
from subprocess import CompletedProcess
from typing import TypeVar

import pytest

import multi
from multi.cli import top
from multi.cli.main import main
from tests.integration.asyncio.test_control import ask
from tests.integration.cli_runner import prepare_to_fork, run_forked
from tests.integration.support import Pair, Way, event_of, multi_pair, run
from tests.processes import MORTAL

SEALED = Way(Path())
TWO = [["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"]]
T = TypeVar("T")


def beside(tmp_path: Path, look: Callable[[Path, Pair], T]) -> T:
    """What `look` sees, in a thread, of a server with one session of two connections."""
    path = tmp_path / "control.sock"

    async def scenario() -> T:
        async with multi_pair(SEALED, server={"control": {"socket": str(path)}}, connection_priority=TWO) as pair:
            theirs = pair.server_session
            await event_of(theirs, lambda _: sum(c.state.value == "active" for c in theirs.connections) == 2)
            pair.writer.write(bytes(50_000))
            await pair.server_reader.readexactly(50_000)
            return await asyncio.to_thread(look, path, pair)

    prepare_to_fork()
    return run(scenario())


def done(*arguments: object) -> CompletedProcess[str]:
    return run_forked("top", *arguments)


def test_it_shows_sessions_connections_and_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "INTERVAL", 0.02)

    def look(path: Path, pair: Pair) -> None:
        assert main(["top", str(path), "--once"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert re.fullmatch(r"up 0:00:0\d, accepting", lines[0])
        assert "sessions: 1 open; 1 opened, 0 ended" in lines
        assert "limits hit: none" in lines
        assert any(
            re.match(r"tcp +[12] (active|suspect).* 0 +0\.00 Mbit +\d+\.\d\d Mbit +0\.0% +0 bytes", line)
            for line in lines
        )
        name = pair.session.id.hex()[:8]
        (first,) = [number for number, line in enumerate(lines) if line.startswith(name)]
        for line in lines[first : first + 2]:
            assert re.search(
                r"tcp (lo|[\d.:]+) +127\.0\.0\.[12]:\d+ +(active|suspect) +active .* Mbit +0\.0% +0 bytes", line
            )

    beside(tmp_path, look)


def test_json_is_the_snapshot_on_a_line(tmp_path: Path) -> None:
    def look(path: Path, pair: Pair) -> None:
        shown = done(path, "--once", "--json")
        assert (shown.returncode, shown.stderr) == (0, "")
        (line,) = shown.stdout.splitlines()
        found = json.loads(line)
        assert found["server"]["transports"]["tcp"]["payload_received"] >= 50_000  # on a busy machine some comes twice
        assert [s["id"] for s in found["sessions"]] == [pair.session.id.hex()]
        assert json.loads(done(path, "--once", "--json", "-n", "0").stdout)["sessions"] == []

    beside(tmp_path, look)


def test_orders_are_carried_out_or_refused_in_words(tmp_path: Path) -> None:
    def look(path: Path, pair: Pair) -> None:
        name = pair.session.id.hex()[:6]
        ordered = done(path, "--do", "role", name, "1", "backup")
        assert (ordered.returncode, ordered.stdout) == (0, "role for 1 session\n")
        assert pair.server_session.connections[1].role is multi.Role.BACKUP
        assert done(path, "--do", "scheduler", "all", "RR").returncode == 0
        assert pair.server_session.scheduler == "RR"
        for order, code, text in (
            (("role", name, "9", "backup"), 1, "connection: found 9; living: 0, 1"),
            (("scheduler", "zz", "RR"), 1, "no sessions begin with 'zz'"),
            (("role", name, "first", "backup"), 2, "CONNECTION: found 'first'"),
            (("role", name), 2, "role takes SESSION CONNECTION ROLE"),
            (("dance",), 2, "found 'dance'; allowed: role"),
            (("drain", "soon"), 2, "SECONDS: found 'soon'"),
            (("drain", "1", "2"), 2, "drain takes [SECONDS]"),
            (("drain", "-1"), 1, "found -1.0 as the time to drain"),
        ):
            refused = done(path, "--do", *order)
            assert (refused.returncode, refused.stdout) == (code, "")
            assert text in refused.stderr

    beside(tmp_path, look)


def beside_client(tmp_path: Path, look: Callable[[Path, Pair], T]) -> T:
    """What `look` sees, in a thread, of a client's session of two connections."""
    path = tmp_path / "client.sock"

    async def scenario() -> T:
        async with multi_pair(SEALED, control={"socket": str(path)}, connection_priority=TWO) as pair:
            await event_of(pair.session, lambda _: len(living(pair)) == 2)
            return await asyncio.to_thread(look, path, pair)

    prepare_to_fork()
    return run(scenario())


def living(pair: Pair) -> list[str]:
    return [c.local.partition(":")[0] for c in pair.session.connections if c.state.value == "active"]


def wait_until(condition: Callable[[], bool]) -> None:
    """In a thread, for what happens in the event loop."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_client_is_shown_and_a_network_of_it_blocked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def look(path: Path, pair: Pair) -> None:
        assert done(path, "--do", "block", "all", "127.0.0.2").stdout == "block for 1 session\n"
        wait_until(lambda: living(pair) == ["127.0.0.1"])
        found = json.loads(done(path, "--once", "--json").stdout)
        (session,) = found["sessions"]
        assert (session["id"], session["side"], session["blocked"]) == (pair.session.id.hex(), "client", ["127.0.0.2"])
        assert found["server"]["transports"]["tcp"]["connections"] == {"active": 1}
        assert main(["top", str(path), "--once"]) == 0
        assert capsys.readouterr().out.splitlines()[0].endswith(", a client; blocked: 127.0.0.2")
        assert done(path, "--do", "unblock", "all", "127.0.0.2").returncode == 0
        wait_until(lambda: living(pair) == ["127.0.0.1", "127.0.0.2"])
        for order, text in (
            (("block", "all", "wlan77"), "no network is called 'wlan77'; known: "),
            (("unblock", "all", "127.0.0.1"), "'127.0.0.1' is not blocked"),
            (("drain",), "only servers are drained"),
        ):
            refused = done(path, "--do", *order)
            assert refused.returncode == 1
            assert text in refused.stderr

    beside_client(tmp_path, look)
    assert not list(tmp_path.glob("*.sock"))


class OnTerminal:
    """`multi top` as a person sees it."""

    def __init__(self, path: Path) -> None:
        self.screen, terminal = pty.openpty()
        command = [*MORTAL, sys.executable, "-X", "faulthandler", "-m", "multi", "top", str(path)]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "180", "LINES": "40"}
        self.process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
        os.close(terminal)
        self.seen = b""

    def __enter__(self) -> OnTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)

    def shows(self, text: str) -> None:
        while text.encode() not in self.seen:
            self.seen += os.read(self.screen, 65536)

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def ends(self) -> int:
        """Its exit code; where it does not end, the test says where it was."""
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.shows("Current thread")
            self.shows("Extension modules")
            pytest.fail(self.seen.decode(errors="replace"))


def test_what_is_typed_while_it_shows_is_carried_out(tmp_path: Path) -> None:
    def look(path: Path, pair: Pair) -> None:
        with OnTerminal(path) as shown:
            shown.shows("looking ...")
            shown.type("at once\x15")  # before there are two looks to tell rates from
            shown.shows("a client; blocked: nothing")
            shown.type("blick\x7f")
            shown.shows("> blic")
            shown.type("\x15block all 127.0.0.2\n")
            shown.shows("block for 1 session")
            wait_until(lambda: living(pair) == ["127.0.0.1"])
            shown.type("dance\n")
            shown.shows("found 'dance'; allowed: role")
            shown.type("q\n")
            assert shown.ends() == 0

    beside_client(tmp_path, look)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_it_leaves_the_terminal_as_it_was(tmp_path: Path, number: signal.Signals) -> None:
    """Other signals than Ctrl-C left the alternate screen on, and the cursor hidden."""

    def look(path: Path, pair: Pair) -> None:
        with OnTerminal(path) as shown:
            shown.shows("a client; blocked: nothing")
            shown.process.send_signal(number)
            assert shown.ends() == 130
            shown.shows("\x1b[?1049l")
            shown.shows("\x1b[?25h")

    beside_client(tmp_path, look)


def test_ctrl_c_while_an_answer_is_closed_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was, in the finalizer of what `http.client` answers with."""

    def interrupted(response: HTTPResponse) -> None:
        closed(response)
        raise KeyboardInterrupt

    closed = HTTPResponse.close
    monkeypatch.setattr(HTTPResponse, "close", interrupted)

    def look(path: Path, pair: Pair) -> None:
        assert main(["top", str(path), "--once"]) == 130

    beside(tmp_path, look)


def test_a_server_is_drained_and_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def look(path: Path, pair: Pair) -> None:
        ordered = done(path, "--do", "drain", "60")
        assert (ordered.returncode, ordered.stdout) == (0, "drain for 1 session\n")
        assert main(["top", str(path), "--once"]) == 0
        assert capsys.readouterr().out.splitlines()[0].endswith(", accepting no new sessions")
        assert pair.server_session.state is multi.SessionState.OPEN

    beside(tmp_path, look)


@pytest.mark.parametrize("order", [(), ("--json",), ("--do", "drain")], ids=["look", "json", "order"])
@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("404 Not Found", '{"message": "page not found"}'),
        ("404 Not Found", "[1]"),
        ("200 OK", "{}"),
        ("200 OK", "null"),
        ("200 OK", "[" * 100_000),
    ],
    ids=["another error", "a list as an error", "nothing", "null", "too deep"],
)
def test_another_program_that_answers_is_told_apart(
    status: str, said: str, order: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.sock"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if (length := re.search(rb"content-length: (\d+)", head, re.IGNORECASE)) is not None:
            await reader.readexactly(int(length[1]))  # who answers before may have closed while it is sent
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_unix_server(answer, path):
            assert await asyncio.to_thread(main, ["top", str(path), "--once", *order]) == 1

    run(scenario())
    assert capsys.readouterr().err == f"multi: {path}: what answers there is no server of multi\n"


def test_nobody_who_answers_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["top", "--once"]) == 1
    assert f"no server answers in {tmp_path}/multi" in capsys.readouterr().err
    assert main(["top", str(tmp_path / "absent.sock"), "--once"]) == 1
    assert "absent.sock: no such file or directory" in capsys.readouterr().err
    (tmp_path / "multi").mkdir()

    async def scenario() -> None:
        config = SEALED.server(control={"socket": "auto"})
        async with await multi.start_server(print, config) as one:
            assert await asyncio.to_thread(main, ["top", "--once", "--json"]) == 0
            async with await multi.start_server(print, config) as other:
                capsys.readouterr()
                assert await asyncio.to_thread(main, ["top", "--once"]) == 2
                message = capsys.readouterr().err
                assert str(one.control.path) in message
                assert str(other.control.path) in message
                for path in (one.control.path, other.control.path):  # after those who only looked who answers
                    assert path is not None
                    assert (await ask(path, "GET /stats"))[0] == 200

    run(scenario())
