"""The server: what it refuses to start with, and how it binds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import multi
from multi.protocol.segment import HEADER_LENGTH
from multi.transports.base import Listener, Transport, transport

from .test_reception import HOST, LISTEN, answer_to, ignore


async def test_a_server_shows_its_port_and_how_many_sessions_it_has() -> None:
    async with await multi.start_server(ignore, LISTEN) as server:
        assert repr(server) == f"<Server port={server.port} sessions=0>"


async def test_a_clients_configuration_starts_no_server() -> None:
    with pytest.raises(multi.ConfigError, match="needs listen"):
        await multi.start_server(ignore, {"connection_priority": [["tcp", "ipv4", HOST]], "remote_host": HOST})


async def test_a_port_in_use_leaves_no_other_listener() -> None:
    async with await multi.start_server(ignore, LISTEN) as first:
        taken = {"listen": {**LISTEN["listen"], "port": first.port}}
        with pytest.raises(multi.TransportError, match="in use"):
            await multi.start_server(ignore, taken)
        assert await answer_to(first, b"\xff" * HEADER_LENGTH) == b""


def bound_slowly(monkeypatch: pytest.MonkeyPatch) -> list[Listener]:
    """Transports that are loaded late, as one is whose code has to be imported; what they bind."""
    bound: list[Listener] = []

    async def late(name: str) -> Transport:
        made = transport(name)
        listen = made.listen

        async def listening(*arguments: Any) -> Listener:
            listener = await listen(*arguments)
            bound.append(listener)
            return listener

        await asyncio.sleep(0.01)
        monkeypatch.setattr(made, "listen", listening)
        return made

    monkeypatch.setattr("multi.asyncio.server.loaded_transport", late)
    return bound


async def test_who_starts_serving_together_binds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = bound_slowly(monkeypatch)
    server = await multi.start_server(ignore, LISTEN, start_serving=False)
    await asyncio.gather(server.start_serving(), server.start_serving())
    assert len(bound) == len(server.sockets) == 1
    server.close()
    await server.wait_closed()


async def test_a_server_that_is_closed_while_it_binds_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = bound_slowly(monkeypatch)
    server = await multi.start_server(ignore, LISTEN, start_serving=False)
    starting = asyncio.create_task(server.start_serving())
    await asyncio.sleep(0)
    server.close()
    with pytest.raises(RuntimeError, match="closed"):
        await starting
    assert [listener.sock.fileno() for listener in bound] == [-1]
    assert not server.is_serving()
