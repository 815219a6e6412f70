"""What the control socket of a server with workers answers: it asks all of them, and adds up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import reduce
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

WorkerAnswer = tuple[str, Any]
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
        if found is None or not found[0].startswith("200"):
            return False
        self._last[worker] = ServerStats.from_dict(found[1])
        return True

    async def sessions(self, target: str) -> Response:
        found = await self._ask_all("GET", target)
        for status, said in found:
            if not status.startswith("200"):
                return Response(status, json.dumps(said).encode())
        limit = int(parse_qs(urlsplit(target).query).get("limit", [str(SESSIONS_SHOWN)])[0])
        sessions = sorted((session for _, said in found for session in said), key=_idle)
        return in_json(sessions[:limit])

    async def command(self, body: bytes) -> Response:
        """The beginning of a Session ID has to be that of one session of all workers."""
        try:
            wanted = object_in(body)
        except CommandError as error:
            return failure("400 Bad Request", str(error))
        meant = str(wanted.get("session", ""))
        if meant not in ("", "all"):
            found = await self._ask_all("GET", f"/sessions?limit=2&begins={quote(meant, errors='replace')}")
            count = sum(len(said) for status, said in found if status.startswith("200"))
            if count != 1:
                return failure("400 Bad Request", not_one(count, meant))
        before = self.draining
        self.draining |= wanted.get("command") == "drain"  # who begins to serve from here on is not asked
        found = await self._ask_all("POST", "/command", body)
        self.draining &= before or any(status.startswith("200") for status, _ in found)
        if not found:
            return failure("503 Service Unavailable", "no worker answers")
        answers = [said for status, said in found if status.startswith("200")]
        if not answers:  # with one session meant, the others do not know it
            wrong = [str(said["error"]) for _, said in found]
            return failure("400 Bad Request", next((text for text in wrong if text != not_one(0, meant)), wrong[0]))
        return in_json(done(wanted["command"], sum(said["sessions"] for said in answers)))

    async def _ask_all(self, method: str, target: str, body: bytes = b"") -> list[WorkerAnswer]:
        answers = await asyncio.gather(*(worker.ask(method, target, body) for worker in self._workers))
        return [answer for answer in answers if answer is not None]


def _idle(session: Any) -> float:
    return float(session["idle"])
