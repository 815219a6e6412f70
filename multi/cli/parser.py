"""Which commands `multi` has, with which arguments, and the function each of them calls: `module:function`.

An argument has the name of the function's parameter. Modules are imported when their command runs, so that `multi
--help` does not wait for cryptography and QUIC.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from multi import __version__
from multi.errors import closest

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"

TRACE = "write a trace of each session to a file in this directory (docs/tracing.md)"
LOG_FORMAT = "how to log: for people (default), or for programs, one JSON object a line"
VERBOSE = "log to stderr (-vv: in detail), and show tracebacks"
CONNECT = "connect standard input and output to a port at the far end, as ssh's ProxyCommand"
FORWARD = "forward ports and be a proxy for programs that know nothing of sessions"
CLIENT, SERVER, EITHER = (
    "the client's configuration: a file, or multi://HOST:PORT?OPTION=VALUE",
    "the server's configuration",
    "a client's or server's configuration",
)


class _Parser(argparse.ArgumentParser):
    """Says what a person may have meant, and without a command which there are."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: COMMAND"):
            super().print_help(sys.stderr)
            self.exit(2)
        wrong = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if wrong is not None and (guess := closest(wrong[1], [*re.findall(r"[\w-]+", wrong[2]), "--help"])):
            argument = message.split(":")[0].removeprefix("argument ")
            what = f"{argument}: unknown value" if argument.islower() and "|" not in argument else "unknown command"
            message = f"{what} {wrong[1]!r}; did you mean {guess!r}?"
        super().error(message)

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Raises OSError where nobody takes it, which argparse's own keeps to itself."""
        (file or sys.stdout).write(self.format_help())
        sys.stdout.flush()


class _Version(argparse.Action):
    """Shows the version and exits. Raises OSError where nobody takes it, which argparse's own keeps to itself."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(f"multi {__version__}", flush=True)
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="multi", description="One session over all the networks of this device.", allow_abbrev=False)
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    parser.add_argument("-v", "--verbose", action="count", default=0, help=VERBOSE)
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help=LOG_FORMAT)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_bench(_add(commands, "bench", "", "measure a session, like iperf3"))

    _add_connect(_add(commands, "connect", "multi.cli.forward:run_connect", CONNECT, CLIENT))

    cert = _add(commands, "cert", "multi.lab.cert:run_cert", "make certificates for development")
    cert.add_argument("directory", metavar="DIR", type=Path, help="where to write them")
    names = "a name or address of the server; may be repeated"
    cert.add_argument("--name", metavar="NAME", dest="names", action="append", default=[], help=names)

    explain = "validate a configuration and explain it for this machine"
    _add(commands, "check", "multi.cli.check:run_check", explain, EITHER)

    demo = _add(commands, "demo", "multi.cli.demo:run_demo", "run the roaming demo")
    demo.add_argument("--out", metavar="DIR", type=Path, default=Path("demo-out"), help="where to write its results")
    demo.add_argument("--loopback", action="store_true", help="use loopback connections instead of network namespaces")
    demo.add_argument("--speed", metavar="N", type=_positive, default=1.0, help=argparse.SUPPRESS)

    _add_forward(_add(commands, "forward", "multi.cli.forward:run_forward", FORWARD, CLIENT))

    get = _add(commands, "get", "multi.cli.copy:run_get", "fetch a file over all connections", CLIENT)
    get.add_argument("name", metavar="NAME", help="the file's name on the server")
    where = "where to put it, - for standard output (default: here, same name)"
    get.add_argument("-o", "--output", metavar="FILE", type=Path, help=where)
    get.add_argument(
        "--force", action="store_true", help="replace a file that is there (with -o it is replaced anyway)"
    )

    what = "show the interfaces of this machine and what a session can do with them"
    show = _add(commands, "interfaces", "multi.cli.interfaces:show_interfaces", what)

    show.add_argument("--json", dest="as_json", action="store_true", help="print them as JSON")

    show = _add(commands, "ls", "multi.cli.ls:run_ls", "list the files that a server offers", CLIENT)
    show.add_argument("name", metavar="DIR", nargs="?", default="", help="only those in this directory (default: all)")
    show.add_argument("--json", dest="as_json", action="store_true", help="print them as JSON")

    what = "open, measure and close every connection of a configuration, and say what a session would do"
    _add(commands, "ping", "multi.cli.ping:run_ping", what, CLIENT)

    psk = _add(commands, "psk", "multi.cli.psk:run_psk", "make a pre-shared key: a line for the file of auth.psk_file")
    psk.add_argument("name", metavar="NAME", nargs="?", default="default", help="its name (default: default)")

    put = _add(commands, "put", "multi.cli.copy:run_put", "store a file on the server over all connections", CLIENT)
    put.add_argument("file", metavar="FILE", type=Path, help="the file")
    put.add_argument("--as", metavar="NAME", dest="name", help="its name on the server (default: the same)")
    put.add_argument("--force", action="store_true", help="replace a file of that name")

    _add(commands, "schema", "multi.cli.check:print_schema", "print the JSON Schema of configurations")

    serve = _add(commands, "serve", "multi.cli.serve:run_serve", "serve files, or forward connections", SERVER)
    directory = "serve the files of this directory; nothing outside of it"
    serve.add_argument("--dir", metavar="DIR", dest="directory", type=Path, help=directory)
    serve.add_argument("--allow-put", action="store_true", help="let clients store files")
    rules = "forward for clients, to what is allowed: HOST:PORTS,..., or a JSON file (docs/forwarding.md)"
    serve.add_argument("--forward-to", metavar="RULES", help=rules)

    _add_workers(serve)

    _add_testbed(_add(commands, "testbed", "", "two hosts with emulated networks on this machine"))

    _add_top(
        _add(commands, "top", "multi.cli.top:run_top", "see what a running server or client does, and give it orders")
    )

    trace = _add(commands, "trace", "multi.cli.trace:run_trace", "tell or draw what a session did, from its trace")
    trace.add_argument("file", metavar="FILE", type=Path, help="the trace: a file that `trace` or --trace has left")
    picture = "draw it: a PNG, PDF or SVG; needs matplotlib"
    trace.add_argument("-o", "--output", metavar="FILE", type=Path, help=picture)
    trace.add_argument("--json", dest="as_json", action="store_true", help="print the summary as JSON")
    return parser


def _add_bench(parser: _Parser) -> None:
    roles = parser.add_subparsers(title="roles", metavar="serve|run", required=True)
    serve = _add(roles, "serve", "multi.lab.bench.run:run_bench_server", "answer measurements", SERVER)
    _add_workers(serve)
    run = _add(roles, "run", "multi.lab.bench.run:run_bench", "measure once", CLIENT)
    amount = run.add_mutually_exclusive_group()
    amount.add_argument("-t", metavar="S", dest="seconds", type=_positive, help="measure for S seconds (default 10)")
    amount.add_argument(
        "-n", metavar="BYTES", dest="size", type=_byte_count, help="send exactly BYTES, which are compared on arrival"
    )
    run.add_argument("-R", dest="reverse", action="store_true", help="reverse: the server sends")
    run.add_argument("--json", dest="as_json", action="store_true", help="print the result as JSON")


def _add_workers(parser: _Parser) -> None:
    several = "serve with so many processes on one port, or auto: one for each core (default: the configuration's)"
    parser.add_argument("--workers", metavar="N", type=_workers, help=several)


def _add_connect(parser: _Parser) -> None:
    parser.add_argument("target", metavar="HOST:PORT", help="what the server shall connect to")
    parser.add_argument(
        "--priority", metavar="N", type=_priority, default=0, help="its priority: 0 (first, default) to 7 (last)"
    )
    steering = (
        "how to steer this connection: latency, balance, priority, standby, redundant or adaptive (default: as the "
        "configuration says)"
    )
    parser.add_argument("--steering", metavar="MODE", help=steering)


def _add_forward(parser: _Parser) -> None:
    local = "[ADDR:]PORT:HOST:PORT: connections to a port here lead to HOST:PORT there"
    parser.add_argument("-L", metavar="SPEC", dest="local", action="append", default=[], help=local)
    remote = "[ADDR:]PORT:HOST:PORT: connections to a port of the server's lead to HOST:PORT here"
    parser.add_argument("-R", metavar="SPEC", dest="remote", action="append", default=[], help=remote)
    socks = (
        "[ADDR:]PORT: be a proxy here, SOCKS5 and HTTP CONNECT; each SPEC may end with ,priority=0 to 7,steering=MODE"
    )
    parser.add_argument("--socks", metavar="SPEC", dest="proxies", action="append", default=[], help=socks)
    udp = "[ADDR:]PORT:HOST:PORT: datagrams that come to a UDP port here go to HOST:PORT there, and answers back"
    parser.add_argument("--udp", metavar="SPEC", dest="datagrams", action="append", default=[], help=udp)
    users = "a file with USER:PASSWORD lines that the proxy asks for"
    parser.add_argument("--socks-auth", metavar="FILE", dest="users", type=Path, help=users)


def _add_top(parser: _Parser) -> None:
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


def _add_testbed(parser: _Parser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    up = _add(actions, "up", "multi.cli.testbed:up", "start a testbed in the background")
    links = "its links: a JSON file, or paper (default) or wifi_and_5g"
    up.add_argument("--profile", metavar="FILE", default="paper", help=links)
    up.add_argument("--name", metavar="NAME", default="default", help="its name (default: default)")
    up.add_argument(
        "--backend",
        choices=("auto", "tap", "veth"),
        default="auto",
        help="how the relay gets at frames: tap (needs /dev/net/tun), veth, or whichever works",
    )
    up.add_argument("--congestion", metavar="NAME", default="", help="TCP congestion control, such as bbr or cubic")
    up.add_argument(
        "--detect-duplicates", action="store_true", help="let the kernel check new IPv6 addresses first (tentative)"
    )
    up.add_argument("--mptcp", action="store_true", help="let MPTCP make subflows over all links")

    execute = _add(actions, "exec", "multi.cli.testbed:execute", "run a program on a host")
    execute.add_argument("name", metavar="NAME", help="the testbed")
    execute.add_argument("host", choices=("client", "server"), help="the host")
    execute.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="the program, after --")

    change = _add(actions, "set", "multi.cli.testbed:change", "change a link")
    change.add_argument("name", metavar="NAME", help="the testbed")
    change.add_argument("link", metavar="LINK", help="the link's name")
    keys = (
        "rate_mbps, delay_ms, jitter_ms, loss, queue_ms, queue_bytes; direction=down|up (default: both); "
        "blackhole, carrier, address, present = on|off"
    )
    change.add_argument("changes", metavar="KEY=VALUE", nargs="+", help=keys)

    down = _add(actions, "down", "multi.cli.testbed:down", "end a testbed and everything in it")
    down.add_argument("name", metavar="NAME", nargs="?", default="default", help="its name (default: default)")

    _add(actions, "list", "multi.cli.testbed:show_all", "show the testbeds that are running")


def _add(commands: Commands, name: str, run: str, help: str, config: str = "") -> _Parser:
    """A command that calls `run`, if that is given, or has further words; `config` says whose CONFIG it takes."""
    added = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
    if run:
        added.add_argument("-v", "--verbose", action="count", default=argparse.SUPPRESS, help=VERBOSE)
        formats = ("text", "json")
        added.add_argument("--log-format", choices=formats, default=argparse.SUPPRESS, help=LOG_FORMAT)
        added.set_defaults(run=run)
    if config:
        added.add_argument("config", metavar="CONFIG", help=config)
    if config in (CLIENT, SERVER):
        added.add_argument("--trace", metavar="DIR", type=Path, help=TRACE)
    return added


def _priority(text: str) -> int:
    if text not in "01234567" or len(text) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a priority, 0 (first) to 7")
    return int(text)


def _session_count(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of sessions, 0 to 10000")
    return int(text)


def _workers(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or not 0 < int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes, 1 to 256, or auto")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to 3600")
    return value


def _byte_count(text: str) -> int:
    """A number of bytes, `K`, `M` and `G` as powers of 1024."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    try:
        value = int(text[:-1] if factor > 1 else text) * factor
    except ValueError:
        value = 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of bytes")
    return value
