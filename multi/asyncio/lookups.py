"""The threads that ask for names, and who has the next one.

The system's resolver can take half a minute without a way to stop it, so questions have daemon threads of their own:
they hold up neither the event loop nor its executor nor the end of the program. A process has a bounded number of them,
which are shared out: whoever asks for names that get no answer waits for its own questions, and others do not.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from multi.types import Family

MAX_THREADS = 64  # of this process that ask; with a dead resolver every session would hold some for half a minute
MAX_OF_ONE = 0.5  # part of a share for questions about one name: if it gets no answer, others get theirs all the same

LookupResult = list[str] | Exception


@dataclass(slots=True, eq=False)
class Question:
    """What is asked of the resolver, for an `owner`."""

    owner: object
    host: str
    family: Family
    ask: Callable[[], LookupResult | None]
    """Called in a thread, which it may block; None = nobody wants to know any more."""
    tell: Callable[[LookupResult], None]
    """Called in some thread with what came; also with what came for the same question of another owner."""

    def same_as(self, other: Question) -> bool:
        return self.host == other.host and self.family is other.family


class Share:
    """A part of the threads: at most `most` at once, and as many as there are left of the share that it is `within`.

    A thread counts until it has its answer, though nobody may wait for that any more. Other questions wait in line
    until there is room, or the same one is answered, and shares with a line take turns.
    """

    def __init__(self, most: int, within: Share | None = None) -> None:
        self._most = most
        self._within = within
        self._taken = 0
        self._of_one: Counter[str] = Counter()
        self._line: list[Question] = []

    def put(self, question: Question) -> None:
        """Ask as soon as there is a thread for it."""
        with _lock:
            self._line.append(question)
            first = self._take()  # there is no room for others that wait, or they would be asked already
            if self._line:
                _waiting[self] = None
        turn = (self, first) if first is not None else None
        while turn is not None:
            try:
                threading.Thread(target=_work, args=turn, name="multi-dns", daemon=True).start()
                return
            except RuntimeError as error:  # the system has no more
                turn[1].tell(OSError(errno.EAGAIN, str(error)))
                turn = _after(*turn)

    def forget(self, owner: object) -> None:
        """Leave unasked what waits in line for `owner`."""
        with _lock:
            self._keep([question for question in self._line if question.owner is not owner])

    def answered(self, question: Question, outcome: LookupResult) -> None:
        """Tell it to all who ask the same."""
        with _lock:
            same = [q for q in self._line if q.same_as(question)]
            if same:
                self._keep([q for q in self._line if not q.same_as(question)])
        for each in (question, *same):
            each.tell(outcome)

    def _keep(self, line: list[Question]) -> None:
        self._line = line
        if not line:
            _waiting.pop(self, None)

    def _take(self) -> Question | None:
        """The first in line that there is room for, which takes it."""
        if self._has_room():
            for question in self._line:
                if self._of_one[question.host] < self._most * MAX_OF_ONE:
                    self._line.remove(question)
                    self._of_one[question.host] += 1
                    self._count(1)
                    return question
        return None

    def _give_back(self, question: Question) -> None:
        self._of_one[question.host] -= 1
        if not self._of_one[question.host]:
            del self._of_one[question.host]
        self._count(-1)

    def _has_room(self) -> bool:
        return self._taken < self._most and (self._within is None or self._within._has_room())

    def _count(self, change: int) -> None:
        self._taken += change
        if self._within is not None:
            self._within._count(change)


_lock = threading.Lock()  # of all shares: they are used on any event loop, and in the threads
_waiting: OrderedDict[Share, None] = OrderedDict()
"""Those with questions in line, whose turn is next first."""

THREADS = Share(MAX_THREADS)


def _next() -> tuple[Share, Question] | None:
    for share in _waiting:
        if (question := share._take()) is not None:
            _waiting.move_to_end(share)
            if not share._line:
                del _waiting[share]
            return share, question
    return None


def _after(share: Share, question: Question) -> tuple[Share, Question] | None:
    """What is asked next, now that this question is over."""
    with _lock:
        share._give_back(question)
        return _next()


def _work(share: Share, question: Question) -> None:
    turn: tuple[Share, Question] | None = share, question
    while turn is not None:
        share, question = turn
        if (outcome := question.ask()) is not None:
            share.answered(question, outcome)
        turn = _after(share, question)
