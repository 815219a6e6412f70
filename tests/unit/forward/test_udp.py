"""Flows that end before they have begun."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from multi.forward import udp
from multi.forward.protocol import HostPort
from multi.forward.relay import Counters
from multi.forward.specs import USUAL
from multi.forward.udp import Flows, ForwardPort

TARGET = HostPort("host", 1)


def ignore(*_: object) -> None: ...


class Table:
    """There is no session yet."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self) -> Any:
        self.asked += 1
        await asyncio.Event().wait()


def send(flows: Flows, port: ForwardPort, key: int) -> None:
    flows.datagram(port, key, TARGET, bytes(100), ignore, USUAL)


def test_a_flow_that_gives_way_in_the_turn_in_which_it_came_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp, "MAX_FLOWS", 1)
    monkeypatch.setattr(udp, "REPLACED_EVERY", 0.0)

    async def scenario() -> None:
        table = Table()
        flows, port = Flows(table, Counters()), ForwardPort(ignore)
        send(flows, port, 1)
        send(flows, port, 2)
        await asyncio.sleep(0)
        assert table.asked == 1
        send(flows, port, 1)
        await asyncio.sleep(0)
        assert table.asked == 2
        await flows.close(port)

    asyncio.run(scenario())


def test_a_port_that_is_closed_in_the_turn_in_which_a_flow_came_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(udp, "MAX_FLOWS", 1)

    async def scenario() -> None:
        table = Table()
        counters = Counters()
        flows, port, other = Flows(table, counters), ForwardPort(ignore), ForwardPort(ignore)
        send(flows, port, 1)
        await flows.close(port)
        for key in (1, 2):
            send(flows, other, key)
            await asyncio.sleep(0)
        assert (table.asked, counters.failed) == (2, 0), "the second takes the place of the first"
        await flows.close(other)

    asyncio.run(scenario())
