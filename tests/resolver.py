"""A resolver of names that says what a test wants, when it wants."""

from __future__ import annotations

import socket
import threading

from multi.types import Family

NO_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
AGAIN = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
LONG = 60.0  # seconds no test waits for


class Resolver:
    """In the place of `multi.asyncio.dns.system_lookup`; who asks waits until there is an answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Family]] = []
        self._answers: dict[tuple[str, Family], list[str] | Exception] = {}
        self._changed = threading.Condition()
        self._ended = False

    def __call__(self, host: str, family: Family) -> list[str]:
        with self._changed:
            self.asked.append((host, family))
            self._changed.wait_for(lambda: (host, family) in self._answers or self._ended, LONG)
            answer = self._answers.get((host, family), AGAIN)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, host: str, family: Family, answer: list[str] | Exception) -> None:
        with self._changed:
            self._answers[host, family] = answer
            self._changed.notify_all()

    def silent(self, host: str, family: Family) -> None:
        with self._changed:
            self._answers.pop((host, family), None)

    def end(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
