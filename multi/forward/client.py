"""The near end of forwarding: one session to a server that forwards, opened again whenever it is lost or about to be.

It decides when the session is dialled again, how long a new connection waits for it, and which of the server's
connections (-R) lead where.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic
from types import TracebackType
from typing import Any, Self, cast

from multi.asyncio.api import connect
from multi.asyncio.closing import abandon, close_in_time
from multi.asyncio.session import Session
from multi.asyncio.streams import SessionReader, SessionWriter
from multi.config import Config
from multi.errors import LocalProtocolError, MultiError, RemoteProtocolError, SessionLost
from multi.events import GoingAway
from multi.forward.dial import open_target
from multi.forward.opening import (
    MAX_CONNECTIONS,
    MAX_OPENING,
    OpeningTurns,
    Turn,
    answer_of,
    forward,
    open_stream,
    room_for,
)
from multi.forward.protocol import (
    HELLO,
    Accepted,
    Code,
    Connect,
    ForwardRefused,
    HostPort,
    RemoteListen,
    encode_answer,
    is_hello,
    parse_address,
    read_head,
)
from multi.forward.relay import BUFFERED, ENDS, Counters, StreamPair, relay
from multi.forward.service import HEAD_TIMEOUT, with_room_for_streams
from multi.forward.specs import Forward, Treatment
from multi.forward.udp import Flows, FlowTable
from multi.reasons import Cause, Reason

logger = logging.getLogger("multi.forward")

HELLO_TIMEOUT = 10.0  # seconds a server gets to say that it forwards
SESSION_TIMEOUT = 10.0  # seconds a new connection waits for a session that is dialled again
IDLE_LOOK = 0.1  # seconds between two looks at whether a session that is given up still carries anything
REDIAL_DELAY = 0.2  # seconds until a lost session is dialled again, doubled with each failure
MAX_REDIAL_DELAY = 5.0  # seconds; a server that is back should be noticed while somebody waits
OUT_OF_REACH = Reason(Cause.TRANSPORT, "the server is out of reach")
NOT_FORWARDING = "the server does not forward (is it `multi serve` with --forward-to?)"


async def open_session(config: Config) -> Session:
    """A session to a server that forwards.

    Raises what `multi.connect` does, and RemoteProtocolError when the server is another service.
    """
    session = await connect(with_room_for_streams(config))
    try:
        session.writer.write(HELLO)
        await session.confirmed()
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                forwards = is_hello(await session.reader.readline())
        except (TimeoutError, ValueError):
            forwards = False
        if not forwards:
            raise RemoteProtocolError(NOT_FORWARDING)
    except BaseException as error:
        await abandon(session, error)
        raise
    return session


async def finish_session(session: Session) -> None:
    """End forwarding, and return when the server has handed what it was sent to the targets, however long they take.

    Raises SessionLost: then some of it may never arrive.
    """
    session.writer.write_eof()
    while await session.reader.read(BUFFERED):
        pass
    await close_in_time(session)


class _Served:
    """One session, and what the server was asked for over it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.since = monotonic()
        self.targets: dict[HostPort, Forward] = {}
        """What connections to ports of the server lead to, by the address listened on there."""
        self._ports: list[StreamPair] = []
        """A port of the server's stays open as long as its stream."""
        self.missing: list[Forward] = []
        """Those that were refused and may be had later: somebody else has the port."""
        self.table: FlowTable | None = None
        self.going_away = asyncio.Event()
        """The server is being stopped."""
        self.retired = False
        """Nothing runs over it any more, and this side has said so."""

    async def listen(self, remotes: Iterable[Forward], log: Callable[[str], None]) -> list[ForwardRefused]:
        """Ask for ports of the server's. Returns why some are refused; raises what a lost session does."""
        refused = []
        for remote in remotes:
            priority = remote.treatment.priority
            stream = await open_stream(self.session, RemoteListen(remote.listen, priority), Treatment(priority))
            try:
                bound = parse_bound(await answer_of(stream))
            except ForwardRefused as error:
                stream.reset()
                refused.append(ForwardRefused(error.code, f"the server refuses -R {remote}: {error}"))
                if error.code is not Code.NOT_ALLOWED:
                    self.missing.append(remote)
                continue
            self.targets[bound] = remote
            self._ports.append(stream)
            log(f"the server listens on {bound}, for {remote.target}")
        return refused

    async def ask_again(self, log: Callable[[str], None]) -> None:
        """Ask for the ports that were in use until the server has them all, or is being stopped."""
        delay = REDIAL_DELAY
        while self.missing and not self.going_away.is_set():
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_REDIAL_DELAY)
            remotes, self.missing = self.missing, []
            await self.listen(remotes, log)

    async def hear(self) -> None:
        async for event in self.session.events():
            if isinstance(event, GoingAway):
                self.going_away.set()

    async def until_idle(self) -> None:
        """Return when no connection is forwarded over it any more."""
        standing = 1 + len(self.targets)  # stream 0, and one for each port of the server's
        while self.session.stats().streams > standing:  # noqa: ASYNC110 - nobody counts what ends, most of the time
            await asyncio.sleep(IDLE_LOOK)


class ForwardClient:
    """Forwards connections over one session at a time. When its server is being stopped new ones take another session.

    Entering opens the session and asks for the ports of `remotes`; it raises what `open_session` does, and
    ForwardRefused for a port that is not granted. A session that is lost later is opened again, and a port that is in
    use is asked for again, for ever, and `log` is told.
    """

    def __init__(self, config: Config, remotes: Sequence[Forward] = (), *, log: Callable[[str], None]) -> None:
        self.counters = Counters()
        self.flows = Flows(self.datagrams, self.counters)
        """Those of all ports."""
        self._opening = OpeningTurns(MAX_OPENING)
        self._config = config
        self._remotes = remotes
        self._log = log
        self._served: _Served | None = None
        """What new connections take."""
        self._opened = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep(await self._open(first=True)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks = [*self._tasks, *([self._keeper] if self._keeper is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- connections of this end ---

    def start(self, near: StreamPair, work: Coroutine[Any, Any, None]) -> None:
        """Do the `work` of a connection that has come in, beside all others."""
        if len(self._tasks) >= MAX_CONNECTIONS or not room_for(len(self._tasks)):
            work.close()
            self.counters.failed += 1
            logger.info("a connection is refused: %d are forwarded", len(self._tasks))
            near.reset()
            return
        task = asyncio.create_task(self._run(near, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, near: StreamPair, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (*ENDS, EOFError) as error:
            logger.info("a forwarded connection ended: %s", error)
            near.reset()
        except BaseException:
            near.reset()
            raise

    async def _current(self) -> _Served:
        """The session for a new connection, as soon as there is one. Raises SessionLost when that takes too long."""
        try:
            async with asyncio.timeout(SESSION_TIMEOUT):
                while self._served is None:
                    await self._opened.wait()
        except TimeoutError:
            raise SessionLost(OUT_OF_REACH) from None
        return self._served

    async def forward(self, near: StreamPair, target: HostPort, treatment: Treatment) -> None:
        """Forward a connection to `target` at the far end, until it has ended."""
        async with self.turn(near, target) as (session, turn):
            await forward(near, session, Connect(target), treatment, self.counters, turn)

    @asynccontextmanager
    async def turn(self, near: StreamPair, target: HostPort) -> AsyncIterator[tuple[Session, Turn]]:
        """The session for a connection that has come in, when it is its turn to be opened.

        Raises SessionLost where there is none for too long, or none any more. Nobody has a turn meanwhile: each would
        wait for a server that is out of reach only after the other.
        """
        await self._current()
        async with self._opening.turn(near, target) as turn:
            if self._served is None:
                raise SessionLost(OUT_OF_REACH)
            yield self._served.session, turn

    async def datagrams(self) -> tuple[Session, FlowTable]:
        """The session and its datagrams. Raises SessionLost, LocalProtocolError where the server takes none."""
        served = await self._current()
        if served.table is None:
            raise LocalProtocolError("the server takes no datagrams")
        return served.session, served.table

    # --- the session ---

    async def _open(self, *, first: bool = False) -> _Served:
        """Another session; new connections take it from now on.

        Raises what `open_session` does, and ForwardRefused for a port that is not granted to the `first`.
        """
        served = _Served(await open_session(self._config))
        try:
            for refused in await served.listen(self._remotes, self._log):
                if first and refused.code is Code.NOT_ALLOWED:
                    raise refused
                self._log(str(refused))
            with suppress(LocalProtocolError):
                served.table = FlowTable(served.session)
        except BaseException:
            await close_in_time(served.session)
            raise
        self._served = served
        self._opened.set()
        return served

    def _forget(self, served: _Served) -> None:
        """What comes in from now on waits for the next one, unless there is one already."""
        if self._served is served:
            self._served = None
            self._opened.clear()

    async def wait(self) -> None:
        """Forward for ever; raises what keeps it from going on, which no lost session does."""
        assert self._keeper is not None
        await asyncio.shield(self._keeper)

    async def _keep(self, served: _Served) -> None:
        """Open another session whenever one has ended, or its server is being stopped."""
        running = asyncio.create_task(self._run_session(served))
        retiring: set[asyncio.Task[None]] = set()
        away, pause = None, 0.0
        try:
            while True:
                away = asyncio.create_task(served.going_away.wait())
                ended, _ = await asyncio.wait({running, away, *retiring}, return_when=asyncio.FIRST_COMPLETED)
                away.cancel()
                for task in ended & (retiring | {running}):
                    retiring.discard(cast("asyncio.Task[None]", task))
                    task.result()
                if running.done():
                    why = served.session.error or "the server has closed it"
                    self._log(f"the session has ended: {why}; dialling again")
                    served = await self._dial_again(REDIAL_DELAY)
                    self._log("the session is there again")
                elif served.going_away.is_set():
                    self._log("the server is being stopped; dialling another session")
                    old, served = served, await self._dial_again(pause)
                    lasted = monotonic() - old.since
                    pause = 0.0 if lasted > MAX_REDIAL_DELAY else min(2 * pause + REDIAL_DELAY, MAX_REDIAL_DELAY)
                    self._log("new connections take another session")
                    retiring.add(asyncio.create_task(self._retire(old, running)))
                else:
                    continue
                running = asyncio.create_task(self._run_session(served))
        finally:
            left = {running, *retiring, *([away] if away is not None else [])}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _run_session(self, served: _Served) -> None:
        """Serve until the server ends the session or it is lost; raises what else keeps it from being served."""
        session = served.session
        reading = asyncio.create_task(_read_to_end(session))
        parts = [reading, asyncio.create_task(self._accept(served)), asyncio.create_task(served.hear())]
        parts.append(asyncio.create_task(served.ask_again(self._log)))
        if served.table is not None:
            parts.append(asyncio.create_task(served.table.run()))
        running = set(parts)
        try:
            while not reading.done():
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for part in ended:
                    try:
                        part.result()
                    except MultiError as error:
                        logger.info("the session has ended: %s", error, extra={"session": session.id.hex()})
            if served.retired:
                await close_in_time(session)
        finally:
            self._forget(served)
            # The server says nothing more: what runs over the session shall end with it, and not wait.
            session.abort("the server has ended forwarding")
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await session.settle()

    async def _retire(self, served: _Served, running: asyncio.Task[None]) -> None:
        """Its server is being stopped, and there is another session: end it when nothing runs over it any more."""
        idle = asyncio.create_task(served.until_idle())
        try:
            await asyncio.wait({idle, running}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                served.retired = True
                served.session.writer.write_eof()  # the server ends what it does for this session, and says so
            await running
        finally:
            running.cancel()
            idle.cancel()
            await asyncio.gather(idle, running, return_exceptions=True)

    async def _dial_again(self, delay: float) -> _Served:
        """Open a session after `delay` seconds, and try until that works."""
        said = ""
        while True:
            await asyncio.sleep(delay)
            delay = min(max(REDIAL_DELAY, 2 * delay), MAX_REDIAL_DELAY)
            try:
                return await self._open()
            except (MultiError, OSError) as error:
                if str(error) != said:
                    said = str(error)
                    self._log(f"no session yet: {said}")

    # --- connections of the server's ports ---

    async def _accept(self, served: _Served) -> None:
        async for reader, writer in served.session.streams():
            self._start_stream(served, reader, writer)

    def _start_stream(self, served: _Served, reader: SessionReader, writer: SessionWriter) -> None:
        stream = StreamPair(reader, writer)
        self.start(stream, self._accepted(served, stream))

    async def _accepted(self, served: _Served, stream: StreamPair) -> None:
        """A connection to a port of the server's, which leads to a target here."""
        assert isinstance(stream.reader, SessionReader)
        assert isinstance(stream.writer, SessionWriter)
        try:
            async with asyncio.timeout(HEAD_TIMEOUT):
                head = await read_head(stream.reader)
            remote = served.targets.get(head.listener) if isinstance(head, Accepted) else None
            if remote is None:
                raise ForwardRefused(Code.BAD_REQUEST, "nothing is known of such a port here")
            if remote.treatment.steering is not None:  # the server has opened the stream, and follows its client
                session: Session = stream.writer.get_extra_info("session")
                session.set_steering(**remote.treatment.steering, streams=[stream.writer])
            near, address = await open_target(remote.target, None)
        except ForwardRefused as error:
            self._log(f"a connection from the server is refused: {error}")
            self.counters.failed += 1
            stream.writer.write(encode_answer(error.code, str(error)))
            stream.writer.close()
            return
        stream.writer.write(encode_answer(Code.OK, str(address)))
        await relay(near, stream, self.counters)


async def _read_to_end(session: Session) -> None:
    while await session.reader.read(BUFFERED):
        pass


def parse_bound(text: str) -> HostPort:
    """The address in the answer to LISTEN. Raises RemoteProtocolError."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise RemoteProtocolError(f"the server listens nowhere: {error}") from None
