"""The content of files between disk and stream: read, hash and write beside the event loop.

Decides how a file is cut, hashed and kept up with; which file it is, and what the sides say to each other about it, is
decided elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from multi.asyncio.streams import SessionReader, SessionWriter
from multi.errors import RemoteProtocolError
from multi.lab.files.protocol import (
    MAX_BLOCK,
    End,
    FileRefused,
    Problem,
    encode,
    pack_length,
    read_length,
    read_message,
)
from multi.lab.files.tree import FileLocation, refused
from multi.lab.files.turns import WorkTurns

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

T = TypeVar("T")

OnBytes = Callable[[int], None]
"""Called with the number of bytes that were copied just now."""

MAX_PIECES = 512  # taken from the stream before they are written and others run: 3 ms of work where each is a byte
STEP = 64 << 20  # bytes between the hashes that are remembered: some 0.1 s of work
STEPS_KEPT = 1024  # of a file: those of its first 64 GiB, 0.4 MB
FILES_KEPT = 64
SETTLED = 2_000_000_000  # nanoseconds since a change; later ones cannot have the same time


class _OpenFile:
    """A descriptor with the hash of everything before `position`. Methods block: call them from a thread."""

    def __init__(self, descriptor: int, shown: str) -> None:
        self._descriptor = descriptor
        self._hash = hashlib.sha256()
        self.position = 0
        self.shown = shown
        """The file's name, safe to print."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._descriptor)

    @property
    def sha256(self) -> str:
        """Hash of everything before `position`, hexadecimal."""
        return self._hash.hexdigest()

    def rewind(self) -> None:
        """Begin again."""
        self._hash = hashlib.sha256()
        self.position = 0

    def _read(self, length: int) -> bytes:
        try:
            data = os.pread(self._descriptor, length, self.position)
        except OSError as error:
            raise refused(error, self.shown) from error
        self._hash.update(data)
        self.position += len(data)
        return data

    def read_up_to(self, position: int) -> bytes:
        """The next block, at most up to `position`."""
        return self._read(min(MAX_BLOCK, position - self.position))

    def restore(self, position: int, hashed: Hash) -> None:
        """Go on at `position`; `hashed` is what lies before."""
        self._hash, self.position = hashed.copy(), position

    def hashed(self) -> Hash:
        """What lies before `position`, for `restore`."""
        return self._hash.copy()

    def version(self) -> tuple[int, ...]:
        """Another one as soon as the content is: whoever sets back the other times of a file changes this one."""
        status = os.fstat(self._descriptor)
        return status.st_ctime_ns, status.st_dev, status.st_ino, status.st_size


class Prefixes:
    """Hashes of the beginnings of files, to go on where an earlier try has stopped.

    A peer asks for gigabytes of hashing with a line. So it is done for one at a time, only for who waits for it, and
    what was hashed once is remembered.
    """

    def __init__(self) -> None:
        self._turns = WorkTurns()
        self._known: OrderedDict[tuple[int, ...], list[Hash]] = OrderedDict()
        """For versions of files, the hashes at each multiple of STEP from the first on."""

    async def hash_up_to(
        self, file: _OpenFile, position: int, wanted: Callable[[], bool] = lambda: True, source: str = ""
    ) -> None:
        """Move `file` to `position`; less when it is shorter. `source`: where who waits for it comes from.

        Raises EOFError when that is not `wanted` any more.
        """
        version = file.version()
        known = self._known.get(version, [])
        if steps := min(position // STEP, len(known)):
            file.restore(steps * STEP, known[steps - 1])
        while file.position < position:
            async with self._turns.turn(source):
                if not wanted():
                    raise EOFError("the peer has ended the session")
                if not await _in_thread(partial(file.read_up_to, position)):
                    break
            if file.position % STEP == 0:
                self._remember(version, file)

    def _remember(self, version: tuple[int, ...], file: _OpenFile) -> None:
        if time.time_ns() - version[0] < SETTLED:
            return
        known = self._known.setdefault(version, [])
        self._known.move_to_end(version)
        if len(self._known) > FILES_KEPT:
            self._known.popitem(last=False)
        if file.position == (len(known) + 1) * STEP and len(known) < STEPS_KEPT:
            known.append(file.hashed())


class SentFile(_OpenFile):
    """A file that is sent. It must not change meanwhile."""

    def __init__(self, descriptor: int, shown: str) -> None:
        super().__init__(descriptor, shown)
        status = os.fstat(descriptor)
        self.size = status.st_size
        self.mode = status.st_mode & 0o777
        self._identity = (status.st_size, status.st_mtime_ns)

    def resume(self, offset: int, prefix_sha256: str) -> None:
        """Go on at `offset` if that is `position` and what lies before has this hash, else begin again."""
        if self.position != offset or self.sha256 != prefix_sha256.lower():
            self.rewind()

    def block(self) -> bytes:
        """The next block, empty at the end. Raises FileRefused when the file has changed since it was opened."""
        data = self._read(min(MAX_BLOCK, self.size - self.position)) if self.position < self.size else b""
        status = os.fstat(self._descriptor)
        if (status.st_size, status.st_mtime_ns) != self._identity or (not data and self.position < self.size):
            raise FileRefused(Problem.CHANGED, f"{self.shown}: the file was changed while it was sent")
        return data


class ReceivedFile(_OpenFile):
    """A file that is received, possibly begun earlier."""

    def __init__(self, descriptor: int, shown: str, spared: int = 0) -> None:
        """`spared` bytes of the disk are not for it; of a small disk only a twentieth is not."""
        super().__init__(descriptor, shown)
        self._spared = spared
        self.kept = os.fstat(descriptor).st_size
        """Bytes from an earlier try."""

    def check_room(self, size: int) -> None:
        """Raises FileRefused when the disk has no room for so many bytes more, or none to spare for one more file."""
        disk = os.fstatvfs(self._descriptor)
        begins = not (self.kept or self.position)
        if self._spared and begins and disk.f_favail < disk.f_files // 20:
            raise FileRefused(Problem.NO_SPACE, f"{self.shown}: the disk takes no more files, however small")
        spared = min(self._spared, disk.f_blocks * disk.f_frsize // 20)
        if size > max(0, disk.f_bavail * disk.f_frsize - spared):
            raise FileRefused(Problem.NO_SPACE, f"{self.shown}: no space left on the disk for {size} bytes more")

    def resume(self, offset: int) -> None:
        """Keep what lies before `position` if that is `offset`, else nothing; drop what comes after."""
        if offset != self.position:
            self.rewind()
        try:
            os.ftruncate(self._descriptor, self.position)
        except OSError as error:
            raise refused(error, self.shown) from error

    def write(self, pieces: list[bytes]) -> None:
        """Append. Raises FileRefused when the disk is full; what fitted stays."""
        view = memoryview(b"".join(pieces))
        if self._spared and view:
            self.check_room(len(view))
        while view:
            try:
                written = os.pwrite(self._descriptor, view, self.position)
            except OSError as error:
                raise refused(error, self.shown) from error
            self._hash.update(view[:written])
            self.position += written
            view = view[written:]

    def finish(self, mode: int) -> None:
        """Give the file its mode and bring it to the disk."""
        try:
            os.fchmod(self._descriptor, mode)
            os.fsync(self._descriptor)
        except OSError as error:
            raise refused(error, self.shown) from error


async def send_blocks(writer: SessionWriter, source: SentFile, on_bytes: OnBytes) -> None:
    """Send everything from `source.position` on, then `end`. The session sends what it has while a block is read.

    Raises FileRefused when the file changes meanwhile; nothing was said about it to the peer then.
    """
    while block := await _in_thread(source.block):
        writer.writelines((pack_length(len(block)), block))
        await writer.drain()
        on_bytes(len(block))
    writer.writelines((pack_length(0), encode(End(source.sha256))))
    await writer.drain()


async def receive_blocks(reader: SessionReader, sink: ReceivedFile, size: int, on_bytes: OnBytes) -> None:
    """Receive everything from `sink.position` to `size`. What arrives while a block is written waits in the session.

    Raises FileRefused when the peer gives up, the disk is full or the hash is wrong, EOFError when the stream ends
    before. What came until then is in the file.
    """
    pieces: list[bytes] = []
    waiting = 0
    missing = size - sink.position
    try:
        while length := await read_length(reader):
            missing -= length
            if missing < 0:
                raise RemoteProtocolError(f"more than the promised {size} bytes")
            while length:
                piece = await reader.read(length)
                if not piece:
                    raise EOFError("the peer has ended the session")
                pieces.append(piece)
                length -= len(piece)
                waiting += len(piece)
                on_bytes(len(piece))
                if waiting >= MAX_BLOCK or len(pieces) >= MAX_PIECES:
                    block, pieces, waiting = pieces, [], 0
                    await _in_thread(partial(sink.write, block))
        end = await read_message(reader, End)
    except asyncio.IncompleteReadError:
        raise EOFError("the peer has ended the session") from None
    finally:
        # Whatever happened, what has arrived is worth keeping; a failed write leaves nothing here.
        await _in_thread(partial(sink.write, pieces))
    if missing:
        raise RemoteProtocolError(f"{size - missing} bytes instead of the promised {size}")
    if sink.sha256 != end.sha256.lower():
        raise FileRefused(Problem.DAMAGED, f"{sink.shown}: what arrived is not what was sent (SHA-256 differs)")


@contextmanager
def receiving(location: FileLocation, *, force: bool, spared: int = 0) -> Iterator[ReceivedFile]:
    """The unfinished file at a location, which stays for the next try unless it is committed. Raises FileRefused."""
    location.check_free(force=force)
    with ReceivedFile(location.open_partial(), location.shown, spared) as sink:
        try:
            yield sink
        except BaseException as error:
            location.abandon(useless=isinstance(error, FileRefused) and error.problem is Problem.DAMAGED)
            raise


async def _in_thread(call: Callable[[], T]) -> T:
    """What the call returns. It is over in any case: whoever was cancelled may close the file."""
    task = asyncio.create_task(asyncio.to_thread(call))
    try:
        return await asyncio.shield(task)
    finally:
        await asyncio.wait({task})
