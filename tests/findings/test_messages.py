"""Errors and events that send whoever reads them in a wrong direction."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

import multi
from multi.lab.cert import write_development_certificates
from multi.protocol.segment import HEADER_LENGTH
from multi.reasons import Reason
from tests.findings.bounded import run
from tests.integration.support import HOST, Way, serving

ANSWER = "nosuch: no such file"


@pytest.fixture
def secure(tmp_path: Path) -> Way:
    write_development_certificates(tmp_path, [])
    return Way(tmp_path, "tcp-tls")


def test_a_client_without_tls_is_told_which_setting_is_missing(secure: Way) -> None:
    async def scenario() -> str:
        async with serving(secure) as (server, _):
            with pytest.raises(ConnectionError) as caught:
                await multi.open_connection(Way(Path()).client(server.port))
            return str(caught.value)

    assert "ssl_config" in run(scenario())


def test_an_attempt_under_way_does_not_fail_for_what_ends_the_session() -> None:
    async def scenario() -> list[Reason]:
        way, asked = Way(Path()), asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                await reader.readexactly(HEADER_LENGTH)
                asked.set()
                await reader.read()
            writer.close()

        never_answers = await asyncio.start_server(silent, HOST, 0)
        port = never_answers.sockets[0].getsockname()[1]
        async with serving(way) as (server, _):
            config = way.client(server.port)
            slow = {"transport": "tcp", "ip": "ipv4", "interface": "127.0.0.2", "remote_port": port}
            config["connection_priority"] = [*config["connection_priority"], slow]
            session = await multi.connect(config)
            events = session.events()
            await asyncio.wait_for(asked.wait(), 10)
            session.abort(ANSWER)
            failed = [event.reason async for event in events if isinstance(event, multi.AttemptFailed)]
            await session.settle()
        never_answers.close()
        return failed

    assert ANSWER not in run(scenario())
