"""Admission control of a server: what strangers and clients can make it do, bounded and counted.

Decides who has to go or to wait when a limit of `limits` is reached, and reports it: a counter per limit
(`Server.statistics`) and, at most every ten seconds, a warning that names the limit and the source. Listeners take part
through `multi.transports.base.AdmissionControl`; what one connection may send is bounded by the core, which reports
here.

Everybody is counted by source (IPv4 /24, IPv6 /56), and strangers by address in it. When too many connections have not
said HELLO, the oldest one of the busiest address of the busiest source goes first, so that one source cannot crowd out
the others, nor one address its neighbours. Whose HELLO has been answered believes to have a session: he goes only after
`GRACE` without progress, and until somebody may go, newcomers are told that the server is busy. What is hostile goes
before what is many, and when one source has its share, its own longest idle session goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_network
from math import inf
from time import monotonic

from multi.asyncio.driver import SessionDriver
from multi.asyncio.rare_warnings import RareWarnings
from multi.asyncio.sources import BySource, Counts, address_of, source_of
from multi.config.model import Limits
from multi.events import ConnectionChanged, Event, SessionConfirmed, SessionDetached, SessionResumed
from multi.protocol.receiver import SessionWindow
from multi.protocol.state import SessionState
from multi.reasons import Cause, Reason
from multi.transports.base import AdmissionControl
from multi.types import ConnectionId, ConnectionState

logger = logging.getLogger("multi.server")

ORDER_INTERVAL = 0.5  # seconds; putting them in order of who goes first takes microseconds for each
MEMORY_INTERVAL = 0.1  # seconds; looking at 10,000 sessions for every HELLO would help whoever floods us
MEMORY_TIME = 0.005  # seconds of such a look; then it goes on with the others at the next one
RELIEF_INTERVAL = 1.0  # seconds between two looks for windows that are larger than they are used
GROWTH_SHARE = 0.75  # of the memory may go to windows that grow; the rest lets new sessions in
MAX_LEFT = 3  # sessions of a source that fall with a client; when more do at once, what they came through restarts
AT_ONCE = 1.0  # seconds
FREE_SHARE = 0.5  # of that goes to whoever is first; from then on no window grows beyond an equal share
MUCH = 1 / 64  # of what a source may take: only so few sources can have more that each may be told of
SOURCE_SHARE = 0.25  # of descriptors and grown windows for one source; as of the sessions, where that is more
MEMORY_SHARE = 0.5  # the same of all memory: a quarter of it would not do for 2,000 sessions over QUIC
ON_THE_WAY_IN = 16  # connections that honest newcomers hold until they have proved themselves
GRACE = 2.0  # seconds without progress before a session may have to go for another: proofs that are lost come again
MAX_FOR_ONE = 2  # half-open connections go for a newcomer: one too many where other processes have taken their part
MAX_HEARD = 256  # JOINs of a session that are known when somebody repeats them
HEARD_MEMORY = 160  # bytes of each (measured: 100 to 150)
MAX_REPEATS = 2  # connections that say the very same JOIN: the client's, and one of somebody who has heard it
TURNS_TIME = 0.005  # seconds of a turn of the event loop; then those get theirs who are served or come meanwhile
LOOK_TIME = 0.005  # the same of a look at all sessions
MIN_PROGRESS = 1024  # bytes per second within a segment

OF_ONE_SOURCE = {"max_sessions_per_source", "max_unauthenticated_per_source"}
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


@dataclass(slots=True)
class _Account:
    """What is known of one session."""

    source: str
    """Where its first HELLO came from, and whose share it takes."""
    host: str = ""
    """The address it was last active from."""
    proxy: str = ""
    """The proxy that has said so."""
    hosts: dict[ConnectionId, str] = field(default_factory=dict)
    pending: dict[ConnectionId, tuple[bytes, str, bool]] = field(default_factory=dict)
    """Connections that have not proved themselves, the oldest first: (nonce of the JOIN or empty, source, repeated)."""
    heard: dict[bytes, None] = field(default_factory=dict)
    """Nonces of the JOINs that came, the oldest first: from then on somebody else may say them."""
    taken: int = 0
    """Bytes that it was counted for at the last look."""


class Admission(AdmissionControl):
    """Owned by a server. Its methods are called in the order of a session's life: by listeners, then by the server."""

    def __init__(self, limits: Limits, proxies: Iterable[str] = (), counts: Counts | None = None) -> None:
        super().__init__(limits.handshake_timeout)
        self._counts = counts = counts or Counts()
        self._proxies = [ip_network(proxy) for proxy in proxies]
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._hits = dict.fromkeys(LIMITS, 0)
        self._warnings = RareWarnings(logger, self._loop.time)
        self._half_open: BySource[Hashable] = BySource(counts, "half_open")
        self._with_descriptor: BySource[Hashable] = BySource()
        """Connections, half open or not, until their sockets are closed."""
        self._goodbyes: dict[ConnectionId, SessionDriver] = {}
        """Those of them that have ended, the first first."""
        self._drops: dict[Hashable, Callable[[str], None]] = {}
        self._waiting: BySource[Hashable] = BySource()
        """Those for whose peers something is to be done."""
        self._works: dict[Hashable, Callable[[], None]] = {}
        self._turn: asyncio.Handle | None = None
        self._accounts: OrderedDict[SessionDriver, _Account] = OrderedDict()
        """Those first whose memory was looked at longest ago."""
        self._sessions: defaultdict[str, dict[SessionDriver, None]] = defaultdict(dict)
        """By source."""
        self._order: dict[str, deque[SessionDriver]] = {}
        """Of sources with more than their share, who goes first, as of a moment ago."""
        self._ordered_until: dict[str, float] = {}
        self._unconfirmed: BySource[SessionDriver] = BySource(counts, "unconfirmed")
        self._detached: BySource[SessionDriver] = BySource(counts, "detached")
        self.on_confirmed: Callable[[SessionDriver], None] = lambda _: None
        sessions = min(1.0, limits.max_sessions_per_source / limits.max_sessions)
        self._share, self._memory_share = max(SOURCE_SHARE, sessions), max(MEMORY_SHARE, sessions)
        self._taken: Counter[str] = Counter()
        """Bytes living sessions are counted for, by source; of all under the empty name."""
        self._taken_until = -inf
        """Then sessions are looked at again: what windows allow is known at once, what is kept besides only then."""
        self._told: dict[str, int] = {}
        """What of it other processes know."""
        self._relieved_at = -inf
        self._stopped = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._unfinished: dict[Hashable, int] = {}
        """Bytes there were of segments that had begun to come, at the last look."""

    @property
    def counts(self) -> dict[str, int]:
        """How often each limit was hit; the names are `LIMITS`."""
        return dict(self._hits)

    def report(self, limit: str, host: str = "") -> None:
        self._hit(limit, source_of(host) if host else "this process")

    def _hit(self, limit: str, source: str) -> None:
        self._hits[limit] += 1
        self._warnings.warn(limit, "limit %s reached by %s", limit, source)

    def stop(self) -> None:
        self._stopped = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweeper = None

    # --- half-open connections, from accepting them until their peers have proved themselves ---

    def admit(
        self, connection: Hashable, host: str, drop: Callable[[str], None], *, has_descriptor: bool = True
    ) -> None:
        """Count one in, after another had to go where there are too many: its `drop(reason)` is called."""
        for _ in range(MAX_FOR_ONE):
            if self._half_open.full(self._limits.max_unauthenticated_per_source, source_of(host)):
                self.report("max_unauthenticated_per_source", host)
                victim = self._half_open.oldest(source_of(host))
            elif self._half_open.full(self._limits.max_unauthenticated):
                self.report("max_unauthenticated", host)
                victim = self._half_open.oldest()
            else:
                break
            assert victim is not None
            self._evict(victim)
        self._half_open.add(connection, host)
        self._drops[connection] = drop
        if has_descriptor:
            self._with_descriptor.add(connection, host)

    def free_descriptor(self, host: str) -> bool:
        """The last file descriptor has gone to a connection from `host`: whether another one is given up for it.

        What has ended and only says goodbye goes first, then strangers, so that a flood displaces itself. Where there
        are no more of them than come in at any time, the source pays that holds the most and more than its share: with
        what it needs least, also in use where somebody from elsewhere waits.
        """
        self.report("file_descriptors", host)
        if self._goodbyes:
            connection, driver = next(iter(self._goodbyes.items()))
            driver.cut_short(connection)
            return True
        held, heaviest = self._with_descriptor, self._with_descriptor.busiest
        beyond = held.count(heaviest) > self._share * len(held)
        goes: SessionDriver | None = None
        if not beyond or len(self._half_open) + len(self._unconfirmed) > ON_THE_WAY_IN:
            stranger = self._half_open.oldest()
            if stranger in held:
                self._evict(stranger)
                return True
            goes = self._never_confirmed("", host)
        elif beyond:
            latest = self._loop.time() - (GRACE if source_of(host) == heaviest else 0)
            goes = self._longest_idle(heaviest, latest, connected=True)
        if goes is None:
            return False
        self._end(goes, "no file descriptor is left, and its network has the most")
        goes.abort_channels()
        return True

    def _evict(self, connection: Hashable) -> None:
        drop = self._drops[connection]
        self.settled(connection)
        drop("too many connections have not proved themselves")

    def settled(self, connection: Hashable) -> None:
        for places in (self._half_open, self._waiting, self._with_descriptor):
            places.discard(connection)
        for known in (self._drops, self._works):
            known.pop(connection, None)

    def in_turn(self, connection: Hashable, host: str, work: Callable[[], None]) -> None:
        """TLS handshakes and first segments cost a millisecond, who has much to take in any time it is given: sources
        take turns."""
        self._works[connection] = work
        self._waiting.add(connection, host)
        if self._turn is None:
            self._turn = self._loop.call_soon(self._take_turns)

    def owes(self, connection: Hashable) -> bool:
        """Its turn has not come yet."""
        return connection in self._waiting

    def _take_turns(self) -> None:
        """Also after `stop`: who has more to take in than there was time for ends when all is taken."""
        until = monotonic() + TURNS_TIME
        try:
            while len(self._waiting) and monotonic() < until:
                self._works.pop(self._waiting.next())()
        finally:  # a bug with one must not keep the others waiting
            self._turn = self._loop.call_soon(self._take_turns) if len(self._waiting) else None

    def crowded(self, host: str) -> bool:
        """Half of what may be half open from where `host` is, is."""
        return self._half_open.all_of(source_of(host)) >= max(1, self._limits.max_unauthenticated_per_source // 2)

    # --- sessions ---

    def full(self, source: str) -> tuple[str, str] | None:
        """The limit that leaves no room for a new session from `source`, and why; None = there is room."""
        limits, unconfirmed = self._limits, self._unconfirmed
        here = len(self._sessions.get(source, ()))
        from_there = here + self._counts.elsewhere("sessions", source)
        taken, taken_there = self._taken_in_all(), self._taken_in_all(source)
        for limit, full, count, what in (
            ("max_sessions", self._sessions_in_all >= limits.max_sessions, self._sessions_in_all, "sessions"),
            (
                "max_unauthenticated",
                unconfirmed.full(limits.max_unauthenticated),
                unconfirmed.all,
                "sessions not confirmed",
            ),
            (
                "max_unauthenticated_per_source",
                unconfirmed.full(limits.max_unauthenticated_per_source, source),
                unconfirmed.all_of(source),
                f"sessions from {source} not confirmed",
            ),
            ("max_memory", taken >= self._most(""), taken, "bytes taken by all sessions"),
            ("max_memory", taken_there >= self._most(source), taken_there, f"bytes taken by sessions from {source}"),
            # The last: room for it costs a session.
            (
                "max_sessions_per_source",
                self._counts.reached(limits.max_sessions_per_source, here, from_there),
                from_there,
                f"sessions from {source}",
            ),
        ):
            if full:
                return limit, f"{count} {what}"
        return None

    def make_room(self, limit: str, host: str) -> bool:
        """A new session from `host` meets `limit`: have another one go for it, if one may, until there is room."""
        source = source_of(host)
        self._hit(limit, source)
        beyond = source if limit == "max_sessions_per_source" else ""  # who has more than his share
        if limit == "max_memory":
            heaviest = max((source, *self._sessions), key=self.taken)
            beyond = next((p for p in (source, heaviest) if self._taken_in_all(p) >= self._most(p)), "")
        place = source if limit in OF_ONE_SOURCE else ""
        unproved = self._unconfirmed.count(place) if place else len(self._unconfirmed)
        if beyond and unproved <= ON_THE_WAY_IN:
            driver = self._longest_idle(beyond, self._loop.time() - GRACE)
        else:  # a flood of what nobody confirms displaces itself first
            driver = self._never_confirmed(place, host)
        if driver is None:
            return False
        self._end(driver, f"idle for longest of its network, and others wait (limits.{limit})")
        return driver not in self._accounts

    def _longest_idle(self, source: str, latest: float, *, connected: bool = False) -> SessionDriver | None:
        """Who goes when `source` has more than its share: what is hostile, then who is away, then who is idle.

        Nobody who had progress after `latest`; with `connected`, only who has a connection. A flood asks with every
        HELLO, so thousands of sessions are put in order now and then, and those who may go are taken one by one.
        """
        now = self._loop.time()
        fresh = now < self._ordered_until.get(source, -inf)
        if not fresh:
            self._ordered_until[source] = now + ORDER_INTERVAL
            self._order[source] = deque(sorted(self._sessions.get(source, ()), key=self._rank))
        order = self._order[source]
        while order:
            driver = order.popleft()
            if driver in self._accounts and driver.core.moved_at <= latest and (driver.links or not connected):
                return driver
        return None

    def _rank(self, driver: SessionDriver) -> tuple[int, float]:
        core = driver.core
        if not core.confirmed or self._stalls(driver):
            return 0, core.moved_at
        return 1 if core.state is SessionState.DETACHED else 2, core.moved_at

    def _never_confirmed(self, source: str, host: str) -> SessionDriver | None:
        """Who goes when too many have proved nothing, of one source or of all: the oldest, if it is time."""
        driver = self._unconfirmed.oldest(source)
        if driver is None:
            return None
        crowded_out = self._unconfirmed.crowds_out(driver, host)
        return driver if crowded_out or driver.core.moved_at <= self._loop.time() - GRACE else None

    def _end(self, driver: SessionDriver, text: str) -> None:
        driver.core.abort(Reason(Cause.RESOURCE_LIMIT, text), now=driver.now())
        driver.pump()  # the events this makes count it out

    def session_opened(self, driver: SessionDriver, source: str) -> None:
        """A session was made for a first HELLO."""
        account = self._accounts[driver] = _Account(source)
        self._sessions[source][driver] = None
        self._counts.count("sessions", source, 1)
        receiver = driver.core.receiver
        self._charge(account, receiver.window.held)
        receiver.window.may_grow = partial(self._may_grow, receiver.window, account)
        driver.on_event = partial(self._event, driver)
        driver.on_released = self._released
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._limits.segment_timeout, self._sweep)

    def session_closed(self, driver: SessionDriver) -> None:
        account = self._accounts.pop(driver, None)
        if account is None:
            return
        receiver = driver.core.receiver
        del self._sessions[account.source][driver]
        self._counts.count("sessions", account.source, -1)
        self._charge(account, -account.taken)
        if not self._sessions[account.source]:
            del self._sessions[account.source], self._taken[account.source]
        receiver.window.may_grow = lambda _size: False
        self._unconfirmed.discard(driver)
        self._detached.discard(driver)
        for connection in account.pending:
            self.settled((driver, connection))
        for connection in account.hosts:
            self._ended(driver, connection)

    # --- connections of sessions ---

    def may_try(self, driver: SessionDriver, source: str, nonce: bytes) -> bool:
        """Whether one more connection may try to prove itself for a session; another may have to go for it.

        `nonce` is that of a JOIN whose proof is right: a fresh one can only come from the client, or from who has heard
        it and was faster. Without a nonce it is the HELLO of a session that nobody has confirmed, which anybody in the
        air can repeat: sources take equal shares, and in a source who came first stays.
        """
        account = self._accounts[driver]
        pending = account.pending
        fresh = bool(nonce) and nonce not in account.heard
        victim: ConnectionId | None = None
        allowed = not nonce or sum(other == nonce for other, _, _ in pending.values()) < MAX_REPEATS
        if allowed and len(pending) >= self._limits.max_pending_joins:
            if fresh:
                victim = next((c for c, (_, _, repeated) in pending.items() if repeated), next(iter(pending)))
            elif nonce:
                allowed = False
            else:
                counts = Counter(place for _, place, _ in pending.values())
                busiest, most = counts.most_common(1)[0]
                allowed = most > counts[source] + 1
                victim = next(c for c, (_, place, _) in reversed(pending.items()) if place == busiest)
        if not allowed or victim is not None:
            self._hit("max_pending_joins", source)
        if allowed and victim is not None:
            self._drop(driver, victim, "too many connections of this session have not proved themselves")
        return allowed

    def connection_came(
        self, driver: SessionDriver, connection: ConnectionId, host: str, nonce: bytes, *, has_descriptor: bool
    ) -> None:
        """A session has got a connection that has not proved itself; see `may_try` and `admit`."""
        account = self._accounts.get(driver)
        if account is None:
            return
        first = not account.hosts and not driver.core.confirmed
        if first:
            self._unconfirmed.add(driver, host)
        account.hosts[connection] = host
        if has_descriptor:
            self._with_descriptor.add(connection, host)
        account.pending[connection] = (nonce, source_of(host), nonce in account.heard)
        if nonce:
            account.heard[nonce] = None
            if len(account.heard) > MAX_HEARD:
                del account.heard[next(iter(account.heard))]
        if not nonce and not first:  # a JOIN is in no crowd of strangers, and the session stands for its first HELLO
            drop = partial(self._drop, driver, connection)
            self.admit((driver, connection), host, drop, has_descriptor=has_descriptor)

    def _drop(self, driver: SessionDriver, connection: ConnectionId, text: str) -> None:
        """Give up a connection, and with the last one a session that nobody has confirmed."""
        session, now, reason = driver.core, driver.now(), Reason(Cause.RESOURCE_LIMIT, text)
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
                self._left(driver, account)
                if self._detached.full(self._limits.max_detached_sessions + 1):
                    self._hit("max_detached_sessions", account.source)
                    oldest = self._detached.oldest()
                    assert oldest is not None
                    self._detached.discard(oldest)
                    reason = Reason(Cause.RESOURCE_LIMIT, "too many sessions wait for their clients")
                    oldest.core.fail(reason, now=oldest.now())
                    oldest.pump_soon()
            case SessionResumed():
                self._detached.discard(driver)

    def _left(self, driver: SessionDriver, account: _Account) -> None:
        """A session has lost its last connection. What looks like its client's death may be that of what is between."""
        if driver.core.left_at is None:
            return
        since, fallen = driver.core.left_at - AT_ONCE, [driver]
        if not account.proxy and not any(address_of(account.host) in proxy for proxy in self._proxies):
            others = self._detached.members(source_of(account.host))
            fallen = [d for d in others if d.core.left_at is not None and d.core.left_at >= since]
            if len(fallen) <= MAX_LEFT:
                return
        for fell in fallen:
            if fell.core.hurries:  # each is told once, or a thousand that fall together are told a thousand times
                fell.core.wait_for_peer(now=fell.now())
                fell.pump_soon()

    def _connection_changed(self, driver: SessionDriver, account: _Account, event: ConnectionChanged) -> None:
        host = account.hosts.get(event.connection)
        if host is None or event.state is ConnectionState.AUTHENTICATING:
            return
        account.pending.pop(event.connection, None)
        self.settled((driver, event.connection))
        if event.state.over:
            del account.hosts[event.connection]
            self._ended(driver, event.connection)
            if limit := LIMIT_OF.get(event.reason.cause):
                self.report(limit, host)
        elif event.state is ConnectionState.ACTIVE:
            account.host, account.proxy = host, event.facts.proxy

    def _ended(self, driver: SessionDriver, connection: ConnectionId) -> None:
        """A connection has ended; its socket may still say goodbye."""
        if connection in self._with_descriptor:
            self._goodbyes[connection] = driver

    def _released(self, connection: ConnectionId) -> None:
        """Its socket is closed."""
        self._with_descriptor.discard(connection)
        self._goodbyes.pop(connection, None)

    # --- memory: of a source, or of all under the empty name ---

    def _charge(self, account: _Account, size: int) -> None:
        account.taken += size
        for place in ("", account.source):
            self._taken[place] += size
            self._tell(place)

    def _most(self, place: str) -> float:
        return self._limits.max_memory * (self._memory_share if place else 1)

    def taken(self, place: str = "") -> int:
        """Bytes that the sessions of a source are counted for; of all sessions without one."""
        now = self._loop.time()
        if now >= self._taken_until:
            self._look_at_memory()
            self._taken_until = now + MEMORY_INTERVAL
        return self._taken[place]

    def _look_at_memory(self) -> None:
        until = monotonic() + MEMORY_TIME
        for _ in range(len(self._accounts)):
            driver, account = next(iter(self._accounts.items()))
            self._accounts.move_to_end(driver)
            heard = HEARD_MEMORY * len(account.heard)
            if change := driver.core.receiver.window.held + driver.kept_besides + heard - account.taken:
                self._charge(account, change)
            if monotonic() >= until:
                break

    def _tell(self, source: str) -> None:
        """Let other processes of this server know what a source takes here, if it is much; of all the sum."""
        taken = self._taken[source]
        if source and taken < self._most(source) * MUCH:
            taken = 0
        if taken != (told := self._told.get(source, 0)):
            self._counts.change("memory", source, taken - told)
            self._told[source] = taken
            if not taken:
                del self._told[source]

    def _taken_in_all(self, place: str = "") -> int:
        """The same, in all processes of this server."""
        return self.taken(place) + self._counts.elsewhere("memory", place)

    @property
    def _sessions_in_all(self) -> int:
        return len(self._accounts) + self._counts.elsewhere("sessions")

    def _may_grow(self, window: SessionWindow, account: _Account, size: int) -> bool:
        """A session window wants to grow by `size`."""
        source, wanted = account.source, window.held + size
        if not self._fits(wanted, source, size):
            self._relieve()
            if not self._fits(wanted, source, size):
                self._hit("max_memory", source)
                return False
        self._charge(account, size)
        return True

    def _fits(self, wanted: int, source: str, size: int) -> bool:
        for place, sessions in (
            ("", self._sessions_in_all),
            (source, len(self._sessions[source]) + self._counts.elsewhere("sessions", source)),
        ):
            most = GROWTH_SHARE * self._limits.max_memory * (self._share if place else 1)
            taken = self._taken_in_all(place) + size
            # Who came first could take all, and what is advertised cannot be taken back.
            if taken > most or (taken > most * FREE_SHARE and wanted > most / sessions):
                return False
        return True

    def _relieve(self) -> None:
        """Memory is short: windows that are not used shrink, those of idle sessions as what they promised is used."""
        now = self._loop.time()
        if now >= self._relieved_at + RELIEF_INTERVAL:
            self._relieved_at = now
            self._for_each(iter(list(self._accounts)), lambda driver: driver.core.receiver.shrink(now))

    def _stalls(self, driver: SessionDriver) -> bool:
        """Bytes are kept for a client that has taken none for long."""
        waits = self._loop.time() - driver.core.moved_at
        return waits >= self._limits.segment_timeout and driver.kept_to_send > 0

    # --- progress ---

    def _sweep(self) -> None:
        """Give up connections with a segment that was unfinished at the last look too and has hardly grown since.

        Where memory is short sessions go whose clients read nothing.
        """
        timeout, now = self._limits.segment_timeout, self._loop.time()
        self._sweeper = self._loop.call_later(timeout, self._sweep)
        for source in [source for source, until in self._ordered_until.items() if until <= now]:
            del self._ordered_until[source], self._order[source]  # they hold sessions that have ended meanwhile
        short = self._taken_in_all() >= GROWTH_SHARE * self._most("")
        before, self._unfinished = self._unfinished, {}
        self._for_each(iter(list(self._accounts)), partial(self._look_at_progress, short, before))

    def _for_each(self, drivers: Iterator[SessionDriver], look: Callable[[SessionDriver], None]) -> None:
        """`look` at those that live still, in as many turns of the event loop as it takes."""
        until = monotonic() + LOOK_TIME
        for driver in drivers if not self._stopped else ():
            if driver in self._accounts:
                look(driver)
            if monotonic() >= until:
                self._loop.call_soon(self._for_each, drivers, look)
                return

    def _look_at_progress(self, short: bool, before: dict[Hashable, int], driver: SessionDriver) -> None:
        """`before`: bytes there were of unfinished segments. `short`: memory is."""
        timeout, account = self._limits.segment_timeout, self._accounts[driver]
        if short and self._stalls(driver):
            self.report("max_memory", account.host)
            self._end(driver, f"nothing was read for {timeout:g} s, and memory is short (limits.max_memory)")
            return
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
