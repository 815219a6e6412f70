"""The server that is measured: `python -m benchmarks.workers.server CONFIG`. It says its port when it serves."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import multi
from benchmarks.processes import raise_descriptors, say
from multi.workers.run import Running, ServingProcess, run

BLOCK = bytes(range(256)) * 1024
"""What is sent, again and again."""


async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
    """Answers a line: `who` with the process, `work S` after so many seconds of processor time, `send N` with N bytes,
    others with themselves."""
    async for line in reader:
        order, _, value = line.decode().strip().partition(" ")
        if order == "who":
            writer.write(b"%d\n" % os.getpid())
        elif order == "work":
            until = time.thread_time() + float(value)
            while time.thread_time() < until:
                pass
            writer.write(b"done\n")
        elif order == "send":
            for start in range(0, int(value), len(BLOCK)):
                writer.write(BLOCK[: int(value) - start])
                await writer.drain()
        else:
            writer.write(line)
        await writer.drain()
    writer.close()


def serve(process: ServingProcess) -> signal.Signals:
    """In each worker."""

    async def until_told() -> signal.Signals:
        raise_descriptors()
        return await process.stop_signals(await process.start_server(on_client), print).stopped()

    return asyncio.run(until_told())


def started(server: Running) -> None:
    """In the parent."""
    say({"port": server.port, "pid": os.getpid()})


if __name__ == "__main__":
    run(multi.load_config(sys.argv[1]), serve, started)
