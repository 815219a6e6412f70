"""The command line: arguments, exit codes and errors. What the commands do is in the modules they are named after.

Those are imported when they are needed, so that `multi --help` does not wait for cryptography and QUIC.

Exit codes: 0 done, 1 failed, 2 usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["main"]

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
PATIENCE = 0.5  # seconds a thread gets to end after an interruption: resolving a name cannot be cancelled

DESCRIPTION = "One session over all the networks of this device."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code. Usage errors and --help raise SystemExit, as argparse does."""
    parsed = _parser().parse_args(arguments)
    try:
        _log_to_stderr(parsed.verbose)
        code: int = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        if parsed.verbose > 1:
            raise
        print(f"multi: interrupted; {error}" if str(error) else "multi: interrupted", file=sys.stderr)
        return _leave_interrupted()
    except BrokenPipeError:
        # The reader of our output has gone; Python must not complain about it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        return _report(error, traceback=bool(parsed.verbose))


def _report(error: Exception, *, traceback: bool) -> int:
    """Say what went wrong; return the exit code for it."""
    from multi.errors import ConfigError, MultiError
    from multi.lab.files.protocol import printable

    if traceback:
        import traceback as traces

        traces.print_exception(error)
    expected = isinstance(error, MultiError | OSError)
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and not isinstance(error, MultiError):
        where = f"{error.filename}: " if error.filename else ""
        text = where + (error.strerror or text).lower()
    if not expected:
        text = f"internal error: {type(error).__name__}: {text} (-v shows where)"
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    print("multi: " + "\n".join(printable(line) for line in (text + notes).splitlines()), file=sys.stderr)
    return USAGE if isinstance(error, ConfigError) else FAILED


def _leave_interrupted() -> int:
    """130, at once: a thread that cannot be interrupted must not keep the program."""
    deadline = time.monotonic() + PATIENCE
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(INTERRUPTED)
    return INTERRUPTED


def _log_to_stderr(verbosity: int) -> None:
    """Warnings always, more when asked for."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # Looked up each time: the progress view puts itself between while it is on the screen.
            print(self.format(record), file=sys.stderr)

    handler = Handler()
    handler.setFormatter(
        logging.Formatter(
            "%(asctime)s %(name)s %(levelname)s: %(message)s" if verbosity else "multi: warning: %(message)s"
        )
    )
    logger = logging.getLogger("multi")
    logger.handlers[:] = [handler]
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)])


class _Version(argparse.Action):
    """--version, without importing the library for every other command."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: object) -> None:
        from multi import __version__

        print(f"multi {__version__}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="multi", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-v", "--verbose", action="count", default=argparse.SUPPRESS, help=_VERBOSE)
    parser.add_argument("-v", "--verbose", action="count", default=0, help=_VERBOSE)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=help, parents=[common], allow_abbrev=False)
        added.set_defaults(run=run)
        return added

    serve = command("serve", _serve, "serve the files of a directory")
    serve.add_argument("config", metavar="CONFIG", help="the server's configuration")
    serve.add_argument("--dir", metavar="DIR", required=True, type=Path, help="the directory; nothing outside of it")
    serve.add_argument("--allow-put", action="store_true", help="let clients store files")

    get = command("get", _get, "fetch a file over all connections")
    get.add_argument("config", metavar="CONFIG", help="the client's configuration")
    get.add_argument("name", metavar="NAME", help="the file's name on the server")
    get.add_argument("-o", "--output", metavar="FILE", type=Path, help="where to put it (default: here, same name)")

    put = command("put", _put, "store a file on the server over all connections")
    put.add_argument("config", metavar="CONFIG", help="the client's configuration")
    put.add_argument("file", metavar="FILE", type=Path, help="the file")
    put.add_argument("--as", metavar="NAME", dest="name", help="its name on the server (default: the same)")
    put.add_argument("--force", action="store_true", help="replace a file of that name")

    check = command("check", _check, "validate a configuration and explain it for this machine")
    check.add_argument("config", metavar="CONFIG", help="a client's or server's configuration")

    command("interfaces", _interfaces, "show the interfaces of this machine and what a session can do with them")
    command("schema", _schema, "print the JSON Schema of configurations")

    cert = command("cert", _cert, "make certificates for development")
    cert.add_argument("directory", metavar="DIR", type=Path, help="where to write them")
    cert.add_argument(
        "--name", metavar="NAME", action="append", default=[], help="a name or address of the server; may be repeated"
    )

    bench = commands.add_parser("bench", help="measure a session, like iperf3", description="measure a session")
    roles = bench.add_subparsers(title="roles", metavar="serve|run", required=True)
    answering = roles.add_parser("serve", help="answer measurements", parents=[common], allow_abbrev=False)
    answering.add_argument("config", metavar="CONFIG", help="the server's configuration")
    answering.set_defaults(run=_bench_serve)
    measuring = roles.add_parser("run", help="measure once", parents=[common], allow_abbrev=False)
    measuring.add_argument("config", metavar="CONFIG", help="the client's configuration")
    amount = measuring.add_mutually_exclusive_group()
    amount.add_argument("-t", metavar="S", dest="seconds", type=_positive, help="for S seconds (default 10)")
    amount.add_argument("-n", metavar="BYTES", dest="size", type=_count, help="exactly BYTES, checked on arrival")
    measuring.add_argument("-R", dest="reverse", action="store_true", help="the server sends")
    measuring.add_argument("--json", action="store_true", help="print the result as JSON")
    measuring.set_defaults(run=_bench_run)

    demo = command("demo", _demo, "run the roaming demo")
    demo.add_argument("--out", metavar="DIR", type=Path, default=Path("demo-out"), help="where to write its results")
    demo.add_argument("--loopback", action="store_true", help="over loopback connections, without network namespaces")
    demo.add_argument("--speed", metavar="N", type=_positive, default=1.0, help=argparse.SUPPRESS)

    from multi.cli.testbed import add_arguments

    add_arguments(command("testbed", _testbed, "two hosts with emulated networks on this machine"))
    return parser


_VERBOSE = "log to stderr (-vv: in detail), show tracebacks"


def _serve(parsed: argparse.Namespace) -> int:
    from multi.cli.serve import run_serve

    return run_serve(parsed.config, parsed.dir, allow_put=parsed.allow_put)


def _get(parsed: argparse.Namespace) -> int:
    from multi.cli.copy import run_get

    return run_get(parsed.config, parsed.name, parsed.output)


def _put(parsed: argparse.Namespace) -> int:
    from multi.cli.copy import run_put

    return run_put(parsed.config, parsed.file, parsed.name, force=parsed.force)


def _check(parsed: argparse.Namespace) -> int:
    from multi.cli.check import run_check

    return run_check(parsed.config)


def _interfaces(_parsed: argparse.Namespace) -> int:
    from multi.cli.interfaces import show_interfaces

    return show_interfaces({})


def _schema(_parsed: argparse.Namespace) -> int:
    import json

    from multi.config import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return DONE


def _cert(parsed: argparse.Namespace) -> int:
    from multi.lab.cert import run_cert

    return run_cert(parsed.directory, parsed.name)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to 86400")
    return value


def _count(text: str) -> int:
    """A number of bytes, `K`, `M` and `G` as powers of 1024."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    try:
        value = int(text[:-1] if factor > 1 else text) * factor
    except ValueError:
        value = 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of bytes")
    return value


def _bench_serve(parsed: argparse.Namespace) -> int:
    from multi.lab.bench.run import run_bench_server

    return run_bench_server(parsed.config)


def _bench_run(parsed: argparse.Namespace) -> int:
    from multi.lab.bench.run import run_bench

    return run_bench(
        parsed.config, seconds=parsed.seconds, size=parsed.size, reverse=parsed.reverse, as_json=parsed.json
    )


def _demo(parsed: argparse.Namespace) -> int:
    from multi.cli.demo import run_demo

    return run_demo(parsed.out, loopback=parsed.loopback, speed=parsed.speed)


def _testbed(parsed: argparse.Namespace) -> int:
    from multi.cli.testbed import run_testbed

    return run_testbed(parsed)
