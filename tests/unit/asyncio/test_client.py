"""The client: what it refuses to open, when opening is over, and how a session is left."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

import multi

HOST = "127.0.0.1"
LISTEN = {"listen": {"host": HOST, "port": 0, "transports": ["tcp"]}}


class Clients:
    """Sessions a server got."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[multi.Session] = asyncio.Queue()

    def __call__(self, _reader: Any, writer: multi.SessionWriter) -> None:
        self.came.put_nowait(writer.get_extra_info("session"))


def config(port: int, *more: object, **keys: object) -> dict[str, object]:
    entries = [["tcp", "ipv4", HOST], *more]
    return {"connection_priority": entries, "remote_host": HOST, "remote_port": port, **keys}


async def test_a_servers_configuration_opens_no_session() -> None:
    with pytest.raises(multi.ConfigError, match="needs connection_priority"):
        await multi.open_connection(LISTEN)


async def test_every_attempt_is_named_where_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        port = bound.getsockname()[1]
        with pytest.raises(multi.NoUsableConnection) as caught:
            await multi.open_connection(config(port, ["tcp", "ipv4", "127.0.0.2"]))
    assert len(caught.value.attempts) == 2
    assert all("refused" in reason for _, reason in caught.value.attempts)


async def test_waiting_for_all_ends_when_all_have_been_tried() -> None:
    clients = Clients()
    async with await multi.start_server(clients, LISTEN) as server:
        with socket.socket() as bound:
            bound.bind((HOST, 0))
            nobody = {"transport": "tcp", "ip": "ipv4", "interface": HOST, "remote_port": bound.getsockname()[1]}
            wanted = config(server.port, ["tcp", "ipv4", "127.0.0.2"], nobody, multi_config={"wait": "all"})
            async with asyncio.timeout(5), multi.connect(wanted) as session:
                living = [c for c in session.connections if c.state is multi.ConnectionState.ACTIVE]
                assert len(living) == 2


async def test_an_exception_aborts_the_session_and_passes() -> None:
    clients = Clients()
    async with await multi.start_server(clients, LISTEN) as server:

        async def use() -> None:
            async with multi.connect(config(server.port)) as session:
                await session.confirmed()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await use()
        theirs = await clients.came.get()
        with pytest.raises(multi.SessionLost):
            await theirs.wait_closed()


async def test_a_cancelled_end_waits_for_nobody() -> None:
    clients = Clients()
    async with await multi.start_server(clients, LISTEN) as server:
        entered = asyncio.Event()

        async def use() -> None:
            async with multi.connect(config(server.port)) as session:
                session.writer.write(bytes(64 * 1024 * 1024))  # more than windows take while nobody reads
                entered.set()

        using = asyncio.ensure_future(use())
        await entered.wait()
        await asyncio.sleep(0.05)
        assert not using.done()
        using.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait([using])
        assert using.cancelled()
