"""The command line: finds the commands, runs one, and turns what it raises into words and an exit code.

Exit codes: 0 done, 1 failed, 2 usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules

from multi import __version__
from multi.cli import commands
from multi.cli.arguments import VERBOSE

FAILED, USAGE, INTERRUPTED = 1, 2, 130
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="multi", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"multi {__version__}", help="show the version and exit")
    parser.add_argument("-v", "--verbose", action="count", default=0, help=VERBOSE)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for found in iter_modules(commands.__path__, f"{commands.__name__}."):
        import_module(found.name).add_parser(subparsers)
    return parser
