"""`multi get`: a copy of a file that a server offers."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from multi.cli.copy import GO_ON, run_copy
from multi.cli.parser import CLIENT, Parser
from multi.config import Config, ConfigLike, load_config
from multi.errors import ConfigError, printable
from multi.lab.files.client import Transfer, get_file, partial_of

STANDARD_OUTPUT = Path("-")


def add_arguments(parser: Parser) -> None:
    parser.runs(run_get, CLIENT)
    parser.add_argument("name", metavar="NAME", help="the file's name on the server")
    where = "where to put it, - for standard output (default: here, same name)"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help=where)
    force = "replace a file that is there (with -o it is replaced anyway)"
    parser.add_argument("--force", action="store_true", help=force)


def run_get(config: ConfigLike, name: str, output: Path | None, *, force: bool) -> int:
    """Fetch a file; a directory as `output` keeps the name. Returns 0, or 130 when interrupted; raises otherwise.

    A file that was named as `output` is replaced, one that only has the same name wants `force`.
    """
    loaded = load_config(config)
    if output == STANDARD_OUTPUT:
        return _print(loaded, name)
    last = PurePosixPath(name).name
    target = output if output is not None else Path(last)
    if output is not None and output.is_dir():
        target = output / last
    if not target.name or target.name == "..":
        raise ConfigError(f"{printable(name)!r} gives no name for the local file; name one with -o")
    kept = partial_of(target)

    def hint(_: Transfer | None) -> str:
        size = kept.stat().st_size if kept.exists() else 0
        return f"{size} bytes are kept in {printable(str(kept))}, {GO_ON}" if size else ""

    named = target == output
    return run_copy(lambda progress: get_file(loaded, name, target, force=force or named, progress=progress), hint)


def _print(config: Config, name: str) -> int:
    """Write a file to standard output: not a byte before all of it has come and is verified."""
    with TemporaryDirectory(prefix="multi-get-") as directory:
        target = Path(directory) / "file"
        code = run_copy(lambda progress: get_file(config, name, target, progress=progress), lambda _: "", stderr=True)
        with target.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    return code
