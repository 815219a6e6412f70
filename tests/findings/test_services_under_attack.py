"""What one client asks of `multi serve` and `multi bench serve` is bounded, and ends with its session."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import multi
from multi.lab.bench.protocol import Answer, BenchRequest, read
from multi.lab.bench.protocol import encode as bench_line
from multi.lab.files.protocol import Get, encode
from tests.findings.attacks import aborted_at_end
from tests.integration.callbacks import told_callbacks
from tests.integration.cli_runner import started, wait_for_line
from tests.integration.support import HOST, run

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux says what a process uses")

MIB, GIB = 1 << 20, 1 << 30


class Service:
    """A server in a process of its own."""

    def __init__(self, process: int, port: int) -> None:
        self._proc = Path(f"/proc/{process}")
        self.port = port

    def memory(self) -> int:
        """Bytes that are in memory."""
        return int((self._proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def processor_time(self) -> float:
        """Seconds, of all its threads."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def client(self, source: str = HOST) -> dict[str, object]:
        return {
            "connection_priority": [["tcp", "ipv4", source]],
            "remote_host": HOST,
            "remote_port": self.port,
            "protect": "never",
        }


@contextmanager
def service(directory: Path, *arguments: object) -> Iterator[Service]:
    """`multi ARGUMENTS`, in which `directory`/server.json is the configuration; its callbacks are bounded."""
    config = {"listen": {"host": HOST, "port": 0, "transports": ["tcp"]}, "protect": "never"}
    (directory / "server.json").write_text(json.dumps(config))
    told = directory / "callbacks.json"
    with started(*arguments, callbacks=told) as process:
        yield Service(process.pid, int(wait_for_line(process, r" port (\d+) ").group(1)))
    told_callbacks(told).check()


# --- bench ---

SENT = 128 * MIB
KEPT = 56 * MIB  # the window of a stream is 16 MiB


def memory_for(directory: Path, request: BenchRequest) -> int:
    """Bytes by which `multi bench serve` grows for a client that asks for this and sends far more."""
    with service(directory, "bench", "serve", directory / "server.json") as server:

        async def scenario() -> int:
            async with aborted_at_end(await multi.connect(server.client())) as session:
                session.writer.write(bench_line(request))
                await read(session.reader, Answer)
                before = server.memory()
                with suppress(ConnectionError, TimeoutError):
                    async with asyncio.timeout(5):
                        for _ in range(SENT // MIB):
                            session.writer.write(bytes(MIB))
                            await session.writer.drain()
                return server.memory() - before

        return run(scenario())


def test_a_bench_server_does_not_keep_more_than_was_announced(tmp_path: Path) -> None:
    assert memory_for(tmp_path, BenchRequest(reverse=False, seconds=0.0, bytes=1)) < KEPT


def test_a_bench_server_keeps_nothing_where_no_size_was_announced(tmp_path: Path) -> None:
    assert memory_for(tmp_path, BenchRequest(reverse=False, seconds=60.0, bytes=0)) < KEPT


# --- files ---

SIZE = 8 * GIB  # of which nothing is on the disk
REQUESTS = 4
SPENT = 2.0  # seconds of processor time until a busy machine lets it hear of the end; hashing all of it takes many


async def ask(server: Service, request: Get, source: str) -> None:
    """Ask for a file and end the session as soon as the server has begun with it."""
    async with aborted_at_end(await multi.connect(server.client(source))) as session:
        session.writer.write(encode(request))
        await session.writer.drain()
        await asyncio.sleep(0.1)


async def ask_often(server: Service, request: Get) -> None:
    await asyncio.gather(*(ask(server, request, f"127.66.{number}.1") for number in range(REQUESTS)))


def work_after(directory: Path, request: Get) -> float:
    """Seconds of processor time `multi serve` uses for requests after their sessions have ended; at most some."""
    served = directory / "served"
    served.mkdir()
    with (served / request.name).open("wb") as file:
        file.truncate(SIZE)
    with service(directory, "serve", directory / "server.json", "--dir", served) as server:
        run(ask_often(server, request))
        time.sleep(0.3)  # until it has heard that they have ended
        begun = now = server.processor_time()
        idle = 0
        for _ in range(30):
            before = now
            time.sleep(0.4)
            now = server.processor_time()
            idle = 0 if now - before > 0.02 else idle + 1
            if now - begun > SPENT or idle == 3:
                break
        return now - begun


def test_a_file_server_does_no_work_for_sessions_that_have_ended(tmp_path: Path) -> None:
    assert work_after(tmp_path, Get("big", SIZE, "0" * 64)) < SPENT


def test_a_file_server_stops_sending_when_the_session_has_ended(tmp_path: Path) -> None:
    assert work_after(tmp_path, Get("big", 0, hashlib.sha256().hexdigest())) < SPENT
