"""One end of a transfer of the paper's evaluation: a program on a host of the testbed that does what it is told.

Orders come as lines of JSON on standard input and are answered on standard output, out of reach of the networks that
are measured. The server's end has a server of every kind; the client's end opens one connection or session after the
other. Base is what the paper calls so: asyncio's own streams, and aioquic through its own asyncio interface.

All times are `time.monotonic()`, a clock that all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import ssl
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from aioquic.asyncio.client import connect as connect_quic
from aioquic.asyncio.server import serve as serve_quic
from aioquic.quic.configuration import QuicConfiguration

import multi
from benchmarks.pattern import BLOCK, Checker, piece

__all__ = ["PORTS", "Order", "main"]

PORTS = {
    "base-tcp": 7001,
    "base-tls": 7002,
    "base-quic": 7003,
    "multi-plain": 7011,
    "multi-sealed": 7012,
    "multi-secured": 7013,
}
"""What the server's end offers. TLS and QUIC share the last one: a session with both is one session."""

READ = 1 << 20  # bytes asked for at a time
SAMPLE = 0.1  # seconds between two looks at the connections
ALPN = "paper"

Reader = Any
Writer = Any


@dataclass(frozen=True, slots=True)
class Order:
    """One transfer by the client, from opening to closing."""

    party: str
    """`base-tcp`, `base-tls`, `base-quic` or `multi`."""
    host: str = ""
    port: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    """Of a session."""
    receives: bool = True
    """Rx of the paper: the client receives."""
    size: int = 0
    seconds: float = 0.0
    """How long the sender sends, if `size` is 0. Sessions only."""
    handovers: list[tuple[float, str]] = field(default_factory=list)
    """(seconds after the opening, to which interface)."""
    timeout: float = 60.0
    watch: bool = False
    """Whether to keep what was received when, over which interface."""

    def encoded(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, line: str) -> Self:
        return cls(**json.loads(line))


def _answer(**content: object) -> None:
    print(json.dumps(content), flush=True)


async def _orders() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


# --- what both ends do with reader and writer, whoever made them ---


@dataclass(slots=True)
class _Receipt:
    """What a receiver saw."""

    received: int = 0
    last: float = 0.0
    damaged_at: int | None = None


async def _receive(reader: Reader, size: int, receipt: _Receipt) -> None:
    """Read `size` bytes, or until the end if 0, and compare them with what should be there."""
    checker = Checker()
    try:
        while not size or checker.received < size:
            data = await reader.read(READ)
            if not data:
                break
            receipt.last = time.monotonic()
            checker.feed(data)
            receipt.received = checker.received
    finally:
        receipt.damaged_at = checker.damaged_at


async def _send(writer: Writer, size: int, seconds: float, *, breathe: bool) -> None:
    """`breathe`: let the event loop run after every write. aioquic's `drain` returns at once however much waits."""
    offset, end = 0, time.monotonic() + seconds
    while offset < size if size else time.monotonic() < end:
        block = min(BLOCK, size - offset) if size else BLOCK
        writer.write(piece(offset, block))
        offset += block
        await writer.drain()
        if breathe:
            await asyncio.sleep(0)


# --- server ---


class _Server:
    """Every kind of server; keeps what became of the last transfer."""

    def __init__(self, directory: Path, addresses: Sequence[str]) -> None:
        self._directory = directory
        self._addresses = addresses
        self._over = asyncio.Event()
        self._last: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: list[object] = []

    async def start(self) -> None:
        certificate, key = (str(self._directory / name) for name in ("server-cert.pem", "server-key.pem"))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(certificate, key)
        quic = QuicConfiguration(is_client=False, alpn_protocols=[ALPN])
        quic.load_cert_chain(certificate, key)
        secured = {"cert": certificate, "key": key}
        self._kept = [
            await asyncio.start_server(self._on_stream, None, PORTS["base-tcp"]),
            await asyncio.start_server(self._on_stream, None, PORTS["base-tls"], ssl=context),
            await self._multi("multi-plain", ["tcp"], protect="never"),
            await self._multi("multi-sealed", ["tcp"]),
            await self._multi("multi-secured", ["tcp", "quic"], ssl_config=secured),
        ]
        # Stock aioquic answers from whatever address the system likes, so it gets a socket for each.
        for address in self._addresses:
            quic_server = serve_quic(address, PORTS["base-quic"], configuration=quic, stream_handler=self._on_quic)
            self._kept.append(await quic_server)

    async def _multi(self, name: str, transports: list[str], **more: object) -> object:
        config = {"listen": {"host": "::", "port": PORTS[name], "transports": transports}, **more}
        return await multi.start_server(self._on_stream, config)

    def _on_quic(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer, quic=True))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _on_stream(self, reader: Reader, writer: Writer) -> None:
        await self._serve(reader, writer, quic=False)

    async def _serve(self, reader: Reader, writer: Writer, *, quic: bool) -> None:
        session, receipt, error = writer.get_extra_info("session"), _Receipt(), ""
        try:
            request = json.loads(await reader.readline())
            if request["receives"]:
                await _send(writer, request["size"], request["seconds"], breathe=quic)
                if not request["size"]:
                    writer.write_eof()
            else:
                await _receive(reader, request["size"], receipt)
                writer.write(b"!")
                await writer.drain()
            await reader.read(1)  # the client has seen that it is over
            if quic:
                writer.write_eof()
            else:
                writer.close()
                await writer.wait_closed()
        except (OSError, ValueError, multi.MultiError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        self._last = {**asdict(receipt), "error": error, "carried": _carried(session)}
        self._over.set()

    async def last(self) -> dict[str, Any]:
        """What the server saw of the transfer that ends or has just ended."""
        await self._over.wait()
        self._over.clear()
        return self._last


async def _run_server(directory: Path, addresses: Sequence[str]) -> None:
    server, orders = _Server(directory, addresses), await _orders()
    await server.start()
    _answer(done=True)
    while await orders.readline():
        try:
            async with asyncio.timeout(10.0):
                _answer(done=True, **await server.last())
        except TimeoutError:
            _answer(done=True, error="the server has seen no end of the transfer")


# --- client ---


@dataclass(slots=True)
class _Open:
    reader: Reader
    writer: Writer
    session: Any = None


@functools.cache
def _context(directory: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


@functools.cache
def _loaded(config: str) -> multi.Config:
    return multi.load_config(json.loads(config))


@contextlib.asynccontextmanager
async def _opened(order: Order, directory: Path) -> AsyncIterator[_Open]:
    """Opening is all there is until this yields: what an application prepares once is prepared already."""
    if order.party == "multi":
        async with multi.connect(_loaded(json.dumps(order.config))) as session:
            yield _Open(session.reader, session.writer, session)
        return
    if order.party == "base-quic":
        quic = QuicConfiguration(is_client=True, alpn_protocols=[ALPN], server_name="localhost")
        quic.load_verify_locations(str(directory / "ca.pem"))
        async with connect_quic(order.host, order.port, configuration=quic) as protocol:
            yield _Open(*await protocol.create_stream())
        return
    tls: dict[str, Any] = {}
    if order.party == "base-tls":
        tls = {"ssl": _context(directory), "server_hostname": "localhost"}
    reader, writer = await asyncio.open_connection(order.host, order.port, **tls)
    try:
        yield _Open(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _carried(session: Any) -> dict[str, int]:
    """Payload received by interface; on the server, whose connections have one interface, by the client's address."""
    found: dict[str, int] = {}
    for c in session.connections if session is not None else ():
        key = c.interface or c.remote.rpartition(":")[0]
        found[key] = found.get(key, 0) + c.payload_received
    return found


async def _watch(session: Any, receipt: _Receipt, samples: list[tuple[float, int, dict[str, int]]]) -> None:
    """Every tenth of a second: when, bytes the application has read, payload by interface."""
    seen: dict[int, tuple[str, int]] = {}  # ended connections are forgotten by the session
    due = time.monotonic()
    while True:
        for c in session.connections:
            seen[c.id] = (c.interface, c.payload_received)
        carried: dict[str, int] = {}
        for interface, payload in seen.values():
            carried[interface] = carried.get(interface, 0) + payload
        samples.append((time.monotonic(), receipt.received, carried))
        due = max(due + SAMPLE, time.monotonic())
        await asyncio.sleep(due - time.monotonic())


async def _hand_over(session: Any, order: Order, opened: float, done: list[dict[str, Any]]) -> None:
    for at, to in order.handovers:
        await asyncio.sleep(opened + at - time.monotonic())
        started, error = time.monotonic(), ""
        try:
            await session.handover(to=to)
        except multi.MultiError as failure:
            error = f"{type(failure).__name__}: {failure}"
        done.append({"at": started, "took": time.monotonic() - started, "to": to, "error": error})


async def _transfer(order: Order, directory: Path) -> dict[str, Any]:
    receipt = _Receipt()
    samples: list[tuple[float, int, dict[str, int]]] = []
    handovers: list[dict[str, Any]] = []
    opening = time.monotonic()
    async with _opened(order, directory) as found, asyncio.TaskGroup() as beside:
        opened = time.monotonic()
        _answer(opened=opened)
        tasks = []
        if order.watch:
            tasks.append(beside.create_task(_watch(found.session, receipt, samples)))
        if order.handovers:
            tasks.append(beside.create_task(_hand_over(found.session, order, opened, handovers)))
        request = {"receives": order.receives, "size": order.size, "seconds": order.seconds}
        found.writer.write(json.dumps(request).encode() + b"\n")
        if order.receives:
            await _receive(found.reader, order.size, receipt)
        else:
            await _send(found.writer, order.size, 0.0, breathe=order.party == "base-quic")
            await found.reader.readexactly(1)
        for task in tasks:
            task.cancel()
        carried = _carried(found.session)
        found.writer.write(b"!")
    return {
        **asdict(receipt),
        "opening": opening,
        "opened": opened,
        "carried": carried,
        "samples": samples,
        "handovers": handovers,
    }


async def _run_client(directory: Path) -> None:
    orders = await _orders()
    _answer(done=True)
    while line := await orders.readline():
        order = Order.decoded(line.decode())
        if order.config:
            _loaded(json.dumps(order.config))
        try:
            async with asyncio.timeout(order.timeout):
                result = await _transfer(order, directory)
        except (Exception, asyncio.CancelledError) as failure:  # a bug of what is measured is a result too
            causes = failure.exceptions if isinstance(failure, BaseExceptionGroup) else (failure,)
            result = {"error": "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)}
        _answer(done=True, **result)


def main() -> int:
    """`serve` or `connect`, the directory with the certificates, and addresses where the server has to offer QUIC."""
    role, directory, addresses = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    asyncio.run(_run_server(directory, addresses) if role == "serve" else _run_client(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
