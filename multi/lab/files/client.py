"""`get_file`, `put_file` and `list_files`: what a file service has, to or from it over all connections of a session.

Copies verify the SHA-256 of the whole file end to end, and take up an earlier try where it stopped. What is shown to a
person is decided by others, who get a `Transfer` each time something has moved.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from multi.asyncio.api import connect
from multi.asyncio.closing import abandon, close_in_time
from multi.asyncio.info import ConnectionInfo
from multi.asyncio.session import Session
from multi.config import ConfigLike
from multi.errors import NoUsableConnection, RemoteProtocolError, SessionLost, SessionRefused, printable
from multi.lab.files.blocks import Prefixes, ReceivedFile, SentFile, receive_blocks, receiving, send_blocks
from multi.lab.files.protocol import (
    MAX_ENTRIES,
    MAX_LINE,
    Begin,
    FileMessage,
    FileRefused,
    Get,
    Item,
    List,
    Listed,
    Problem,
    Put,
    Receiving,
    Sending,
    Stored,
    encode,
    read_message,
)
from multi.lab.files.tree import MAX_NAME, FileLocation, allowed_mode, refused
from multi.reasons import Cause, Reason
from multi.types import host_of

PARTIAL_SUFFIX = ".multi-part"  # not just `.part`: we cut and overwrite it
LIST_TIMEOUT = 60.0  # seconds for a listing; a server looks for two, after those who asked before

SUCCESSOR = 30.0  # seconds in which a server that was stopped may be started again, or another one be found
RETRY_DELAY, MAX_RETRY_DELAY = 0.2, 2.0  # seconds until that is tried, doubled each time

T = TypeVar("T")
OnProgress = Callable[["Transfer"], None]


@dataclass(frozen=True, slots=True)
class ConnectionShare:
    """What one connection carried. Bytes: payload, repeats included."""

    id: int
    transport: str
    over: str
    """Interface, or the local address when it is not bound to one."""
    bytes: int
    rtt: float


@dataclass(slots=True)
class Transfer:
    """A copy under way: bytes of the whole file, and the session that carries it."""

    direction: Literal["get", "put"]
    name: str
    session: Session
    size: int = 0
    resumed_from: int = 0
    """Bytes an earlier try had copied."""
    done: int = 0
    """Bytes copied, those included."""
    moved: int = 0
    """Bytes copied over this session."""
    verifying: bool = False
    """Everything was sent; the server is writing it down."""
    on_progress: OnProgress = lambda _: None
    """Called when something has moved."""
    before: Transfer | None = None
    """What the same call has copied over an earlier session."""
    started: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    def begin_at(self, offset: int) -> None:
        """So many bytes are there already."""
        self.done = offset
        self.resumed_from = offset if self.before is None else min(offset, self.before.resumed_from)
        self.on_progress(self)

    def count(self, size: int) -> None:
        """So many bytes more were copied."""
        self.done += size
        self.moved += size
        self.on_progress(self)

    def shares(self) -> tuple[ConnectionShare, ...]:
        return tuple(
            ConnectionShare(c.id, c.transport, place_of(c), self.bytes_of(c), c.rtt) for c in self.session.connections
        )

    def copied(self, sha256: str) -> Copied:
        """The result, now."""
        seconds = asyncio.get_running_loop().time() - self.started
        return Copied(self.name, self.size, self.size - self.resumed_from, seconds, sha256, self.shares())

    def bytes_of(self, connection: ConnectionInfo) -> int:
        return connection.payload_received if self.direction == "get" else connection.bytes_sent


def place_of(connection: ConnectionInfo) -> str:
    """Where a connection goes out, as a person says it."""
    return connection.interface or host_of(connection.local)


@dataclass(frozen=True, slots=True)
class Copied:
    """A file that was copied and verified."""

    name: str
    size: int
    bytes: int
    """Bytes copied by this call; less than `size` after a resumption."""
    seconds: float
    """From opening the session until the file was verified and in place."""
    sha256: str
    connections: tuple[ConnectionShare, ...]


def partial_of(target: Path) -> Path:
    """Where the unfinished file is kept: next to the target, so that it can be renamed."""
    target = _followed(target)
    name = target.name
    while len(os.fsencode(name)) + len(PARTIAL_SUFFIX) > MAX_NAME:
        name = name[:-1]
    return target.with_name(name + PARTIAL_SUFFIX)


async def get_file(
    session: Session | ConfigLike,
    name: str,
    target: Path,
    *,
    force: bool = False,
    progress: OnProgress = lambda _: None,
) -> Copied:
    """Fetch `name` and put it at `target` once everything has come and is verified; `force` replaces what is there.

    A `session` is used up by it, and left to its owner to close. Raises FileRefused (the server's reasons, or the
    disk's), NoUsableConnection, SessionRefused, SessionLost. What has come stays in `partial_of(target)`; where it is
    because the server is being stopped, and no `session` was given, the copy goes on from there over another one.
    """

    async def copy(before: Transfer | None, begun: OnProgress) -> Copied:
        with _location_of(target) as location, receiving(location, force=force) as sink:
            async with _session(session) as opened:
                transfer = _transfer("get", name, opened, progress, before)
                begun(transfer)
                return await _get(transfer, location, sink)

    return await _to_its_end(copy, session)


async def _get(transfer: Transfer, location: FileLocation, sink: ReceivedFile) -> Copied:
    session = transfer.session
    transfer.on_progress(transfer)
    await Prefixes().hash_up_to(sink, sink.kept)
    session.writer.write(encode(Get(transfer.name, sink.position, sink.sha256)))
    await session.confirmed()
    answer = await _complete(read_message(session.reader, Sending))
    if answer.offset not in (0, sink.position) or answer.offset > answer.size:
        raise RemoteProtocolError("the server sends another part of the file than the one asked for")
    sink.resume(answer.offset)
    transfer.size = answer.size
    transfer.begin_at(answer.offset)

    await _complete(receive_blocks(session.reader, sink, answer.size, transfer.count))
    await asyncio.to_thread(sink.finish, allowed_mode(answer.mode))
    # Asked before the copy began; without `force` it would need hard links, which a memory stick has not.
    await asyncio.to_thread(partial(location.commit, force=True))
    return transfer.copied(sink.sha256)


async def put_file(
    session: Session | ConfigLike,
    source: Path,
    name: str,
    *,
    force: bool = False,
    progress: OnProgress = lambda _: None,
) -> Copied:
    """Store the file `source` as `name` on the server; `force` replaces what is there.

    A `session` is used up by it, and left to its owner to close. Returns when the server has verified it and has it on
    disk under its name. Raises as `get_file`, and goes on as it does. What has arrived stays on that server.
    """

    async def copy(before: Transfer | None, begun: OnProgress) -> Copied:
        with _location_of(source) as location, SentFile(location.open_for_reading(), location.shown) as file:
            async with _session(session) as opened:
                transfer = _transfer("put", name, opened, progress, before)
                begun(transfer)
                return await _put(transfer, file, force)

    return await _to_its_end(copy, session)


async def _put(transfer: Transfer, file: SentFile, force: bool) -> Copied:
    session, progress = transfer.session, transfer.on_progress
    transfer.size = file.size
    progress(transfer)
    session.writer.write(encode(Put(transfer.name, file.size, file.mode, force)))
    await session.confirmed()
    answer = await _complete(read_message(session.reader, Receiving))
    await Prefixes().hash_up_to(file, min(answer.offset, file.size))
    file.resume(answer.offset, answer.prefix_sha256)
    session.writer.write(encode(Begin(file.position)))
    transfer.begin_at(file.position)

    # The server may refuse at any time, a full disk for example, and would not be heard if we only sent.
    reply = asyncio.create_task(_complete(read_message(session.reader, Stored)))
    sending = asyncio.create_task(send_blocks(session.writer, file, transfer.count))
    try:
        await asyncio.wait({reply, sending}, return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            sending.result()
            transfer.verifying = True
            progress(transfer)
        stored = await reply
    finally:
        reply.cancel()
        sending.cancel()
        await asyncio.gather(reply, sending, return_exceptions=True)
    if (stored.size, stored.sha256.lower()) != (file.size, file.sha256):
        raise RemoteProtocolError("the server has stored something else than what was sent")
    return transfer.copied(file.sha256)


async def list_files(session: Session | ConfigLike, directory: str = "") -> tuple[list[Item], bool]:
    """The files that the service offers in `directory` ("": all) and below, by name, and whether these are all.

    A `session` is used up by it, and left to its owner to close. Raises as `get_file`.
    """
    async with _session(session) as opened:
        try:
            async with asyncio.timeout(LIST_TIMEOUT):
                entries, complete = await _list(opened, directory)
        except TimeoutError:
            raise RemoteProtocolError(f"the server has not listed its files within {LIST_TIMEOUT:g} s") from None
    return sorted(entries, key=lambda entry: entry.name), complete


async def _list(session: Session, directory: str) -> tuple[list[Item], bool]:
    session.writer.write(encode(List(directory)))
    await session.confirmed()
    entries: list[Item] = []
    while isinstance(message := await _complete(read_message(session.reader, FileMessage)), Item):
        entries.append(message)
        if len(entries) > MAX_ENTRIES:
            raise RemoteProtocolError(f"the server lists more than {MAX_ENTRIES} files")
    if not isinstance(message, Listed):
        raise RemoteProtocolError(f"unexpected message {message.type!r}")
    return entries, message.complete


def _transfer(
    direction: Literal["get", "put"], name: str, session: Session, progress: OnProgress, before: Transfer | None
) -> Transfer:
    transfer = Transfer(direction, name, session, on_progress=progress, before=before)
    if before is not None:
        transfer.started = before.started
    return transfer


async def _to_its_end(
    copy: Callable[[Transfer | None, OnProgress], Awaitable[Copied]], given: Session | ConfigLike
) -> Copied:
    """Copy; where the server ends the session because it is being stopped, go on over another one.

    `copy` gets what there was before, and tells of what it has begun. The time to find that other one begins anew only
    when something was copied: a server that takes sessions and only ends them would keep us for ever.
    """
    clock = asyncio.get_running_loop().time
    transfer: Transfer | None = None
    until = delay = 0.0

    def begun(new: Transfer) -> None:
        nonlocal transfer
        transfer = new

    while True:
        try:
            return await copy(transfer, begun)
        except (SessionLost, SessionRefused, NoUsableConnection) as error:
            if isinstance(given, Session):
                raise
            stopped = not isinstance(error, NoUsableConnection) and error.reason.cause is Cause.GOING_AWAY
            copied = transfer is not None and transfer.moved > 0
            if stopped and isinstance(error, SessionLost) and (copied or not until):
                until, delay = clock() + SUCCESSOR, RETRY_DELAY
            elif clock() > until or not (stopped or isinstance(error, NoUsableConnection)):
                raise
        await asyncio.sleep(delay)
        delay = min(2 * delay, MAX_RETRY_DELAY)


@contextmanager
def _location_of(path: Path) -> Iterator[FileLocation]:
    """The location of a local file, `path` or what it links to. Raises FileRefused."""
    target = _followed(path)
    if not target.name:
        raise FileRefused(Problem.FORBIDDEN, f"{path}: it is a directory")
    try:
        directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise refused(error, f"directory {printable(str(target.parent))}") from error
    try:
        yield FileLocation(directory, target.name, printable(str(path)), partial_of(target).name)
    finally:
        os.close(directory)


def _followed(target: Path) -> Path:
    """Where writing to `target` would end up."""
    return target.resolve() if target.is_symlink() else target


@asynccontextmanager
async def _session(given: Session | ConfigLike) -> AsyncIterator[Session]:
    """A session for one transfer; one that was opened here is closed here."""
    if isinstance(given, Session):
        yield given
        return
    session = await connect(given, limit=MAX_LINE)
    try:
        yield session
    except BaseException as error:
        await abandon(session, error)
        raise
    await close_in_time(session)  # the file is verified and in place, whatever happens to the session now


async def _complete(waiting: Coroutine[Any, Any, T]) -> T:
    """The result; the end of the stream before that is a lost session."""
    try:
        return await waiting
    except EOFError as error:
        text = f"the server has ended the session before everything had come ({error})"
        raise SessionLost(Reason(Cause.PEER_CLOSED, text)) from None
