"""Names to addresses: IPv4 and IPv6 asked separately, answers used as they come (RFC 8305 section 3).

Decides when racing may begin, which addresses are known, and when a name is asked again.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from multi.asyncio.lookups import MAX_THREADS, THREADS, LookupResult, Question, Share
from multi.types import Family

RESOLUTION_DELAY = 0.050  # seconds, RFC 8305 section 8
ASK_AGAIN = 1.0  # seconds after a question, which may wait for a server that is out of reach now, and after its answer
MAX_QUESTIONS = 3  # at once about the same name and family
NO_DATA = "No address associated with hostname"
ANY = "any"
FAMILIES = {Family.IPV6: socket.AF_INET6, Family.IPV4: socket.AF_INET}  # in the order to ask and to use them
NO_SUCH_ADDRESS = frozenset(
    number for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if (number := getattr(socket, name, None))
)

Lookup = Callable[[str, Family], list[str]]
"""Addresses of a host in one family; blocks; raises OSError or ValueError."""


@dataclass(slots=True)
class _Answer:
    """What is known of a host in one family."""

    addresses: list[str] = field(default_factory=list)
    error: Exception | None = None
    at: float = -inf
    asked: list[float] = field(default_factory=list)
    """When the questions were asked that are still open."""

    @property
    def says_no(self) -> bool:
        """The name has no address of this family: an answer, not a failure to get one."""
        return isinstance(self.error, OSError) and self.error.errno in NO_SUCH_ADDRESS

    def may_ask(self, now: float) -> bool:
        """Whoever hears of an answer looks, and would ask at once again."""
        return len(self.asked) < MAX_QUESTIONS and now >= max([self.at, *self.asked]) + ASK_AGAIN

    def take(self, asked: float, outcome: LookupResult, now: float) -> None:
        """What came; old addresses survive a failure, and one of several questions that brings addresses is enough."""
        if asked not in self.asked:
            return
        self.asked.remove(asked)
        self.at = now
        if isinstance(outcome, list):
            self.addresses, self.error = outcome, None
            self.asked.clear()
        else:
            self.error = outcome


@dataclass(slots=True)
class _Host:
    answers: dict[Family, _Answer] = field(default_factory=dict)

    @property
    def addresses(self) -> list[str]:
        found = (address for f in FAMILIES if f in self.answers for address in self.answers[f].addresses)
        return list(dict.fromkeys(found))

    @property
    def pending(self) -> bool:
        return any(answer.asked for answer in self.answers.values())

    @property
    def ready_at(self) -> float:
        """When racing towards it may begin: with IPv6 at once, with IPv4 alone after the Resolution Delay."""
        six, four = (self.answers.get(f, _Answer()) for f in FAMILIES)
        if six.addresses or (four.addresses and not six.asked):
            return -inf
        return four.at + RESOLUTION_DELAY if four.addresses else inf

    def error(self, name: str) -> str:
        """Why it has no address; empty = it has, or may still get one."""
        if self.addresses or self.pending:
            return ""
        failed = [answer for answer in self.answers.values() if answer.error is not None]
        # A resolver that failed says more than one that knows of no address of the other family.
        error = min(failed, key=lambda answer: answer.says_no).error if failed else None
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error or "no address")
        return f"cannot resolve {name}: {reason}"


class Names:
    """The addresses of the hosts of one session, on one event loop.

    `on_more` is called when an answer came that no `resolve()` is waiting for and that made a difference, or was the
    last that `pending` spoke of. `lookup` asks the system, in threads of `share`: by default of one of its own.
    """

    def __init__(
        self, on_more: Callable[[], None], *, lookup: Lookup | None = None, share: Share | None = None
    ) -> None:
        self._on_more = on_more
        self._lookup = lookup if lookup is not None else system_lookup
        self._share = share if share is not None else Share(MAX_THREADS, THREADS)
        self._hosts: dict[str, _Host] = {}
        self._waiting: dict[asyncio.Event, frozenset[str]] = {}
        self._closed = False

    @property
    def addresses(self) -> dict[str, list[str]]:
        """Host -> literal addresses, IPv6 first, each family in the order of the resolver."""
        return {name: host.addresses for name, host in self._hosts.items()}

    @property
    def errors(self) -> dict[str, str]:
        """Host -> why it has no address at all; nothing of those that may still get one."""
        return {name: error for name, host in self._hosts.items() if (error := host.error(name))}

    @property
    def unanswered(self) -> set[str]:
        """Hosts of which nothing is known yet."""
        return {name for name, host in self._hosts.items() if host.pending and not host.addresses}

    @property
    def pending(self) -> bool:
        """Answers are still to come."""
        return not self._closed and any(host.pending for host in self._hosts.values())

    async def resolve(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Ask for what is wanted, (host, `ipv4`, `ipv6` or `any`), and return when racing can begin.

        That is when one of the hosts has an IPv6 address or is a literal one, or has had an IPv4 address for the
        Resolution Delay, or when no answer is to come any more. Known addresses stay until there are new ones, and
        count: asked again after a change of the network, this returns at once.
        """
        loop = asyncio.get_running_loop()
        hosts = {name: self._note(name, ip) for name, ip in wanted}
        now = loop.time()
        for name, host in hosts.items():
            for family, answer in host.answers.items():
                if not self._closed and answer.may_ask(now):
                    answer.asked.append(now)
                    self._ask(loop, name, family, now)
        news = asyncio.Event()
        self._waiting[news] = frozenset(hosts)
        try:
            while not self._closed:
                ready_at = min((host.ready_at for host in hosts.values()), default=inf)
                if ready_at <= loop.time() or not any(host.pending for host in hosts.values()):
                    return
                news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(ready_at if ready_at < inf else None):
                        await news.wait()
        finally:
            del self._waiting[news]

    def close(self) -> None:
        """Nothing is told any more; questions that are being asked are left to themselves."""
        self._closed = True
        self._on_more = lambda: None  # threads that still wait shall not keep a session in memory
        self._share.forget(self)
        for news in self._waiting:
            news.set()

    def _note(self, name: str, ip: str) -> _Host:
        host = self._hosts.setdefault(name, _Host())
        try:
            literal = ipaddress.ip_address(name)
        except ValueError:
            for family in FAMILIES:
                if ip in (ANY, family.value):
                    host.answers.setdefault(family, _Answer())
        else:
            host.answers = {Family.IPV6 if literal.version == 6 else Family.IPV4: _Answer([name], at=inf)}
        return host

    def _ask(self, loop: asyncio.AbstractEventLoop, name: str, family: Family, asked: float) -> None:
        """Ask in a thread, as soon as there is one."""

        def tell(outcome: LookupResult) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._answered, name, family, asked, outcome)

        def ask() -> LookupResult | None:
            if self._closed or loop.is_closed() or asked not in self._hosts[name].answers[family].asked:
                return None  # another question has brought the answer, or nobody wants to know, while this one waited
            try:
                return self._lookup(name, family) or socket.gaierror(socket.EAI_NODATA, NO_DATA)
            except Exception as error:  # a lookup may fail in any way, and each is an answer
                return error.with_traceback(None)  # which would hold what it is kept in

        self._share.put(Question(self, name, family, ask, tell))

    def _answered(self, name: str, family: Family, asked: float, outcome: LookupResult) -> None:
        host = self._hosts[name]
        before = (host.addresses, host.error(name), self.pending)
        host.answers[family].take(asked, outcome, asyncio.get_running_loop().time())
        if self._closed:
            return
        waiting = [news for news, names in self._waiting.items() if name in names]
        for news in waiting:
            news.set()
        after = (host.addresses, host.error(name), self.pending)
        if not waiting and before != after:
            self._on_more()


def system_lookup(host: str, family: Family) -> list[str]:
    """Ask the system's resolver. Raises OSError, ValueError for what cannot be a name."""
    found = socket.getaddrinfo(host, None, family=FAMILIES[family], type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))
