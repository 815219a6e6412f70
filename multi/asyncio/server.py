"""The server that `start_server` makes: its listeners, its sessions, their figures and how it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from asyncio.trsock import TransportSocket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nlargest
from types import TracebackType
from typing import Self
from weakref import WeakSet

from multi.asyncio.admission import Admission
from multi.asyncio.allocator import full_collections
from multi.asyncio.control import ControlSockets, ServerAnswers
from multi.asyncio.draining import Draining
from multi.asyncio.driver import LoopTurn, SessionDriver
from multi.asyncio.given import GivenSockets
from multi.asyncio.loop_shutdown import LoopShutdownHook
from multi.asyncio.reception import Reception
from multi.asyncio.reset_key import ResetKey, reset_key_of
from multi.asyncio.session import Session
from multi.asyncio.settings import host_warnings, local_scheduler, peer_scheduler, session_settings
from multi.asyncio.sources import Counts
from multi.asyncio.stats import ServerStats, Tallies
from multi.asyncio.streams import SessionReader, SessionWriter
from multi.asyncio.tracing import trace_session
from multi.config import Config
from multi.config.keys import load_keys
from multi.config.options import pinned_url
from multi.errors import ConfigError, SessionLost, TransportError
from multi.protocol.acceptor import SessionTable
from multi.protocol.handshake import Whereabouts
from multi.protocol.session import SessionCore
from multi.protocol.state import SessionState
from multi.reasons import Cause, Reason
from multi.transports.base import (
    BoundTransport,
    CertifiedListener,
    Listener,
    SocketSteering,
    loaded_transport,
    transport_type,
)
from multi.transports.certificates import first_certificate, pin_of, stamp
from multi.types import SessionId, Side

logger = logging.getLogger("multi.server")

CERTIFICATES_LOOKED_AT = 1.0  # seconds between looks at whether their files have changed
MAX_DRAIN = 604_800.0  # seconds, as of the configuration
APPLICATION_FAILED = Reason(Cause.APPLICATION, "the server's application failed")

ClientCallback = Callable[[SessionReader, SessionWriter], Awaitable[None] | None]


def listened_to(transports: Sequence[str]) -> list[str]:
    """The transports that need a listener: others are taken by one of these."""
    covered = {other for name in transports for other in transport_type(name).also_accepts}
    return [name for name in transports if name not in covered]


@dataclass(frozen=True, slots=True)
class Place:
    """Of a server that is one of several processes on one port."""

    sockets: Mapping[tuple[str, int], socket.socket]
    """To listen on, by transport and configured port."""
    steering: SocketSteering
    reset_key: ResetKey
    """Of all of them: what one tells of a session is true for the others too."""
    route: bytes
    """The token of this one."""
    counts: Counts
    """What all of them have together."""
    elsewhere: Callable[[bytes], bool]
    """Whether another one of them has the sessions of a route."""


class Server:
    """A running server; made by `start_server`, used like `asyncio.Server`."""

    def __init__(
        self,
        on_client: ClientCallback,
        config: Config,
        limit: int,
        backlog: int,
        place: Place | None = None,
        sockets: Iterable[socket.socket] = (),
    ) -> None:
        full_collections.server_started()
        self._on_client = on_client
        self._config = config
        self._limit = limit
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()
        self._loop_turn = LoopTurn(self._loop)
        self._place = place
        listen = config.listen
        assert listen is not None
        self._reset_key = place.reset_key if place is not None else reset_key_of(config)
        self._route = place.route if place is not None else listen.route_bytes(os.urandom)
        whereabouts = Whereabouts(self._route, listen.join == "own")
        self._settings = replace(session_settings(config), reset_key=self._reset_key.value, whereabouts=whereabouts)
        local_scheduler(*config.scheduler)  # what it cannot be is told now, not to the first client
        self._keys = load_keys(config) if config.auth is not None else None
        for text in host_warnings(config):
            logger.warning("%s", text)
        limits = config.limits
        counts = place.counts if place is not None else None
        self.admission = Admission(limits, (*listen.proxies, *listen.proxy_protocol), counts)
        self._table: SessionTable[SessionDriver] = SessionTable(
            self._create,
            self.admission.full,
            self._reset_key.value,
            listen.peer_addresses(),
            place.elsewhere if place is not None else lambda route: False,
        )
        self.admission.on_confirmed = self._confirmed
        self.reception = Reception(config, self.admission, self._table)
        self._given = GivenSockets(sockets, listen.ports)
        self._listeners: list[Listener] = []
        self._sessions: dict[SessionDriver, Session] = {}
        self._started = self._loop.time()
        self._opened = 0
        self._ended: Counter[str] = Counter()
        """Sessions the application was given, and how many of them have ended, by the cause."""
        self._past = Tallies()
        """The connections of ended sessions."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.control = ControlSockets(ServerAnswers(self))
        self._draining = Draining(self._loop, self._table.values)
        self._closing = False
        self._empty = asyncio.Event()
        self._leaving: WeakSet[SessionDriver] = WeakSet()
        """Ended sessions; those whose sockets are still open live on in them."""
        self._binding = asyncio.Lock()
        self._watch: asyncio.TimerHandle | None = None
        self._files_in_use = self._files_seen = self._certificate_files()
        self._certificate_trouble = ""
        self._serving: asyncio.Future[None] | None = None
        self._shutdown_hook = LoopShutdownHook(self._cut)

    # --- facts ---

    def __repr__(self) -> str:
        return f"<Server port={self.port} sessions={len(self._sessions)}>"

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The living sessions."""
        return tuple(self._sessions.values())

    @property
    def statistics(self) -> dict[str, int]:
        """How often each limit was hit since the start, by the names in docs/configuration.md, "limits"."""
        return self.admission.counts

    def stats(self) -> ServerStats:
        """What it has done and does now: a walk over its connections, milliseconds for a thousand sessions."""
        tallies, states, streams = Tallies(), Counter[str](), 0
        tallies.merge(self._past)
        for driver in self._table.values():
            driver.record.tally(tallies)
            states[driver.core.state.value] += 1
            streams += len(driver.core.receiver.streams)
        return ServerStats(
            uptime=self._loop.time() - self._started,
            accepting=self.is_serving(),
            sessions=dict(sorted(states.items())),
            sessions_opened=self._opened,
            sessions_ended=dict(sorted(self._ended.items())),
            arrivals=len(self.reception.arrivals),
            streams=streams,
            memory=self.admission.taken(),
            limits_hit=self.statistics,
            transports=tallies.stats(),
        )

    def recent_sessions(self, limit: int) -> list[Session]:
        """At most `limit` of the living sessions, those first that have moved bytes last."""
        drivers = nlargest(limit, self._sessions, key=lambda driver: driver.core.moved_at)
        return [self._sessions[driver] for driver in drivers]

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The addresses and ports listened on."""
        return tuple(dict.fromkeys(listener.address for listener in self._listeners))

    @property
    def sockets(self) -> tuple[TransportSocket, ...]:
        """The sockets listened on; look at them, but leave them alone."""
        return tuple(listener.sock for listener in self._listeners) if self.is_serving() else ()

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._listeners[0].address[1] if self._listeners else 0

    @property
    def url(self) -> str:
        """For clients that know this server by the pin of its certificate; empty without a certificate."""
        tls = self._config.transport_settings().tls
        if tls is None or tls.cert is None:
            return ""
        host = self.addresses[0][0] if self.addresses else ""
        everywhere = host in ("", "::", "0.0.0.0")
        pin = pin_of(first_certificate(tls.cert))
        listen = self._config.listen
        assert listen is not None
        return pinned_url(socket.gethostname() if everywhere else host, self.port, pin, listen.transports)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop it was made on."""
        return self._loop

    def is_serving(self) -> bool:
        return bool(self._listeners) and not self._closing

    # --- life ---

    async def _listen(self) -> None:
        """Bind. One port serves all transports; an MPTCP listener also takes plain TCP."""
        listen = self._config.listen
        assert listen is not None
        settings = replace(
            self._config.transport_settings(),
            admission=self.admission,
            backlog=self._backlog,
            proxies=listen.proxy_protocol,
            route=self._route,
            reset_key=self._reset_key.value,
        )
        place = self._place
        try:
            for wanted in listen.ports:
                port = wanted
                for name in listened_to(listen.transports):
                    transport = await loaded_transport(name)
                    if place is not None:
                        settings = replace(settings, bound=place.sockets[name, wanted], steering=place.steering)
                    elif isinstance(transport, BoundTransport):
                        kind = socket.SOCK_DGRAM if transport_type(name).over_udp else socket.SOCK_STREAM
                        settings = replace(settings, bound=self._given.take(kind, wanted))
                    listener = await transport.listen(listen.host, port, settings, self.reception.accept)
                    self._listeners.append(listener)
                    self._check_open()  # somebody may have closed it meanwhile
                    port = port or listener.address[1]
            self._given.close()
            if (control := self._config.control) is not None and place is None:
                await self.control.open(self._config.control_path, control.metrics_port, self.port)
                self._check_open()
            if self._files_in_use:
                self._watch = self._loop.call_later(CERTIFICATES_LOOKED_AT, self._watch_certificates)
        except BaseException:
            self._closing = True
            self._stop()
            raise

    def close(self) -> None:
        """Refuse new sessions. Living ones may still join connections until they end."""
        self._refuse_new()
        self._end_serving()
        self._maybe_stop()

    def _refuse_new(self) -> None:
        self._closing = True
        self._table.refuse_new()

    def _end_serving(self) -> None:
        if self._serving is not None and not self._serving.done():
            self._serving.cancel()

    async def drain(self, timeout: float | None = None) -> None:
        """Stop within `timeout` seconds (default: the configuration's `drain_timeout`), and return when that is done.

        New sessions are refused, in words that make clients try another server, or again; living ones may still join
        connections. Their applications hear `GoingAway` on both sides. Those that end by themselves do so in order.
        The others end in the last fifth of the time, one after the other, as soon as everything is delivered that was
        written until then, and at the end of the time at once. Called again, the new time holds. If the caller is
        cancelled, draining goes on. Raises ValueError for what is no time.
        """
        self.start_draining(timeout)
        await self.wait_closed()

    def start_draining(self, timeout: float | None = None) -> float:
        """As `drain`, without waiting: `serve_forever` ends with the last session. Returns the time it may take."""
        seconds = self._config.drain_timeout if timeout is None else timeout
        if not 0.0 <= seconds <= MAX_DRAIN:
            raise ValueError(f"found {seconds} as the time to drain; allowed: 0 to {MAX_DRAIN:g} s")
        self._refuse_new()
        if len(self._table):
            logger.info("draining: %d sessions end within %g s", len(self._table), seconds)
            self._draining.begin(seconds)
        self._loop.call_soon(self._maybe_stop)  # who asked for it by the control socket hears of it before
        return seconds

    async def wait_closed(self) -> None:
        """Return when the server is closed and its last session has ended: `abort` makes that now.

        Handlers may still wait for something else, as asyncio's may.
        """
        await self._empty.wait()
        for driver in list(self._leaving):
            await driver.settle()

    async def serve_forever(self) -> None:
        """Serve until cancelled, or until `close`: as asyncio's, it ends with CancelledError and a closed server."""
        await self.start_serving()
        if self._serving is not None:
            raise RuntimeError(f"server {self!r} is already being awaited on serve_forever()")
        self._serving = self._loop.create_future()
        try:
            await self._serving
        finally:
            self._serving = None
            self.close()

    async def start_serving(self) -> None:
        """Bind and accept, where `start_server` was told not to; else there is nothing to do."""
        async with self._binding:  # whoever asks together binds once
            self._check_open()
            if not self._listeners:
                await self._listen()

    def _check_open(self) -> None:
        if self._closing:
            raise RuntimeError(f"server {self!r} is closed")

    def renew_certificates(self) -> None:
        """Read the files of `ssl_config` and `auth` again, for connections and sessions to come; those that live go on.

        It happens by itself when they change. Raises TransportError when they cannot be used: the old ones stay.
        """
        keys = self._keys
        if self._config.psk_path is not None:
            try:
                keys = load_keys(self._config)
            except ConfigError as error:
                raise TransportError(str(error)) from error
        renewed = [listener.renew() for listener in self._listeners if isinstance(listener, CertifiedListener)]
        for use in renewed:
            use()
        self._keys = keys

    def _watch_certificates(self) -> None:
        """Look whether the files have changed. What cannot be used is tried again: files are replaced one by one.

        A change counts once a look finds no more of it: half a file of keys is one with fewer keys.
        """
        files, seen = self._certificate_files(), self._files_seen
        self._files_seen = files
        if files == seen and files != self._files_in_use and not self._closing:
            try:
                self.renew_certificates()
                self._files_in_use = files
                self._certificate_trouble = ""
                logger.info("certificates and keys were renewed")
            except TransportError as error:
                if str(error) != self._certificate_trouble:
                    logger.warning("changed certificates or keys cannot be used, the old ones stay: %s", error)
                self._certificate_trouble = str(error)
        self._watch = self._loop.call_later(CERTIFICATES_LOOKED_AT, self._watch_certificates)

    def _certificate_files(self) -> tuple[object, ...]:
        tls, psk_path = self._config.transport_settings().tls, self._config.psk_path
        files = (*((tls.cert, tls.key, tls.client_ca) if tls is not None else ()), psk_path)
        return tuple(stamp(file) for file in files if file is not None)

    def close_clients(self) -> None:
        """End the living sessions in order: what was written is delivered, what is written later is dropped."""
        for session in self.sessions:
            session.writer.close()

    def abort(self) -> None:
        """Close and end every session at once."""
        self.close()
        self.abort_clients()

    def abort_clients(self) -> None:
        """End the living sessions at once: what is not delivered may never be."""
        for driver in self._table.values():
            driver.core.abort(Reason(Cause.ABORTED, "the server stops"), now=driver.now())
            driver.pump()

    async def _cut(self) -> None:
        """The event loop shuts down. The sessions have hooks of their own."""
        self.close()
        self._stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
        self.close()
        await self.wait_closed()

    def _maybe_stop(self) -> None:
        if self._closing and not len(self._table) and not self._empty.is_set():
            self._stop()
            self._empty.set()
            self._end_serving()

    def _stop(self) -> None:
        """Let go of every socket that belongs to no session."""
        for listener in self._listeners:
            listener.close()
        self.control.close()
        self.reception.stop()
        if self._watch is not None:
            self._watch.cancel()
        self._given.close()
        self._draining.stop()
        self.admission.stop()
        self._reset_key.release()
        self._shutdown_hook.release()

    # --- sessions ---

    def _create(self, session_id: SessionId, source: str) -> SessionDriver:
        core = SessionCore(
            Side.SERVER,
            session_id,
            self._settings,
            entropy=os.urandom,
            make_scheduler=local_scheduler,
            make_peer_scheduler=peer_scheduler,
            now=self._loop.time(),
            psk=self._keys.get if self._keys is not None else None,
        )
        limits = self._config.limits
        driver = SessionDriver(core, self._config.transport_settings(), send_buffer=limits.max_send_buffer)
        driver.in_turn, driver.turn = self.admission.in_turn, self._loop_turn
        driver.on_opened = self._session_opened
        driver.on_closed = self._session_closed
        self.admission.session_opened(driver, source)
        full_collections.session_came()
        return driver

    def _confirmed(self, driver: SessionDriver) -> None:
        """The client of a session has proved itself: the Session ID is its own."""
        for other in self._table.confirmed(driver):
            other.core.fail(Reason(Cause.NEVER_CONFIRMED, "another client has confirmed first"), now=other.now())
            other.pump_soon()

    def _session_opened(self, driver: SessionDriver) -> None:
        listen = self._config.listen
        assert listen is not None
        if told := listen.told(self.port):
            driver.core.announce(told, now=driver.now())
        session = Session(driver, None, limit=self._limit, owns_close=True)
        self._sessions[driver] = session
        self._opened += 1
        trace_session(driver, self._config)
        try:
            result = self._on_client(session.reader, session.writer)
        except Exception as error:
            self._failed(session, error)
            return
        if asyncio.iscoroutine(result):
            task = self._loop.create_task(result)
            self._tasks.add(task)
            task.add_done_callback(partial(self._returned, session, driver.core))

    def _returned(self, session: Session, core: SessionCore, task: asyncio.Task[None]) -> None:
        """One client's callback has ended; what it lets escape ends its session and is told once."""
        self._tasks.discard(task)
        if task.cancelled():
            if not session.writer.is_closing():
                session.abort("the server stops" if self._closing else "the server's handler was cancelled")
            return
        error = task.exception()
        over = core.leaving or core.state is SessionState.CLOSED
        if isinstance(error, ConnectionError) and (over or isinstance(error, SessionLost)):
            session_id = session.id.hex()
            logger.info("session %s: %s", session_id[:8], error, extra={"session": session_id})
            if not core.leaving:  # it ends by itself, when what was written has arrived
                session.abort(APPLICATION_FAILED)
        elif isinstance(error, Exception):  # also of another connection: to a database that is down, say
            self._failed(session, error)

    def _failed(self, session: Session, error: Exception) -> None:
        """A bug of the application goes where asyncio's server reports it: error trackers and tests look there."""
        message = f"on_client failed in session {session.id.hex()[:8]}"
        self._loop.call_exception_handler(
            {"message": message, "exception": error, "transport": session.writer.transport}
        )
        session.abort(APPLICATION_FAILED)

    def _session_closed(self, driver: SessionDriver) -> None:
        self.admission.session_closed(driver)
        full_collections.session_went()
        self._table.remove(driver)
        if self._sessions.pop(driver, None) is not None and driver.core.reason is not None:
            self._ended[driver.core.reason.cause.value] += 1
        driver.record.tally(self._past)
        self._leaving.add(driver)
        self._maybe_stop()
