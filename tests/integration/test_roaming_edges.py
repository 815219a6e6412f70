"""Looking at the networks, handing over and adding, when something fails, repeats itself or takes its time."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

import multi
from multi.asyncio import dns as names
from multi.asyncio import resolution as resolve
from multi.asyncio import roaming as networks
from multi.asyncio.session import Session
from multi.discovery import interfaces_async
from multi.protocol.connection import Connection
from multi.protocol.sender import Sender
from multi.types import Family
from tests.integration.support import HOST, LOOPS, run

OTHER = "other.example"


class Looks:
    """Counts the looks at the interfaces, and lets the next ones fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.fail = 0
        self._look = interfaces_async
        monkeypatch.setattr(resolve, "interfaces_async", self)

    async def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self.count += 1
        if self.fail:
            self.fail -= 1
            raise OSError(24, "Too many open files")
        return await self._look(*arguments, **keywords)


class Sessions:
    """What a server has accepted."""

    def __init__(self) -> None:
        self.met: asyncio.Queue[Session] = asyncio.Queue()
        self.server: multi.Server | None = None

    async def __aenter__(self) -> Sessions:
        config = {"listen": {"host": HOST, "port": 0}, "multi_config": {"resume_timeout": 1}}
        self.server = await multi.start_server(self._client, config)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.server is not None
        self.server.close()
        await self.server.wait_closed()

    async def _client(self, reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        self.met.put_nowait(writer.get_extra_info("session"))
        await reader.read()
        writer.close()

    def config(self, *entries: object, **more: object) -> dict[str, object]:
        assert self.server is not None
        first = entries or (["tcp", "ipv4", "any"],)
        return {"connection_priority": list(first), "remote_host": HOST, "remote_port": self.server.port, **more}


async def counted(looks: Looks, count: int) -> None:
    async with asyncio.timeout(10):
        while looks.count < count:  # noqa: ASYNC110 - looks happen in threads
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_look_the_system_does_not_allow_is_tried_again(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "LOOK_AGAIN", 0.1)
    looks = Looks(monkeypatch)

    async def scenario() -> None:
        async with Sessions() as sessions, multi.connect(sessions.config()) as session:
            peer = await sessions.met.get()
            before, looks.fail = looks.count, 2
            peer.announce("127.0.0.77")
            await counted(looks, before + 3)
            assert session.error is None
            assert not looks.fail

    run(scenario(), loop)


def test_a_server_that_announces_without_end_is_not_looked_after_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)

    async def scenario() -> None:
        async with Sessions() as sessions, multi.connect(sessions.config()) as session:
            peer = await sessions.met.get()
            events = session.events()
            await session.confirmed()
            before, begun = looks.count, asyncio.get_running_loop().time()
            for number in range(200):
                peer.announce(f"127.0.2.{number}")
                await asyncio.sleep(0.002)
            peer.announce("127.0.3.1")
            async for event in events:
                if isinstance(event, multi.AddressesAnnounced) and event.addresses[0][0] == "127.0.3.1":
                    break
            took = asyncio.get_running_loop().time() - begun
            assert looks.count - before <= took / networks.LOOK_APART + 1
            for _ in range(20):
                peer.announce("127.0.3.1")
            await asyncio.sleep(4 * networks.LOOK_APART)
            settled = looks.count
            peer.announce("127.0.3.1")
            await asyncio.sleep(4 * networks.LOOK_APART)
            assert looks.count == settled, "what is known is no news"

    run(scenario())


def test_a_handover_ends_when_the_session_fails_by_itself(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = Sender.fill

    async def scenario() -> None:
        async with Sessions() as sessions:
            session = await multi.connect(
                sessions.config(
                    ["tcp", "ipv4", "127.0.0.1"], ["tcp", "ipv4", "127.0.0.2"], multi_config={"wait": "all"}
                )
            )
            moving = session.connections[1].id
            await asyncio.sleep(0.1)  # what the server says of the new connections has come
            # Nothing is heard of a target that may be dead before the handover's own time is over.
            session.network_changed("", usable=False)
            handover = asyncio.ensure_future(session.handover(moving))
            await asyncio.sleep(0)

            def broken(sender: Sender, usable: list[Connection], now: float) -> None:
                if sender is session._core.sender:
                    raise RuntimeError("a bug")
                fill(sender, usable, now)

            monkeypatch.setattr(Sender, "fill", broken)
            session.writer.write(b"x")
            with pytest.raises(multi.MultiError):
                await asyncio.wait_for(handover, 3.0)
            await session.settle()

    run(scenario())
    assert "internal error" in caplog.text


def test_a_session_the_server_has_closed_while_all_were_waited_for_is_there_to_be_read() -> None:
    async def hello_and_goodbye(_: multi.SessionReader, writer: multi.SessionWriter) -> None:
        writer.write(b"goodbye")
        writer.close()

    async def scenario() -> None:
        silent = socket.create_server((HOST, 0))  # takes connections and says nothing
        server = await multi.start_server(hello_and_goodbye, {"listen": {"host": HOST, "port": 0}})
        other = {
            "transport": "tcp",
            "ip": "ipv4",
            "interface": "any",
            "remote_host": HOST,
            "remote_port": silent.getsockname()[1],
        }
        config = {
            "connection_priority": [["tcp", "ipv4", "any"], other],
            "remote_host": HOST,
            "remote_port": server.port,
            "multi_config": {"wait": "all"},
        }
        reader, writer = await multi.open_connection(config)
        assert await reader.read() == b"goodbye"
        writer.close()
        await writer.get_extra_info("session").settle()
        server.close()
        silent.close()
        await server.wait_closed()

    run(scenario())


def test_an_added_connection_waits_for_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def lookup(host: str, family: Family) -> list[str]:
        released.wait(10.0)
        return [HOST]

    monkeypatch.setattr(names, "system_lookup", lookup)

    async def scenario() -> None:
        async with Sessions() as sessions, multi.connect(sessions.config()) as session:
            entry = {"transport": "tcp", "ip": "ipv4", "interface": HOST, "remote_host": OTHER}
            adding = asyncio.ensure_future(session.add_connection(entry))
            await asyncio.sleep(0.2)
            assert not adding.done()
            released.set()
            assert await asyncio.wait_for(adding, 5.0)

    run(scenario())
