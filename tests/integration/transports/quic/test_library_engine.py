"""Sessions whose ends use different QUIC engines, and an engine that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import multi
from tests.engines import engine_or_skip
from tests.integration.cli_runner import Files
from tests.integration.cli_runner import run as run_command
from tests.integration.support import pattern, run, until

ENGINES = ("aioquic", "qh3", "noq")
SIZE = 1_000_000
ABSENT = 'raise ModuleNotFoundError("No module named \'{0}\'", name="{0}")'


@pytest.mark.parametrize("client", ENGINES)
@pytest.mark.parametrize("server", ENGINES)
@pytest.mark.parametrize("protect", ["auto", "always"])
def test_a_second_connection_joins_whatever_engines_the_ends_use(
    development_certificates: Path, client: str, server: str, protect: str
) -> None:
    """A JOIN is proved with what both ends export from its own connection: it fails unless they agree."""
    for engine in (client, server):
        engine_or_skip(engine)
    files = development_certificates

    async def echo(reader: Any, writer: Any) -> None:
        writer.write(await reader.readexactly(SIZE))
        writer.write_eof()
        await writer.wait_closed()

    async def scenario() -> None:
        listening = await multi.start_server(
            echo,
            {
                "listen": {"host": "127.0.0.1", "port": 0, "transports": ["quic"]},
                "ssl_config": {"cert": str(files / "server-cert.pem"), "key": str(files / "server-key.pem")},
                "quic_config": {"engine": server},
                "protect": protect,
            },
        )
        config = {
            "connection_priority": [["quic", "ipv4", "127.0.0.2"], ["quic", "ipv4", "127.0.0.3"]],
            "multi_config": {"connect": "par", "wait": "all"},
            "remote_host": "127.0.0.1",
            "remote_port": listening.port,
            "ssl_config": {"ca": str(files / "ca.pem")},
            "quic_config": {"engine": client},
            "protect": protect,
        }
        data = pattern(SIZE)
        async with multi.connect(config) as session:
            await session.confirmed()
            await until(lambda: [c.state.name for c in session.connections] == ["ACTIVE", "ACTIVE"], "both joined")
            session.writer.write(data)
            assert await session.reader.readexactly(SIZE) == data
        listening.close()
        await listening.wait_closed()

    run(scenario())


@pytest.mark.parametrize(
    ("transport", "engine", "module", "remedy"),
    [
        ("quic", "qh3", "qh3", "pip install 'multi-session[qh3]'"),
        ("quic", "noq", "multi_noq", "`make native` builds it"),
        ("mpquic", "noq", "multi_noq", "`make native` builds it"),
    ],
)
def test_check_says_how_to_get_an_engine_that_is_not_installed(
    tmp_path: Path, transport: str, engine: str, module: str, remedy: str
) -> None:
    files = Files(tmp_path)
    (tmp_path / "stubs").mkdir()
    (tmp_path / "stubs" / f"{module}.py").write_text(ABSENT.format(module))
    paths = f"{tmp_path / 'stubs'}:{Path(__file__).parents[4]}"
    settings: dict[str, Any] = {f"{transport}_config": {"engine": engine}}
    listen = {"host": "127.0.0.1", "port": 0, "transports": [transport]}
    server = files.server_config(listen=listen, **settings)
    for config in (files.client_config(7788, transport, **settings), server):
        done = run_command("check", config, PYTHONPATH=paths)
        assert done.returncode == 1
        assert f"the QUIC engine '{engine}' is not installed: {remedy}" in done.stdout
