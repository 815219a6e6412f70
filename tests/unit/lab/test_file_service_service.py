"""What the server of files keeps for a client that takes nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from multi.asyncio.streams import SessionReader, SessionWriter
from multi.lab.files.protocol import List, encode
from multi.lab.files.service import FileService
from multi.lab.files.tree import FileTree


class Unread:
    """A writer whose session keeps what nobody takes."""

    bytes_reinjected = 0

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self.waits = asyncio.Event()

    def writelines(self, lines: Iterable[bytes]) -> None:
        self.kept += lines

    async def drain(self) -> None:
        self.waits.set()
        await asyncio.Event().wait()

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if name != "session" else self


def test_a_listing_that_nobody_takes_is_kept_by_its_session_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def scenario() -> None:
        with FileTree(tmp_path) as tree:
            service, writer = FileService(tree, allow_put=False, log=lambda _: None), Unread()
            client = cast(SessionReader, None), cast(SessionWriter, writer)
            serving = asyncio.create_task(service.serve(*client, first=encode(List(""))))
            await writer.waits.wait()
            alone = [os.urandom(100)]
            assert b'"file"' in writer.kept[0]
            assert sys.getrefcount(writer.kept[0]) == sys.getrefcount(alone[0])
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(scenario())
