"""Downloads a file while networks come and go, and says what happens. A line on standard input hands over to it.

Run `multi serve SERVER.json --dir DIR`, then: python examples/roaming_download.py CLIENT.json NAME [FILE]
While it runs, type a kind (wifi), an interface (wlan0) or an address the session is bound to, and press Enter.
"""

import asyncio
import sys
from pathlib import Path

import multi
from multi.lab.files.client import get_file


async def tell(session: multi.Session) -> None:
    """Say what happens to the session, as it happens."""
    async for event in session.events():
        if isinstance(event, multi.ConnectionChanged):
            over = event.facts.interface or event.facts.local
            because = f" ({event.reason})" if event.reason else ""
            print(f"connection {event.connection} over {over} is {event.state.value}{because}", flush=True)
        else:
            print(event, flush=True)


async def obey(session: multi.Session) -> None:
    """Hand over to what a person types: the new connection first, then the old ones are drained."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        try:
            await session.handover(to=line.decode().strip())
        except multi.MultiError as error:
            print(f"no handover: {error}", flush=True)


async def main(config: str, name: str, target: Path) -> None:
    async with multi.connect(config) as session:
        helpers = [asyncio.create_task(tell(session)), asyncio.create_task(obey(session))]
        try:
            copied = await get_file(session, name, target)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
    print(f"{copied.size} bytes in {copied.seconds:.1f} s, SHA-256 {copied.sha256}")
    for connection in copied.connections:
        print(f"connection {connection.id} over {connection.over} carried {connection.bytes} bytes")


if __name__ == "__main__":
    config, name, *rest = sys.argv[1:]
    asyncio.run(main(config, name, Path(rest[0] if rest else name)))
