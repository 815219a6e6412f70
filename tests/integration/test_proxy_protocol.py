"""Servers behind a proxy that says who its clients are."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import multi
from tests.integration.support import HOST, Inbox, Relay, Way, run, until

pytestmark = pytest.mark.usefixtures("bounded_callbacks")

WAYS = ["tcp-sealed", "tcp-tls", "mptcp-sealed"]


def header(client: str, port: int = 50000) -> bytes:
    source = ipaddress.ip_address(client)
    family = 0x11 if source.version == 4 else 0x21
    body = 2 * source.packed + port.to_bytes(2, "big") + (7788).to_bytes(2, "big")
    return b"\r\n\r\n\0\r\nQUIT\n" + bytes([0x21, family]) + len(body).to_bytes(2, "big") + body


class Proxy(Relay):
    """A relay that begins with a header."""

    says = header("192.0.2.7")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began = asyncio.StreamReader()
        began.feed_data(self.says)
        asyncio.ensure_future(_follow(reader, began))  # noqa: RUF006 - it ends with the reader
        await super().serve(began, writer)


async def _follow(reader: asyncio.StreamReader, into: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            into.feed_data(data)
    into.feed_eof()


def server(way: Way, *, believed: str = "127.0.0.0/8", **more: Any) -> dict[str, Any]:
    listen = {"host": HOST, "port": 0, "transports": ["tcp", "mptcp"], "proxy_protocol": [believed]}
    return way.server(listen=listen, **more)


@pytest.mark.parametrize("client", ["192.0.2.7", "2001:db8::7"])
@pytest.mark.parametrize("name", WAYS)
def test_the_server_sees_the_client_and_not_the_proxy(name: str, client: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        way, inbox = Way(development_certificates, name), Inbox()
        async with await multi.start_server(inbox.on_client, server(way)) as running, Proxy(running.port) as proxy:
            proxy.says = header(client)
            async with multi.connect(way.client(proxy.port)) as session:
                await session.confirmed()
                peer = await inbox.session()
                (info,) = peer.connections
                assert info.remote == (f"[{client}]:50000" if ":" in client else f"{client}:50000")
                assert peer.writer.get_extra_info("peername")[:2] == (client, 50000)
                session.writer.write(b"through the proxy\n")
                assert await peer.reader.readline() == b"through the proxy\n"

    run(scenario())


def test_limits_for_each_source_are_those_of_clients(development_certificates: Path) -> None:
    async def scenario() -> None:
        way, inbox = Way(development_certificates), Inbox()
        config = server(way, limits={"max_sessions_per_source": 1})
        async with await multi.start_server(inbox.on_client, config) as running, Proxy(running.port) as proxy:
            sessions = []
            for number in range(1, 4):
                proxy.says = header(f"198.51.{number}.1")
                sessions.append(await multi.connect(way.client(proxy.port)).__aenter__())
                await sessions[-1].confirmed()
            assert running.statistics["max_sessions_per_source"] == 0
            with suppress(multi.MultiError):
                async with multi.connect(way.client(proxy.port, multi_config={"open_timeout": 3.0})) as further:
                    await further.confirmed()
            assert running.statistics["max_sessions_per_source"] > 0
            for session in sessions:
                session.abort()
            running.abort()

    run(scenario())


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"", "no PROXY protocol header"),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 50000 7788\r\n", "version 1"),
        (header("192.0.2.7")[:12] + b"\x21\x11\xff\xff" + bytes(100), "allowed: 4096"),
    ],
    ids=["none", "version 1", "oversize"],
)
@pytest.mark.parametrize("name", ["tcp-sealed", "tcp-tls"])
def test_a_listed_proxy_without_a_header_is_refused_with_a_reason(
    name: str, says: bytes, why: str, development_certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "multi.transports")

    async def scenario() -> None:
        way = Way(development_certificates, name)
        async with await multi.start_server(Inbox().on_client, server(way)) as running, Proxy(running.port) as proxy:
            proxy.says = says
            with pytest.raises(multi.MultiError):
                await multi.open_connection(way.client(proxy.port, multi_config={"open_timeout": 3.0}))

    run(scenario())
    assert why in caplog.text


def test_a_header_from_anywhere_else_is_not_believed(development_certificates: Path) -> None:
    async def scenario() -> None:
        way, inbox = Way(development_certificates), Inbox()
        config = server(way, believed="192.0.2.0/24")
        async with await multi.start_server(inbox.on_client, config) as running, Proxy(running.port) as proxy:
            with pytest.raises(multi.MultiError):
                await multi.open_connection(way.client(proxy.port, multi_config={"open_timeout": 3.0}))
            async with multi.connect(way.client(running.port)) as session:
                await session.confirmed()
                (info,) = (await inbox.session()).connections
                assert info.remote.startswith(HOST), "who is not listed needs no header"

    run(scenario())


def test_half_a_header_counts_as_half_open_and_is_given_up_in_time(development_certificates: Path) -> None:
    async def scenario() -> None:
        config = server(Way(development_certificates), limits={"handshake_timeout": 0.2})
        async with await multi.start_server(Inbox().on_client, config) as running:
            reader, writer = await asyncio.open_connection(HOST, running.port)
            writer.write(header("192.0.2.7")[:20])
            assert await reader.read() == b""
            assert running.statistics["handshake_timeout"] == 1
            writer.close()

    run(scenario())


def test_a_health_check_disturbs_nobody(development_certificates: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        async with await multi.start_server(Inbox().on_client, server(Way(development_certificates))) as running:
            for said in (b"", b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00"):
                _, writer = await asyncio.open_connection(HOST, running.port)
                writer.write(said)
                writer.close()
                await writer.wait_closed()
            await until(lambda: not running.reception.arrivals)

    run(scenario())
    assert not caplog.records


def test_a_balancer_that_restarts_is_not_taken_for_the_death_of_its_clients(development_certificates: Path) -> None:
    async def scenario() -> None:
        way, inbox = Way(development_certificates), Inbox()
        config = server(way, multi_config={"abandon_timeout": 0.2})
        async with (
            await multi.start_server(inbox.on_client, config) as running,
            Proxy(running.port) as proxy,
            multi.connect(way.client(proxy.port)) as session,
        ):
            await session.confirmed()
            peer = await inbox.session()
            await proxy.close()
            await asyncio.sleep(0.6)
            assert peer.error is None
            await proxy.open()
            await until(lambda: peer.state.value == "open", "it comes back")

    run(scenario())
