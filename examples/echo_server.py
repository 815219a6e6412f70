"""A server that sends back what it gets. Run: python examples/echo_server.py [PORT]"""

import asyncio
import contextlib
import sys

import multi


async def echo(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def main(port: int) -> None:
    config = {"listen": {"host": "::", "port": port, "transports": ["tcp", "mptcp"]}}
    async with await multi.start_server(echo, config) as server:
        print(f"listening on port {server.port}", flush=True)
        await server.serve_forever()


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7788))
