"""`multi trace`: what a trace tells, in words, as JSON or as a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console

from multi.cli.parser import Parser
from multi.errors import ConfigError, DependencyError, printable
from multi.lab.trace.reading import SessionTrace, read_trace
from multi.lab.trace.summary import shown, summary_of

WIDTH = 10_000  # columns; nothing is cut or wrapped when a program reads the summary
NO_PICTURE = "no picture without matplotlib ({}); pip install 'multi-session[plot]' brings it"


def add_arguments(parser: Parser) -> None:
    parser.runs(run_trace)
    trace = "the trace: a file that `trace` or --trace has left"
    parser.add_argument("file", metavar="FILE", type=Path, help=trace)
    picture = "draw it: a PNG, PDF or SVG; needs matplotlib"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help=picture)
    parser.add_argument("--json", dest="as_json", action="store_true", help="print the summary as JSON")


def run_trace(file: Path, output: Path | None, *, as_json: bool) -> int:
    """Print a summary of a trace, or draw it to `output`. Returns 0.

    Raises TraceError for what is no trace, OSError, ConfigError for a name that is no picture's, DependencyError where
    matplotlib is missing for that, after the summary.
    """
    trace = read_trace(file)
    if as_json:
        print(json.dumps(summary_of(trace), indent=1))
    if output is not None:
        _draw(trace, output, as_json=as_json)
    elif not as_json:
        _show(trace)
    return 0


def _show(trace: SessionTrace) -> None:
    width = None if sys.stdout.isatty() else WIDTH
    Console(width=width, markup=False, highlight=False).print(shown(trace))


def _draw(trace: SessionTrace, output: Path, *, as_json: bool) -> None:
    try:
        from multi.lab.trace.picture import draw_trace
    except ImportError as error:
        if not as_json:
            _show(trace)
        raise DependencyError(NO_PICTURE.format(error)) from error
    try:
        draw_trace(trace, output)
    except ValueError as error:
        raise ConfigError(f"-o {printable(str(output))}: {error}") from error
