"""The parser of `multi`: which commands there are, and what their parsers share.

A command's module adds its arguments, each with the name of a parameter of the function that runs the command. It is
imported when the command is used, so that `multi --help` does not wait for cryptography and QUIC.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from multi import __version__
from multi.errors import closest

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

COMMANDS = {
    "bench": "measure a session, like iperf3",
    "cert": "make certificates for development",
    "check": "validate a configuration and explain it for this machine",
    "connect": "connect standard input and output to a port at the far end, as ssh's ProxyCommand",
    "demo": "run the roaming demo",
    "forward": "forward ports and be a proxy for programs that know nothing of sessions",
    "get": "fetch a file over all connections",
    "interfaces": "show the interfaces of this machine and what a session can do with them",
    "ls": "list the files that a server offers",
    "ping": "open, measure and close every connection of a configuration, and say what a session would do",
    "psk": "make a pre-shared key: a line for the file of auth.psk_file",
    "put": "store a file on the server over all connections",
    "schema": "print the JSON Schema of configurations",
    "serve": "serve files, or forward connections",
    "testbed": "two hosts with emulated networks on this machine",
    "top": "see what a running server or client does, and give it orders",
    "trace": "tell or draw what a session did, from its trace",
}
"""What each is for. A command has a module of its name, whose `add_arguments` fills its parser."""

TRACE = "write a trace of each session to a file in this directory (docs/tracing.md)"
LOG_FORMAT = "how to log: for people (default), or for programs, one JSON object a line"
FORMATS = ("text", "json")
VERBOSE = "log to stderr (-vv: in detail), and show tracebacks"
CLIENT, SERVER, EITHER = (
    "the client's configuration: a file, or multi://HOST:PORT?OPTION=VALUE",
    "the server's configuration",
    "a client's or server's configuration",
)


class Parser(argparse.ArgumentParser):
    """Says what a person may have meant, and without a command which there are."""

    def __init__(self, *, module: str = "", **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._module = module

    def complete(self) -> None:
        """Let the module of the command add its arguments, once."""
        module, self._module = self._module, ""
        if module:
            import_module(module).add_arguments(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.complete()
        return super().parse_known_args(args, namespace)

    def runs(self, run: Callable[..., int], config: str = "") -> None:
        """This is a command of its own, which calls `run`; `config` says whose CONFIG it takes."""
        self.add_argument("-v", "--verbose", action="count", default=argparse.SUPPRESS, help=VERBOSE)
        self.add_argument("--log-format", choices=FORMATS, default=argparse.SUPPRESS, help=LOG_FORMAT)
        self.set_defaults(run=run)
        if config:
            self.add_argument("config", metavar="CONFIG", help=config)
        if config in (CLIENT, SERVER):
            self.add_argument("--trace", metavar="DIR", type=Path, help=TRACE)

    def has_actions(self, title: str, metavar: str) -> Callable[[str, str], Parser]:
        """It has further words; what is returned adds one, by name and what it is for."""
        actions = self.add_subparsers(title=title, metavar=metavar, required=True)
        return lambda name, help: actions.add_parser(name, help=help, description=help)

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: COMMAND"):
            super().print_help(sys.stderr)
            self.exit(2)
        wrong = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if wrong is not None and (guess := closest(wrong[1], [*re.findall(r"[\w-]+", wrong[2]), "--help"])):
            argument = message.split(":")[0].removeprefix("argument ")
            what = f"{argument}: unknown value" if argument.islower() and "|" not in argument else "unknown command"
            message = f"{what} {wrong[1]!r}; did you mean {guess!r}?"
        with suppress(OSError):  # that nobody takes it, which the argparse of Python 3.11.2 does not keep to itself
            super().error(message)
        self.exit(2)

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


def make_parser() -> Parser:
    parser = Parser(prog="multi", description="One session over all the networks of this device.")
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    parser.add_argument("-v", "--verbose", action="count", default=0, help=VERBOSE)
    parser.add_argument("--log-format", choices=FORMATS, default="text", help=LOG_FORMAT)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, help in COMMANDS.items():
        commands.add_parser(name, help=help, description=help, module=f"multi.cli.{name}")
    return parser


def add_workers(parser: Parser) -> None:
    several = "serve with so many processes on one port, or auto: one for each core (default: the configuration's)"
    parser.add_argument("--workers", metavar="N", type=_workers, help=several)


def _workers(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or not 0 < int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes, 1 to 256, or auto")
    return int(text)


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to 3600")
    return value
