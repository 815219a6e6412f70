"""The client of the tutorial: a line a second over two connections. Run: python examples/first_client.py [PORT]"""

import asyncio
import contextlib
import sys

import multi


async def main(port: int) -> None:
    config = {
        "connection_priority": [["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"]],
        "remote_host": "127.0.0.1",
        "remote_port": port,
    }
    async with multi.connect(config) as session:
        for number in range(100):
            session.writer.write(b"line %d\n" % number)
            print(await session.reader.readline())
            for connection in session.connections:
                print("  ", connection.id, connection.local, connection.state.value, flush=True)
            await asyncio.sleep(1)


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7788))
