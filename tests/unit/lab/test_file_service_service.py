"""What the server of files keeps for a client that takes nothing."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from multi.asyncio.streams import SessionReader, SessionWriter
from multi.lab.files.protocol import List, encode
from multi.lab.files.service import FileService
from multi.lab.files.tree import FileTree

FILES = 1000


class Unread:
    """A writer whose session keeps what nobody takes."""

    def __init__(self) -> None:
        self.kept = bytearray()
        self.waits = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.kept += data

    def writelines(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self.write(line)

    async def drain(self) -> None:
        self.waits.set()
        await asyncio.Event().wait()

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if name != "session" else self

    bytes_reinjected = 0


def test_a_listing_that_nobody_takes_is_kept_once(tmp_path: Path) -> None:
    for number in range(FILES):
        (tmp_path / f"{number:0200}").touch()

    async def scenario() -> None:
        with FileTree(tmp_path) as tree:
            service, writer = FileService(tree, allow_put=False, log=lambda _: None), Unread()
            tracemalloc.start()
            request = encode(List(""))
            serving = asyncio.create_task(
                service.serve(cast(SessionReader, None), cast(SessionWriter, writer), first=request)
            )
            await writer.waits.wait()
            kept, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            assert len(writer.kept) > FILES * 200
            assert kept < 2 * len(writer.kept)

    asyncio.run(scenario())
