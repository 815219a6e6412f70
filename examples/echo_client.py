"""Sends the lines it reads over IPv4 and IPv6 at once, prints the echo. Run: python examples/echo_client.py [PORT]"""

import asyncio
import sys

import multi


async def main(port: int) -> None:
    ways = [["tcp", "ipv4", "any"], ["tcp", "ipv6", "any"]]
    config = {"connection_priority": ways, "remote_host": "localhost", "remote_port": port}
    reader, writer = await multi.open_connection(config)
    while line := await asyncio.to_thread(sys.stdin.readline):
        writer.write(line.encode())
        print((await reader.readline()).decode(), end="")
    writer.close()
    await writer.wait_closed()


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7788))
