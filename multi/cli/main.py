"""The command line: runs a command of `parser`, and turns what it raises into words and an exit code.

Exit codes: 0 done, 1 failed, 2 usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

if TYPE_CHECKING:
    from multi.cli.logs import Format
    from multi.config import Config

FAILED, USAGE, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code. Usage errors and --help raise SystemExit, as argparse does."""
    with _loading():
        _open_standard_files()
        from multi.cli.logs import log_to_stderr, say
        from multi.cli.parser import make_parser

    verbosity: int = 0
    form: Format = "text"
    try:
        with _loading():
            parsed = vars(make_parser().parse_args(arguments))
            verbosity, form = parsed.pop("verbose"), parsed.pop("log_format")
            traces: Path | None = parsed.pop("trace", None)
            workers: int | Literal["auto"] | None = parsed.pop("workers", None)
            run: Callable[..., int] = parsed.pop("run")
            log_to_stderr(verbosity, form)
            if traces is not None:
                parsed["config"] = _traced(parsed["config"], traces)
            if workers is not None:
                from multi.config import load_config

                parsed["config"] = load_config(parsed["config"]).with_workers(workers)
        code = run(**parsed)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        if verbosity > 1:
            raise
        say(f"interrupted; {error}" if str(error) else "interrupted", form)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone
        _leave(sys.stdout)
        return FAILED
    except Exception as error:
        _leave(sys.stdout)
        text, code = _in_words(error)
        say(text, form, error if verbosity else None)
        return code
    finally:
        _leave(sys.stderr)


@contextmanager
def _loading() -> Iterator[None]:
    """Nothing is under way yet: Ctrl-C ends the process, without a word.

    As an exception it would come out of whatever module is being loaded, and get lost in callbacks of the import.
    """
    raising = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and not ignored, as in the background
    if not raising or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _open_standard_files() -> None:
    """Stand in for those that are closed (`2>&-`), or `print` takes the other for them, and a socket their number.

    Nothing can be written to what stands in for standard output: what a command was asked for is not lost in silence.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        if number == 1:
            os.close(number)
            number = os.open(os.devnull, os.O_RDONLY)
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - until the end


def _leave(output: TextIO) -> None:
    """What nobody takes is not tried again, or Python would at exit, complain, and change the exit code."""
    try:
        output.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def _traced(config: str, directory: Path) -> Config:
    """The configuration with traces in `directory`; raises OSError here where none can be written."""
    from tempfile import TemporaryFile

    from multi.config import load_config

    loaded = load_config(config)
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=directory):
        pass
    return loaded.with_traces(directory.absolute())


def _in_words(error: Exception) -> tuple[str, int]:
    """What went wrong, for people, and the exit code for it."""
    from multi.errors import ConfigError, MultiError

    expected = isinstance(error, MultiError | OSError)
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and not isinstance(error, MultiError):
        where = f"{error.filename}: " if error.filename else ""
        text = where + (error.strerror or text).lower()
    if not expected:
        text = f"internal error: {type(error).__name__}: {text} (-v shows where)"
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return text + notes, USAGE if isinstance(error, ConfigError) else FAILED
