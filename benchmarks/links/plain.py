"""One end of a measurement without `multi`: kernel TCP and MPTCP on blocking sockets, asyncio streams on either loop.

The functions run on the hosts of a testbed (`Host.run_python`). The sender writes 128 KiB (asyncio: 64 KiB, with
`drain`) until its time is over; the receiver always reads and keeps what it read in bins of 0.1 s, as `multi bench`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass, field
from typing import Literal

from multi.linux.mptcp_pm import IPPROTO_MPTCP

Kind = Literal["tcp", "mptcp", "asyncio", "uvloop"]

BIN = 0.1  # seconds
BLOCK = 128 * 1024  # bytes
ASYNCIO_BLOCK = 64 * 1024
PATIENCE = 10.0  # seconds until the other end listens


@dataclass(slots=True)
class Received:
    """What a receiver saw."""

    bytes: int = 0
    first: float = 0.0
    last: float = 0.0
    bins: list[int] = field(default_factory=list)
    paths: int = 1
    """MPTCP: the most subflows there were."""

    def add(self, size: int) -> None:
        self.last = time.monotonic()
        if not self.bytes:
            self.first = self.last
        self.bytes += size
        index = int((self.last - self.first) / BIN)
        while len(self.bins) <= index:
            self.bins.append(0)
        self.bins[index] += size

    @property
    def mbps(self) -> float:
        return self.bytes * 8 / (self.last - self.first) / 1e6


def _socket(kind: Kind, interface: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP if kind == "mptcp" else 0)
    if interface:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    return sock


def serve(kind: Kind, address: str, port: int, send_seconds: float) -> Received | None:
    """Take one connection; send for so long, or with 0 receive to its end."""
    with _socket(kind, "") as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        listener.settimeout(PATIENCE)
        sock, _ = listener.accept()
        # Further subflows of MPTCP come to the listener too.
        return _use(kind, sock, send_seconds)


def dial(kind: Kind, address: str, port: int, interface: str, send_seconds: float) -> Received | None:
    """Connect over an interface, or any; send for so long, or with 0 receive to the end."""
    deadline = time.monotonic() + PATIENCE
    while True:
        sock = _socket(kind, interface)
        try:
            sock.connect((address, port))
        except ConnectionRefusedError:
            sock.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return _use(kind, sock, send_seconds)


def _use(kind: Kind, sock: socket.socket, send_seconds: float) -> Received | None:
    if kind in ("tcp", "mptcp"):
        with sock:
            sock.settimeout(None)
            if not send_seconds:
                return _receive(sock)
            _send(sock, send_seconds)
            return None
    if kind == "uvloop":
        import uvloop

        result: Received | None = uvloop.run(_stream(sock, send_seconds))
        return result
    return asyncio.run(_stream(sock, send_seconds))


def _send(sock: socket.socket, seconds: float) -> None:
    block = bytes(BLOCK)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sock.sendall(block)
    sock.shutdown(socket.SHUT_WR)
    sock.recv(1)


def _receive(sock: socket.socket) -> Received:
    from multi.transports.mptcp.info import read_mptcp_info

    received = Received()
    buffer = bytearray(1 << 20)
    while size := sock.recv_into(buffer):
        bins = len(received.bins)
        received.add(size)
        if sock.proto == IPPROTO_MPTCP and len(received.bins) > bins and (info := read_mptcp_info(sock)):
            received.paths = max(received.paths, info.subflow_count)
    return received


async def _stream(sock: socket.socket, send_seconds: float) -> Received | None:
    sock.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=sock)
    received: Received | None = None
    if send_seconds:
        block = bytes(ASYNCIO_BLOCK)
        end = time.monotonic() + send_seconds
        while time.monotonic() < end:
            writer.write(block)
            await writer.drain()
        writer.write_eof()
        await reader.read()
    else:
        received = Received()
        while data := await reader.read(1 << 20):
            received.add(len(data))
    writer.close()
    return received
