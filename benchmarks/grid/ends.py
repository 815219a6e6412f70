"""The two ends of a transfer over the testbed: sessions of `multi`, and plain MPTCP sockets as anybody writes them.

The client opens, waits until every path is up, asks for bytes and notes when the last has come. Servers run
as `python -m benchmarks.grid.ends tcp|mpquic|kernel ADDRESS PORT CERTIFICATES` and say "ready".
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import multi
from multi.linux.mptcp_pm import IPPROTO_MPTCP

__all__ = ["Fetched", "fetch_kernel", "fetch_multi"]

WRITE = 64 * 1024
READ = 1024 * 1024
OPENING = 15.0  # seconds for all paths to be up
POLL = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class Fetched:
    """What the receiving application saw. Less than was asked for where the time was up first."""

    size: int
    seconds: float
    """From the request to the last byte."""
    connections: tuple[tuple[str, int], ...] = ()
    """(interface, bytes received, duplicates included)."""

    @property
    def mbps(self) -> float:
        return self.size * 8 / 1e6 / self.seconds if self.seconds > 0 else 0.0


# --- multi ---


def quic_engine() -> str:
    """The fastest one of multipath QUIC that is here."""
    return "noq" if find_spec("multi_noq") else "aioquic"


async def fetch_multi(
    transport: str,
    address: str,
    port: int,
    certificates: str,
    interfaces: Sequence[str],
    scheduler: str,
    size: int,
    window: int,
    settle: float,
    limit: float,
) -> Fetched:
    """`size` bytes over a TCP connection over each of `interfaces`, or one `mpquic` connection with a path over each.

    All are up before the clock starts.

    This end allows `window` bytes at most; 0 = as usual.
    """
    over = [[transport, "ipv4", interface] for interface in interfaces]
    config: dict[str, Any] = {
        "connection_priority": over,
        "multi_config": {"connect": "par", "wait": "all", "scheduler": scheduler},
        "remote_host": address,
        "remote_port": port,
    }
    if transport == "tcp":
        config["protect"] = "never"
    else:
        config["mpquic_config"] = {"engine": quic_engine()}
        config["ssl_config"] = {"ca": f"{certificates}/ca.pem", "server_name": "localhost"}
        if len(interfaces) > 1:
            config["connection_priority"] = [[transport, "ipv4", list(interfaces)]]
    if window:
        config["limits"] = {"max_stream_window": window, "max_session_window": window}
    async with asyncio.timeout(limit + OPENING), multi.connect(config) as session:
        await session.confirmed()
        clock = asyncio.get_running_loop().time
        opened = clock()
        await asyncio.sleep(settle)
        while sum(max(1, c.subflows) for c in session.connections if c.state.value == "active") < len(interfaces):
            if clock() > opened + OPENING:
                raise RuntimeError(f"not every path is up: {session.connections}")
            await asyncio.sleep(POLL)  # a SYN was lost, or a proof
        reader, writer = session.reader, session.writer
        asked = clock()
        writer.write(b"%d\n" % size)
        total, last = 0, asked
        while total < size and last < asked + limit:
            try:
                data = await asyncio.wait_for(reader.read(READ), asked + limit - clock())
            except TimeoutError:
                last = clock()
                break
            if not data:
                break
            last = clock()
            total += len(data)
        connections = tuple((c.interface, c.payload_received) for c in session.connections)
        if total < size:
            session.abort()
        return Fetched(total, last - asked, connections)


async def _serve_multi(transport: str, address: str, port: int, certificates: str) -> None:
    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        left = int(await reader.readline())
        block = bytes(WRITE)
        while left:
            piece = block[:left]
            writer.write(piece)
            left -= len(piece)
            await writer.drain()
        writer.write_eof()
        await reader.read()

    config: dict[str, Any] = {"listen": {"host": address, "port": port, "transports": [transport]}}
    if transport == "tcp":
        config["protect"] = "never"
    else:
        config["mpquic_config"] = {"engine": quic_engine()}
        config["ssl_config"] = {"cert": f"{certificates}/server-cert.pem", "key": f"{certificates}/server-key.pem"}
    server = await multi.start_server(on_client, config)
    print("ready", flush=True)
    await server.serve_forever()


# --- plain MPTCP sockets ---


def fetch_kernel(address: str, port: int, interface: str, size: int, settle: float, limit: float) -> Fetched:
    """The same over one MPTCP connection; its first subflow leaves through `interface`, the kernel makes the others."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        connection.connect((address, port))
        connection.sendall(b"?")  # the first byte confirms MPTCP, after which further subflows may join
        connection.recv(1)
        time.sleep(settle)
        buffer = bytearray(READ)
        asked = time.monotonic()
        connection.sendall(b"%d\n" % size)
        total, last = 0, asked
        while total < size and last < asked + limit:
            connection.settimeout(max(0.001, asked + limit - time.monotonic()))
            try:
                got = connection.recv_into(buffer)
            except TimeoutError:
                last = time.monotonic()
                break
            if not got:
                break
            last = time.monotonic()
            total += got
        return Fetched(total, last - asked)


def _serve_kernel(address: str, port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                try:
                    connection.sendall(connection.recv(1))
                    request = b""
                    while not request.endswith(b"\n"):
                        request += connection.recv(100)
                    left, block = int(request), bytes(2 * WRITE)
                    while left:
                        left -= connection.send(block[:left])
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(1)
                except (OSError, ValueError):
                    continue  # the client had enough


def main() -> None:
    kind, address, port, certificates = sys.argv[1:]
    if kind == "kernel":
        _serve_kernel(address, int(port))
    else:
        asyncio.run(_serve_multi(kind, address, int(port), certificates))


if __name__ == "__main__":
    main()
