"""Downloads a file while networks come and go, and says what happens. A line on standard input hands over to it.

`python examples/roaming_download.py SERVER.json FILE` serves the file, `... CLIENT.json FILE` gets it. While it runs,
type a kind (wifi), an interface (wlan0) or an address the session is bound to, and press Enter.
"""

import asyncio
import hashlib
import sys
from typing import IO

import multi

BLOCK = 1 << 18  # bytes


async def serve(config: multi.Config, file: IO[bytes]) -> None:
    content = file.read()

    async def send(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        for start in range(0, len(content), BLOCK):
            writer.write(content[start : start + BLOCK])
            await writer.drain()
        writer.close()

    async with await multi.start_server(send, config) as server:
        print(f"serving {file.name} on port {server.port}", flush=True)
        await server.serve_forever()


async def tell(session: multi.Session) -> None:
    """Say what happens to the session, as it happens."""
    async for event in session.events():
        print(event, flush=True)


async def obey(session: multi.Session) -> None:
    """Hand over to what a person types: the new connection first, then the old ones are drained."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        try:
            await session.handover(to=line.decode().strip())
        except multi.MultiError as error:
            print(f"no handover: {error}", flush=True)


async def download(config: multi.Config, file: IO[bytes]) -> None:
    digest = hashlib.sha256()
    async with multi.connect(config) as session:
        helpers = [asyncio.create_task(tell(session)), asyncio.create_task(obey(session))]
        while block := await session.reader.read(BLOCK):
            digest.update(block)
            await asyncio.to_thread(file.write, block)
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
        for connection in session.connections:
            print(f"connection {connection.id} carried {connection.payload_received} bytes")
    print(f"SHA-256 {digest.hexdigest()}")


if __name__ == "__main__":
    config = multi.load_config(sys.argv[1])
    action, mode = (serve, "rb") if config.is_server else (download, "wb")
    with open(sys.argv[2], mode) as file:
        asyncio.run(action(config, file))
