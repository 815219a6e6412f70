"""The server of `multi serve`: files of one directory, to be listed, fetched and, where allowed, stored.

One request per session, see `protocol`. `tree` refuses what leaves the directory or is not a regular file.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from multi.asyncio.sources import source_of
from multi.asyncio.streams import SessionReader, SessionWriter
from multi.errors import MultiError, RemoteProtocolError, SessionLost, counted, printable
from multi.lab.files.blocks import Prefixes, SentFile, receive_blocks, receiving, send_blocks
from multi.lab.files.protocol import (
    Begin,
    FileRefused,
    FileRequest,
    Get,
    List,
    Listed,
    Problem,
    Put,
    Receiving,
    Sending,
    Stored,
    encode,
    pack_length,
    parse_message,
    read_message,
    refusal_of,
)
from multi.lab.files.tree import FileLocation, FileTree, allowed_mode
from multi.lab.files.turns import WorkTurns

REQUEST_TIMEOUT = 30.0  # seconds from opening the session to its request; a client asks at once
FAREWELL_TIMEOUT = 10.0  # seconds a client gets to read our last message and to close
DISCARDED_AT_ONCE = 1 << 20  # bytes
SPARED = 1 << 30  # bytes of the disk that clients cannot fill
EXPIRED_EVERY = 3600.0  # seconds


class FileService:
    """`serve` is the `on_client` of a server; `log` gets one line per transfer. Without a tree all is refused."""

    def __init__(self, tree: FileTree | None, *, allow_put: bool, log: Callable[[str], None]) -> None:
        self._tree = tree
        self._allow_put = allow_put
        self._log = log
        self._prefixes = Prefixes()
        self._listing = WorkTurns()
        self._expired = float("-inf")
        """When unfinished files of long ago were removed."""
        self.running = 0
        """Transfers under way."""

    async def serve(self, reader: SessionReader, writer: SessionWriter, first: bytes | None = None) -> None:
        """One session: one request; `first` is its line, where that was read already."""
        transfer = _Transfer(writer)
        self.running += 1
        try:
            await self._request(reader, writer, transfer, first)
            # The client closes when it has read everything; closing first could cut off our last message.
            await _discard(reader)
        except FileRefused as error:
            self._log(transfer.line(f"refused: {error}"))
            writer.write((pack_length(0) if transfer.in_blocks else b"") + encode(refusal_of(error)))
            writer.write_eof()
            # A client in the middle of a put has to hear it before the session ends under it.
            await _discard(reader)
        except (SessionLost, EOFError, asyncio.IncompleteReadError) as error:
            self._log(transfer.line(f"stopped: {error}"))
        except (RemoteProtocolError, TimeoutError) as error:
            self._log(transfer.line(f"refused: {error or 'no request in time'}"))
        except asyncio.CancelledError:
            self._log(transfer.line("stopped: the server stops"))
            raise
        finally:
            self.running -= 1
            writer.close()

    async def _request(
        self, reader: SessionReader, writer: SessionWriter, transfer: _Transfer, first: bytes | None
    ) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                request = (
                    parse_message(first, FileRequest) if first is not None else await read_message(reader, FileRequest)
                )
        except RemoteProtocolError as error:
            raise FileRefused(Problem.BAD_REQUEST, str(error)) from None
        transfer.what = f"{request.type} {printable(request.name)}".rstrip()
        if self._tree is None:
            raise FileRefused(Problem.FORBIDDEN, "this server has no files (it runs without --dir)")
        if isinstance(request, List):
            await self._list(self._tree, request, writer, transfer)
            return
        with self._tree.locate(request.name, _owner(writer)) as location:
            if isinstance(request, Get):
                await self._send(request, location, writer, transfer)
            elif isinstance(request, Put):
                if not self._allow_put:
                    raise FileRefused(Problem.FORBIDDEN, "this server is read-only (it runs without --allow-put)")
                await self._expire(self._tree)
                await self._receive(request, location, reader, writer, transfer)

    async def _list(self, tree: FileTree, request: List, writer: SessionWriter, transfer: _Transfer) -> None:
        async with self._listing.turn(_source(writer)):
            if writer.is_closing():
                raise EOFError("the peer has ended the session")
            lines, complete = await asyncio.to_thread(_lines, tree, request.name)
        transfer.count(sum(map(len, lines)))
        outcome = counted(len(lines), "file") + ("" if complete else ", not all there are")
        writer.writelines([*lines, encode(Listed(complete))])
        lines.clear()  # the session keeps, and counts, what the client does not take; a future may hold them for longer
        await writer.drain()
        self._log(transfer.line(outcome))

    async def _send(self, request: Get, location: FileLocation, writer: SessionWriter, transfer: _Transfer) -> None:
        with SentFile(location.open_for_reading(), location.shown) as source:
            offset = min(request.offset, source.size)
            await self._prefixes.hash_up_to(source, offset, lambda: not writer.is_closing(), _source(writer))
            source.resume(request.offset, request.prefix_sha256)
            writer.write(encode(Sending(source.size, source.position, source.mode)))
            transfer.in_blocks = True
            await send_blocks(writer, source, transfer.count)
            transfer.in_blocks = False
            self._log(transfer.line("done"))

    async def _receive(
        self, request: Put, location: FileLocation, reader: SessionReader, writer: SessionWriter, transfer: _Transfer
    ) -> None:
        with receiving(location, force=request.force, spared=SPARED) as sink:
            offset = min(sink.kept, request.size)
            sink.check_room(request.size - offset)
            await self._prefixes.hash_up_to(sink, offset, lambda: not writer.is_closing(), _source(writer))
            writer.write(encode(Receiving(sink.position, sink.sha256)))
            begin = await read_message(reader, Begin)
            if begin.offset not in (0, sink.position):
                raise FileRefused(Problem.BAD_REQUEST, f"cannot begin at {begin.offset}")
            sink.resume(begin.offset)
            await receive_blocks(reader, sink, request.size, transfer.count)
            await asyncio.to_thread(sink.finish, allowed_mode(request.mode))
            await writer.drain()  # a server that is being stopped may say no more: the client will ask another
            await asyncio.to_thread(partial(location.commit, force=request.force))
            writer.write(encode(Stored(sink.position, sink.sha256)))
            self._log(transfer.line("done"))

    async def _expire(self, tree: FileTree) -> None:
        """Now and then remove what clients have begun to store long ago."""
        now = asyncio.get_running_loop().time()
        if now - self._expired > EXPIRED_EVERY:
            self._expired = now
            await asyncio.to_thread(tree.expire_partials)


def _lines(tree: FileTree, name: str) -> tuple[list[bytes], bool]:
    """What is said of the files in a directory, and whether these are all."""
    entries, complete = tree.listing(name)
    lines = []
    for entry in entries:
        with suppress(FileRefused):  # no request for it would fit into a line either
            lines.append(encode(entry))
    return lines, complete


def _source(writer: SessionWriter) -> str:
    """The network a client comes from; empty where that is not known."""
    with suppress(ValueError):
        return source_of(str(writer.get_extra_info("peername", ("", 0))[0]))
    return ""


def _owner(writer: SessionWriter) -> str:
    """Who a client has proved to be: nobody else hears of what it has begun to store. The same for all who have not."""
    certificate: bytes = writer.get_extra_info("peercert", b"")
    return f"{writer.get_extra_info('psk_id', '')} {hashlib.sha256(certificate).hexdigest()}"


class _Transfer:
    """What the log says about one session."""

    def __init__(self, writer: SessionWriter) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._bytes = 0
        self.what = "request"
        self.in_blocks = False
        """We are sending blocks: a message needs a length 0 before it."""

    def count(self, size: int) -> None:
        self._bytes += size

    def line(self, outcome: str) -> str:
        peer = self._writer.get_extra_info("peername", ("unknown", 0))[0]
        seconds = self._loop.time() - self._started
        rate = f", {self._bytes * 8e-6 / seconds:.1f} Mbit/s" if self._bytes and seconds > 0 else ""
        again = self._writer.get_extra_info("session").bytes_reinjected
        repeated = f", {again} bytes sent again" if again else ""
        return f"{self.what} ({peer}): {outcome}; {self._bytes} bytes in {seconds:.1f} s{rate}{repeated}"


async def _discard(reader: SessionReader) -> None:
    """Read until the client ends, or long enough."""
    try:
        async with asyncio.timeout(FAREWELL_TIMEOUT):
            while await reader.read(DISCARDED_AT_ONCE):
                pass
    except (TimeoutError, MultiError):
        pass  # everything was said; how the client leaves is its business
