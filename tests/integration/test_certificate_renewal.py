"""Certificates of a running server are replaced: newcomers see the new ones, sessions go on."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

import multi
from multi.asyncio import server as server_module
from multi.lab.cert import write_development_certificates
from tests.integration import cli_runner
from tests.integration.support import HOST, LOOPS, Pair, Way, run, serving, until

FILES = ("server-cert.pem", "server-key.pem")
WAYS = ["tcp-tls", "quic"]


@pytest.fixture
def places(tmp_path: Path, development_certificates: Path) -> tuple[Path, Path]:
    """Where a server has its certificates, and where others lie that another authority has signed."""
    used, others = tmp_path / "used", tmp_path / "others"
    shutil.copytree(development_certificates, used)
    write_development_certificates(others, [])
    return used, others


def replace(used: Path, others: Path) -> None:
    for name in FILES:
        shutil.copy(others / name, used / name)


async def carries(pair: Pair, data: bytes) -> None:
    pair.writer.write(data)
    assert await pair.server_reader.readexactly(len(data)) == data


async def opens(way: Way, port: int) -> bool:
    try:
        _, writer = await multi.open_connection(way.client(port))
    except multi.NoUsableConnection as error:
        if "certificate" not in str(error):
            raise
        return False
    writer.transport.abort()
    return True


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS)
def test_newcomers_see_new_certificates_and_sessions_go_on(way: str, loop: str, places: tuple[Path, Path]) -> None:
    used, others = places
    before, after = Way(used, way), Way(others, way)

    async def scenario() -> None:
        async with serving(before) as (server, inbox):
            reader, writer = await multi.open_connection(before.client(server.port))
            pair = Pair(reader, writer, *await inbox.next())
            await carries(pair, b"before")
            assert await opens(before, server.port)
            assert not await opens(after, server.port)
            replace(used, others)
            server.renew_certificates()
            await carries(pair, b"after")
            assert not await opens(before, server.port)
            assert await opens(after, server.port)
            (used / FILES[0]).write_text("no certificate")
            with pytest.raises(multi.TransportError, match="certificate"):
                server.renew_certificates()
            assert await opens(after, server.port)
            await carries(pair, b"still there")

    run(scenario(), loop)


def test_a_change_of_the_files_is_noticed(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    used, others = places
    monkeypatch.setattr(server_module, "CERTIFICATES_LOOKED_AT", 0.02)

    def told(text: str) -> bool:
        return any(text in record.getMessage() for record in caplog.records)

    async def scenario() -> None:
        async with serving(Way(used, "tcp-tls")) as (server, inbox):
            reader, writer = await multi.open_connection(Way(used, "tcp-tls").client(server.port))
            pair = Pair(reader, writer, *await inbox.next())
            shutil.copy(others / FILES[1], used / FILES[1])  # the key first: it fits no certificate yet
            await until(lambda: told("changed certificates or keys cannot be used"))
            assert await opens(Way(used, "tcp-tls"), server.port)
            replace(used, others)
            await until(lambda: told("certificates and keys were renewed"))
            assert await opens(Way(others, "tcp-tls"), server.port)
            await carries(pair, b"goes on")

    with caplog.at_level("INFO", "multi.server"):
        run(scenario())


def test_sighup_renews_them(places: tuple[Path, Path], tmp_path: Path) -> None:
    used, others = places
    ssl_config = {"cert": str(used / FILES[0]), "key": str(used / FILES[1])}
    config = tmp_path / "server.json"
    config.write_text(json.dumps({"listen": {"host": HOST, "port": 0}, "ssl_config": ssl_config}))
    with cli_runner.started("serve", config, "--dir", tmp_path) as process:
        port = int(cli_runner.wait_for_line(process, r"port (\d+)")[1])
        replace(used, others)
        process.send_signal(signal.SIGHUP)
        cli_runner.wait_for_line(process, "certificates and keys read again")
        assert run(opens(Way(others, "tcp-tls"), port))
        (used / FILES[0]).write_text("no certificate")
        process.send_signal(signal.SIGHUP)
        cli_runner.wait_for_line(process, "cannot be used, the old ones stay")
        assert run(opens(Way(others, "quic"), port))
