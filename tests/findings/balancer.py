"""A balancer for TCP in a process of its own, which can be killed: `python -m tests.findings.balancer PORT TARGET`.

It says its port when it listens; 0 = any. Nothing of this project is imported, so that it starts at once.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

HOST = "127.0.0.1"


async def relay(port: int, target: int) -> None:
    """Carry what comes at `port` to `target`, and back, until the process ends."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, target)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))

    server = await asyncio.start_server(between, HOST, port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(relay(int(sys.argv[1]), int(sys.argv[2])))
