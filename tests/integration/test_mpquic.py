"""`mpquic` over real sockets: a path from each address, plain QUIC with who does not speak it, and sessions over it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

import multi
from multi.errors import ConfigError, TransportError
from multi.multipath.policy import PRIVATE_MODES
from multi.transports import transport
from multi.transports.base import Channel, TransportSettings
from multi.transports.mpquic import aioquic_engine
from multi.transports.mpquic.channel import FELL_BACK, MpquicChannel
from multi.transports.mpquic.private import PrivateEngine
from multi.transports.mpquic.settings import MpquicSettings
from multi.types import Candidate, Family, Source
from tests.engines import engine_or_skip
from tests.integration.certificates import certificates_in
from tests.integration.support import until
from tests.integration.test_transport_contract import Recorder, Server

SOURCES = tuple(Source("", f"127.0.0.{at}") for at in (1, 2, 3))
SIZE = 3_000_000


@pytest.fixture(params=["aioquic", "noq"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param != "aioquic":
        engine_or_skip(request.param)
    return str(request.param)


@pytest.fixture
def settings(tmp_path: Path, engine: str) -> tuple[TransportSettings, TransportSettings]:
    """Of the client and of the server, both with this engine."""
    files = certificates_in(tmp_path / "certificates")
    sections = {"mpquic": MpquicSettings.model_validate({"engine": engine})}
    return replace(files.client_settings(), sections=sections), replace(files.server_settings(), sections=sections)


async def listening(name: str, settings: TransportSettings) -> Server:
    def accept(channel: Channel) -> None:
        sink = Recorder()
        server.channels.append(channel)
        server.sinks.append(sink)
        sink.attach(channel)
        server.arrived.set()

    server = Server(await transport(name).listen("127.0.0.1", 0, settings, accept))
    return server


async def dialled(server: Server, settings: TransportSettings) -> tuple[MpquicChannel, Recorder]:
    candidate = Candidate(
        "mpquic",
        Family.IPV4,
        "localhost",
        "127.0.0.1",
        server.listener.address[1],
        local_address=SOURCES[0].address,
        more_sources=SOURCES[1:],
    )
    channel = await transport("mpquic").dial(candidate, settings)
    sink = Recorder()
    sink.attach(channel)
    return cast(MpquicChannel, channel), sink


def feed(channel: Channel, size: int) -> None:
    """Write as much as it gives credit for, and again."""
    left = size

    def more() -> None:
        nonlocal left
        while left and (credit := channel.credit()) > 0:
            count = min(credit, left)
            channel.write([bytes(count)], 1)
            channel.flush()
            left -= count
        if left:
            asyncio.get_running_loop().call_later(0.002, more)

    more()


async def test_a_path_from_each_address_carries_a_part(
    settings: tuple[TransportSettings, TransportSettings], engine: str
) -> None:
    # The nearest one could carry everything here: they take turns.
    turns = {"mpquic": MpquicSettings.model_validate({"engine": engine, "scheduler": "RR"})}
    server = await listening("mpquic", replace(settings[1], sections=turns))
    channel, sink = await dialled(server, settings[0])
    assert (channel.info.transport, channel.info.fell_back) == ("mpquic", False)
    await until(lambda: channel.info.subflows == 3)
    assert channel.info.detail == "3 paths"
    channel.write([b"?"], 0)
    channel.flush()
    await (await server.sink()).until_received(1)
    feed(server.channels[0], SIZE)
    await sink.until_received(SIZE, 1)
    assert server.channels[0].info.transport == "mpquic"
    paths = channel.engine.paths()  # type: ignore[attr-defined]  # of a PathEngine
    assert len(paths) == 3
    assert all(path.received > 2000 for path in paths)
    channel.close()
    await sink.until_lost()
    server.listener.close()


async def test_private_modes_work_over_sockets_where_both_ends_name_them(tmp_path: Path) -> None:
    files = certificates_in(tmp_path / "certificates")
    sections = {"mpquic": MpquicSettings.model_validate({"private_modes": PRIVATE_MODES})}
    server = await listening("mpquic", replace(files.server_settings(), sections=sections))
    channel, sink = await dialled(server, replace(files.client_settings(), sections=sections))
    assert len(cast(PrivateEngine, channel.engine).private_modes) == len(PRIVATE_MODES)
    await until(lambda: channel.info.subflows == 3)
    channel.write([b"?"], 0)
    channel.flush()
    await (await server.sink()).until_received(1)
    feed(server.channels[0], SIZE)
    await sink.until_received(SIZE, 1)
    assert all(path.received > 2000 for path in cast(PrivateEngine, channel.engine).paths())
    channel.close()
    await sink.until_lost()
    server.listener.close()


async def test_paths_come_and_go_with_their_networks(settings: tuple[TransportSettings, TransportSettings]) -> None:
    server = await listening("mpquic", settings[1])
    channel, sink = await dialled(server, settings[0])
    await until(lambda: channel.info.subflows == 3)
    channel.use(SOURCES[1:])  # the first is gone
    await until(lambda: channel.info.subflows == 2)
    channel.write([b"?"], 0)
    channel.flush()
    await (await server.sink()).until_received(1)
    feed(server.channels[0], SIZE // 3)
    await sink.until_received(SIZE // 3, 1)
    channel.use(SOURCES)
    await until(lambda: channel.info.subflows == 3)
    channel.abort()
    server.listener.close()


async def test_a_server_without_it_gets_plain_quic(settings: tuple[TransportSettings, TransportSettings]) -> None:
    server = await listening("quic", settings[1])
    channel, sink = await dialled(server, settings[0])
    assert (channel.info.transport, channel.info.fell_back, channel.info.detail) == ("quic", True, FELL_BACK)
    channel.write([b"hello"], 1)
    channel.flush()
    assert await (await server.sink()).until_received(5, 1) == b"hello"
    channel.close()
    await sink.until_lost()
    server.listener.close()


async def test_its_listener_takes_plain_quic_on_the_same_port(
    settings: tuple[TransportSettings, TransportSettings],
) -> None:
    server = await listening("mpquic", settings[1])
    candidate = Candidate("quic", Family.IPV4, "localhost", "127.0.0.1", server.listener.address[1])
    channel = await transport("quic").dial(candidate, settings[0])
    sink = Recorder()
    sink.attach(channel)
    channel.write([b"hello"], 1)
    channel.flush()
    assert await (await server.sink()).until_received(5, 1) == b"hello"
    assert server.channels[0].info.transport == "quic"
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


async def test_a_session_runs_over_it(tmp_path: Path, engine: str) -> None:
    files = certificates_in(tmp_path / "certificates")

    async def echo(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        writer.write(await reader.read(-1))
        writer.close()

    server = await multi.start_server(
        echo,
        {
            "listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp", "mpquic", "quic"]},
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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("paths", 9),
        ("paths", 0),
        ("scheduler", "redundant"),
        ("scheduler", "nobody"),
        ("congestion", "x"),
        ("ack_path", 1),
    ],
)
def test_what_it_cannot_do_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"mpquic_config.{key}"):
        multi.load_config(
            {"connection_priority": [["mpquic", "ipv4", "any"]], "remote_host": "h", "mpquic_config": {key: value}}
        )


@pytest.mark.parametrize("client", ["aioquic", "noq"])
async def test_both_ends_may_have_different_engines(tmp_path: Path, client: str) -> None:
    engine_or_skip("noq")
    files = certificates_in(tmp_path / "certificates")
    ours = {"mpquic": MpquicSettings.model_validate({"engine": client})}
    theirs = {"mpquic": MpquicSettings.model_validate({"engine": "noq" if client == "aioquic" else "aioquic"})}
    server = await listening("mpquic", replace(files.server_settings(), sections=theirs))
    channel, sink = await dialled(server, replace(files.client_settings(), sections=ours))
    await until(lambda: channel.info.subflows == 3)
    channel.write([b"?"], 0)
    channel.flush()
    await (await server.sink()).until_received(1)
    feed(server.channels[0], SIZE // 3)
    await sink.until_received(SIZE // 3, 1)
    channel.close()
    await sink.until_lost()
    server.listener.close()


@pytest.mark.parametrize("built", [True, False])
def test_the_engine_is_the_native_one_where_it_is_built(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi.transports.mpquic.settings.find_spec", lambda name: object() if built else None)
    assert MpquicSettings().chosen_engine == ("noq" if built else "aioquic")
    assert MpquicSettings(engine="aioquic").chosen_engine == "aioquic"
    assert MpquicSettings(ack_path="all").chosen_engine == "aioquic"
    assert MpquicSettings(congestion="bbr").chosen_engine == "noq"
    assert MpquicSettings(private_modes=("uniflows",)).chosen_engine == "aioquic"
    choice = transport("mpquic").choice(TransportSettings())
    assert choice == ("engine noq" if built else "engine aioquic")


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"engine": "aioquic", "congestion": "bbr"}, "congestion"),
        ({"engine": "noq", "ack_path": "all"}, "ack_path"),
        ({"congestion": "bbr", "ack_path": "all"}, "ack_path"),
        ({"engine": "qh3"}, "engine"),
        ({"engine": "noq", "private_modes": ["uniflows"]}, "private_modes"),
        ({"congestion": "bbr", "private_modes": ["uniflows"]}, "private_modes"),
        ({"private_modes": ["biflows"]}, "private_modes"),
    ],
)
def test_what_no_engine_has_together_is_refused(given: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=f"mpquic_config.{key}"):
        multi.load_config(
            {"connection_priority": [["mpquic", "ipv4", "any"]], "remote_host": "h", "mpquic_config": given}
        )


async def test_an_engine_that_is_not_built_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "multi_noq", None)
    monkeypatch.delitem(sys.modules, "multi.transports.quic.noq_engine", raising=False)
    files = certificates_in(tmp_path / "certificates")
    native = {"mpquic": MpquicSettings.model_validate({"engine": "noq"})}
    with pytest.raises(TransportError, match="make native"):
        await listening("mpquic", replace(files.server_settings(), sections=native))
