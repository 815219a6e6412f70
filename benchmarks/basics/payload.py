"""How far one payload travels through the library: Python calls, files and changes of file, until all is quiet again.

    python -m benchmarks.basics.payload [--list] [--connections N]

Both ends run in this process on loopback, sealed TCP. After half a second of silence one end writes 16 KiB and the
other reads it; everything the library does on the way counts, pump, timers and the acknowledgement included.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import multi

SIZE = 16 * 1024
IDLE = 0.5  # seconds without a word before the payload
AFTER = 0.15  # seconds in which what follows from it happens, as its acknowledgement
ROUNDS = 5
LIBRARY = str(Path(multi.__file__).parent)


class Calls:
    """Counts Python calls inside the library, in order."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self.until_read = 0
        """Calls until the payload had been read; its acknowledgement, timers and what these lead to come after."""

    def read(self) -> None:
        """The payload has been read."""
        self.until_read = len(self.names)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(LIBRARY):
            file = frame.f_code.co_filename[len(LIBRARY) + 1 :]
            self.names.append((file, frame.f_code.co_qualname))

    @property
    def files(self) -> int:
        return len({file for file, _ in self.names})

    @property
    def changes(self) -> int:
        return sum(a[0] != b[0] for a, b in zip(self.names, self.names[1:], strict=False))


async def measure(connections: int) -> list[Calls]:
    rounds = [Calls()]

    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        while await reader.read(SIZE):
            rounds[-1].read()

    server = await multi.start_server(on_client, {"listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}})
    config: dict[str, Any] = {
        "connection_priority": [["tcp", "ipv4", f"127.0.0.{1 + index}"] for index in range(connections)],
        "remote_host": "127.0.0.1",
        "remote_port": server.port,
        "multi_config": {"wait": "all"},
    }
    async with multi.connect(config) as session:
        await session.confirmed()
        for _ in range(ROUNDS):
            await asyncio.sleep(IDLE)
            rounds.append(Calls())
            sys.setprofile(rounds[-1])
            session.writer.write(bytes(SIZE))
            await asyncio.sleep(AFTER)
            sys.setprofile(None)
    server.close()
    await server.wait_closed()
    return rounds[1:]


def run(*, quick: bool) -> None:
    """Print how far a payload travels over one connection, and over one of two."""
    for connections in (1,) if quick else (1, 2):
        _print(connections, listed=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name every call of the median round")
    parser.add_argument("--connections", type=int, default=0, help="of the session; default: one, then two")
    options = parser.parse_args()
    for connections in [options.connections] if options.connections else [1, 2]:
        _print(connections, listed=options.list)
    return 0


def _print(connections: int, *, listed: bool) -> None:
    rounds = asyncio.run(measure(connections))
    median = sorted(rounds, key=lambda calls: len(calls.names))[len(rounds) // 2]
    print(
        f"{connections} connection(s): {len(median.names)} calls, {median.until_read} of them until it was read,"
        f" {median.files} files, {median.changes} changes of file (calls in {len(rounds)} rounds:"
        f" {', '.join(str(len(calls.names)) for calls in rounds)})"
    )
    if listed:
        for number, (file, name) in enumerate(median.names):
            print(f"  {'then ' if number >= median.until_read else '':5}{file:40} {name}")
        for (file, name), count in Counter(median.names).most_common(20):
            print(f"{count:4} {file} {name}")


if __name__ == "__main__":
    sys.exit(main())
