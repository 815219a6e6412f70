"""`multi put`: a copy of a file for a server to keep."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path

from multi.cli.copy import GO_ON, run_copy
from multi.cli.parser import CLIENT, Parser
from multi.config import ConfigLike, load_config
from multi.lab.files.client import Copied, OnProgress, Transfer, put_file


def add_arguments(parser: Parser) -> None:
    parser.runs(run_put, CLIENT)
    parser.add_argument("file", metavar="FILE", type=Path, help="the file")
    parser.add_argument("--as", metavar="NAME", dest="name", help="its name on the server (default: the same)")
    parser.add_argument("--force", action="store_true", help="replace a file of that name")


def run_put(config: ConfigLike, file: Path, name: str | None, *, force: bool) -> int:
    """Store a file. Returns 0, or 130 when interrupted; raises otherwise."""
    loaded = load_config(config)

    def hint(transfer: Transfer | None) -> str:
        return f"the server keeps what has arrived, {GO_ON}" if transfer is not None and transfer.done else ""

    def copy(progress: OnProgress) -> Awaitable[Copied]:
        return put_file(loaded, file, name if name is not None else file.name, force=force, progress=progress)

    return run_copy(copy, hint)
