"""What SIGTERM, SIGINT and SIGHUP do to a process that serves, with a real server."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

import multi
from multi.asyncio.signals import StopSignals

LISTEN = {"listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}}


def ignore(_reader: Any, _writer: Any) -> None:
    """No client matters here."""


async def stopping(
    server: multi.Server, said: list[str], *numbers: signal.Signals, under_way: str = ""
) -> signal.Signals:
    signals = StopSignals(server, said.append)
    for number in numbers:
        signals.take(number)
    async with asyncio.timeout(5):
        return await signals.stopped(lambda: under_way)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_without_sessions_stops_at_once(number: signal.Signals) -> None:
    said: list[str] = []
    server = await multi.start_server(ignore, LISTEN)
    assert await stopping(server, said, number) is number
    assert not server.is_serving()
    assert said == []


async def test_the_first_signal_counts_and_the_second_ends_what_is_under_way() -> None:
    said: list[str] = []
    server = await multi.start_server(ignore, LISTEN)
    first = await stopping(server, said, signal.SIGINT, signal.SIGTERM, under_way="2 downloads")
    assert first is signal.SIGINT
    assert said == ["stopping: 2 downloads get 2 s"]


async def test_a_server_that_somebody_else_stops_was_drained() -> None:
    server = await multi.start_server(ignore, LISTEN)
    asyncio.get_running_loop().call_soon(server.close)
    assert await stopping(server, []) is signal.SIGTERM


async def test_certificates_are_read_again_and_the_server_goes_on() -> None:
    said: list[str] = []
    async with await multi.start_server(ignore, LISTEN) as server:
        StopSignals(server, said.append).take(signal.SIGHUP)
        assert said == ["certificates and keys read again"]
        assert server.is_serving()
