"""What the control socket of a server with workers answers: it asks all of them, and adds up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import reduce
from http import HTTPStatus
from operator import add
from typing import Any, Protocol
from urllib.parse import parse_qs, quote, urlsplit

from multi.asyncio.control import (
    SESSIONS_SHOWN,
    Answers,
    CommandError,
    Response,
    done,
    failure,
    in_json,
    not_one,
    object_in,
)
from multi.asyncio.stats import ServerStats

WorkerAnswer = tuple[HTTPStatus, Any]
"""(status, what the JSON of an answer says)."""


class Asked(Protocol):
    """A worker."""

    async def ask(self, method: str, target: str, body: bytes = b"") -> WorkerAnswer | None: ...


class AnswersOfAll(Answers):
    """A worker that does not answer is left out; that it does not is logged.

    Counters never run backwards: what a worker had counted when it last answered stands for it, and outlives it.
    """

    def __init__(self, workers: Sequence[Asked]) -> None:
        self._workers = workers
        self.draining = False
        """All were told to stop when their sessions have ended."""
        self._past = ServerStats()
        """What processes had counted that are gone."""
        self._last: dict[Asked, ServerStats] = {}
        """What each of those that live has said last."""

    def ended(self, worker: Asked) -> None:
        """The process that answered is gone."""
        self._past += self._last.pop(worker, ServerStats()).counters()

    async def stats(self) -> ServerStats:
        have = await asyncio.gather(*(self._have_stats_of(worker) for worker in self._workers))
        answered = dict(zip(self._workers, have, strict=True))
        each = (last if answered[worker] else last.counters() for worker, last in self._last.items())
        return reduce(add, each, self._past)

    async def _have_stats_of(self, worker: Asked) -> bool:
        """Whether it answers. What it says is kept at once: it may end before the others have answered."""
        found = await worker.ask("GET", "/stats")
        if found is None or found[0] != HTTPStatus.OK:
            return False
        self._last[worker] = ServerStats.from_dict(found[1])
        return True

    async def sessions(self, target: str) -> Response:
        found = await self._ask(self._workers, "GET", target)
        for status, said in found.values():
            if status != HTTPStatus.OK:
                return Response(status, json.dumps(said).encode())
        limit = int(parse_qs(urlsplit(target).query).get("limit", [str(SESSIONS_SHOWN)])[0])
        sessions = sorted((session for _, said in found.values() for session in said), key=_idle)
        return in_json(sessions[:limit])

    async def command(self, body: bytes) -> Response:
        """The beginning of a Session ID has to be that of one session of all workers."""
        try:
            wanted = object_in(body)
        except CommandError as error:
            return failure(HTTPStatus.BAD_REQUEST, str(error))
        meant, workers = str(wanted.get("session", "")), self._workers
        if meant not in ("", "all"):
            target = f"/sessions?limit=2&begins={quote(meant, errors='replace')}"
            have = {w: said for w, said in _done(await self._ask(workers, "GET", target)).items() if said}
            count = sum(map(len, have.values()))
            if count != 1:
                return failure(HTTPStatus.BAD_REQUEST, not_one(count, meant))
            workers = list(have)
        before = self.draining
        self.draining |= wanted.get("command") == "drain"  # who begins to serve from here on is not asked
        found = await self._ask(workers, "POST", "/command", body)
        answers = _done(found)
        self.draining &= before or bool(answers)
        if not found:
            return failure(HTTPStatus.SERVICE_UNAVAILABLE, "no worker answers")
        if not answers:
            _, wrong = next(iter(found.values()))
            return failure(HTTPStatus.BAD_REQUEST, str(wrong["error"]))
        return in_json(done(wanted["command"], sum(said["sessions"] for said in answers.values())))

    async def _ask(
        self, workers: Sequence[Asked], method: str, target: str, body: bytes = b""
    ) -> dict[Asked, WorkerAnswer]:
        """Those that answer, with what they say."""
        answers = await asyncio.gather(*(worker.ask(method, target, body) for worker in workers))
        return {worker: answer for worker, answer in zip(workers, answers, strict=True) if answer is not None}


def _done(found: Mapping[Asked, WorkerAnswer]) -> dict[Asked, Any]:
    """What those say that have done what they were asked for."""
    return {worker: said for worker, (status, said) in found.items() if status == HTTPStatus.OK}


def _idle(session: Any) -> float:
    return float(session["idle"])
