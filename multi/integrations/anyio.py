"""A session's stream as an `anyio.abc.ByteStream`, under asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from anyio import BrokenResourceError, BusyResourceError, ClosedResourceError, EndOfStream
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import checkpoint


class SessionStream(ByteStream):
    """Made of reader and writer, as `multi.open_connection` and `Session.open_stream` return them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._closed = reader, writer, False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await checkpoint()
        data = b""
        try:
            data = await self._reader.read(max_bytes)
        except RuntimeError as error:
            raise BusyResourceError("reading from") from error
        except OSError as error:
            raise BrokenResourceError from error
        if not data:
            raise ClosedResourceError if self._closed else EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        await checkpoint()
        if self._closed:
            raise ClosedResourceError
        try:
            self._writer.write(item)
            await self._writer.drain()
        except OSError as error:
            raise BrokenResourceError from error

    async def send_eof(self) -> None:
        self._writer.write_eof()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        known, attribute = self._writer.get_extra_info, SocketAttribute
        return {attribute.local_address: lambda: known("sockname"), attribute.remote_address: lambda: known("peername")}
