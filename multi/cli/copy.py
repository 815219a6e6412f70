"""What `multi get` and `multi put` share: a copy with progress, and what to tell a person when it stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from multi.asyncio.interruption import run_interruptible
from multi.cli.logs import in_json
from multi.errors import MultiError
from multi.lab.files.client import Copied, OnProgress, Transfer
from multi.lab.files.progress import CopyConsole, Progress, summary
from multi.lab.files.protocol import FileRefused, Problem

GO_ON = "the same command goes on from there"
USELESS = (Problem.NOT_FOUND, Problem.FORBIDDEN, Problem.EXISTS, Problem.BAD_REQUEST, Problem.DAMAGED)

Copy = Callable[[OnProgress], Awaitable[Copied]]


def run_copy(copy: Copy, hint: Callable[[Transfer | None], str], *, stderr: bool = False) -> int:
    """Copy, and say how it goes on standard output or `stderr`, where objects for programs stand alone."""
    console = CopyConsole(highlight=False, markup=False, soft_wrap=True, stderr=stderr, quiet=stderr and in_json())
    progress = Progress(console)

    async def run() -> Copied:
        async with progress:
            return await copy(progress.update)

    try:
        copied = run_interruptible(run())  # the session is told, and what has arrived is kept
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
