"""What becomes of files that clients store: unfinished ones, those of others, those that do not fit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.lab.files.client import put_file
from multi.lab.files.protocol import (
    MAX_LINE,
    Begin,
    FileRefused,
    Put,
    Receiving,
    pack_length,
    read_message,
)
from multi.lab.files.protocol import encode as line_of
from multi.lab.files.service import FileService
from multi.lab.files.tree import FileTree
from tests.findings.bounded import given, reached, run
from tests.integration.support import Way

WAY = Way(Path())  # sealed TCP: no certificates
NAME = "report"
CONTENT = b"what the client has stored " * 100
NOBODY = 65534  # the user of that name
YEAR = 365 * 86_400  # seconds
EXBIBYTE = 1 << 60
NOTHING_YET = Receiving(0, hashlib.sha256().hexdigest())


@asynccontextmanager
async def serving(directory: Path, **more: Any) -> AsyncIterator[multi.Server]:
    """The file service of a directory; clients may store files."""
    with FileTree(directory) as tree:
        service = FileService(tree, allow_put=True, log=lambda line: None)
        server = await multi.start_server(service.serve, WAY.server(**more), limit=MAX_LINE)
        try:
            yield server
        finally:
            server.abort()
            await server.wait_closed()


@asynccontextmanager
async def asking_to_store(
    port: int, size: int, **more: Any
) -> AsyncIterator[tuple[multi.Session, Receiving | FileRefused]]:
    """A session that has asked to store so many bytes, and the answer; it is aborted in the end."""
    session = await multi.connect(WAY.client(port, **more), limit=MAX_LINE)
    try:
        session.writer.write(line_of(Put(NAME, size, 0o644, False)))
        try:
            yield session, await read_message(session.reader, Receiving)
        except FileRefused as refusal:
            yield session, refusal
    finally:
        session.abort()
        await session.settle()


async def begin_to_store(port: int, directory: Path, **more: Any) -> list[str]:
    """Send half of a file and end; return the names of what is kept then."""
    half = CONTENT[: len(CONTENT) // 2]

    def kept() -> list[str]:
        return [path.name for path in directory.iterdir() if path.stat().st_size == len(half)]

    async with asking_to_store(port, len(CONTENT), **more) as (session, answer):
        given(answer == NOTHING_YET, answer)
        session.writer.write(line_of(Begin(0)) + pack_length(len(half)) + half)
        session.writer.write_eof()
        await reached(kept, "what has come is kept")
    return kept()


async def name_of_unfinished(directory: Path) -> str:
    """The name under which an unfinished file is kept; nothing is left of it."""
    async with serving(directory) as server:
        (name,) = await begin_to_store(server.port, directory)
    (directory / name).unlink()
    return name


@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT can make files of another user")
def test_what_was_stored_cannot_be_changed_by_another_user(tmp_path: Path) -> None:
    async def scenario() -> bytes:
        served, original = tmp_path / "served", tmp_path / "original"
        served.mkdir()
        original.write_bytes(CONTENT)
        planted = served / await name_of_unfinished(served)
        kept_open = os.open(planted, os.O_RDWR | os.O_CREAT)
        try:
            os.fchown(kept_open, NOBODY, NOBODY)
            os.fchmod(kept_open, 0o666)
            async with serving(served) as server:
                with suppress(FileRefused):
                    await put_file(WAY.client(server.port), original, NAME)
            os.pwrite(kept_open, b"CHANGED", 0)
        finally:
            os.close(kept_open)
        stored = served / NAME
        return stored.read_bytes() if stored.exists() else CONTENT  # it may be refused, too

    assert run(scenario()) == CONTENT


async def answer_to(directory: Path, size: int) -> object:
    async with serving(directory) as server, asking_to_store(server.port, size) as (_, answer):
        return answer


def test_a_file_that_fits_is_taken(tmp_path: Path) -> None:
    assert isinstance(run(answer_to(tmp_path, len(CONTENT))), Receiving)


def test_a_file_larger_than_the_disk_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    assert isinstance(run(answer_to(tmp_path, EXBIBYTE)), FileRefused)


def test_a_disk_that_takes_few_more_files_is_left_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without content fill no disk, and yet nobody can make another one when there are as many as it takes."""
    asked = os.fstatvfs

    def nearly_full(descriptor: int) -> os.statvfs_result:
        found = list(asked(descriptor))
        found[5:8] = 1000, 49, 49  # f_files, f_ffree, f_favail
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "fstatvfs", nearly_full)
    assert isinstance(run(answer_to(tmp_path, 0)), FileRefused)
    assert not list(tmp_path.iterdir())


def test_unfinished_files_of_long_ago_are_removed(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        served, original = tmp_path / "served", tmp_path / "original"
        served.mkdir()
        original.write_bytes(CONTENT)
        async with serving(served) as server:
            (unfinished,) = await begin_to_store(server.port, served)
        then = (served / unfinished).stat().st_mtime - YEAR
        os.utime(served / unfinished, (then, then))
        async with serving(served) as server:
            await put_file(WAY.client(server.port), original, "another")
        return sorted(path.name for path in served.iterdir())

    assert run(scenario()) == ["another"]


def test_a_client_is_not_told_what_one_with_another_key_has_begun_to_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINDINGS_PSK", f"alice:{'a1' * 32},bob:{'b0' * 32}")

    def key(name: str) -> dict[str, str]:
        return {"psk_env": "FINDINGS_PSK", "psk_id": name}

    async def scenario() -> object:
        async with serving(tmp_path, auth={"psk_env": "FINDINGS_PSK"}) as server:
            await begin_to_store(server.port, tmp_path, auth=key("alice"))
            await reached(lambda: not server.sessions, "the first client has gone")
            async with asking_to_store(server.port, len(CONTENT), auth=key("bob")) as (_, answer):
                return answer

    found = run(scenario())
    assert isinstance(found, FileRefused) or found == NOTHING_YET
