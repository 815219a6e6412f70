"""Data budgets over loopback: what is used up is left, with every byte in place, in this session and in the next."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.asyncio.budgets import LOOK_APART
from multi.cli.check import run_check
from tests.integration.support import HOST, Inbox, run

SIZE = 12_000_000  # bytes
ENDED = (
    multi.ConnectionState.CLOSED,
    multi.ConnectionState.LOST,
)  # given up, where the machine is too busy to drain it


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "multi" / "budgets.json"


def config(port: int, then: object) -> dict[str, Any]:
    budget = {"mb": 1, "name": "sim", "then": then}
    return {
        "connection_priority": [
            ["tcp", "ipv4", "127.0.0.1"],
            {"transport": "tcp", "ip": "ipv4", "interface": "127.0.0.2", "budget": budget},
        ],
        "multi_config": {"wait": "all", "scheduler": "RR"},
        "remote_host": HOST,
        "remote_port": port,
    }


def test_a_network_whose_budget_is_used_up_is_left_and_not_opened_again(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytes(range(251)) * (SIZE // 251)

    async def scenario() -> int:
        inbox = Inbox()
        server = await multi.start_server(inbox.on_client, {"listen": {"host": HOST, "port": 0, "transports": ["tcp"]}})
        async with multi.connect(config(server.port, "never")) as session:
            events = session.events()
            _, writer = await inbox.next()
            writer.write(data)
            levels: list[int] = []
            assert await session.reader.readexactly(len(data)) == data
            async for event in events:
                if isinstance(event, multi.BudgetChanged):
                    levels.append(event.level)
                elif isinstance(event, multi.ConnectionChanged) and event.state in ENDED:
                    break
            assert levels[-1] == 100
            assert [c.local.partition(":")[0] for c in session.connections if c.state not in ENDED] == ["127.0.0.1"]
            more = config(server.port, "never")["connection_priority"][1] | {"interface": "127.0.0.3"}
            with pytest.raises(multi.NoUsableConnection, match="data budget of 1 MB per month is used up"):
                await session.add_connection(more)
            writer.write(data)
            assert await session.reader.readexactly(len(data)) == data
        async with multi.connect(config(server.port, "never")) as session:
            await inbox.next()
            assert [c.local.partition(":")[0] for c in session.connections] == ["127.0.0.1"]
            assert "data budget of 1 MB per month is used up" in str(session.failures)
        async with multi.connect(config(server.port, "backup")) as session:
            await inbox.next()
            assert [c.role.name for c in session.connections] == ["ACTIVE", "BACKUP"]
        server.close()
        await server.wait_closed()
        return int(server.port)

    port = run(scenario())
    (counted,) = json.loads(state.read_text())["sim: month from day 1"].values()
    assert 1_000_000 <= counted <= 2 * SIZE
    file = tmp_path / "client.json"
    file.write_text(json.dumps(config(port, "never")))
    assert run_check(str(file)) == 0
    shown = capsys.readouterr().out
    assert "127.0.0.2: its data budget of 1 MB per month is used up until" in shown
    assert "data budget 'sim': 0.0 of 1 MB left until" in shown


def test_an_alternative_that_is_added_and_never_used_restricts_nothing(state: Path) -> None:
    """What the group has carried before would use its budget up at once."""

    async def scenario() -> None:
        inbox = Inbox()
        server = await multi.start_server(inbox.on_client, {"listen": {"host": HOST, "port": 0, "transports": ["tcp"]}})
        alone = {"transport": "tcp", "ip": "ipv4", "interface": "127.0.0.1", "group": "g"}
        client = {"connection_priority": [alone], "remote_host": HOST, "remote_port": server.port}
        async with multi.connect(client) as session:
            _, writer = await inbox.next()
            writer.write(bytes(SIZE))
            await session.reader.readexactly(SIZE)
            other = alone | {"interface": "127.0.0.2", "budget": {"mb": 1, "name": "sim", "then": "backup"}}
            assert await session.add_connection(other) == [0]
            writer.write(bytes(SIZE))
            await session.reader.readexactly(SIZE)
            await asyncio.sleep(2 * LOOK_APART)
            assert [c.role for c in session.connections] == [multi.Role.ACTIVE]
        server.close()
        await server.wait_closed()

    run(scenario())


def test_a_session_that_may_use_no_network_any_more_ends_with_the_budget_as_its_reason(state: Path) -> None:
    async def scenario() -> None:
        inbox = Inbox()
        server = await multi.start_server(inbox.on_client, {"listen": {"host": HOST, "port": 0, "transports": ["tcp"]}})
        alone = config(server.port, "never")
        del alone["connection_priority"][0]
        alone["multi_config"]["resume_timeout"] = 1.0

        async def read_all() -> None:
            async with multi.connect(alone) as session:
                _, writer = await inbox.next()
                writer.write(bytes(SIZE))
                await session.reader.readexactly(SIZE + 1)

        with pytest.raises(multi.SessionLost, match=r"no connection for 1 s\n  entry 0 .* data budget of 1 MB"):
            await read_all()
        server.close()
        await server.wait_closed()

    run(scenario())
