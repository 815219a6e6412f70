"""`mpquic` over real sockets: plain QUIC with who does not speak it, missing engines, and sessions over it."""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.errors import TransportError
from multi.transports import transport
from multi.transports.base import Channel, TransportSettings
from multi.transports.mpquic import aioquic_engine, paths
from multi.transports.mpquic.channel import FELL_BACK, STAYS
from multi.transports.mpquic.frames import parameter
from multi.transports.mpquic.settings import MpquicSettings
from multi.transports.quic import transport as quic_transport
from multi.transports.quic.channel import QuicChannel
from multi.transports.quic.transport import connected_socket
from multi.types import Candidate, Family
from tests.integration.certificates import certificates_in
from tests.integration.support import until
from tests.integration.transports.mpquic.ends import SOURCES, dialled
from tests.integration.transports.test_contract import Recorder, Server, listening


async def _carries_and_ends(server: Server, channel: Channel, sink: Recorder) -> None:
    channel.write([b"hello"], 2)
    channel.flush()
    assert await (await server.sink()).until_received(5, 2) == b"hello"
    channel.close()
    await sink.until_lost()
    server.listener.close()


async def test_a_server_without_it_gets_plain_quic(settings: tuple[TransportSettings, TransportSettings]) -> None:
    server = await listening("quic", settings[1])
    channel, sink = await dialled(server, settings[0])
    assert (channel.info.transport, channel.info.fell_back, channel.info.detail) == ("quic", True, FELL_BACK)
    await _carries_and_ends(server, channel, sink)


async def test_a_server_that_takes_no_further_paths_gets_a_connection_over_each_other_network(
    settings: tuple[TransportSettings, TransportSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    stays = bytes([0x0C, 0])  # disable_active_migration, RFC 9000 section 18.2
    monkeypatch.setattr(paths, "parameter", lambda maximum: parameter(maximum) + stays)
    server = await listening("mpquic", replace(settings[1], sections={"mpquic": MpquicSettings(engine="aioquic")}))
    channel, sink = await dialled(server, settings[0])
    assert (channel.info.transport, channel.info.fell_back, channel.info.detail) == ("quic", True, STAYS)
    await _carries_and_ends(server, channel, sink)


async def test_its_listener_takes_plain_quic_on_the_same_port(
    settings: tuple[TransportSettings, TransportSettings],
) -> None:
    server = await listening("mpquic", settings[1])
    candidate = Candidate("quic", Family.IPV4, "localhost", "127.0.0.1", server.listener.address[1])
    channel = await transport("quic").dial(candidate, settings[0])
    sink = Recorder()
    sink.attach(channel)
    channel.write([b"hello"], 2)
    channel.flush()
    assert await (await server.sink()).until_received(5, 2) == b"hello"
    assert server.channels[0].info.transport == "quic"
    channel.abort()
    server.listener.close()


@pytest.mark.parametrize("engine", ["aioquic"], indirect=True)
async def test_ids_that_leave_with_the_first_flight_are_known_as_soon_as_they_have_left(
    settings: tuple[TransportSettings, TransportSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = []
    real = QuicChannel._transmit

    def transmit(channel: Any) -> None:
        real(channel)
        if not channel._server:
            known.append(set(channel.engine._connection._path_of_id) <= channel.ids)

    monkeypatch.setattr(QuicChannel, "_transmit", transmit)
    server = await listening("mpquic", settings[1])
    channel, _ = await dialled(server, settings[0])
    assert known
    assert all(known), "a path that is opened with one of them ends the connection by a stateless reset"
    channel.abort()
    server.listener.close()


@pytest.mark.parametrize("engine", ["aioquic"], indirect=True)
async def test_another_aioquic_is_refused_with_its_name(
    settings: tuple[TransportSettings, TransportSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioquic.__version__", "1.8.0")
    with pytest.raises(TransportError, match=r"mpquic needs aioquic 1\.7\.x, and 1\.8\.0 is installed"):
        await listening("mpquic", settings[1])
    assert "1.8.0" in transport("mpquic").obstacle(settings[1], listening=True)
    monkeypatch.undo()
    monkeypatch.setattr(aioquic_engine, "missing", lambda: ["_loss"])
    with pytest.raises(TransportError, match="it has no _loss"):
        await listening("mpquic", settings[1])


async def test_a_first_network_that_swallows_everything_does_not_keep_it_from_opening(
    settings: tuple[TransportSettings, TransportSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[socket.socket] = []

    def connected(candidate: Candidate) -> socket.socket:
        sock = connected_socket(candidate)
        if candidate.local_address == SOURCES[0].address:
            sock.connect(nobody.getsockname())
        opened.append(sock)
        return sock

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        server = await listening("mpquic", settings[1])  # by now loaded: its further paths open their sockets as always
        monkeypatch.setattr(quic_transport, "connected_socket", connected)
        channel, sink = await dialled(server, settings[0])
        assert channel.info.local.startswith(SOURCES[1].address)
        assert [sock.fileno() == -1 for sock in opened] == [True, False]
        await until(lambda: channel.info.subflows == 3)  # over the first, too, once it carries
        channel.close()
        await sink.until_lost()
        server.listener.close()


async def test_a_dial_that_is_given_up_leaves_no_socket(
    settings: tuple[TransportSettings, TransportSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[socket.socket] = []

    def connected(candidate: Candidate) -> socket.socket:
        opened.append(connected_socket(candidate))
        return opened[-1]

    monkeypatch.setattr(quic_transport, "connected_socket", connected)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        first, *others = SOURCES
        port = nobody.getsockname()[1]
        candidate = Candidate("mpquic", Family.IPV4, "localhost", "127.0.0.1", port).begun_from(first)
        candidate = replace(candidate, more_sources=tuple(others))
        dialling = asyncio.ensure_future(transport("mpquic").dial(candidate, settings[0]))
        await until(lambda: len(opened) == 2)
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
        assert [sock.fileno() for sock in opened] == [-1, -1]


async def test_a_session_runs_over_it(tmp_path: Path, engine: str) -> None:
    files = certificates_in(tmp_path / "certificates")

    async def echo(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        writer.write(await reader.read(-1))
        writer.close()

    server = await multi.start_server(
        echo,
        {
            "listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp", "mpquic"]},
            "ssl_config": {"cert": str(files.cert("server")), "key": str(files.key("server"))},
            "mpquic_config": {"engine": engine},
        },
    )
    for name in ("mpquic", "quic", "tcp"):
        config = {
            "connection_priority": [[name, "ipv4", "127.0.0.1"]],
            "remote_host": "127.0.0.1",
            "remote_port": server.port,
            "ssl_config": {"ca": str(files.ca), "server_name": "localhost"},
            "mpquic_config": {"engine": engine},
        }
        async with multi.connect(config) as session:
            session.writer.write(bytes(200_000))
            session.writer.write_eof()
            assert len(await session.reader.read(-1)) == 200_000
            assert [connection.transport for connection in session.connections] == [name]
    server.close()


async def test_an_engine_that_is_not_built_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "multi_noq", None)
    monkeypatch.delitem(sys.modules, "multi.transports.quic.noq_engine", raising=False)
    files = certificates_in(tmp_path / "certificates")
    native = {"mpquic": MpquicSettings.model_validate({"engine": "noq"})}
    with pytest.raises(TransportError, match="make native"):
        await listening("mpquic", replace(files.server_settings(), sections=native))
