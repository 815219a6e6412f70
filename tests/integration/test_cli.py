"""The command line itself: usage, errors in words, exit codes, and what `check` explains."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import pty
import re
import shlex
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.cli.logs import Format, log_to_stderr
from multi.cli.main import main
from multi.cli.parser import make_parser
from multi.lab.files.client import Transfer, get_file, put_file
from multi.lab.files.protocol import FileRefused, Problem
from tests.integration.cli_runner import (
    TIMEOUT,
    Files,
    command,
    interrupt,
    run,
    run_forked,
    started,
    wait_for_line,
)
from tests.integration.support import free_port

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


# --- usage  ---


def test_help_and_version_exit_with_0() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    for name in ("serve", "get", "put", "ls", "check", "interfaces", "schema", "cert", "demo"):
        assert re.search(rf"^ +{name} ", shown.stdout, re.M)
        assert run_forked(name, "--help").returncode == 0
    version = run("--version")
    assert (version.returncode, version.stdout) == (0, f"multi {multi.__version__}\n")


@pytest.mark.parametrize(
    "way", [("-m", "multi"), (str(Path(sys.executable).with_name("multi")),)], ids=["-m", "script"]
)
def test_help_imports_nothing_heavy(way: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *way, "--help"], capture_output=True, text=True, timeout=30, check=True
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "multi.cli.main" in imported
    assert not imported & {"pydantic", "cryptography", "aioquic", "rich", "asyncio", "pyroute2"}


@pytest.mark.parametrize("arguments", [(), ("fly",), ("get",), ("put", "client.json"), ("get", "a", "b", "--forse")])
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    done = run_forked(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: multi" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gte", "c", "f"], "unknown command 'gte'; did you mean 'get'?"),
        (["testbed", "lst"], "unknown command 'lst'; did you mean 'list'?"),
        (["help"], "unknown command 'help'; did you mean '--help'?"),
        (["bench", "rnu", "c"], "unknown command 'rnu'; did you mean 'run'?"),
        (["get", "--log-format", "jsn", "c", "f"], "--log-format: unknown value 'jsn'; did you mean 'json'?"),
        (["testbed", "exec", "lab", "clint"], "host: unknown value 'clint'; did you mean 'client'?"),
    ],
)
def test_a_slip_of_the_keyboard_is_told_from_what_was_meant(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(arguments)
    assert message in capsys.readouterr().err


def test_amounts_that_are_none_are_said_in_words() -> None:
    for option, value in (("-n", "1X"), ("-n", "0"), ("-t", "soon"), ("-t", "nan")):
        done = run_forked("bench", "run", "client.json", option, value)
        assert done.returncode == 2
        assert f"argument {option}: {value!r} is not a " in done.stderr


# --- errors in words  ---


def test_misspelt_key_is_a_configuration_error(files: Files) -> None:
    config = files.client_config(1, remote_hots="x")
    for verb in (("get", config, "f"), ("check", config)):
        done = run_forked(*verb)
        assert done.returncode == 2
        assert done.stderr.startswith("multi: ")
        assert 'did you mean "remote_host"?' in done.stderr
        assert str(config) in done.stderr


def test_configuration_of_the_other_side_is_refused(files: Files) -> None:
    got = run_forked("get", files.server_config(), "f")
    assert (got.returncode, "a server's configuration" in got.stderr) == (2, True)
    served = run_forked("serve", files.client_config(1), "--dir", files.served)
    assert (served.returncode, "a client's configuration" in served.stderr) == (2, True)


def test_port_in_use_is_said(files: Files) -> None:
    with files.serving() as (_, port):
        config = files.server_config(listen={"host": "127.0.0.1", "port": port})
        second = run_forked("serve", config, "--dir", files.served)
    assert second.returncode == 1
    assert second.stderr.startswith("multi: ")
    assert "address already in use" in second.stderr


def test_quic_without_a_certificate_is_said(files: Files) -> None:
    listen = {"host": "127.0.0.1", "port": 0, "transports": ["quic"]}
    none = run_forked("serve", files.server_config(listen=listen, ssl_config=None), "--dir", files.served)
    assert (none.returncode, "QUIC cannot listen without" in none.stderr) == (2, True)
    lost = files.server_config(listen=listen, ssl_config={"cert": "absent.pem", "key": "certs/server-key.pem"})
    done = run_forked("serve", lost, "--dir", files.served)
    assert done.returncode == 2
    assert re.match(r"multi: ssl_config\.cert: .*absent\.pem: no such file", done.stderr), done.stderr


def test_missing_directory_is_said(files: Files) -> None:
    done = run_forked("serve", files.server_config(), "--dir", files.root / "absent")
    assert (done.returncode, done.stderr) == (1, f"multi: {files.root / 'absent'}: no such file or directory\n")


def test_every_attempt_is_listed_when_none_succeeds(files: Files) -> None:
    port = free_port()
    done = run_forked("get", files.client_config(port, "tcp", "mptcp"), "f", cwd=files.here)
    assert done.returncode == 1
    assert f"tcp over 127.0.0.2 to 127.0.0.1:{port}: connection refused" in done.stderr
    assert f"mptcp over 127.0.0.3 to 127.0.0.1:{port}: connection refused" in done.stderr
    assert list(files.here.iterdir()) == []


def test_attempts_under_way_are_listed_when_time_is_over(files: Files) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        config = files.client_config(deaf.getsockname()[1], multi_config={"open_timeout": 0.5})
        done = run_forked("get", config, "f", cwd=files.here)
    assert done.returncode == 1
    assert re.search(r"tcp over 127.0.0.2 to \S+: no answer within 0.5 s", done.stderr), done.stderr


def test_traceback_comes_with_verbose_only(files: Files) -> None:
    config = files.client_config(free_port())
    assert "Traceback" not in run_forked("get", config, "f").stderr
    assert "Traceback" in run_forked("-v", "get", config, "f").stderr
    assert "Traceback" in run_forked("get", "-v", config, "f").stderr


def test_what_is_for_a_closed_stderr_does_not_come_on_stdout(tmp_path: Path) -> None:
    shell = f"{shlex.join(command('ls', tmp_path / 'nothing'))} 2>&-"
    done = subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("redirected", "reason"), [(">&-", "bad file descriptor"), (">/dev/full", "no space left on device")]
)
@pytest.mark.parametrize("arguments", [["psk"], ["--version"], ["--help"], ["check", "--help"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_stdout_does_not_take_is_not_lost_in_silence(
    arguments: list[str], redirected: str, reason: str, unbuffered: str
) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{shlex.join(command(*arguments))} {redirected}"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
        check=False,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    assert (done.returncode, done.stderr) == (1, f"multi: {reason}\n")


@pytest.mark.parametrize(("arguments", "code"), [(["nonsense"], 2), (["ls", "/no/such/file"], 2), (["--version"], 0)])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_stderr_leaves_the_exit_code_as_it_is(arguments: list[str], code: int, unbuffered: str) -> None:
    shell = f"{shlex.join(command(*arguments))} >/dev/null 2>/dev/full"
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    assert subprocess.run(["sh", "-c", shell], timeout=TIMEOUT, check=False, env=env).returncode == code


def test_logs_for_programs_are_an_object_a_line_with_the_session(files: Files) -> None:
    config = files.client_config(free_port())
    for arguments in (["-vv", "--log-format", "json", "get"], ["get", "--log-format", "json", "-vv"]):
        done = run_forked(*arguments, config, "f")
        assert done.returncode == 1
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
        assert all(datetime.fromisoformat(line["time"]).tzinfo is UTC for line in lines)
        attempts = [line for line in lines if "failed" in line["message"] and line["logger"] == "multi.session"]
        assert {len(bytes.fromhex(line["session"])) for line in attempts} == {16}
        assert attempts[0]["level"] == "debug"
        assert (lines[-1]["level"], lines[-1]["logger"]) == ("error", "multi.cli")
        assert "refused" in lines[-1]["message"]
        assert "Traceback" in lines[-1]["error"]
    (line,) = run_forked("get", "--log-format", "json", config, "f").stderr.splitlines()
    assert "error" not in json.loads(line)


def test_what_libraries_and_the_interpreter_say_is_an_object_a_line_too() -> None:
    program = """
import logging, threading, warnings
from multi.cli.logs import log_to_stderr

log_to_stderr(0, "json")
logging.getLogger("asyncio").error("first\\nsecond")
warnings.warn("warned")

class Broken:
    def __del__(self):
        raise ValueError("ignored")

Broken()
thread = threading.Thread(target=int, args=("none",))
thread.start()
thread.join()
raise KeyboardInterrupt
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT).stderr
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line["logger"] for line in lines] == ["asyncio", "py.warnings", *["multi.cli"] * 3]
    assert lines[0]["message"] == "first\nsecond"
    assert ["ValueError: ignored" in lines[2]["error"], "ValueError" in lines[3]["error"]] == [True, True]
    assert lines[4]["error"].endswith("KeyboardInterrupt")


@pytest.mark.parametrize("form", ["text", "json"])
def test_session_goes_on_where_nobody_takes_what_it_logs(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    logger = logging.getLogger("multi")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setattr(sys, "stderr", Gone())
    log_to_stderr(0, form)
    logging.getLogger("multi.session").warning("it says something, and no exception comes back")


def test_interruption_does_not_wait_for_a_name_to_be_resolved(files: Files) -> None:
    config = files.client_config(7788, remote_host="slow.example")
    code = (
        "import socket, sys, time\n"
        "def slow(*_, **__): print('resolving', flush=True); time.sleep(30)\n"
        "socket.getaddrinfo = slow\n"
        "from multi.cli.main import main\n"
        f"sys.exit(main(['get', {str(config)!r}, 'f']))"
    )
    arguments = [sys.executable, "-c", code]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=files.here)
    wait_for_line(process, "resolving")
    before = time.monotonic()
    assert interrupt(process) == (130, "multi: interrupted\n")
    assert time.monotonic() - before < 15


def test_an_interruption_while_a_command_is_being_loaded_ends_it_without_a_traceback() -> None:
    code = (
        "import os, signal, sys\n"
        "from multi.cli.main import main\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        name == 'multi.cli.parser' and os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.exit(main(['schema']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


async def answers_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()
    writer.close()


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.read()
    except ConnectionError:
        pass
    writer.close()


async def echoes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1000):
            writer.write(data)
    except ConnectionError:
        pass
    writer.close()


@pytest.mark.parametrize("handler", [answers_http, says_nothing, echoes])
async def test_server_of_something_else_is_recognised_within_seconds(files: Files, handler: Handler) -> None:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    limits, patience = {"handshake_timeout": 1}, {"open_timeout": 2.5}
    config = files.client_config(port, ssl_config=None, limits=limits, multi_config=patience)
    async with server, asyncio.timeout(TIMEOUT):
        process = await asyncio.create_subprocess_exec(
            *command("get", config, "f"), stderr=asyncio.subprocess.PIPE, cwd=files.here
        )
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"the peer does not speak MULTI" in errors


# --- a file that changes, through the same functions the commands use  ---


async def test_file_altered_on_the_server_during_a_get_is_an_error(files: Files) -> None:
    served = files.served / "f"
    served.write_bytes(bytes(64 << 20))
    altered = False

    def alter(transfer: Transfer) -> None:
        nonlocal altered
        if transfer.done and not altered:
            altered = True
            os.utime(served, ns=(0, 1))

    changed = pytest.raises(FileRefused, match="f: the file was changed while it was sent")
    with files.serving() as (_, port), changed as refusal:
        await get_file(files.client_config(port), "f", files.here / "f", progress=alter)
    assert refusal.value.problem is Problem.CHANGED
    assert not (files.here / "f").exists()


async def test_file_altered_here_during_a_put_is_an_error(files: Files) -> None:
    mine = files.here / "f"
    mine.write_bytes(bytes(64 << 20))

    def alter(transfer: Transfer) -> None:
        if transfer.done:
            os.utime(mine, ns=(0, transfer.done))

    with files.serving("--allow-put") as (server, port):
        with pytest.raises(FileRefused, match="f: the file was changed while it was sent"):
            await put_file(files.client_config(port), mine, "f", progress=alter)
        await asyncio.to_thread(wait_for_line, server, r"put f .*stopped: .*changed while it was sent")
    assert not (files.served / "f").exists()


async def test_session_in_hand_can_be_used_for_a_copy(files: Files) -> None:
    (files.served / "f").write_bytes(b"content")
    with files.serving() as (_, port):
        async with multi.connect(files.client_config(port, "tcp", "quic")) as session:
            copied = await get_file(session, "f", files.here / "f")
    assert (copied.size, copied.bytes) == (7, 7)
    assert [share.transport for share in copied.connections] == ["tcp", "quic"]
    assert (files.here / "f").read_bytes() == b"content"


# --- on a terminal  ---


def test_terminal_shows_the_connections_live(files: Files) -> None:
    (files.served / "f").write_bytes(bytes(4_000_000))
    with files.serving() as (_, port):
        ours, theirs = pty.openpty()
        config = files.client_config(port, "tcp", "quic", max_rate_mbps=16)
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        process = subprocess.Popen(
            command("get", config, "f"), stdout=theirs, stderr=theirs, cwd=files.here, env=environment
        )
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # EIO: the other side of a terminal was closed
            pass
        os.close(ours)
        assert process.wait(timeout=10) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "4.0 MB of 4.0 MB" in text
    assert re.search(r"0 +tcp +127\.0\.0\.2 +active", text)
    assert re.search(r"1 +quic +127\.0\.0\.3 +active", text)
    assert "SHA-256" in text


# --- check, schema, interfaces  ---


def test_check_explains_a_client(files: Files) -> None:
    done = run_forked("check", files.client_config(7788, "tcp", "quic", "mptcp"))
    assert done.returncode == 0, done.stdout
    assert "entry 0: tcp, ipv4, 127.0.0.2 to 127.0.0.1 port 7788, active; protected by TLS 1.3" in done.stdout
    assert "yes: quic over 127.0.0.3 to 127.0.0.1:7788" in done.stdout
    assert "MPTCP: " in done.stdout
    assert "waits 1 s, or as long as the server does if that is shorter" in done.stdout
    assert "session: connect stag, mode aggregate, scheduler adaptive, reinject full\n" in done.stdout
    assert done.stdout.endswith("usable\n")
    steered = run_forked("check", files.client_config(7788, ssl_config=None, steering="latency"))
    assert "mode aggregate, steering latency, reinject full\n" in steered.stdout


def test_check_names_missing_files_and_what_they_prevent(files: Files) -> None:
    done = run_forked("check", files.client_config(7788, ssl_config={"ca": "absent.pem"}))
    assert done.returncode == 1
    assert "no:  tcp over 127.0.0.2 to 127.0.0.1:7788: cannot read" in done.stdout
    assert re.search(r"ssl_config\.ca: .*absent\.pem: cannot be read: no such file", done.stdout)
    key = run_forked("check", files.client_config(7788, ssl_config=None, auth={"psk_file": "absent.psk"}))
    assert key.returncode == 1
    assert re.search(r"^auth\.psk_file: cannot read .*absent\.psk: No such file", key.stdout, re.MULTILINE)
    reset = run_forked("check", files.server_config(listen={"port": 0, "reset_key_file": "absent.key"}))
    assert reset.returncode == 1
    assert re.search(r"^listen\.reset_key_file: cannot read .*absent\.key", reset.stdout, re.MULTILINE)


def test_check_says_whether_traces_can_be_written(files: Files) -> None:
    for directory, state in (("new/traces", "ok"), (str(files.client_config(1)), "cannot be written")):
        done = run_forked("check", files.client_config(1, trace={"dir": directory}))
        assert re.search(rf"^trace\.dir: \S+{directory.rpartition('/')[2]}: {state}$", done.stdout, re.MULTILINE)


def test_check_says_where_a_server_keeps_its_reset_key_and_writes_nothing(files: Files) -> None:
    port = free_port()
    state = Path(os.environ["XDG_STATE_HOME"]) / "multi"
    before = list(state.rglob("*"))
    done = run_forked("check", files.server_config(listen={"host": "127.0.0.1", "port": port}))
    assert f"reset key: kept in {state}/reset-keys/127.0.0.1-{port}: ok\n" in done.stdout
    assert "reset key" not in run_forked("check", files.server_config()).stdout  # no port of its own
    assert list(state.rglob("*")) == before


def test_check_says_how_long_a_server_waits_for_clients(files: Files) -> None:
    text = run_forked("check", files.server_config(multi_config={"resume_timeout": 90, "abandon_timeout": 3})).stdout
    assert "clients without a network: waited for 90 s, or as they do if that is shorter\n" in text
    assert "clients that have closed all connections themselves: waited for 3 s\n" in text
    text = run_forked("check", files.server_config(multi_config={"abandon_timeout": 0})).stdout
    assert "clients without a network: waited for 60 s" in text
    assert "themselves" not in text


def test_check_says_why_nothing_leads_to_the_server(files: Files) -> None:
    entries = [["tcp", "ipv4", "absent0"], ["tcp", "ipv6", "any"]]
    done = run_forked("check", files.client_config(7788, connection_priority=entries))
    assert done.returncode == 1
    assert "no such interface 'absent0'" in done.stdout
    assert "no ipv6 address" in done.stdout
    assert done.stdout.endswith("NOT usable on this machine now\n")


def test_check_tells_whether_the_port_of_a_server_is_free(files: Files) -> None:
    assert run_forked("check", files.server_config()).returncode == 0
    with files.serving() as (_, port):
        done = run_forked("check", files.server_config(listen={"host": "127.0.0.1", "port": port}))
    assert done.returncode == 1
    assert done.stdout.count("address already in use") == 3


def test_check_warns_of_what_has_no_effect(files: Files) -> None:
    settings: dict[str, Any] = {"mptcp_config": {"scheduler": "RR"}, "wifi_config": {"power_savings": False}}
    done = run_forked("check", files.client_config(7788, "mptcp", ssl_config={"verify": False}, **settings))
    assert "mptcp_config.scheduler 'RR' is not in force" in done.stdout
    assert "wifi_config.power_savings" in done.stdout
    assert "server NOT verified" in done.stdout
    assert "warning: ssl_config.verify" in done.stdout


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_check_has_an_answer_for_every_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    level = logging.getLogger("multi.config").level
    assert main(["check", str(path)]) in (0, 1)
    assert logging.getLogger("multi.config").level == level, "a program that calls it keeps its own settings"
    said = capsys.readouterr()
    assert said.out.endswith("usable\n") or said.out.endswith("usable on this machine now\n"), said.out
    assert said.err == ""


def test_schema_is_json_and_interfaces_are_listed() -> None:
    schema = run_forked("schema")
    assert schema.returncode == 0
    assert "connection_priority" in json.loads(schema.stdout)["properties"]
    interfaces = run_forked("interfaces")
    assert interfaces.returncode == 0
    assert re.search(r"^lo +loopback", interfaces.stdout, re.M)


def test_reader_that_goes_away_is_no_error() -> None:
    with started("schema") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_copy_goes_on_though_nobody_reads_how(files: Files) -> None:
    (files.served / "f").write_bytes(b"all of it")
    with files.serving() as (_, port):
        with started("get", files.client_config(port), "f", cwd=files.here) as process:
            process.stdout.close()
            assert (process.wait(TIMEOUT), process.stderr.read()) == (0, "")
        assert (files.here / "f").read_bytes() == b"all of it"
        got = run_forked("get", "--log-format", "json", "-v", files.client_config(port), "f", "-o", "-")
        assert (got.returncode, got.stdout) == (0, "all of it")
        assert all(json.loads(line)["message"] for line in got.stderr.splitlines())


def test_a_server_goes_on_and_drains_though_nobody_reads_what_it_says(files: Files) -> None:
    (files.served / "f").write_bytes(b"all of it")
    with files.serving() as (process, port):
        process.stdout.close()
        for name, code in (("absent", 1), ("f", 0)):
            got = run_forked("get", files.client_config(port), name, cwd=files.here)
            assert (got.returncode, "broken pipe" in got.stderr.lower()) == (code, False)
        process.send_signal(signal.SIGHUP)
        process.terminate()
        assert process.wait(TIMEOUT) == 0
        assert process.stderr.read() == ""
    assert (files.here / "f").read_bytes() == b"all of it"


# --- forwarding ---


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A service that answers each connection with what it was sent, once that has ended."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(self.rfile.read())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_connect_carries_standard_input_and_output_whatever_they_are(files: Files, echo_port: int) -> None:
    target = f"127.0.0.1:{echo_port}"
    data = os.urandom(3_000_000)
    source, sink = files.root / "source", files.root / "sink"
    source.write_bytes(data)
    with started("serve", files.server_config(), "--forward-to", "localhost:*") as server:
        port = int(wait_for_line(server, r"forwarding to localhost:\* on 127.0.0.1 port (\d+)")[1])
        client = files.client_config(port)
        piped = subprocess.run(command("connect", client, target), input=data, capture_output=True, timeout=60)
        assert (piped.returncode, piped.stderr) == (0, b"")
        assert piped.stdout == data
        with source.open("rb") as read, sink.open("wb") as written:
            assert subprocess.run(command("connect", client, target), stdin=read, stdout=written).returncode == 0
        assert sink.read_bytes() == data
        here, there = socket.socketpair()
        with (
            here,
            there,
            subprocess.Popen(
                command("connect", client, target), stdin=there.fileno(), stdout=there.fileno()
            ) as process,
        ):
            there.close()
            here.sendall(b"over a socket")
            here.shutdown(socket.SHUT_WR)
            assert here.makefile("rb").read() == b"over a socket"
            assert process.wait(30) == 0
        refused = run_forked("connect", client, "127.0.0.1:1")
        assert (refused.returncode, refused.stderr) == (1, "multi: 127.0.0.1:1: connection refused\n")
        with sink.open("wb") as written:
            denied = subprocess.run(
                command("connect", client, "10.0.0.1:22"), stdout=written, stderr=subprocess.PIPE, text=True
            )
        assert denied.returncode == 1
        assert "10.0.0.1 is private, and no rule names it" in denied.stderr
        no_file = run_forked("get", client, "f", cwd=files.here)
        assert no_file.stderr == "multi: this server has no files (it runs without --dir)\n"
    assert run_forked("connect", client, "nowhere").returncode == 2
    assert run_forked("connect", client, target).returncode == 1


def test_connect_waits_for_a_terminal_that_takes_nothing_and_ends_when_it_is_told_to(files: Files) -> None:
    """It wrote again and again what the terminal did not take, and heard no signal meanwhile."""
    size = 1_000_000
    terminal, shown = pty.openpty()
    tty.setraw(shown)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = f"127.0.0.1:{listener.getsockname()[1]}"
        with started("serve", files.server_config(), "--forward-to", "localhost:*") as server:
            client = files.client_config(int(wait_for_line(server, r"port (\d+)")[1]))
            for reads_on in (True, False):
                with subprocess.Popen(command("connect", client, target), stdin=shown, stdout=shown) as process:
                    sending, _ = listener.accept()
                    thread = threading.Thread(target=ignoring_resets, args=(sending, bytes(size)))
                    thread.start()
                    try:
                        got = len(os.read(terminal, 1000))
                        while reads_on and got < size:
                            got += len(os.read(terminal, 65536))
                        process.terminate()
                        assert process.wait(30) == 130
                    finally:
                        process.kill()
                        thread.join()
                        sending.close()
    os.close(terminal)
    os.close(shown)


def write_and_read(sock: socket.socket, data: bytes) -> bytes:
    """A reset is told once: by the write if it has come already, or else by the read."""
    sock.sendall(data)
    return sock.recv(65536)


def ignoring_resets(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(data)


@pytest.mark.parametrize(
    ("number", "speaks", "code"),
    [(signal.SIGINT, 0, 130), (signal.SIGHUP, 0, 130), (None, 1_000_000, 1), (None, 0, 1)],
    ids=["interrupted", "hung-up", "nobody-reads-what-comes", "nobody-reads-and-nothing-comes"],
)
def test_connect_ends_when_it_is_interrupted_or_nobody_reads(
    files: Files, number: signal.Signals | None, speaks: int, code: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = f"127.0.0.1:{listener.getsockname()[1]}"
        with started("serve", files.server_config(), "--forward-to", "localhost:*") as server:
            client = files.client_config(int(wait_for_line(server, r"port (\d+)")[1]))
            connect = command("connect", client, target)
            with subprocess.Popen(connect, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                peer, _ = listener.accept()
                peer.settimeout(TIMEOUT)
                assert process.stdout is not None
                try:
                    peer.sendall(b"x" * 100)
                    assert process.stdout.read(100) == b"x" * 100
                    if number is not None:
                        process.send_signal(number)
                    else:  # who has started it was killed
                        process.stdout.close()
                    with pytest.raises(ConnectionResetError):
                        write_and_read(peer, bytes(speaks))
                    assert process.wait(TIMEOUT) == code
                finally:
                    process.kill()
                    peer.close()


def test_forward_says_what_leads_where_and_in_the_end_what_was_carried(files: Files, echo_port: int) -> None:
    with started(
        "serve", files.server_config(), "--dir", files.served, "--forward-to", "localhost:*,listen=*"
    ) as server:
        client = files.client_config(int(wait_for_line(server, r"port (\d+)")[1]))
        forwards = ("-L", f"0:127.0.0.1:{echo_port}", "-R", f"0:127.0.0.1:{echo_port}", "--socks", "0,priority=5")
        with started("forward", client, *forwards) as forward:
            remote = int(wait_for_line(forward, r"the server listens on 127.0.0.1:(\d+), for 127.0.0.1:\d+")[1])
            local = int(wait_for_line(forward, rf"^127.0.0.1:(\d+) leads to 127.0.0.1:{echo_port}$")[1])
            wait_for_line(forward, r"^127.0.0.1:(\d+) is a proxy \(SOCKS5 and HTTP CONNECT\)$")
            wait_for_line(forward, "^ready$")
            for port in (local, remote):
                with socket.create_connection(("127.0.0.1", port)) as sock:
                    sock.sendall(b"hello")
                    sock.shutdown(socket.SHUT_WR)
                    assert sock.makefile("rb").read() == b"hello"
            forward.send_signal(signal.SIGINT)
            told, errors = forward.communicate(timeout=30)
            assert (forward.returncode, errors) == (130, "multi: interrupted\n")
            assert re.fullmatch(r"forwarded: 2 connections \(\d open\), 10 bytes out, 10 bytes in\n", told)
        (files.served / "multi_forward").write_text("a file, by the same server")  # and named as what asks to forward
        assert run_forked("get", client, "multi_forward", cwd=files.here).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "nothing to forward"),
        (("-L", "nonsense"), "-L: found 'nonsense'"),
        (("-R", "80:x"), "-R: found '80:x'"),
        (("--socks", "x"), "--socks: found 'x'"),
        (("--socks", "1080,priority=9"), "found priority=9; allowed: 0 to 7"),
        (("--socks", "1080", "--socks-auth", "/dev/null"), "no user in it"),
        (("--socks", "*:1080"), "needs --socks-auth"),
    ],
)
def test_forward_refuses_what_it_cannot_mean(
    files: Files, arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forward", str(files.client_config(1)), *arguments]) == 2
    assert says in capsys.readouterr().err


def test_strangers_who_say_nothing_leave_a_server_descriptors_to_open_files_with(files: Files) -> None:
    (files.served / "f").write_text("still to be had")
    shell = f"ulimit -Sn 64; exec {shlex.join(command('serve', files.server_config(), '--dir', files.served))}"
    with subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().partition("port ")[2].split()[0])
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(80)]
        try:
            done = run_forked("get", files.client_config(port), "f", cwd=files.here)
            assert (done.returncode, done.stderr) == (0, "")
        finally:
            server.terminate()
            for stranger in strangers:
                stranger.close()


def test_serve_needs_something_to_serve(files: Files) -> None:
    wrong: tuple[tuple[str, ...], ...] = (
        (),
        ("--allow-put", "--forward-to", "localhost:1"),
        ("--forward-to", "localhost:x"),
        ("--forward-to", str(files.root / "nosuch.json")),
    )
    for arguments in wrong:
        assert main(["serve", str(files.server_config()), *arguments]) == 2
