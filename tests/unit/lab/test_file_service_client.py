"""How a copy goes on when servers are stopped under it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from multi.asyncio.session import Session
from multi.errors import SessionLost
from multi.lab.files import client
from multi.lab.files.client import Copied, OnProgress, Transfer
from multi.reasons import Cause, Reason

SESSION = cast(Session, None)  # a transfer that is only counted needs none
DONE = Copied("f", 5, 5, 0.0, "", ())


class Stopping:
    """Servers that are stopped during each copy but the last one, after `moved` bytes."""

    def __init__(self, tries: float, moved: int) -> None:
        self.tries = tries
        self._moved = moved
        self.tried = 0

    async def copy(self, before: Transfer | None, begun: OnProgress) -> Copied:
        transfer = Transfer("get", "f", SESSION, before=before)
        begun(transfer)
        self.tried += 1
        if self.tried >= self.tries:
            return DONE
        await asyncio.sleep(0.01)
        transfer.count(self._moved)
        raise SessionLost(Reason(Cause.GOING_AWAY, "the server is being stopped"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SUCCESSOR", 0.1)
    monkeypatch.setattr(client, "RETRY_DELAY", 0.01)
    monkeypatch.setattr(client, "MAX_RETRY_DELAY", 0.01)


async def to_its_end(servers: Stopping) -> Copied:
    config: Any = {}
    async with asyncio.timeout(10.0):
        return await client._to_its_end(servers.copy, config)


def test_servers_that_take_sessions_and_only_end_them_do_not_keep_a_copy_for_ever() -> None:
    servers = Stopping(tries=float("inf"), moved=0)
    with pytest.raises(SessionLost) as caught:
        asyncio.run(to_its_end(servers))
    assert caught.value.reason.cause is Cause.GOING_AWAY
    assert servers.tried > 1


def test_a_copy_that_moves_goes_on_however_often_its_servers_are_stopped() -> None:
    servers = Stopping(tries=25, moved=1)  # 0.02 s each
    assert asyncio.run(to_its_end(servers)) is DONE
