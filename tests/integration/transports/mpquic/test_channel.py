"""A channel with several paths, over real sockets: what each carries, and how they come and go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from multi.multipath.facts import PathState
from multi.multipath.fewer import FewerPaths
from multi.multipath.policy import PRIVATE_MODES
from multi.transports.base import TransportSettings
from multi.transports.mpquic.channel import MpquicChannel
from multi.transports.mpquic.private import PrivateEngine
from multi.transports.mpquic.settings import MpquicSettings
from multi.transports.quic.engine import PathEngine
from tests.engines import engine_or_skip
from tests.integration.certificates import certificates_in
from tests.integration.support import standstill, until
from tests.integration.transports.mpquic.ends import SIZE, SOURCES, dialled, feed
from tests.integration.transports.test_contract import listening


async def test_a_path_from_each_address_carries_a_part(
    settings: tuple[TransportSettings, TransportSettings], engine: str
) -> None:
    # The nearest one could carry everything here: they take turns.
    turns = {"mpquic": MpquicSettings.model_validate({"engine": engine, "scheduler": "RR"})}
    server = await listening("mpquic", replace(settings[1], sections=turns))
    channel, sink = await dialled(server, settings[0])
    assert (channel.info.transport, channel.info.fell_back) == ("mpquic", False)
    await until(lambda: channel.info.subflows == 3)
    assert channel.info.detail == "3 paths (127.0.0.1, 127.0.0.2, 127.0.0.3)"
    channel.write([b"?"], 0)
    channel.flush()
    await (await server.sink()).until_received(1)
    feed(server.channels[0], SIZE)
    await sink.until_received(SIZE, 2)
    assert server.channels[0].info.transport == "mpquic"
    paths = channel.engine.paths()  # type: ignore[attr-defined]  # of a PathEngine
    assert len(paths) == 3
    assert all(path.received > 2000 for path in paths)
    channel.close()
    await sink.until_lost()
    server.listener.close()


async def test_data_is_left_to_one_path_where_that_is_enough(
    settings: tuple[TransportSettings, TransportSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    enough: list[int | None] = [None]
    monkeypatch.setattr(FewerPaths, "look", lambda self, *_seen: setattr(self, "only", enough[0]))
    monkeypatch.setattr(MpquicSettings, "tries_fewer", True)
    server = await listening("mpquic", settings[1])
    channel, sink = await dialled(server, settings[0])
    channel.write([b"?"], 0)
    channel.flush()
    await (await server.sink()).until_received(1)
    ends = [cast(PathEngine, each.engine) for each in (channel, cast(MpquicChannel, server.channels[0]))]
    await until(lambda: channel.info.subflows == 3)
    enough[0] = 2
    feed(server.channels[0], SIZE)
    await sink.until_received(SIZE, 2)
    await until(lambda: [[path.backup for path in end.paths()] for end in ends] == [[True, True, False]] * 2)
    at = {path.id: path.received for path in ends[0].paths()}
    feed(server.channels[0], SIZE)
    await sink.until_received(2 * SIZE, 2)
    came = {path.id: path.received - at[path.id] for path in ends[0].paths()}
    assert came[2] > SIZE > 10 * (came[0] + came[1])
    enough[0] = None
    feed(server.channels[0], SIZE)
    await sink.until_received(3 * SIZE, 2)
    await until(lambda: [[path.backup for path in end.paths()] for end in ends] == [[False] * 3] * 2)
    channel.close()
    await sink.until_lost()
    server.listener.close()


@pytest.mark.parametrize(
    ("chosen", "tries"),
    [({}, True), ({"scheduler": "RR"}, False), ({"private_modes": ["uniflows"]}, False), ({"engine": "noq"}, False)],
)
def test_only_a_slow_engine_under_the_default_scheduler_tries_fewer_paths(
    chosen: dict[str, object], tries: bool
) -> None:
    assert MpquicSettings.model_validate({"engine": "aioquic", **chosen}).tries_fewer is tries


async def test_the_engine_hears_how_much_waits_for_room(settings: tuple[TransportSettings, TransportSettings]) -> None:
    server = await listening("mpquic", settings[1])
    channel, sink = await dialled(server, settings[0])
    sink.waiting = 5_000_000
    channel.write([b"?"], 2)
    channel.flush()
    assert cast(PathEngine, channel.engine).waiting == 5_000_000
    sink.waiting = 0
    channel.write([b"!"], 2)
    channel.flush()
    assert cast(PathEngine, channel.engine).waiting == 0
    channel.abort()
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
    await sink.until_received(SIZE, 2)
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
    await sink.until_received(SIZE // 3, 2)
    channel.use(SOURCES)
    await until(lambda: channel.info.subflows == 3)
    channel.abort()
    server.listener.close()


async def test_after_a_sleep_each_path_is_asked_and_used_again_when_it_answers(
    settings: tuple[TransportSettings, TransportSettings],
) -> None:
    server = await listening("mpquic", settings[1])
    channel, sink = await dialled(server, settings[0])
    await until(lambda: channel.info.subflows == 3)
    engine = cast(PathEngine, channel.engine)
    await standstill(lambda: [path.received for path in engine.paths()], 0.1)
    before = {path.id: path.received for path in engine.paths()}
    channel.slept()
    await until(lambda: all(path.received > before[path.id] for path in engine.paths()), "an answer on each", 5.0)
    await until(lambda: {path.state for path in engine.paths()} == {PathState.ACTIVE})
    assert channel.info.subflows == 3
    channel.write([b"?"], 0)
    channel.flush()
    await (await server.sink()).until_received(1)
    feed(server.channels[0], SIZE // 3)
    await sink.until_received(SIZE // 3, 2)
    channel.abort()
    server.listener.close()


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
    await sink.until_received(SIZE // 3, 2)
    channel.close()
    await sink.until_lost()
    server.listener.close()
