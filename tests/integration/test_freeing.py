"""What has ended goes when whoever held it lets go, however it ended: nothing waits for the garbage collector.

A full collection stops everything that the event loop does, and takes the longer the more there is.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import ref

import pytest

import multi
from tests.integration.support import HOST, Relay, Way, run, until

SOON = 0.4  # seconds


class Place:
    """A server that echoes, what its clients are configured with, and weak references to what both sides hold."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.held: list[ref[Any]] = []
        self.server: multi.Server
        self.port = 0

    async def __aenter__(self) -> Place:
        self.server = await multi.start_server(self._serve, self.way.server(limits={"handshake_timeout": 1.0}))
        self.port = self.server.port
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.abort()
        await self.server.wait_closed()

    def client(self, **more: Any) -> dict[str, Any]:
        return self.way.client(self.port, **more)

    def hold(self, *things: object) -> None:
        self.held += [ref(thing) for thing in things]

    @property
    def living(self) -> list[object]:
        return [thing for known in self.held if (thing := known()) is not None]

    async def _serve(self, reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        session: multi.Session = writer.get_extra_info("session")
        self.hold(session, reader, writer, writer.transport)
        with suppress(ConnectionError):
            while word := await reader.readline():
                if word == b"raise\n":
                    raise ZeroDivisionError("a bug of the application")
                if word == b"end\n":
                    break
                if word == b"take\n":
                    pair = await anext(session.streams())
                    self.hold(*pair)
                    await pair[0].read()
                writer.write(word)
            writer.close()
            await writer.wait_closed()

    async def opened(self, **more: Any) -> multi.Session:
        """A session that has said something, and got it back."""
        session = await multi.connect(self.client(**more))
        self.hold(session, session.reader, session.writer, session.transport)
        await said(session, b"hello\n")
        return session


async def lost(reading: asyncio.Task[bytes]) -> None:
    """Raised here, what it raises would hold this frame, and that the task which holds it."""
    await asyncio.wait([reading])
    assert isinstance(reading.exception(), multi.SessionLost)


async def said(session: multi.Session, word: bytes) -> None:
    session.writer.write(word)
    assert await session.reader.readline() == word


# --- how sessions end ---


async def closed_by_the_client(place: Place) -> None:
    session = await place.opened()
    await session.close()


async def closed_by_the_server(place: Place) -> None:
    session = await place.opened()
    session.writer.write(b"end\n")
    assert await session.reader.read() == b""
    await session.wait_closed()


async def aborted_by_the_client(place: Place) -> None:
    session = await place.opened()
    session.abort()
    await session.wait_closed()
    with suppress(multi.SessionLost):
        await session.reader.read()
    with suppress(multi.SessionLost):
        await session.open_stream()


async def aborted_by_the_server(place: Place) -> None:
    session = await place.opened()
    reading = asyncio.ensure_future(session.reader.read())
    await asyncio.sleep(0)
    place.server.abort_clients()
    await lost(reading)
    for raises in (session.wait_closed(), session.writer.drain(), session.open_stream(), session.close()):
        with suppress(multi.SessionLost):
            await raises


async def lost_with_all_its_networks(place: Place) -> None:
    async with Relay(place.port) as relay:
        session = await place.opened(remote_port=relay.port, multi_config={"resume_timeout": SOON})
        session.writer.write(bytes(1_000_000))
        await relay.close()
        for raises in (session.reader.readexactly(1), session.wait_closed(), session.writer.wait_closed()):
            with suppress(multi.SessionLost):
                await raises
        del raises, relay


async def refused_at_the_port(place: Place) -> None:
    with suppress(OSError):
        await multi.connect(place.client(remote_port=1))


async def refused_by_the_server(place: Place) -> None:
    session = await place.opened()
    with suppress(multi.SessionRefused):
        await multi.connect(place.client(session_id=session.id.hex()))
    await session.close()


async def never_answered(place: Place) -> None:
    with socket.create_server((HOST, 0)) as silent, suppress(multi.NoUsableConnection):
        await multi.connect(place.client(multi_config={"open_timeout": SOON}, remote_port=silent.getsockname()[1]))


async def cancelled_while_it_opened(place: Place) -> None:
    for turns in (0, 1, 3, 10, 30):
        opening = asyncio.ensure_future(multi.open_connection(place.client()))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            opening.result()[1].transport.abort()


async def unknown_name(place: Place) -> None:
    with suppress(OSError):
        await multi.connect(place.client(remote_host="nobody.invalid"))


async def with_a_handler_that_raises(place: Place) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    session = await place.opened()
    session.writer.write(b"raise\n")
    with suppress(multi.SessionLost):
        await session.reader.read()
    with suppress(multi.SessionLost):
        await session.wait_closed()


async def with_streams_open(place: Place) -> None:
    session = await place.opened()
    await said_on_a_stream(place, session)
    reader, writer = await session.open_stream()
    place.hold(reader, writer)
    writer.write(bytes(100_000))
    reading = asyncio.ensure_future(reader.read())
    await asyncio.sleep(0)
    session.abort()
    await lost(reading)
    with suppress(multi.SessionLost):
        await writer.wait_closed()
    await session.settle()


async def said_on_a_stream(place: Place, session: multi.Session) -> None:
    session.writer.write(b"take\n")
    reader, writer = await session.open_stream()
    place.hold(reader, writer)
    writer.write(b"something")
    writer.close()
    await writer.wait_closed()
    assert await session.reader.readline() == b"take\n"


async def with_protocols(place: Place) -> None:
    class Told(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport  # as everybody does
            self.lost = asyncio.get_running_loop().create_future()

        def connection_lost(self, exc: Exception | None) -> None:
            self.lost.set_result(None)

    transport, first = await multi.create_connection(Told, place.client())
    second = (await transport.get_extra_info("session").create_stream(Told))[1]
    place.hold(transport, first, second)
    transport.close()
    await first.lost
    await second.lost


async def with_tls_inside_that_nobody_answers(place: Place) -> None:
    session = await place.opened()
    with suppress(OSError):
        await session.writer.start_tls(ssl.create_default_context(), server_hostname=HOST, ssl_handshake_timeout=0.1)
    session.abort()
    await session.wait_closed()


async def with_those_who_look(place: Place) -> None:
    here = place.way.certificates
    session = await place.opened(control={"socket": str(here / "c.sock"), "metrics_port": 0}, trace={"dir": str(here)})
    await session.close()


async def with_connections_that_change(place: Place) -> None:
    session = await place.opened(connection_priority=[["tcp", "ipv4", HOST], ["tcp", "ipv4", "127.0.0.2"]])
    await until(lambda: sum(c.state.value == "active" for c in session.connections) == 2)
    await session.handover("127.0.0.2")
    (added,) = await session.add_connection(["tcp", "ipv4", "127.0.0.3"])
    await session.remove_connection(added)
    for wrong in (session.handover("127.0.0.9"), session.add_connection(["quic", "ipv4", HOST])):
        with suppress(multi.MultiError):
            await wrong
    del wrong
    await session.close()


async def with_listeners(place: Place) -> None:
    session = await place.opened()
    events = session.events()
    place.hold(events)
    datagrams = session.datagrams()
    datagrams.send(b"one")
    await session.close()
    async for _ in events:
        pass


ENDS = [
    closed_by_the_client,
    closed_by_the_server,
    aborted_by_the_client,
    aborted_by_the_server,
    lost_with_all_its_networks,
    refused_at_the_port,
    refused_by_the_server,
    never_answered,
    cancelled_while_it_opened,
    unknown_name,
    with_a_handler_that_raises,
    with_streams_open,
    with_protocols,
    with_tls_inside_that_nobody_answers,
    with_listeners,
    with_those_who_look,
    with_connections_that_change,
]


# --- what is left ---


def what(thing: object) -> str:
    if isinstance(thing, FrameType):
        return f"frame of {thing.f_code.co_qualname} in {thing.f_code.co_filename}"
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def is_ours(thing: object) -> bool:
    name = what(thing)
    return name.startswith(("multi.", "aioquic", "qh3")) or "/multi/" in name


async def left_by(end: Callable[[Place], Awaitable[None]], place: Place) -> Counter[str]:
    """Without a garbage collector: what still lives, and what only that would find."""
    await end(place)  # what a process needs once is made once
    await until(
        lambda: not place.server.sessions and not place.server.reception.arrivals, "the server has heard of it too"
    )
    await asyncio.sleep(0.1)
    place.held.clear()
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        await end(place)
        with suppress(AssertionError):
            await until(lambda: not place.living and not place.server.sessions, timeout=3.0)
        await asyncio.sleep(0.05)  # whoever held them last may hold more
        left = Counter(f"{what(thing)} lives" for thing in place.living)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left.update(filter(None, (what(thing) if is_ours(thing) else "" for thing in gc.garbage)))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
    return left


def check(end: Callable[[Place], Awaitable[None]], way: Way, loop: str = "asyncio") -> None:
    async def scenario() -> None:
        async with Place(way) as place:
            left = await left_by(end, place)
            assert left == {}

    run(scenario(), loop)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_session_goes_with_who_held_it(
    end: Callable[[Place], Awaitable[None]], development_certificates: Path
) -> None:
    check(end, Way(development_certificates))


@pytest.mark.parametrize("way", ["tcp-tls", "quic", "mpquic"])
def test_so_it_does_over_other_transports(way: str, development_certificates: Path) -> None:
    check(closed_by_the_client, Way(development_certificates, way))
    check(aborted_by_the_server, Way(development_certificates, way))


def test_who_keeps_one_part_of_an_ended_session_finds_the_others(development_certificates: Path) -> None:
    async def kept(place: Place, name: str) -> Any:
        session = await place.opened()
        session.writer.write(b"last words\nend\n")
        await session.wait_closed()
        return getattr(session, name)

    async def scenario() -> None:
        async with Place(Way(development_certificates)) as place:
            assert await (await kept(place, "reader")).read() == b"last words\n"
            for name in ("writer", "transport"):
                part = await kept(place, name)
                session: multi.Session = part.get_extra_info("session")
                assert part.get_extra_info("session") is session
                assert part.get_extra_info("peername") == (HOST, place.port)
                assert session.state.value == "closed"
                assert session.error is None
                assert session.stats().bytes_received
                assert session.writer.is_closing()
                assert await session.reader.read() == b"last words\n"
                await session.wait_closed()

    run(scenario())
