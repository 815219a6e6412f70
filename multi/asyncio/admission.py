"""Admission control of a server: what strangers and clients can make it do, bounded and counted.

Decides who has to go or to wait when a limit of `limits` is reached, and reports it: a counter per limit
(`Server.statistics`) and, at most every ten seconds, a warning that names the limit and the source. Listeners take part
through `multi.transports.base.AdmissionControl`; what one connection may send is bounded by the core, which reports
here.

Strangers are counted by source (IPv4 /24, IPv6 /56) and by address in it. When too many connections are half open (the
peer has proved nothing yet), the oldest one of the busiest address of the busiest source goes first, so that one source
cannot crowd out the others, nor one address its neighbours, and who proves himself at once gets in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from math import inf
from time import monotonic
from typing import Generic, TypeVar

from multi.asyncio.driver import SessionDriver
from multi.config.model import Limits
from multi.events import ConnectionChanged, Event, SessionConfirmed, SessionDetached, SessionResumed
from multi.protocol.receiver import SessionWindow
from multi.reasons import Cause, Reason
from multi.transports.base import AdmissionControl
from multi.types import ConnectionId, ConnectionState

logger = logging.getLogger("multi.server")

LOG_INTERVAL = 10.0  # seconds between two warnings about the same limit
MEMORY_INTERVAL = 0.1  # seconds; adding up 10,000 sessions for every HELLO would help whoever floods us
GROWTH_SHARE = 0.75  # of the memory may go to windows that grow; the rest lets new sessions in
MOST_LEFT = 3  # sessions of a source that fall with a client; when more do at once, what they came through restarts
AT_ONCE = 1.0  # seconds
FREE_SHARE = 0.5  # of that goes to whoever is first; from then on no window grows beyond an equal share
MAX_REPEATS = 2  # connections that say the very same JOIN: the client's, and one of somebody who has heard it
TURNS_TIME = 0.010  # seconds of a turn of the event loop; then those get theirs who are served or come meanwhile
MIN_PROGRESS = 1024  # bytes per second within a segment

NOT_COUNTED = {"max_stream_window", "max_session_window", "max_send_buffer"}
LIMITS = (
    *(name for name in Limits.model_fields if name not in NOT_COUNTED),
    *("max_streams", "flow_control", "segment_size", "file_descriptors", "quic_retry"),
)
"""Names in `Server.statistics`: keys of `limits`, and bounds that cannot be configured."""

LIMIT_OF = {
    Cause.HANDSHAKE_TIMEOUT: "handshake_timeout",
    Cause.CONNECTION_LIMIT: "max_connections_per_session",
    Cause.STREAM_LIMIT: "max_streams",
    Cause.FLOW_CONTROL: "flow_control",
    Cause.SEGMENT_SIZE: "segment_size",
}
"""For what the protocol closes a connection because of a bound, and the name of that bound."""

T = TypeVar("T", bound=Hashable)


def source_of(host: str) -> str:
    """Where limits per source count a peer: its IPv4 /24 or IPv6 /56, what one customer usually holds."""
    return place_of(host)[0]


@lru_cache(maxsize=4096)  # asked several times for each connection
def place_of(host: str) -> tuple[str, str]:
    """(source, address in it): an address is an IPv4 address or an IPv6 /64, of which each device may use all."""
    address = _address(host)
    if address.version == 4:
        return str(ip_network((address, 24), strict=False)), str(address)
    return str(ip_network((address, 56), strict=False)), str(ip_network((address, 64), strict=False))


def _address(host: str) -> IPv4Address | IPv6Address:
    address = ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


class _Ranking:
    """Counts by name, and which name has the most. Counts change by one, so the highest does too."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._names: dict[int, OrderedDict[str, None]] = {}
        self._most = 0

    def change(self, name: str, by: int) -> None:
        """Count one more (1) or one less (-1)."""
        before = self.counts.pop(name, 0)
        after = before + by
        if before:
            del self._names[before][name]
            if not self._names[before]:
                del self._names[before]
        if after:
            self.counts[name] = after
            self._names.setdefault(after, OrderedDict())[name] = None
        if after > self._most or self._most not in self._names:
            self._most = after

    @property
    def busiest(self) -> str:
        """Of several that have as many, the one that has had so many for longest. Empty = there is none."""
        return next(iter(self._names[self._most])) if self._most else ""


class BySource(Generic[T]):
    """Things in order of arrival, by source and address.

    A flood may come from thousands of sources and needs the busiest one with every connection, so nothing here looks at
    all of them; addresses of one source are few, because it has its own limit. Whatever keeps losing its first entry is
    an OrderedDict: a dict passes all that have left before it finds one.
    """

    def __init__(self) -> None:
        self._places: dict[T, tuple[str, str]] = {}
        self._members: OrderedDict[str, OrderedDict[str, OrderedDict[T, None]]] = OrderedDict()
        self._ranking = _Ranking()

    def __len__(self) -> int:
        return len(self._places)

    def add(self, member: T, host: str) -> None:
        if member in self._places:
            return
        source, address = self._places[member] = place_of(host)
        addresses = self._members.setdefault(source, OrderedDict())
        addresses.setdefault(address, OrderedDict())[member] = None
        self._ranking.change(source, 1)

    def discard(self, member: T) -> None:
        if member not in self._places:
            return
        source, address = self._places.pop(member)
        addresses = self._members[source]
        del addresses[address][member]
        if not addresses[address]:
            del addresses[address]
        if not addresses:
            del self._members[source]
        self._ranking.change(source, -1)

    def members(self, source: str) -> list[T]:
        return [member for members in self._members.get(source, {}).values() for member in members]

    def count(self, source: str) -> int:
        return self._ranking.counts.get(source, 0)

    def oldest(self, source: str = "") -> T | None:
        """The first that came from the busiest address of `source`; without one, of the busiest source."""
        addresses = self._members.get(source or self._ranking.busiest)
        if not addresses:
            return None
        busiest: OrderedDict[T, None] = max(addresses.values(), key=len)
        return next(iter(busiest))

    def next(self) -> T:
        """Take out whose turn it is: sources take turns, and in a source its addresses do. Raises StopIteration.

        Who comes alone waits for one of each other source, however many a flood has sent before him.
        """
        source, addresses = next(iter(self._members.items()))
        address, members = next(iter(addresses.items()))
        member = next(iter(members))
        self._members.move_to_end(source)  # behind the others
        addresses.move_to_end(address)
        self.discard(member)
        return member


class LimitLog:
    """Counts how often each limit was hit, and says so without flooding the log."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.counts = dict.fromkeys(LIMITS, 0)
        self._said: dict[str, tuple[float, int]] = {}

    def hit(self, limit: str, source: str) -> None:
        self.counts[limit] += 1
        count = self.counts[limit]
        at, before = self._said.get(limit, (-inf, 0))
        now = self._clock()
        if now >= at + LOG_INTERVAL:
            self._said[limit] = (now, count)
            logger.warning("limit %s reached by %s (%d more since the last warning)", limit, source, count - before - 1)


@dataclass(slots=True)
class _Account:
    """What is known of one session."""

    source: str
    """Where its first HELLO came from."""
    host: str = ""
    """The address it was last active from."""
    hosts: dict[ConnectionId, str] = field(default_factory=dict)
    pending: dict[ConnectionId, tuple[bytes, str]] = field(default_factory=dict)
    """Connections that have not proved themselves, the oldest first: (nonce of the JOIN or empty, source)."""


class Admission(AdmissionControl):
    """Owned by a server. Its methods are called in the order of a session's life: by listeners, then by the server."""

    def __init__(self, limits: Limits, proxies: Iterable[str] = ()) -> None:
        super().__init__(limits.handshake_timeout)
        self._proxies = [ip_network(proxy) for proxy in proxies]
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._log = LimitLog(self._loop.time)
        self._half_open: BySource[Hashable] = BySource()
        self._drops: dict[Hashable, Callable[[str], None]] = {}
        self._waiting: BySource[Hashable] = BySource()
        """Those for whose peers something is to be done."""
        self._works: dict[Hashable, Callable[[], None]] = {}
        self._turn: asyncio.Handle | None = None
        self._accounts: dict[SessionDriver, _Account] = {}
        self._unconfirmed: BySource[SessionDriver] = BySource()
        self._detached: BySource[SessionDriver] = BySource()
        self.on_confirmed: Callable[[SessionDriver], None] = lambda _: None
        self._windows = 0
        """What all living sessions' windows allow their peers to send."""
        self._kept = 0
        """Bytes kept for peers, as of the last time they were added up."""
        self._kept_until = -inf
        self._sweeper: asyncio.TimerHandle | None = None
        self._unfinished: dict[Hashable, int] = {}
        """Bytes there were of segments that had begun to come, at the last look."""

    @property
    def counts(self) -> dict[str, int]:
        """How often each limit was hit; the names are `LIMITS`."""
        return dict(self._log.counts)

    def report(self, limit: str, host: str = "") -> None:
        self._log.hit(limit, source_of(host) if host else "this process")

    def stop(self) -> None:
        for handle in (self._sweeper, self._turn):
            if handle is not None:
                handle.cancel()
        self._sweeper = self._turn = None

    # --- half-open connections, from accepting them until their peers have proved themselves ---

    def admit(self, connection: Hashable, host: str, drop: Callable[[str], None]) -> None:
        """Count one in, after another had to go where there are too many: its `drop(reason)` is called."""
        if self._half_open.count(source_of(host)) >= self._limits.max_unauthenticated_per_source:
            self.report("max_unauthenticated_per_source", host)
            self._evict(self._half_open.oldest(source_of(host)))
        elif len(self._half_open) >= self._limits.max_unauthenticated:
            self.report("max_unauthenticated", host)
            self._evict(self._half_open.oldest())
        self._half_open.add(connection, host)
        self._drops[connection] = drop

    def _evict(self, connection: Hashable) -> None:
        drop = self._drops[connection]
        self.settled(connection)
        drop("too many connections have not proved themselves")

    def settled(self, connection: Hashable) -> None:
        for places in (self._half_open, self._waiting):
            places.discard(connection)
        for known in (self._drops, self._works):
            known.pop(connection, None)

    def in_turn(self, connection: Hashable, host: str, work: Callable[[], None]) -> None:
        """TLS handshakes and first segments cost a millisecond: in a flood its sources take turns."""
        self._works[connection] = work
        self._waiting.add(connection, host)
        if self._turn is None:
            self._turn = self._loop.call_soon(self._take_turns)

    def _take_turns(self) -> None:
        until = monotonic() + TURNS_TIME
        while len(self._waiting) and monotonic() < until:
            self._works.pop(self._waiting.next())()
        self._turn = self._loop.call_soon(self._take_turns) if len(self._waiting) else None

    def crowded(self, host: str) -> bool:
        """Half of what may be half open from where `host` is, is."""
        return self._half_open.count(source_of(host)) >= max(1, self._limits.max_unauthenticated_per_source // 2)

    # --- sessions ---

    def make_room(self, limit: str, source: str) -> bool:
        """A new session meets `limit`: let the oldest unconfirmed one go that counts for it, if there is one."""
        self._log.hit(limit, source)
        driver = self._unconfirmed.oldest(source if limit == "max_sessions_per_source" else "")
        if driver is None:
            return False
        self._drop(driver, list(driver.core.connections), f"never confirmed, and others wait ({limit})")
        return driver not in self._accounts

    def full(self) -> str:
        """Why no more sessions are taken: `limits.max_memory` is taken."""
        most = self._limits.max_memory
        taken = self._windows + self._kept_to_send()
        return f"sessions may take {taken} of {most} bytes" if taken >= most else ""

    def session_opened(self, driver: SessionDriver, source: str) -> None:
        """A session was made for a first HELLO."""
        self._accounts[driver] = _Account(source)
        receiver = driver.core.receiver
        self._windows += receiver.window.size
        receiver.window.may_grow = partial(self._may_grow, receiver.window, source)
        driver.on_event = partial(self._event, driver)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._limits.segment_timeout, self._sweep)

    def session_closed(self, driver: SessionDriver) -> None:
        account = self._accounts.pop(driver, None)
        if account is None:
            return
        receiver = driver.core.receiver
        self._windows -= receiver.window.size
        receiver.window.may_grow = lambda _size: False
        self._unconfirmed.discard(driver)
        self._detached.discard(driver)
        for connection in account.pending:
            self.settled((driver, connection))

    # --- connections of sessions ---

    def may_try(self, driver: SessionDriver, source: str, nonce: bytes) -> bool:
        """Whether one more connection may try to prove itself for a session; another may have to go for it.

        `nonce` is that of a JOIN whose proof is right: a fresh one can only come from the client, or from who has heard
        it and was faster. Without a nonce it is the HELLO of a session that nobody has confirmed, which anybody in the
        air can repeat: sources take equal shares, and in a source who came first stays.
        """
        pending = self._accounts[driver].pending
        repeats = sum(other == nonce for other, _ in pending.values())
        victim: ConnectionId | None = None
        allowed = not nonce or repeats < MAX_REPEATS
        if allowed and len(pending) >= self._limits.max_pending_joins:
            if nonce and not repeats:
                victim = next(iter(pending))
            else:
                counts = Counter(place for _, place in pending.values())
                busiest, most = counts.most_common(1)[0]
                allowed = most > counts[source] + 1
                victim = next(c for c, (_, place) in reversed(pending.items()) if place == busiest)
        if not allowed or victim is not None:
            self._log.hit("max_pending_joins", source)
        if allowed and victim is not None:
            self._drop(driver, [victim], "too many connections of this session have not proved themselves")
        return allowed

    def connection_came(self, driver: SessionDriver, connection: ConnectionId, host: str, nonce: bytes) -> None:
        """A session has got a connection that has not proved itself; see `may_try`."""
        account = self._accounts.get(driver)
        if account is None:
            return
        if not account.hosts and not driver.core.confirmed:
            self._unconfirmed.add(driver, host)
        account.hosts[connection] = host
        account.pending[connection] = (nonce, source_of(host))
        if not nonce:  # a JOIN is in no crowd of strangers
            self.admit((driver, connection), host, partial(self._drop, driver, [connection]))

    def _drop(self, driver: SessionDriver, connections: Collection[ConnectionId], text: str) -> None:
        """Give up connections, and with the last one a session that nobody has confirmed."""
        session, now, reason = driver.core, driver.now(), Reason(Cause.RESOURCE_LIMIT, text)
        for connection in connections:
            found = session.connections.get(connection)
            if found is not None and found.alive:
                session.give_up(connection, reason, now=now)
        if not session.confirmed and not any(c.alive for c in session.connections.values()):
            session.fail(reason, now=now)
        driver.pump()  # the events this makes count them out

    # --- what becomes of them ---

    def _event(self, driver: SessionDriver, event: Event) -> None:
        account = self._accounts.get(driver)
        if account is None:
            return
        match event:
            case ConnectionChanged():
                self._connection_changed(driver, account, event)
            case SessionConfirmed():
                self._unconfirmed.discard(driver)
                self.on_confirmed(driver)
            case SessionDetached():
                self._detached.add(driver, account.host)
                self._left(driver, account.host)
                if len(self._detached) > self._limits.max_detached_sessions:
                    self._log.hit("max_detached_sessions", account.source)
                    oldest = self._detached.oldest()
                    assert oldest is not None
                    self._detached.discard(oldest)
                    reason = Reason(Cause.RESOURCE_LIMIT, "too many sessions wait for their clients")
                    oldest.core.fail(reason, now=oldest.now())
                    oldest.pump_soon()
            case SessionResumed():
                self._detached.discard(driver)

    def _left(self, driver: SessionDriver, host: str) -> None:
        """A session has lost its last connection. What looks like its client's death may be that of what is between."""
        if driver.core.left_at is None:
            return
        since, fallen = driver.core.left_at - AT_ONCE, [driver]
        if not any(_address(host) in proxy for proxy in self._proxies):
            others = self._detached.members(source_of(host))
            fallen = [d for d in others if d.core.left_at is not None and d.core.left_at >= since]
            if len(fallen) <= MOST_LEFT:
                return
        for fell in fallen:
            fell.core.wait_for_peer(now=fell.now())
            fell.pump_soon()

    def _connection_changed(self, driver: SessionDriver, account: _Account, event: ConnectionChanged) -> None:
        host = account.hosts.get(event.connection)
        if host is None or event.state is ConnectionState.AUTHENTICATING:
            return
        account.pending.pop(event.connection, None)
        self.settled((driver, event.connection))
        if event.state in (ConnectionState.LOST, ConnectionState.CLOSED):
            del account.hosts[event.connection]
            if limit := LIMIT_OF.get(event.reason.cause):
                self.report(limit, host)
        elif event.state is ConnectionState.ACTIVE:
            account.host = host

    # --- memory ---

    def _kept_to_send(self) -> int:
        now = self._loop.time()
        if now >= self._kept_until:
            self._kept = sum(driver.kept_to_send for driver in self._accounts)
            self._kept_until = now + MEMORY_INTERVAL
        return self._kept

    def _may_grow(self, window: SessionWindow, source: str, size: int) -> bool:
        """A session window wants to grow by `size`."""
        most = GROWTH_SHARE * self._limits.max_memory
        taken = self._windows + size + self._kept_to_send()
        # Who came first could take all, and what is advertised cannot be taken back.
        unequal = taken > most * FREE_SHARE and window.size + size > most / len(self._accounts)
        if taken > most or unequal:
            self._log.hit("max_memory", source)
            return False
        self._windows += size
        return True

    # --- progress ---

    def _sweep(self) -> None:
        """Give up connections with a segment that was unfinished at the last look too and has hardly grown since."""
        timeout = self._limits.segment_timeout
        self._sweeper = self._loop.call_later(timeout, self._sweep)
        before, self._unfinished = self._unfinished, {}
        for driver, account in list(self._accounts.items()):
            for connection in list(driver.core.connections.values()):
                if not (connection.alive and connection.authenticated):
                    continue
                stalls = False
                for lane, decoder in enumerate(connection.decoders):
                    if decoder.buffered:
                        key = (driver, connection.id, lane, decoder.unfinished)
                        self._unfinished[key] = decoder.buffered
                        stalls |= decoder.buffered - before.get(key, -inf) < MIN_PROGRESS * timeout
                if stalls:
                    self.report("segment_timeout", account.hosts.get(connection.id, ""))
                    reason = Reason(Cause.SEGMENT_TIMEOUT, f"no progress within a segment for {timeout:g} s")
                    driver.core.give_up(connection.id, reason, now=driver.now())
                    driver.pump_soon()
