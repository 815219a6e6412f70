"""The server of the tutorial: answers each line in capitals. Run: python examples/first_server.py [PORT]"""

import asyncio
import contextlib
import sys

import multi


async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async for line in reader:
        writer.write(line.upper())
        await writer.drain()
    writer.close()


async def main(port: int) -> None:
    server = await multi.start_server(on_client, "127.0.0.1", port)
    print("listening on port", server.port, flush=True)
    await server.serve_forever()


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7788))
