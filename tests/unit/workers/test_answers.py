"""What is said of a server whose workers do not all answer."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import pytest

from multi.asyncio.stats import ServerStats
from multi.workers.answers import AnswersOfAll, WorkerAnswer


class Worker:
    """It has one living session, and has opened `opened`."""

    def __init__(self, opened: int) -> None:
        self.opened = opened
        self.answers = asyncio.Event()
        self.answers.set()
        self.status = HTTPStatus.OK

    async def ask(self, method: str, target: str, body: bytes = b"") -> WorkerAnswer | None:
        try:
            async with asyncio.timeout(0.02):
                await self.answers.wait()
        except TimeoutError:
            return None
        if self.status != HTTPStatus.OK:
            return self.status, {"error": "internal error"}
        return self.status, ServerStats(sessions={"open": 1}, sessions_opened=self.opened).as_dict()


def seen(stats: ServerStats) -> tuple[int, int]:
    return stats.sessions.get("open", 0), stats.sessions_opened


def test_counters_do_not_run_backwards_while_a_worker_does_not_answer() -> None:
    async def scenario() -> None:
        workers = first, second = Worker(3), Worker(4)
        answers = AnswersOfAll(workers)
        assert seen(await answers.stats()) == (2, 7)
        second.answers.clear()
        first.opened += 1
        assert seen(await answers.stats()) == (1, 8)
        second.answers.set()
        second.status = HTTPStatus.INTERNAL_SERVER_ERROR
        assert seen(await answers.stats()) == (1, 8)
        second.status = HTTPStatus.OK
        assert seen(await answers.stats()) == (2, 8)

    asyncio.run(scenario())


def test_a_worker_that_ends_while_others_are_asked_is_counted_once() -> None:
    async def scenario() -> None:
        workers = first, second = Worker(3), Worker(4)
        answers = AnswersOfAll(workers)
        await answers.stats()
        second.answers.clear()
        asking = asyncio.ensure_future(answers.stats())
        await asyncio.sleep(0.005)
        answers.ended(first)
        assert seen(await asking) == (0, 7)
        first.opened = 1  # its successor
        second.answers.set()
        assert seen(await answers.stats()) == (2, 8)

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [b"[" * 9999, b'{"command": "abort", "session": "\\ud800"}'])
def test_a_command_that_cannot_be_meant_is_refused(body: bytes) -> None:
    class Empty(Worker):
        async def ask(self, method: str, target: str, body: bytes = b"") -> WorkerAnswer | None:
            return HTTPStatus.OK, []

    answer = asyncio.run(AnswersOfAll([Empty(0)]).everything("POST", "/command", body))
    assert answer.status == HTTPStatus.BAD_REQUEST
