"""Content between disk and stream: full disks, files that change, hashes that do not fit."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from multi.asyncio.streams import SessionReader
from multi.lab.files import blocks
from multi.lab.files.blocks import MAX_PIECES, Prefixes, ReceivedFile, SentFile, receive_blocks
from multi.lab.files.protocol import MAX_BLOCK, End, FileRefused, Problem, encode, pack_length


def source_of(path: Path) -> SentFile:
    return SentFile(os.open(path, os.O_RDONLY), path.name)


def sink_of(path: Path) -> ReceivedFile:
    return ReceivedFile(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), path.name)


def test_blocks_are_the_file_and_its_hash(tmp_path: Path) -> None:
    content = os.urandom(2_500_000)
    path = tmp_path / "f"
    path.write_bytes(content)
    with source_of(path) as source:
        blocks = list(iter(source.block, b""))
        assert [len(b) for b in blocks] == [1 << 20, 1 << 20, 2_500_000 - (2 << 20)]
        assert b"".join(blocks) == content
        assert source.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("change", ["grow", "shrink", "touch"])
def test_file_changed_while_it_is_sent_is_noticed(tmp_path: Path, change: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(3 << 20))
    with source_of(path) as source:
        source.block()
        match change:
            case "grow":
                with path.open("ab") as file:
                    file.write(b"x")
            case "shrink":
                os.truncate(path, 1 << 20)
            case _:
                os.utime(path, ns=(0, 1))
        with pytest.raises(FileRefused, match="f: the file was changed while it was sent") as refusal:
            source.block()
    assert refusal.value.problem is Problem.CHANGED


def test_full_disk_keeps_what_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    room = 1500

    def small(descriptor: int, data: memoryview, offset: int) -> int:
        if offset >= room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[: room - offset], offset)

    monkeypatch.setattr(os, "pwrite", small)
    with sink_of(tmp_path / "f") as sink:
        with pytest.raises(FileRefused, match="f: no space left on the disk") as refusal:
            sink.write([b"a" * 1000, b"b" * 1000])
        assert refusal.value.problem is Problem.NO_SPACE
        assert sink.position == room
        assert sink.sha256 == hashlib.sha256(b"a" * 1000 + b"b" * 500).hexdigest()
    assert (tmp_path / "f").read_bytes() == b"a" * 1000 + b"b" * 500


async def test_blocks_of_one_byte_are_written_together_and_others_run_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are there at once, so that nothing has to be waited for."""
    content = os.urandom(10 * MAX_PIECES)
    reader = asyncio.StreamReader()
    reader.feed_data(b"".join(pack_length(1) + content[i : i + 1] for i in range(len(content))))
    reader.feed_data(pack_length(0) + encode(End(hashlib.sha256(content).hexdigest())))
    real, written, in_this_turn, in_each_turn = os.pwrite, list[int](), list[int](), list[int]()

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        written.append(len(data))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with sink_of(tmp_path / "f") as sink:
        task = asyncio.create_task(receive_blocks(cast(SessionReader, reader), sink, len(content), in_this_turn.append))
        while not task.done():
            await asyncio.sleep(0)
            in_each_turn.append(len(in_this_turn))
            in_this_turn.clear()
        await task
    assert (tmp_path / "f").read_bytes() == content
    assert max(in_each_turn) <= MAX_PIECES
    assert written == [MAX_PIECES] * 10


async def test_hash_of_what_is_there_stops_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    with sink_of(tmp_path / "f") as sink:
        await Prefixes().hash_up_to(sink, 10)
        assert (sink.kept, sink.position) == (3, 3)
        assert sink.sha256 == hashlib.sha256(b"abc").hexdigest()
        sink.rewind()
        await Prefixes().hash_up_to(sink, 2)
        sink.resume(2)
    assert (tmp_path / "f").read_bytes() == b"ab"


async def test_what_was_hashed_once_is_hashed_again_only_when_the_file_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(5 * MAX_BLOCK + 1)
    path = tmp_path / "f"
    path.write_bytes(content)
    monkeypatch.setattr(blocks, "STEP", 2 * MAX_BLOCK)
    monkeypatch.setattr(blocks, "SETTLED", 0)
    prefixes, real, seen = Prefixes(), os.pread, list[int]()

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        seen.append(length)
        return real(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", pread)

    async def bytes_read(position: int) -> int:
        seen.clear()
        with source_of(path) as source:
            await prefixes.hash_up_to(source, position)
            assert (source.position, source.sha256) == (position, hashlib.sha256(content[:position]).hexdigest())
        return sum(seen)

    assert await bytes_read(len(content)) == len(content)
    assert await bytes_read(len(content)) == MAX_BLOCK + 1
    assert await bytes_read(2 * MAX_BLOCK + 5) == 5
    assert await bytes_read(MAX_BLOCK) == MAX_BLOCK
    content = os.urandom(len(content))
    path.write_bytes(content)
    os.utime(path, ns=(0, 0))
    assert await bytes_read(3 * MAX_BLOCK) == 3 * MAX_BLOCK


async def test_what_has_just_changed_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second change in the same tick of the file system's clock could not be seen."""
    path = tmp_path / "f"
    path.write_bytes(bytes(2 * MAX_BLOCK))
    monkeypatch.setattr(blocks, "STEP", MAX_BLOCK)
    monkeypatch.setattr(time, "time_ns", lambda: path.stat().st_ctime_ns + blocks.SETTLED - 1)
    prefixes = Prefixes()
    for content in (b"a" * 2 * MAX_BLOCK, b"b" * 2 * MAX_BLOCK):
        with source_of(path) as source:
            monkeypatch.setattr(os, "pread", lambda _, length, offset, content=content: content[offset:][:length])
            await prefixes.hash_up_to(source, MAX_BLOCK)
            assert source.sha256 == hashlib.sha256(content[:MAX_BLOCK]).hexdigest()


async def test_hashing_ends_with_the_one_who_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(5 * MAX_BLOCK))
    wanted = iter((True, True, False))
    with source_of(path) as source:
        with pytest.raises(EOFError):
            await Prefixes().hash_up_to(source, 5 * MAX_BLOCK, lambda: next(wanted))
        assert source.position == 2 * MAX_BLOCK


async def test_hashing_for_many_of_one_source_holds_up_another_for_one_of_them(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(4 * MAX_BLOCK))
    prefixes = Prefixes()
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(source_of(path)) for _ in range(20)]
        hashing = [asyncio.create_task(prefixes.hash_up_to(one, 4 * MAX_BLOCK, source="many")) for one in many]
        await asyncio.sleep(0)
        await prefixes.hash_up_to(stack.enter_context(source_of(path)), 4 * MAX_BLOCK, source="alone")
        assert sum(one.position for one in many) <= 6 * MAX_BLOCK
        await asyncio.gather(*hashing)


@pytest.mark.parametrize(("disk", "spared", "room"), [(1000, 0, 300), (1000, 40, 260), (1000, 1 << 30, 250)])
def test_a_part_of_the_disk_is_spared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: int, spared: int, room: int
) -> None:
    found = SimpleNamespace(f_blocks=disk, f_bavail=300, f_frsize=1, f_files=0, f_favail=0)  # it counts no files
    monkeypatch.setattr(os, "fstatvfs", lambda _: found)
    with ReceivedFile(os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT, 0o600), "f", spared) as sink:
        sink.check_room(room)
        with pytest.raises(FileRefused, match="f: no space left on the disk") as refusal:
            sink.check_room(room + 1)
        assert refusal.value.problem is Problem.NO_SPACE
        sink.write([bytes(200)])
        if spared:
            with pytest.raises(FileRefused, match="f: no space left on the disk"):
                sink.write([bytes(200), bytes(room - 199)])
        found.f_bavail = 20  # others go on filling it: what has come whole needs no more
        sink.write([])
    assert (tmp_path / "f").stat().st_size == 200
