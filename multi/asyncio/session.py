"""The session as an application holds it: streams, connections, handover, events."""

from __future__ import annotations

import asyncio
import socket
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

from multi.asyncio.datagrams import DEFAULT_TTL, Copies, DatagramSocket
from multi.asyncio.driver import SessionDriver
from multi.asyncio.info import ConnectionInfo
from multi.asyncio.resolution import BLOCKED, Resolver
from multi.asyncio.stats import SessionStats
from multi.asyncio.streams import SessionReader, SessionWriter
from multi.asyncio.transport import P, SessionTransport
from multi.config import load_entry, load_steering
from multi.config.model import SteeringSpec
from multi.config.values import ROLES
from multi.errors import LocalProtocolError, MultiError, NoUsableConnection, TransportError
from multi.events import AttemptFailed, Event, EventsDropped
from multi.paths.handover import UNDER_WAY, Destination
from multi.paths.manager import SESSION_ENDED
from multi.paths.slots import Slot
from multi.protocol.payloads import Policy
from multi.protocol.session import ABORTED
from multi.protocol.state import SessionState
from multi.protocol.streams import DEFAULT_PRIORITY
from multi.reasons import Cause, Reason
from multi.schedulers.base import Scheduler
from multi.schedulers.steering import PREFIX
from multi.transports.base import SteeredChannel
from multi.types import (
    DEFAULT_LIMIT,
    STREAM_ZERO,
    ConnectionId,
    ConnectionState,
    Family,
    Role,
    StreamId,
    host_of,
)

ANSWER_LOOK = 0.02  # seconds
ANSWER_LOOKS = 50
"""How often a handover looks whether the path it needs answers, before it says that there is none."""


class Session:
    """One conversation over all the networks of the device. Made by `connect`, `open_connection`, `start_server`."""

    def __init__(
        self, driver: SessionDriver, resolver: Resolver | None, *, limit: int = DEFAULT_LIMIT, owns_close: bool
    ) -> None:
        self._driver = driver
        self._core = driver.core
        self._resolver = resolver
        self._limit = limit
        self._owns_close = owns_close
        self._awaits_answer = False
        """A handover waits for a path that does not answer now."""
        self._wait_to_open = 0
        """How many wait until the peer allows another stream."""
        self._turn_to_open = asyncio.Lock()
        """Held by who waits until the peer allows another stream; others wait for it in the order they have asked."""
        self.transport = SessionTransport(driver, STREAM_ZERO, self._extra_info, closes_session=owns_close)
        """Stream 0, under reader and writer."""
        self.reader = SessionReader(self.transport, limit)
        """Reads stream 0."""
        self.writer = SessionWriter(self.transport, self.reader)
        """Writes stream 0."""
        driver.closed.add_done_callback(partial(_over, ref(self)))

    def __repr__(self) -> str:
        return f"<Session {self.id.hex()} {self._core.state.value}>"

    def __del__(self) -> None:
        # Its readers and writers hold it: the application has let go of all of them.
        if not (self._driver.over or self._core.closing or self._core.reason):
            self._driver.forgotten()  # first: a warning may be made an error
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    # --- facts ---

    @property
    def id(self) -> bytes:
        """The Session ID, 16 bytes."""
        return self._core.session_id

    @property
    def state(self) -> SessionState:
        """opening, open, detached, closing or closed."""
        return self._core.state

    @property
    def connections(self) -> tuple[ConnectionInfo, ...]:
        """Every connection of the session, the ended ones included, in order of id."""
        return self._driver.record.connections()

    @property
    def scheduler(self) -> str:
        """Name of the scheduler this side sends with."""
        return self._core.scheduling.policy.scheduler

    @property
    def bytes_reinjected(self) -> int:
        """Bytes this side sent again."""
        return self._core.sender.reinjected_bytes

    @property
    def memory(self) -> int:
        """Bytes this session keeps now, to send and to be read, overhead included."""
        return self._driver.memory

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Client: (candidate, reason) of every attempt that led to no connection while the session opened."""
        return self._driver.failures

    def stats(self) -> SessionStats:
        """What it has done and does now."""
        return replace(self._driver.stats(), blocked=self.blocked)

    async def confirmed(self) -> None:
        """Return when the peer has proved itself; raise SessionRefused or SessionLost when it never will."""
        if not await asyncio.shield(self._driver.confirmed):
            raise self._driver.failure()

    # --- streams ---

    async def open_stream(
        self,
        priority: int = DEFAULT_PRIORITY,
        deadline: float = 0.0,
        steering: str | Mapping[str, Any] | None = None,
    ) -> tuple[SessionReader, SessionWriter]:
        """Open a further stream, priority 0 (first) to 7. Waits while the peer allows no more.

        With a `deadline`, in seconds, what either side has sent and is not acknowledged is copied to another connection
        as long as that can still be in time; copies are bounded. `steering` is a mode, or an object, as in the
        configuration; None = as the session. Raises ConfigError for what is not allowed there.
        """
        return self._pair(await self._new_stream(priority, deadline, steering))

    async def create_stream(
        self,
        protocol_factory: Callable[[], P],
        *,
        priority: int = DEFAULT_PRIORITY,
        deadline: float = 0.0,
        steering: str | Mapping[str, Any] | None = None,
    ) -> tuple[SessionTransport, P]:
        """Open a further stream for a protocol, as `create_connection` does for the first one.

        The peer finds it in `streams()`, as reader and writer; `writer.transport.set_protocol` gives it to a protocol.
        """
        stream = await self._new_stream(priority, deadline, steering)
        transport = SessionTransport(self._driver, stream, self._extra_info, closes_session=False)
        return transport, transport.run(protocol_factory)

    async def _new_stream(self, priority: int, deadline: float, steering: str | Mapping[str, Any] | None) -> StreamId:
        wanted = None if steering is None else load_steering(steering)
        stream = self._open(priority, deadline) if not self._wait_to_open else None
        if stream is None:
            self._wait_to_open += 1
            try:
                async with self._turn_to_open:  # thousands may wait: one is woken for each stream that ends, not all
                    while (stream := self._open(priority, deadline)) is None:
                        await self._driver.wait_writable(STREAM_ZERO)
            finally:
                self._wait_to_open -= 1
        if wanted is not None:
            self._steer([stream], wanted)
        self._driver.pump_soon()
        return stream

    def _open(self, priority: int, deadline: float) -> StreamId | None:
        self._check_open()
        return self._core.open_stream(priority, deadline, now=self._driver.now())

    async def streams(self) -> AsyncIterator[tuple[SessionReader, SessionWriter]]:
        """Yield the streams the peer opens, until the session ends."""
        while (stream := await self._driver.next_peer_stream()) is not None:
            yield self._taken(stream)

    def _taken(self, stream: StreamId) -> tuple[SessionReader, SessionWriter]:
        # Apart, so that who waits for the next stream does not hold this one.
        pair = self._pair(stream)
        self._driver.taken(stream)
        return pair

    def _pair(self, stream: StreamId) -> tuple[SessionReader, SessionWriter]:
        transport = SessionTransport(self._driver, stream, self._extra_info, closes_session=False)
        reader = SessionReader(transport, self._limit)
        return reader, SessionWriter(transport, reader)

    def datagrams(self, ttl: float = DEFAULT_TTL, copies: Copies = 1) -> DatagramSocket:
        """Send and receive messages that may be lost, but never come twice.

        One that no connection has taken within `ttl` seconds is given up. `copies` 2 sends each over two connections
        where there are two, "auto" does while the best one is silent or too slow for `ttl`. Raises LocalProtocolError
        where the peer takes no datagrams; before the session is confirmed that is not known, and `send` and `receive`
        raise it then.
        """
        self._check_open()
        return DatagramSocket(self._driver, ttl, copies, session=self)

    # --- connections ---

    async def handover(self, to: str | int) -> None:
        """Move the session make-before-break: open or use `to`, then drain all other connections.

        `to` is a kind (`wifi`), an interface name or a connection id. Raises TransportError when `to` cannot be
        opened, or a path over it of one connection over several networks answers nothing for a second; the old
        connections stay then, as they do when the call is cancelled. Raises SessionLost when the session ends
        meanwhile.
        """
        self._check_open()
        slots = await self._answering(to)
        done: asyncio.Future[Reason | None] = self._driver.loop.create_future()
        able = frozenset(slot.connection for slot in slots if slot.connection is not None)
        destination = Destination(to if isinstance(to, str) else "", able)

        def ended(reason: Reason | None) -> None:
            if reason is None:
                self._driver.loop.call_soon(self._prefer, destination)  # not from within the session
            done.set_result(reason)

        now = self._driver.now()
        self._core.path_manager(now=now).hand_over(slots, ended, now, destination)
        self._driver.pump()
        try:
            # After an internal error the path manager says nothing any more.
            either: list[asyncio.Future[Any]] = [done, self._driver.closed]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not done.done():  # else it had ended already, and another may be under way
                self._core.path_manager(now=self._driver.now()).cancel_handover()
                self._driver.pump_soon()
            raise
        failure = done.result() if done.done() else SESSION_ENDED
        if failure is not None:
            if self._driver.closed.done():
                raise self._driver.failure()
            raise TransportError(f"handover to {to} failed: {failure}")

    def _able(self, slots: Sequence[Slot], to: str | int) -> list[Slot]:
        """Those of `slots` that can carry the session over `to`. Raises TransportError when none can.

        A connection over several networks stays, and lets the one that is meant carry everything, if it can.
        """
        reasons = {slot.key: self._unable(slot, to) for slot in slots}
        able = [slot for slot in slots if not reasons[slot.key]]
        if not able:
            raise TransportError(f"handover to {to} failed: {'; '.join(dict.fromkeys(reasons.values()))}")
        return able

    def _unable(self, slot: Slot, to: str | int) -> str:
        """Why `slot` cannot carry the session over `to`, which one of its candidates leads over; empty = it can."""
        if slot.connection is None:
            alone = any(candidate.leads_over(to) and not candidate.more_sources for candidate in slot.candidates)
            return "" if alone else "the connection over several networks that could use it is not up"
        if slot.connection == to:
            return ""
        link, facts = self._driver.links[slot.connection], self._core.connections[slot.connection].facts
        assert link.candidate is not None, "a client has dialled it"
        used = link.candidate if facts.more_interfaces else link.candidate.over(link.candidate.sources[0])
        if not used.leads_over(to):
            return f"an alternative is used instead, {used}"
        if facts.more_interfaces and not isinstance(link.channel, SteeredChannel):
            return f"the system decides which of its networks a connection over {facts.transport} uses"
        return ""

    async def _answering(self, to: str | int) -> list[Slot]:
        """What can carry the session over `to`, where the peer answers; one that is busy may not for a moment.

        Raises TransportError where nothing can, or no peer has answered after all.
        """
        resolver = self._client("hands over")
        if self._awaits_answer:
            raise TransportError(f"handover to {to} failed: {UNDER_WAY}")
        self._awaits_answer = True
        try:
            for look in range(ANSWER_LOOKS):
                if look:
                    await asyncio.sleep(ANSWER_LOOK)
                    self._check_open()
                # What is usable again is found with the next look at the networks.
                waits = bool(resolver.unblocked) and look + 1 < ANSWER_LOOKS
                try:
                    able = self._able(self._slots(to), to)
                except (TransportError, LocalProtocolError):
                    if not waits:
                        raise
                    continue
                answering = [slot for slot in able if self._answers(slot, to)]
                if answering and not (waits and all(slot.absent for slot in answering)):
                    return answering
        finally:
            self._awaits_answer = False
        raise TransportError(f"handover to {to} failed: the connection that uses it has no path there now")

    def _answers(self, slot: Slot, to: str | int) -> bool:
        """The peer, over the network that is meant. Whatever is no path of a connection is left to the path manager."""
        if slot.connection is None or slot.connection == to:
            return True
        link, facts = self._driver.links[slot.connection], self._core.connections[slot.connection].facts
        if not (facts.more_interfaces and isinstance(link.channel, SteeredChannel)):
            return True
        assert link.candidate is not None, "a client has dialled it"
        return link.channel.works_over(link.candidate.interfaces_over(to))

    def _prefer(self, to: Destination) -> None:
        """Let connections that go over several networks use those that are meant, without a name all of them."""
        for link in list(self._driver.links.values()):  # one may be lost meanwhile
            if link.id in to.able and link.candidate is not None and isinstance(link.channel, SteeredChannel):
                link.channel.prefer(link.candidate.interfaces_over(to.name))

    @property
    def _wanted(self) -> list[Slot]:
        """Every connection a client's session wants to have."""
        paths = self._core.paths
        return paths.slots if paths is not None else []

    def _slots(self, to: str | int) -> list[Slot]:
        resolver = self._client("hands over")
        if isinstance(to, bool) or not isinstance(to, str | int):
            raise TypeError(f"found {to!r}; allowed: a kind, an interface, a local address or the id of a connection")
        over = [s for slot in self._wanted for c in slot.candidates for s in c.sources if s.is_meant_by(to)]
        if over and all(map(resolver.is_blocked, over)):  # since this moment: they are left with the next look
            raise TransportError(f"handover to {to} failed: {BLOCKED}")
        found = [
            slot
            for slot in self._wanted
            if slot.connection == to or any(candidate.leads_over(to) for candidate in slot.candidates)
        ]
        if found:
            return found
        if last := resolver.last:
            names = {to, *(interface.name for interface in last.interfaces if interface.kind.value == to)}
            why = {r.reason for r in last.rejections if r.what in names or (r.interface and r.interface in names)}
            if why:
                raise TransportError(f"handover to {to} failed: {'; '.join(sorted(why))}")
        candidates = [candidate for slot in self._wanted for candidate in slot.candidates]
        known = {name for c in candidates for name in (c.kind, c.interface or c.local_address) if name}
        raise LocalProtocolError(f"no connection leads over {to!r}; known: {', '.join(sorted(known)) or 'none'}")

    async def add_connection(self, entry: object) -> list[ConnectionId]:
        """Open what one more `connection_priority` entry asks for; return the ids of the new connections.

        With the `group` of another entry it is one more alternative: the id is that of the connection of the group.
        Raises ConfigError for a malformed entry, NoUsableConnection when none of its candidates works.
        """
        self._check_open()
        resolver, driver = self._client("opens connections"), self._driver
        index = resolver.add(load_entry(entry))
        opened: list[ConnectionId] = []
        try:
            found = await resolver.find(entry=index)
            candidates = [candidate for candidate in found.candidates if candidate.entry == index]
            rejected = [(r.what, r.reason) for r in found.rejections if r.entry == index]
            if not candidates:
                raise NoUsableConnection("the entry leads to no connection", rejected)
            self._check_open()
            subscription, heard = driver.subscribe(), list[Event | EventsDropped | None]()
            now = driver.now()
            slots = driver.core.path_manager(now=now).add(candidates, now)
            driver.pump_due()
            while not all(s.connection is not None or s.attempted for s in slots):
                event = await anext(subscription, None)
                if event is None:
                    self._check_open()
                heard.append(event)
            subscription.end()  # what came with the last word has not been looked at
            heard += [event async for event in subscription]
            failed = [e for e in heard if isinstance(e, AttemptFailed) and e.candidate in candidates]
            rejected += [(str(event.candidate), event.reason) for event in failed]
            opened = [slot.connection for slot in slots if slot.connection is not None]
        finally:
            if not opened:  # what failed or was given up shall not come up later
                now = driver.now()
                gone = driver.core.path_manager(now=now).withdraw(index, now)
                self._withdraw_added(resolver, gone, index)
                driver.pump()
        if not opened:
            raise NoUsableConnection("no candidate of the entry could be opened", rejected)
        return opened

    async def remove_connection(self, connection: int) -> None:
        """Drain a connection, then close it; return when it is closed. The last usable one cannot be removed."""
        self._check_open()
        wanted = ConnectionId(connection)
        removed = [slot for slot in self._wanted if slot.connection == wanted]
        self._core.remove_connection(wanted, now=self._driver.now())
        if self._resolver is not None:
            self._withdraw_added(self._resolver, removed)
        self._driver.pump()
        subscription = self._driver.subscribe()
        while wanted in self._core.connections and await anext(subscription, None) is not None:
            pass

    def _withdraw_added(self, resolver: Resolver, gone: Sequence[Slot], *entries: int) -> None:
        """Look no more for entries that were added and of which nothing is wanted any more, nor for what is gone."""
        wanted = {candidate.entry for slot in self._wanted for candidate in slot.candidates}
        entries += tuple(candidate.entry for slot in gone for candidate in slot.candidates)
        for entry in set(entries) - wanted:
            if resolver.was_added(entry):
                resolver.withdraw(entry)
        if self._core.paths is not None:
            self._core.paths.forget([s for s in gone if not any(c.entry in resolver.entries for c in s.candidates)])

    def set_role(self, connection: int, role: Role | str) -> None:
        """Make a connection `active` (or `primary`), `secondary` or `backup`, on both sides."""
        wanted = role if isinstance(role, Role) else ROLES.get(str(role).lower())
        if wanted is None or wanted is Role.NEVER:
            raise LocalProtocolError(f"role {role!r} is none of 'active', 'primary', 'secondary' and 'backup'")
        self._core.set_role(ConnectionId(connection), wanted, now=self._driver.now())
        self._driver.pump()

    def set_scheduler(self, scheduler: str | Mapping[str, Any] | Scheduler, **parameters: float) -> None:
        """Schedule differently from now on: a name (the client's server follows) or an object (this side only).

        A name comes with its parameters as keywords, or as a mapping in the shape of `multi_config.scheduler`. Should
        an object raise when it is asked, `adaptive` takes its place and SchedulerChanged says so. Raises ConfigError
        for an unknown name or parameter, TypeError for what is no scheduler.
        """
        current = self._core.scheduling.policy
        if isinstance(scheduler, Mapping):
            parameters = {**scheduler, **parameters}
            scheduler = str(parameters.pop("name", ""))
        if isinstance(scheduler, str):
            policy = Policy(scheduler, tuple(parameters.items()), current.switch, current.reinject)
            self._core.set_scheduler(policy, now=self._driver.now())
        else:
            if isinstance(scheduler, type) or not callable(getattr(scheduler, "select", None)):
                raise TypeError(f"found {scheduler!r}; allowed: a name, a mapping with `name`, an object with `select`")
            if parameters:
                raise TypeError("parameters belong to a name; an object has its own already")
            policy = Policy(type(scheduler).__name__, (), current.switch, current.reinject)
            self._core.set_scheduler(policy, scheduler, now=self._driver.now())
        self._driver.pump()

    def set_steering(
        self,
        mode: str | None,
        *,
        max_rtt_ms: float = 0.0,
        max_loss: float = 0.0,
        streams: Iterable[SessionWriter | SessionTransport] | None = None,
    ) -> None:
        """Steer differently from now on: the modes and thresholds of the configuration's `steering`, 0 = none.

        With the writers or transports of some `streams` these are a group that is steered by itself, and None returns
        them to what the session does; streams with the same mode and thresholds are one group whenever they are
        steered. The client's server follows. Raises ConfigError for what is not allowed in the configuration,
        LocalProtocolError for a stream of another session or one that has ended.
        """
        if mode is None and streams is None:
            raise LocalProtocolError("only streams can be steered as their session is")
        asked = {"mode": mode, "max_rtt_ms": max_rtt_ms, "max_loss": max_loss}
        steering = None if mode is None else load_steering(asked)
        if streams is None:
            assert steering is not None
            name, parameters = steering.scheduler
            self.set_scheduler(name, **parameters)
            return
        group = [(stream.get_extra_info("session"), stream.get_extra_info("stream")) for stream in streams]
        if any(session is not self for session, _ in group):
            raise LocalProtocolError("a stream of another session cannot be steered here")
        self._steer([stream for _, stream in group], steering)
        self._driver.pump()

    def _steer(self, streams: Sequence[StreamId], steering: SteeringSpec | None) -> None:
        name, parameters = ("", {}) if steering is None else steering.scheduler
        self._core.steer(streams, name, tuple(parameters.items()), now=self._driver.now())

    def block(self, network: str) -> None:
        """Client: let nothing go out over `network`, a kind, an interface or a local address, until `unblock`.

        Connections over it are drained, or closed where no other is left: both ends wait for one then, for
        `resume_timeout`. MPTCP over several networks is opened again without this one. Raises
        LocalProtocolError for a name that stands for no network the session could use.
        """
        self._check_open()
        self._client("blocks networks").block(network)

    def unblock(self, network: str) -> None:
        """Client: use `network` again, as it was given to `block`. Raises LocalProtocolError if it is not blocked."""
        self._check_open()
        self._client("blocks networks").unblock(network)

    @property
    def blocked(self) -> tuple[str, ...]:
        """What was given to `block` and not to `unblock`."""
        return self._resolver.blocked if self._resolver is not None else ()

    def _client(self, does: str) -> Resolver:
        if self._resolver is None:
            raise LocalProtocolError(f"only the client {does}")
        return self._resolver

    def network_changed(self, interface: str = "", *, usable: bool = True) -> None:
        """Tell the session what the application knows: `interface` (empty = any) became usable, or stopped being so.

        What goes over it carries nothing more until its peer is heard there again.
        """
        self._driver.network_changed(interface, usable)
        self._driver.pump_due()
        if self._resolver is not None:
            self._resolver.look()

    def ping(self, connection: int) -> None:
        """Ask for a sign of life over a connection. Its `rtt` and `min_rtt` fall to what the answer took, or stay."""
        self._core.ping(ConnectionId(connection), now=self._driver.now())
        self._driver.pump()

    def announce(self, *addresses: str, port: int = 0) -> None:
        """Server: tell the client further IP addresses of this server (at most 4); replaces what was told before.

        The client uses them as alternatives to those the server's name has. `port` 0 = the one it came to.
        """
        if self._resolver is not None:
            raise LocalProtocolError("only the server announces addresses")
        wanted = port or next((split_address(c.local)[1] for c in self.connections), 0)
        self._core.announce([(address, wanted) for address in addresses], now=self._driver.now())
        self._driver.pump_soon()

    # --- events ---

    def events(self) -> AsyncIterator[Event | EventsDropped]:
        """Subscribe: an iterator over events, starting with one per current connection, until the session ends."""
        return self._driver.subscribe()

    # --- ending ---

    async def close(self) -> None:
        """Flush, end the session, and return when the peer has acknowledged everything; raise when it never will."""
        self._core.close(now=self._driver.now())
        self._driver.pump()
        await self._ended()
        if self.error is not None:
            raise self._driver.failure()

    def abort(self, reason: str = "aborted") -> None:
        """End at once: what is not delivered may never be."""
        self._driver.abort(reason if isinstance(reason, Reason) else Reason(Cause.ABORTED, reason or ABORTED))

    async def wait_closed(self) -> None:
        """Return when the session has ended in order or after `abort`; raise what ended it otherwise."""
        await self._ended()
        if self.error is not None and not self.aborted:
            raise self._driver.failure()

    async def _ended(self) -> None:
        await asyncio.shield(self._driver.closed)
        await self._driver.settle()

    @property
    def aborted(self) -> bool:
        """This side has ended it at once, with `abort`."""
        return self._driver.aborted

    async def settle(self) -> None:
        """After the end: wait until the sockets are closed too."""
        await self._driver.settle()

    # --- inside ---

    def _check_open(self) -> None:
        if self._driver.closed.done():
            raise self._driver.failure()
        if self._core.closing:
            raise LocalProtocolError("the session is being closed")

    @property
    def error(self) -> MultiError | None:
        """What ended the session, or None while it lives or when it ended in order."""
        return self._driver.closed_error

    def _let_go(self) -> None:
        """The session has ended: it keeps its first stream, which keeps it no more.

        Else nobody could let go of them, and only the garbage collector would find them.
        """
        anew = partial(Session, self._driver, self._resolver, limit=self._limit, owns_close=self._owns_close)
        self.transport.extra_info = _Ended(self, anew)

    def _extra_info(self, name: str, stream: StreamId, default: Any) -> Any:
        """See `SessionWriter.get_extra_info`."""
        match name:
            case "session":
                return self
            case "stream":
                return stream
            case "steering":
                steering = self._core.scheduling.steering_of(stream)
                return default if steering is None else steering.name.removeprefix(PREFIX)
            case "connections":
                return self.connections
            case "psk_id":
                return self._core.peer_psk_id or default
            case "peercert":
                channels = (link.channel.info for _, link in sorted(self._driver.links.items()))
                return next((channel.peer_certificate for channel in channels if channel.peer_certificate), default)
            case "peername" | "sockname" | "socket":
                known = sorted(self.connections, key=lambda c: c.state is not ConnectionState.ACTIVE)
                if known:
                    sock = ConnectionSocket(known[0])
                    return {"peername": sock.getpeername(), "sockname": sock.getsockname(), "socket": sock}[name]
        return default


def _over(known: ref[Session], _: object) -> None:
    if (session := known()) is not None:
        session._let_go()


class _Ended:
    """What the first stream of an ended session asks. Who has kept that alone gets the session anew."""

    def __init__(self, session: Session, anew: Callable[[], Session]) -> None:
        self._known = ref(session)
        self._anew = anew

    def __call__(self, name: str, stream: StreamId, default: Any) -> Any:
        session = self._known()
        if session is None:
            session = self._anew()
            self._known = ref(session)
        return session._extra_info(name, stream, default)


class ConnectionSocket:
    """What libraries ask a writer's `socket` for: how it is addressed, at the moment of asking.

    The connections of a session come and go, so their sockets are not handed out. Options that libraries set for speed
    and keep-alive have no effect: a session sees to both itself.
    """

    type = socket.SOCK_STREAM
    proto = 0

    def __init__(self, info: ConnectionInfo) -> None:
        self.family = socket.AF_INET6 if info.family is Family.IPV6 else socket.AF_INET
        self._local, self._remote = info.local, info.remote

    def getsockname(self) -> tuple[str, int]:
        return split_address(self._local)

    def getpeername(self) -> tuple[str, int]:
        return split_address(self._remote)

    def setsockopt(self, *_option: object) -> None:
        """Does nothing; see above."""

    def getsockopt(self, *_option: object) -> int:
        """0: what was set is not kept."""
        return 0

    def fileno(self) -> int:
        """-1, as of a closed socket: there is none to wait on, and whoever looks takes care of that already."""
        return -1

    def gettimeout(self) -> float:
        """0, as every socket of asyncio: it does not block."""
        return 0.0


def split_address(text: str) -> tuple[str, int]:
    """`[::1]:7788` -> ("::1", 7788)."""
    return host_of(text), int(text.rpartition(":")[2] or 0)
