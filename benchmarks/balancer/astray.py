"""A server sends its clients to services of their own machine: `python -m benchmarks.balancer.astray [ADDRESS]`.

In a network namespace of its own, a server at ADDRESS (10.99.0.1, not loopback) tells its client that it is to be
joined at 127.0.0.1, and another server, which the client reaches by mistake, that this one is to be found there. Says
in a line of JSON how many connections came to loopback, and whether the session lived. From a server on 127.0.0.1 it is
a word that counts, so then some come.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress

import multi
from multi.lab.testbed.errors import TestbedNotAllowed
from multi.lab.testbed.namespaces import LOOPBACK, enter_user_namespace, new_network_namespace
from multi.lab.testbed.netlink import HostNetlink

HERE = "127.0.0.1"
ELSEWHERE = "10.99.0.1"
PORT, OTHER, TOLD, REDIRECTED = 7788, 7789, 7801, 7802
WAIT = 3.0  # seconds; three times as long as an address that was told waits for its next dial


def beside(address: str) -> str:
    """Where the client's second connection starts from."""
    return f"{address.rpartition('.')[0]}.2"


def alone(address: str) -> None:
    """Move this process where nothing but loopback is, and `address`. Raises TestbedNotAllowed."""
    if os.geteuid() == 0:
        try:
            os.close(new_network_namespace())
        except OSError as error:
            raise TestbedNotAllowed(f"no network namespace: {error.strerror}") from error
    else:
        enter_user_namespace()
    netlink = HostNetlink()
    netlink.set_up(LOOPBACK, True)
    if address != HERE:
        for own in (address, beside(address)):
            netlink.add_address(LOOPBACK, own, 32, detect_duplicates=False)
    netlink.close()


async def astray(address: str) -> dict[str, object]:
    dials = {TOLD: 0, REDIRECTED: 0}

    def came(port: int) -> None:
        dials[port] += 1

    def service(port: int) -> object:
        async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came(port)
            writer.close()

        return on_client

    async def echo(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()

    services = [await asyncio.start_server(service(port), HERE, port) for port in dials]  # type: ignore[arg-type]
    hostile = {"host": address, "port": PORT, "transports": ["tcp"], "route": "0a"}
    wrong = {"host": address, "port": OTHER, "transports": ["tcp"], "route": "0b"}
    told = {"own": {"host": HERE, "port": TOLD}, "join": "own"}
    server = await multi.start_server(echo, {"listen": {**hostile, **told}} if address != HERE else {"listen": hostile})
    stranger = await multi.start_server(echo, {"listen": {**wrong, "peers": {"0a": f"{HERE}:{REDIRECTED}"}}})
    one = {"transport": "tcp", "ip": "ipv4", "interface": address}
    entries = [one, one | {"interface": beside(address), "remote_port": OTHER}]
    config = {"connection_priority": entries, "remote_host": address, "remote_port": PORT}
    async with multi.connect({**config, "multi_config": {"connect": "seq"}}) as session:
        await session.confirmed()
        if address == HERE:  # the server itself holds the port it would bind; what it tells is told by hand
            for peer in server.sessions:
                peer.announce(HERE, port=TOLD)
        await asyncio.sleep(WAIT)
        session.writer.write(b"still here\n")
        lives = await asyncio.wait_for(session.reader.readline(), 5.0) == b"still here\n"
        session.abort()
    for running in (server, stranger):
        running.abort()
    for listening in services:
        listening.close()
    return {"told": dials[TOLD], "redirected": dials[REDIRECTED], "lives": lives}


def main() -> int:
    address = sys.argv[1] if len(sys.argv) > 1 else ELSEWHERE
    try:
        alone(address)
    except TestbedNotAllowed as error:
        print(json.dumps({"skipped": str(error)}))
        return 0
    print(json.dumps(asyncio.run(astray(address))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
