"""One of the servers behind the balancer: `python -m benchmarks.balancer.server NAME CONFIGURATION`.

Its application says its name first, then gives back what it gets. It says a line of JSON when it serves, and answers
`figures` with where its clients come from, as far as it knows, and how often each limit was hit. Asked to `drain` it
says how its sessions have ended when the last one has.
"""

from __future__ import annotations

import asyncio
import json
import sys

import multi
from benchmarks.processes import answer, raise_descriptors, say

NAME_LENGTH = 8  # bytes


async def serve(name: str, config: dict[str, object]) -> None:
    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        writer.write(name.encode().ljust(NAME_LENGTH))
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await multi.start_server(on_client, config)
    say({"serving": server.port})

    def figures(_: str) -> object:
        remotes = {info.remote.rpartition(":")[0] for session in server.sessions for info in session.connections}
        return {"clients": sorted(remotes), "limits": {name: hit for name, hit in server.statistics.items() if hit}}

    async def drain() -> None:
        await server.drain()
        say({"ended": server.stats().sessions_ended})

    draining: list[asyncio.Task[None]] = []

    def questions(line: str) -> object:
        if line == "drain":
            draining.append(loop.create_task(drain()))
            return {"draining": len(server.sessions)}
        return figures(line)

    loop = asyncio.get_running_loop()
    await answer(questions)


if __name__ == "__main__":
    raise_descriptors()
    asyncio.run(serve(sys.argv[1], json.loads(sys.argv[2])))
