"""`multi get` and `multi put`: a copy with progress, and what to tell a person when it stops."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from multi.asyncio.interruption import run_interruptible
from multi.cli.logs import in_json
from multi.config import Config, ConfigLike, load_config
from multi.errors import ConfigError, MultiError, printable
from multi.lab.files.client import Copied, OnProgress, Transfer, get_file, partial_of, put_file
from multi.lab.files.progress import CopyConsole, Progress, summary
from multi.lab.files.protocol import FileRefused, Problem

STANDARD_OUTPUT = Path("-")
GO_ON = "the same command goes on from there"
USELESS = (Problem.NOT_FOUND, Problem.FORBIDDEN, Problem.EXISTS, Problem.BAD_REQUEST, Problem.DAMAGED)

Copy = Callable[[OnProgress], Awaitable[Copied]]


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
    return _run(lambda progress: get_file(loaded, name, target, force=force or named, progress=progress), hint)


def _print(config: Config, name: str) -> int:
    """Write a file to standard output: not a byte before all of it has come and is verified."""
    with TemporaryDirectory(prefix="multi-get-") as directory:
        target = Path(directory) / "file"
        code = _run(lambda progress: get_file(config, name, target, progress=progress), lambda _: "", stderr=True)
        with target.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    return code


def run_put(config: ConfigLike, file: Path, name: str | None, *, force: bool) -> int:
    """Store a file. Returns 0, or 130 when interrupted; raises otherwise."""
    loaded = load_config(config)

    def hint(transfer: Transfer | None) -> str:
        return f"the server keeps what has arrived, {GO_ON}" if transfer is not None and transfer.done else ""

    def copy(progress: OnProgress) -> Awaitable[Copied]:
        return put_file(loaded, file, name if name is not None else file.name, force=force, progress=progress)

    return _run(copy, hint)


def _run(copy: Copy, hint: Callable[[Transfer | None], str], *, stderr: bool = False) -> int:
    """Copy, and say how it goes on standard output or `stderr`, where objects for programs stand alone."""
    console = CopyConsole(highlight=False, markup=False, soft_wrap=True, stderr=stderr, quiet=stderr and in_json())
    progress = Progress(console)

    async def run() -> Copied:
        async with progress:
            return await copy(progress.update)

    try:
        copied = run_interruptible(run(), signal.SIGTERM)  # the session is told, and what has arrived is kept
    except KeyboardInterrupt:
        raise KeyboardInterrupt(hint(progress.transfer)) from None
    except MultiError as error:
        useless = isinstance(error, FileRefused) and error.problem in USELESS
        if not useless and (text := hint(progress.transfer)):
            error.add_note(text)
        raise
    for line in summary(copied):
        console.print(line)
    return 0
