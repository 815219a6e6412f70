"""Names to addresses: IPv4 and IPv6 asked separately, answers used as they come (RFC 8305 section 3).

Decides when racing may begin and which addresses are known. The system's resolver can take half a minute without a
way to stop it, so it is asked in threads of our own, few and daemonic: they hold up neither the event loop nor its
executor nor the end of the program.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from multi.types import Family

__all__ = ["Lookup", "Names", "system_lookup"]

RESOLUTION_DELAY = 0.050  # seconds, RFC 8305 section 8
REUSE = 10.0  # seconds an answer serves further questions
STALE = 1.0  # seconds after which a question is asked anew: the old one may wait for a server that is out of reach now
QUESTIONS = 3  # at once about the same name and family
THREADS = 16  # of the whole process; a server that does not answer holds each of them for up to half a minute
HOSTS_FILE = Path("/etc/hosts")
NO_ANSWER_YET = "no answer yet"
ANY = "any"
FAMILIES = {Family.IPV6: socket.AF_INET6, Family.IPV4: socket.AF_INET}  # in the order to ask and to use them
NO_SUCH_ADDRESS = frozenset(
    number for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if (number := getattr(socket, name, None))
)

Lookup = Callable[[str, Family], list[str]]
"""Addresses of a host in one family; blocks; raises OSError or ValueError."""
Outcome = list[str] | Exception


@dataclass(slots=True)
class _Answer:
    """What is known of a host in one family."""

    addresses: list[str] = field(default_factory=list)
    error: Exception | None = None
    at: float = float("-inf")
    question: int = 0
    """The one this is the answer to."""
    open_questions: dict[int, float] = field(default_factory=dict)
    """Not answered yet: when they were asked."""
    told: bool = False
    """`on_more` was called since; who looks because of that is not to ask again."""

    @property
    def pending(self) -> bool:
        return bool(self.open_questions)

    @property
    def says_no(self) -> bool:
        """The name has no address of this family: an answer, not a failure to get one."""
        return isinstance(self.error, OSError) and self.error.errno in NO_SUCH_ADDRESS

    def take(self, question: int, outcome: Outcome, now: float) -> None:
        """What came; addresses that come late still count for more than a failure that was faster."""
        self.open_questions.pop(question, None)
        late = question < self.question
        if isinstance(outcome, list):
            if late and self.error is None:
                return
            self.addresses, self.error = outcome, None
            self.open_questions.clear()  # what they bring is taken if it comes, but nobody waits for it
        elif late:
            return
        else:
            self.error = outcome
        self.at, self.question = now, max(question, self.question)


@dataclass(slots=True)
class _Host:
    ports: list[int] = field(default_factory=list)
    literal: bool = False
    answers: dict[Family, _Answer] = field(default_factory=dict)

    @property
    def addresses(self) -> list[str]:
        found = (address for f in FAMILIES if f in self.answers for address in self.answers[f].addresses)
        return list(dict.fromkeys(found))

    @property
    def pending(self) -> bool:
        return any(answer.pending for answer in self.answers.values())

    def ready_at(self) -> float | None:
        """When racing towards it may begin; None = nothing has come."""
        six, four = (self.answers.get(f, _Answer()) for f in FAMILIES)
        if self.literal or six.addresses:
            return float("-inf")
        if four.addresses:
            return four.at + RESOLUTION_DELAY if six.pending else float("-inf")
        return None

    def error(self, name: str) -> str:
        """Why it has no address; empty = it has."""
        if self.addresses:
            return ""
        if self.pending:
            return NO_ANSWER_YET
        failed = [answer for answer in self.answers.values() if answer.error is not None]
        # A resolver that failed says more than one that knows of no address of the other family.
        telling = next((answer for answer in failed if not answer.says_no), failed[-1] if failed else _Answer())
        error = telling.error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error or "no address")
        return f"cannot resolve {name}: {reason}"


class Names:
    """The addresses of the hosts of one session, on one event loop.

    `on_more` is called when an answer came that no `resolve()` is waiting for and that made a difference to
    `addresses` or `errors`, or was the last that `pending` spoke of; the next `resolve()` asks nothing that was
    answered by then. `lookup` asks the system.
    """

    def __init__(self, on_more: Callable[[], None], *, lookup: Lookup | None = None) -> None:
        self.addresses: dict[tuple[str, int], list[str]] = {}
        """(host, port) -> literal addresses, IPv6 first, each family in the order of the resolver."""
        self.errors: dict[str, str] = {}
        """Host -> why it has no address at all."""
        self._on_more = on_more
        self._lookup = lookup if lookup is not None else system_lookup
        self._hosts: dict[str, _Host] = {}
        self._questions = 0
        self._waiting: dict[asyncio.Future[None], frozenset[str]] = {}
        self._closed = False

    @property
    def pending(self) -> bool:
        """Answers are still to come."""
        return not self._closed and any(host.pending for host in self._hosts.values())

    async def resolve(self, wanted: Iterable[tuple[str, int, str]]) -> None:
        """Ask for what is wanted, (host, port, `ipv4`, `ipv6` or `any`), and return when racing can begin.

        That is when one of the hosts has an IPv6 address or is a literal one, or has had an IPv4 address for the
        Resolution Delay, or when no answer is to come any more. Known addresses stay until there are new ones, and
        count: asked again after a change of the network, this returns at once.
        """
        loop = asyncio.get_running_loop()
        names = frozenset(self._note(host, port, ip) for host, port, ip in wanted)
        for name in names:
            self._ask(name, loop)
        self._publish()
        hosts = [self._hosts[name] for name in names]
        while not self._closed:
            ready = [at for host in hosts if (at := host.ready_at()) is not None]
            now = loop.time()
            if any(at <= now for at in ready) or not any(host.pending for host in hosts):
                return
            await self._news(loop, names, min(ready, default=None))

    def close(self) -> None:
        """Nothing is told any more; questions that are open are left to themselves."""
        self._closed = True
        self._on_more = _nothing
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _note(self, name: str, port: int, ip: str) -> str:
        host = self._hosts.setdefault(name, _Host())
        if port not in host.ports:
            host.ports.append(port)
        try:
            literal = ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            for family in FAMILIES:
                if ip in (ANY, family.value):
                    host.answers.setdefault(family, _Answer())
        else:
            host.literal = True
            host.answers = {Family.IPV6 if literal.version == 6 else Family.IPV4: _Answer([name])}
        return name

    def _ask(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        """Ask for what is not known, or not well enough."""
        host, now = self._hosts[name], loop.time()
        if host.literal or self._closed:
            return
        some = any(answer.addresses and answer.error is None for answer in host.answers.values())
        for family in FAMILIES:
            answer = host.answers.get(family)
            if answer is None:
                continue
            told, answer.told = answer.told, False
            if told:
                continue  # a name that fails at once would be asked for ever
            answered = answer.addresses and answer.error is None
            if now - answer.at < REUSE and (answered or (answer.says_no and some)):
                continue
            asked = answer.open_questions.values()
            if asked and (len(asked) >= QUESTIONS or now - max(asked) < STALE):
                continue
            self._questions += 1
            answer.open_questions[self._questions] = now
            _threads.ask(self._lookup, name, family, self._receiver(loop, name, family, self._questions))

    def _receiver(
        self, loop: asyncio.AbstractEventLoop, name: str, family: Family, question: int
    ) -> Callable[[Outcome], None]:
        def receive(outcome: Outcome) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody wants to know
                loop.call_soon_threadsafe(self._answered, name, family, question, outcome, loop)

        return receive

    def _answered(
        self, name: str, family: Family, question: int, outcome: Outcome, loop: asyncio.AbstractEventLoop
    ) -> None:
        was_pending = self.pending
        self._hosts[name].answers[family].take(question, outcome, loop.time())
        if self._closed:
            return
        changed = self._publish() or (was_pending and not self.pending)
        awaited = False
        for waiter, names in self._waiting.items():
            if name in names:
                awaited = True
                if not waiter.done():
                    waiter.set_result(None)
        if changed and not awaited:
            for host in self._hosts.values():
                for answer in host.answers.values():
                    answer.told = not answer.pending
            self._on_more()

    def _publish(self) -> bool:
        """Bring the public tables up to date; whether they are different now."""
        addresses = {(name, port): host.addresses for name, host in self._hosts.items() for port in host.ports}
        errors = {name: error for name, host in self._hosts.items() if (error := host.error(name))}
        changed = (addresses, errors) != (self.addresses, self.errors)
        self.addresses, self.errors = addresses, errors
        return changed

    async def _news(self, loop: asyncio.AbstractEventLoop, names: frozenset[str], until: float | None) -> None:
        """Until something about one of these hosts has come, or the time has."""
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting[waiter] = names
        timer = None if until is None else loop.call_at(until, _wake, waiter)
        try:
            await waiter
        finally:
            del self._waiting[waiter]
            if timer is not None:
                timer.cancel()


def system_lookup(host: str, family: Family) -> list[str]:
    """Ask the system's resolver. Raises OSError, ValueError for what cannot be a name."""
    number = FAMILIES[family]
    # Asked for a family the file does not have, the system goes on and asks a server.
    asked = socket.AF_UNSPEC if _in_hosts_file(host) else number
    found = socket.getaddrinfo(host, None, family=asked, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found if info[0] == number))


def _in_hosts_file(host: str) -> bool:
    try:
        wanted, text = host.lower().encode(), HOSTS_FILE.read_bytes().lower()
    except (OSError, ValueError):
        return False
    # Files that block advertisements have a hundred thousand lines.
    return wanted in text and any(wanted in line.partition(b"#")[0].split()[1:] for line in text.splitlines())


@dataclass(slots=True)
class _Job:
    lookup: Lookup
    host: str
    family: Family
    receivers: list[Callable[[Outcome], None]]
    started: float | None = None


class _Threads:
    """Few threads that ask; who asks the same as somebody else did just now gets the same answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting: deque[_Job] = deque()
        self._open: dict[tuple[Lookup, str, Family], list[_Job]] = {}

    def ask(self, lookup: Lookup, host: str, family: Family, receive: Callable[[Outcome], None]) -> None:
        """Have `receive` called with the outcome, in a thread."""
        with self._lock:
            jobs = self._open.setdefault((lookup, host, family), [])
            if jobs:
                newest = jobs[-1]
                fresh = newest.started is None or time.monotonic() - newest.started < STALE
                if fresh or len(jobs) >= QUESTIONS:
                    newest.receivers.append(receive)
                    return
            job = _Job(lookup, host, family, [receive])
            jobs.append(job)
            if self._threads >= THREADS:
                self._waiting.append(job)
                return
            self._threads += 1
            job.started = time.monotonic()
        try:
            threading.Thread(target=self._work, args=(job,), name="multi-names", daemon=True).start()
        except RuntimeError as error:  # there are no more threads
            self._work(job, OSError(errno.EAGAIN, str(error)))

    def _work(self, job: _Job | None, failed: OSError | None = None) -> None:
        """`failed`: asking is not possible, and that is the answer."""
        while job is not None:
            outcome = failed or _looked_up(job)
            following = self._done(job)
            for receive in job.receivers:
                receive(outcome)
            job = following

    def _done(self, job: _Job) -> _Job | None:
        with self._lock:
            jobs = self._open[job.lookup, job.host, job.family]
            jobs.remove(job)
            if not jobs:
                del self._open[job.lookup, job.host, job.family]
            if not self._waiting:
                self._threads -= 1
                return None
            following = self._waiting.popleft()
            following.started = time.monotonic()
            return following


def _looked_up(job: _Job) -> Outcome:
    try:
        found = job.lookup(job.host, job.family)
    except Exception as error:  # whatever it is: a thread that died would leave its place taken
        return error
    return found or socket.gaierror(socket.EAI_NODATA, "No address associated with hostname")


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _nothing() -> None:
    pass


_threads = _Threads()


def _forget_threads() -> None:
    global _threads
    _threads = _Threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)  # they are not there
