"""Content between disk and stream: full disks, files that change, hashes that do not fit."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from multi.lab.files.blocks import ReceivedFile, SentFile
from multi.lab.files.protocol import FileRefused, Problem


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


async def test_hash_of_what_is_there_stops_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    with sink_of(tmp_path / "f") as sink:
        await sink.hash_up_to(10)
        assert (sink.kept, sink.position) == (3, 3)
        assert sink.sha256 == hashlib.sha256(b"abc").hexdigest()
        sink.rewind()
        await sink.hash_up_to(2)
        sink.resume(2)
    assert (tmp_path / "f").read_bytes() == b"ab"
