"""The ends of `test_attacks`: servers, clients with a transfer under way, and those who stand between them.

`python -m tests.testbed.attack_ends` does what lines of JSON on its standard input say, all at the same time: `[number,
function, arguments, named arguments]`, answered by `[number, succeeded, value]`. What attackers with addresses of their
own do is in `strangers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import ssl
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import multi
from multi import ConnectionState
from tests.integration.callbacks import callbacks_bounded
from tests.testbed import strangers

SERVER = strangers.SERVER
LINE = b"%016x plaintext nobody on the way may ever see or change......\n"
NEEDLE = b"plaintext nobody on the way may"
BLOCK = 1024  # lines
MIB = 1 << 20

servers: dict[str, tuple[multi.Server, list[dict[str, Any]]]] = {}
transfers: dict[str, Transfer] = {}
relays: dict[int, tuple[asyncio.Server, list[str]]] = {}
measuring = contextlib.ExitStack()
"""Where there are servers, what their callbacks cost is bounded until they are cleared away."""


def block(number: int) -> bytes:
    """64 KiB that say where they belong."""
    return b"".join(LINE % line for line in range(number * BLOCK, (number + 1) * BLOCK))


# --- servers ---


async def serve(name: str, config: dict[str, Any]) -> None:
    """Echo, and remember what came."""
    seen: list[dict[str, Any]] = []

    async def echo(reader: Any, writer: Any) -> None:
        record: dict[str, Any] = {"id": reader_session(writer), "bytes": 0, "sha256": "", "error": ""}
        seen.append(record)
        digest = hashlib.sha256()
        try:
            while data := await reader.read(65536):
                record["bytes"] += len(data)
                digest.update(data)
                record["sha256"] = digest.hexdigest()
                writer.write(data)
                await writer.drain()
            writer.close()
        except ConnectionError as error:
            record["error"] = str(error)

    if not servers:
        measuring.enter_context(callbacks_bounded())
    servers[name] = await multi.start_server(echo, config), seen


def reader_session(writer: Any) -> str:
    session: multi.Session = writer.get_extra_info("session")
    return session.id.hex()


async def seen(name: str) -> list[dict[str, Any]]:
    return servers[name][1]


async def statistics(name: str) -> dict[str, Any]:
    server = servers[name][0]
    return {"sessions": len(server.sessions), "limits": {k: v for k, v in server.statistics.items() if v}}


async def stop(name: str) -> None:
    server = servers.pop(name)[0]
    server.abort()
    await asyncio.wait_for(server.wait_closed(), 5.0)


# --- clients ---


class Transfer:
    """Lines that go to an echoing server and have to come back, until told otherwise."""

    def __init__(self, session: multi.Session) -> None:
        self.session = session
        self.events: Counter[str] = Counter()
        self.reasons: list[str] = []
        self.carried: set[str] = set()
        """The interfaces over which a connection has ever been active."""
        self.sent = self.received = 0
        self.gap = 0.0
        self.digest = hashlib.sha256()
        self.stopping = False
        self._listening = asyncio.ensure_future(self._listen())
        self._sending = asyncio.ensure_future(self._send())
        self._reading = asyncio.ensure_future(self._read())

    async def _listen(self) -> None:
        async for event in self.session.events():
            match event:
                case multi.ConnectionChanged():
                    self.events[event.state.value] += 1
                    if event.state is ConnectionState.ACTIVE:
                        self.carried.add(event.facts.interface)
                    if event.state in (ConnectionState.LOST, ConnectionState.CLOSED):
                        self.reasons.append(event.reason)
                case multi.AttemptFailed():
                    self.events["attempt failed"] += 1
                    self.reasons.append(event.reason)
                case _:
                    self.events[type(event).__name__] += 1

    async def _send(self) -> None:
        writer = self.session.writer
        while not self.stopping:
            data = block(self.sent // len(LINE % 0) // BLOCK)
            self.digest.update(data)
            writer.write(data)
            self.sent += len(data)
            await writer.drain()
        writer.write_eof()

    async def _read(self) -> None:
        """Every byte where it belongs."""
        last, expected, at = time.monotonic(), b"", 0
        while data := await self.session.reader.read(65536):
            now = time.monotonic()
            self.gap, last = max(self.gap, now - last), now
            while data:
                if at == len(expected):
                    expected, at = block(self.received // len(expected or block(0))), 0
                part = data[: len(expected) - at]
                assert part == expected[at : at + len(part)], f"byte {self.received} and following"
                self.received, at, data = self.received + len(part), at + len(part), data[len(part) :]

    def check(self) -> None:
        for task in (self._sending, self._reading):
            if task.done():
                task.result()

    def facts(self) -> dict[str, Any]:
        return {
            "id": self.session.id.hex(),
            "sent": self.sent,
            "received": self.received,
            "gap_ms": round(self.gap * 1e3),
            "sha256": self.digest.hexdigest(),
            "events": dict(self.events),
            "reasons": self.reasons[-40:],
            "carried": sorted(self.carried),
            "active": sorted(c.interface for c in self.session.connections if c.state is ConnectionState.ACTIVE),
        }

    async def finish(self) -> dict[str, Any]:
        self.stopping = True
        await self._sending
        await self._reading
        assert self.received == self.sent, f"{self.received} of {self.sent} bytes came back"
        facts = self.facts()
        await self.session.close()
        await self._listening
        return facts

    async def drop(self) -> None:
        self.session.abort()
        for task in (self._sending, self._reading):
            task.cancel()
        await asyncio.gather(self._sending, self._reading, self._listening, return_exceptions=True)


async def begin(name: str, config: dict[str, Any], active: list[str] = []) -> float:  # noqa: B006 - never changed
    """Open a session and let it transfer; return the seconds until it was confirmed."""
    started = time.monotonic()
    session = await multi.connect(config)
    try:
        await session.confirmed()
    except BaseException:
        session.abort()
        raise
    took = time.monotonic() - started
    transfers[name] = Transfer(session)
    if active:
        await until(name, active=active)
    return took


async def until(name: str, *, active: list[str] | None = None, received: int = 0, within: float = 8.0) -> float:
    """Wait for connections that work, and for bytes that come back from now on; return how long it took."""
    transfer = transfers[name]
    started, before = time.monotonic(), transfer.received
    while True:
        transfer.check()
        facts = transfer.facts()
        if (active is None or facts["active"] == active) and transfer.received >= before + received:
            return time.monotonic() - started
        assert time.monotonic() < started + within, f"{active} {received} within {within} s: {facts}"
        await asyncio.sleep(0.005)


async def facts(name: str) -> dict[str, Any]:
    transfers[name].check()
    return transfers[name].facts()


async def finish(name: str) -> dict[str, Any]:
    return await asyncio.wait_for(transfers.pop(name).finish(), 10.0)


async def ends(name: str, within: float) -> tuple[float, str]:
    """How long the session still lives, and what its reader is told then."""
    started = time.monotonic()
    transfer = transfers.pop(name)
    try:
        await asyncio.wait_for(transfer._reading, within)
    except (ConnectionError, TimeoutError) as error:
        return time.monotonic() - started, f"{type(error).__name__}: {error}"
    finally:
        await transfer.drop()
    return time.monotonic() - started, ""


async def clear() -> None:
    """Let go of what a test has left. Raises AssertionError when a callback of a server took too long."""
    await strangers.dropped()
    for name in list(transfers):
        await transfers.pop(name).drop()
    for port in list(relays):
        relays.pop(port)[0].close()
    for name in list(servers):
        await stop(name)
    measuring.close()


async def attempt(config: dict[str, Any]) -> str:
    """What becomes of opening a session: the error it ends with, or nothing."""
    try:
        async with multi.connect(config) as session:
            await session.confirmed()
            session.writer.write(b"hello")
            await session.reader.readexactly(5)
    except (multi.MultiError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


# --- relays at the level of streams ---


async def relay(
    port: int,
    to: int,
    *,
    listen_tls: list[str] | None = None,
    dial_tls: bool = False,
    edit: str = "",
) -> None:
    """Stand between client and server; with TLS of its own towards either, and editing what the client sends."""
    told: list[str] = []
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: Any, writer: Any, way: str) -> None:
        count = 0
        with contextlib.suppress(OSError, ssl.SSLError):
            while data := await reader.read(65536):
                count += len(data)
                if edit and way == "up" and count > MIB:
                    data, count = edited(edit, data), 0
                    told.append(edit)
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError, ssl.SSLError):
            writer.close()

    async def between(reader: Any, writer: Any) -> None:
        context = None
        if dial_tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["multi/1"])
        try:
            near = await asyncio.open_connection(SERVER, to, ssl=context)
        except OSError as error:
            told.append(f"server: {error}")
            writer.close()
            return
        told.append("carried")
        for task in (
            asyncio.ensure_future(carry(reader, near[1], "up")),
            asyncio.ensure_future(carry(near[0], writer, "down")),
        ):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    context = None
    if listen_tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*listen_tls)
        context.set_alpn_protocols(["multi/1"])
    relays[port] = await asyncio.start_server(between, SERVER, port, ssl=context), told


def edited(how: str, data: bytes) -> bytes:
    middle = len(data) // 2
    match how:
        case "insert":
            return data[:middle] + b"inserted" + data[middle:]
        case "remove":
            return data[: middle - 8] + data[middle:]
        case "repeat":
            return data + data
        case _:
            raise AssertionError(how)


async def relayed(port: int) -> list[str]:
    return relays[port][1]


async def answer(port: int, said: str) -> None:
    """A server that says the same to everybody, whatever they say."""

    async def tell(reader: Any, writer: Any) -> None:
        with contextlib.suppress(OSError):
            first = await reader.read(4096)
            writer.write(bytes.fromhex(said).replace(b"SESSION-ID-HERE!", first[8:24].ljust(16)))
            await writer.drain()
            await reader.read(1)
        writer.close()

    relays[port] = await asyncio.start_server(tell, SERVER, port), []


# --- what is said on standard input ---


async def obey() -> None:
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks: set[asyncio.Task[None]] = set()
    print(json.dumps([0, True, None]), flush=True)
    while line := await reader.readline():
        task = asyncio.ensure_future(_do(*json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _do(number: int, name: str, arguments: list[Any], named: dict[str, Any]) -> None:
    function: Callable[..., Awaitable[Any]] = globals().get(name) or getattr(strangers, name)
    try:
        reply = [number, True, await function(*arguments, **named)]
    except Exception:  # whatever it is, the test is to see it
        reply = [number, False, traceback.format_exc()]
    print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    asyncio.run(obey())
