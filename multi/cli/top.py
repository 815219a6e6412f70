"""`multi top`: what a running server or client does, seen through its control socket, and orders to it."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from multi.asyncio.control import COMMANDS, REQUEST_TIMEOUT, SERVER_COMMANDS, control_sockets, runtime_directory
from multi.asyncio.interruption import INTERRUPTIONS
from multi.asyncio.stats import ServerStats
from multi.cli.parser import Parser
from multi.cli.prompt import Prompt
from multi.errors import ConfigError, TransportError, printable, words_of
from multi.types import host_of

INTERVAL = 1.0  # seconds between two looks; rates are averages of it
PIPED_WIDTH = 10_000  # columns; nothing is cut or wrapped when a program reads the table
TRANSPORT_HEADINGS = ("transport", "connections", "ended", "sent/s", "received/s", "reinjected", "in flight")
SESSION_HEADINGS = (
    *("session", "state", "scheduler", "memory", "id", "connection", "remote", "is", "role"),
    *("rtt", "sent/s", "received/s", "reinjected", "in flight"),
)
ORDERS = [" ".join((name, "SESSION", *map(str.upper, parameters))) for name, (parameters, _) in COMMANDS.items()]
ORDERS += [f"{name} [{' '.join(map(str.upper, parameters))}]" for name, (parameters, _) in SERVER_COMMANDS.items()]
HINT = f"orders: {'; '.join(ORDERS)}; q to quit"
QUIT = ("q", "quit", "exit")
RIGHT = {"memory", "rtt", "sent/s", "received/s", "reinjected", "in flight"}

Json = Mapping[str, Any]
EXPECTED = {"/stats": {field.name for field in fields(ServerStats)}, "/command": {"done"}}
"""What an answer says besides; of sessions there is a list."""


def add_arguments(parser: Parser) -> None:
    parser.runs(run_top)
    where = "its control.socket (default: the only one in the runtime directory)"
    parser.add_argument("control", metavar="SOCKET", nargs="?", type=Path, help=where)
    parser.add_argument("--once", action="store_true", help="look once, for a second")
    parser.add_argument("--json", dest="as_json", action="store_true", help="print each look as a line of JSON")
    shown = "how many sessions to show, those that moved bytes last (default 20)"
    parser.add_argument("-n", metavar="N", dest="count", type=_session_count, default=20, help=shown)
    order = (
        "role SESSION ID active|secondary|backup, scheduler SESSION NAME, steering SESSION MODE, block or unblock "
        "SESSION NETWORK (of a client), or abort SESSION; SESSION: the first digits of one, or all; drain [SECONDS]: "
        "stop the server, as SIGTERM does"
    )
    parser.add_argument("--do", metavar="WORD", dest="order", nargs="+", help=order)


def run_top(control: Path | None, *, once: bool, as_json: bool, count: int, order: Sequence[str] | None) -> int:
    """Show a server every second until Ctrl-C, or `once`, as JSON a line each; or give it an order. Returns 0.

    Raises ConfigError where it is not clear which server is meant or what is wanted, TransportError where nobody
    answers or what was asked for cannot be done.
    """
    path = control if control is not None else _only_socket()
    if order is not None:
        print(_ask(path, "POST", "/command", _command(order))["done"])
        return 0
    look = _look(path, count)
    if as_json:
        while True:
            print(json.dumps({"server": look.server, "sessions": look.sessions}), flush=True)
            if once:
                return 0
            look = _next(path, count)
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else PIPED_WIDTH, markup=False, highlight=False)
    if once or not terminal:
        while True:
            before, look = look, _next(path, count)
            console.print(_shown(before, look))
            if once:
                return 0
    return _live(path, count, look, console)


def _live(path: Path, count: int, look: _Look, console: Console) -> int:
    """Show it every second; what is typed is an order."""
    said = HINT
    for number in INTERRUPTIONS:  # the terminal is to be found as it was
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    with Prompt() as prompt, Live(Text("looking ..."), console=console, screen=True, auto_refresh=False) as live:
        before = look

        def show() -> None:
            typed = [Text(f"> {prompt.text}", style="bold"), Text(said)]
            live.update(Group(*typed, _shown(before, look)), refresh=True)

        while True:
            try:
                line = prompt.line(INTERVAL, show)
            except EOFError:
                return 0
            if line in QUIT:
                return 0
            if line is not None:
                said = _carried_out(path, line)
            before, look = look, _look(path, count)
            show()


def _carried_out(path: Path, line: str) -> str:
    """What became of an order, in a line."""
    try:
        words = shlex.split(line)
        return str(_ask(path, "POST", "/command", _command(words))["done"]) if words else HINT
    except (ConfigError, TransportError, ValueError) as error:
        return printable(" ".join(str(error).split()))


def _only_socket() -> Path:
    found = control_sockets()
    if not found:
        raise TransportError(f"no server answers in {runtime_directory()}: does its configuration have control.socket?")
    if len(found) > 1:
        raise ConfigError("which one? " + " ".join(map(str, found)))
    return found[0]


def _command(words: Sequence[str]) -> Json:
    """`role 5f1c 1 backup`, as the body of a request."""
    name, *values = words
    if name in SERVER_COMMANDS:
        return _server_command(name, values)
    if name not in COMMANDS:
        raise ConfigError(f"found {name!r}; allowed: {', '.join((*COMMANDS, *SERVER_COMMANDS))}")
    parameters = ("session", *COMMANDS[name][0])
    if len(values) != len(parameters):
        raise ConfigError(f"{name} takes {' '.join(map(str.upper, parameters))}")
    command: dict[str, Any] = {"command": name, **dict(zip(parameters, values, strict=True))}
    if "connection" in command:
        if not command["connection"].isdecimal():
            raise ConfigError(f"CONNECTION: found {command['connection']!r}; allowed: the number shown under id")
        command["connection"] = int(command["connection"])
    return command


def _server_command(name: str, values: Sequence[str]) -> Json:
    """`drain 30`."""
    parameters = SERVER_COMMANDS[name][0]
    if len(values) > len(parameters):
        raise ConfigError(f"{name} takes [{' '.join(map(str.upper, parameters))}]")
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        raise ConfigError(f"{parameters[0].upper()}: found {values[0]!r}; allowed: a number") from None
    return {"command": name, **dict(zip(parameters, numbers, strict=False))}


# --- asking ---


class _Connection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=2 * REQUEST_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _ask(path: Path, method: str, target: str, body: Json | None = None) -> Any:
    connection = _Connection(path)
    try:
        connection.request(method, target, None if body is None else json.dumps(body))
        with connection.getresponse() as response:  # else its finalizer closes it, and a Ctrl-C then is lost
            answer = json.loads(response.read())
    except OSError as error:
        raise TransportError(f"{path}: {words_of(error)}") from error
    except (HTTPException, ValueError, RecursionError):
        answer = None
    finally:
        connection.close()
    match answer:
        case {"error": str(refusal)}:
            raise TransportError(refusal)
        case dict() if target in EXPECTED and answer.keys() >= EXPECTED[target]:
            return answer
        case list() if target not in EXPECTED:
            return answer
    raise TransportError(f"{path}: what answers there is no server of multi")


@dataclass(frozen=True)
class _Look:
    """What a server said at one moment."""

    at: float
    server: Json
    sessions: Sequence[Json]

    def sums(self) -> dict[object, Json]:
        """Where the counters of each transport and connection are."""
        found: dict[object, Json] = dict(self.server["transports"])
        found |= {(s["id"], c["id"]): c for s in self.sessions for c in s["connections"]}
        return found


def _look(path: Path, count: int) -> _Look:
    server = _ask(path, "GET", "/stats")
    return _Look(time.monotonic(), server, _ask(path, "GET", f"/sessions?limit={count}"))


def _next(path: Path, count: int) -> _Look:
    time.sleep(INTERVAL)
    return _look(path, count)


# --- showing ---


def _shown(before: _Look, now: _Look) -> RenderableType:
    return Group(*_summary(now), _transports(before, now), _sessions(before, now))


def _summary(now: _Look) -> list[Text]:
    server = now.server
    states = ", ".join(f"{count} {state}" for state, count in server["sessions"].items()) or "none"
    up = timedelta(seconds=int(server["uptime"]))
    hit = ", ".join(f"{name} {count}" for name, count in server["limits_hit"].items() if count) or "none"
    accepting = "accepting" if server["accepting"] else "accepting no new sessions"
    client = now.sessions and all(session.get("side") == "client" for session in now.sessions)
    blocked = sorted({name for session in now.sessions for name in session.get("blocked", ())})
    if client:
        return [Text(f"up {up}, a client; blocked: {printable(', '.join(blocked)) or 'nothing'}")]
    return [
        Text(f"up {up}, {accepting}"),
        Text(f"sessions: {states}; {server['sessions_opened']} opened, {sum(server['sessions_ended'].values())} ended"),
        Text(f"streams {server['streams']}, memory {decimal(server['memory'])}, arrivals {server['arrivals']}"),
        Text(f"limits hit: {hit}"),
    ]


def _transports(before: _Look, now: _Look) -> Table:
    table = _table(TRANSPORT_HEADINGS)
    for name, stats in now.server["transports"].items():
        states = ", ".join(f"{count} {state}" for state, count in stats["connections"].items()) or "none"
        ended = sum(stats["ended"].values())
        table.add_row(name, states, str(ended), *_flow(before, now, name))
    return table


def _sessions(before: _Look, now: _Look) -> Table:
    table = _table(SESSION_HEADINGS)
    for session in now.sessions:
        first = (session["id"][:8], session["state"], printable(session["scheduler"]), decimal(session["memory"]))
        living = [c for c in session["connections"] if c["state"] not in ("closed", "lost")]
        for connection in living:
            where = f"{connection['transport']} {connection['interface'] or host_of(connection['local'])}"
            rtt = connection["rtt"]
            table.add_row(
                *first,
                str(connection["id"]),
                where,
                connection["remote"],
                connection["state"],
                connection["role"],
                f"{rtt * 1000:.1f} ms" if rtt else "",
                *_flow(before, now, (session["id"], connection["id"])),
            )
            first = ("", "", "", "")
        if not living:
            table.add_row(*first)
    return table


def _table(headings: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in RIGHT else "left", overflow="fold")
    return table


def _flow(before: _Look, now: _Look, key: object) -> tuple[str, str, str, str]:
    """Rates, what was sent again and what is in flight, of a transport or a connection."""
    counters, earlier = now.sums()[key], before.sums().get(key, {})
    elapsed = now.at - before.at
    sent, received = (
        f"{(counters[name] - earlier.get(name, 0)) * 8 / 1e6 / elapsed:.2f} Mbit" if earlier and elapsed else ""
        for name in ("bytes_sent", "payload_received")
    )
    share = counters["reinjected"] / counters["bytes_sent"] if counters["bytes_sent"] else 0.0
    return sent, received, f"{share:.1%}", decimal(counters["in_flight"])


def _session_count(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of sessions, 0 to 10000")
    return int(text)
