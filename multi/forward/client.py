"""The near end of forwarding: one session to a server that forwards, opened again whenever it is lost.

It decides when the session is dialled again, how long a new connection waits for it, and which of the server's
connections (-R) lead where.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from multi.asyncio.api import connect
from multi.asyncio.session import Session
from multi.asyncio.streams import SessionReader, SessionWriter
from multi.config import Config
from multi.errors import LocalProtocolError, MultiError, RemoteProtocolError, SessionLost
from multi.forward.dial import dial
from multi.forward.opening import MAX_CONNECTIONS, answer_of, forward, open_stream
from multi.forward.protocol import (
    HELLO,
    Accepted,
    Address,
    Code,
    Connect,
    ForwardRefused,
    Listen,
    encode_answer,
    is_hello,
    parse_address,
    read_head,
)
from multi.forward.relay import BUFFERED, ENDS, Counters, Pair, relay
from multi.forward.service import HEAD_TIMEOUT, with_room_for_streams
from multi.forward.specs import Forward, Treatment
from multi.forward.udp import FlowTable
from multi.reasons import Cause, Reason

logger = logging.getLogger("multi.forward")

HELLO_TIMEOUT = 10.0  # seconds a server gets to say that it forwards
SESSION_TIMEOUT = 10.0  # seconds a new connection waits for a session that is dialled again
REDIAL_DELAY = 0.2  # seconds until a lost session is dialled again, doubled with each failure
LONGEST_REDIAL_DELAY = 5.0  # seconds; a server that is back should be noticed while somebody waits
CLOSE_TIMEOUT = 3.0  # seconds for an orderly end, when all is done
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
        session.abort(str(error) or "interrupted")
        with suppress(MultiError):
            await session.wait_closed()
        raise
    return session


async def close_session(session: Session) -> None:
    """End it in order, or at once if that takes too long."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await session.close()
    except (MultiError, TimeoutError):
        session.abort()
        await session.settle()


async def finish_session(session: Session) -> None:
    """End forwarding, and return when the server has handed what it was sent to the targets, however long they take.

    Raises SessionLost: then some of it may never arrive.
    """
    session.writer.write_eof()
    while await session.reader.read(BUFFERED):
        pass
    await close_session(session)


class ForwardClient:
    """Forwards connections over one session at a time.

    Entering opens the session and asks for the ports of `remotes`; it raises what `open_session` does, and
    ForwardRefused for a port. Later both are tried again for ever, and `log` is told.
    """

    def __init__(self, config: Config, remotes: Sequence[Forward] = (), *, log: Callable[[str], None]) -> None:
        self.counters = Counters()
        self._config = config
        self._remotes = remotes
        self._log = log
        self._targets: dict[Address, Forward] = {}
        """What connections to ports of the server lead to, by the address listened on there."""
        self._session: Session | None = None
        self._table: FlowTable | None = None
        self._opened = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        session = await open_session(self._config)
        try:
            await self._use(session)
        except BaseException:
            await close_session(session)
            raise
        self._keeper = asyncio.create_task(self._keep(session))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks = [*self._tasks, *([self._keeper] if self._keeper is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await close_session(self._session)

    # --- connections of this end ---

    def start(self, near: Pair, work: Coroutine[Any, Any, None]) -> None:
        """Do the `work` of a connection that has come in, beside all others."""
        if len(self._tasks) >= MAX_CONNECTIONS:
            work.close()
            self.counters.failed += 1
            near.reset()
            return
        task = asyncio.create_task(self._run(near, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, near: Pair, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (*ENDS, EOFError) as error:
            logger.info("a forwarded connection ended: %s", error)
            near.reset()
        except BaseException:
            near.reset()
            raise

    async def session(self) -> Session:
        """The session, as soon as there is one. Raises SessionLost when that takes too long."""
        try:
            async with asyncio.timeout(SESSION_TIMEOUT):
                while self._session is None:
                    await self._opened.wait()
        except TimeoutError:
            raise SessionLost(Reason(Cause.TRANSPORT, "the server is out of reach")) from None
        return self._session

    async def forward(self, near: Pair, target: Address, treatment: Treatment) -> None:
        """Forward a connection to `target` at the far end, until it has ended."""
        await forward(near, await self.session(), Connect(target), treatment, self.counters)

    async def datagrams(self) -> tuple[Session, FlowTable]:
        """The session and its datagrams. Raises SessionLost, LocalProtocolError where the server takes none."""
        session = await self.session()
        if self._table is None:
            raise LocalProtocolError("the server takes no datagrams")
        return session, self._table

    # --- the session ---

    async def _use(self, session: Session) -> None:
        """Ask for the ports of the server's; new connections take this session from now on."""
        self._targets.clear()
        for remote in self._remotes:
            priority = remote.treatment.priority
            stream = await open_stream(session, Listen(remote.listen, priority), Treatment(priority))
            try:
                bound = parse_bound(await answer_of(stream))
            except ForwardRefused as error:
                raise ForwardRefused(error.code, f"the server refuses -R {remote}: {error}") from None
            self._targets[bound] = remote
            self._log(f"the server listens on {bound}, for {remote.target}")
        with suppress(LocalProtocolError):
            self._table = FlowTable(session)
        self._session = session
        self._opened.set()

    async def wait(self) -> None:
        """Forward for ever; raises what keeps it from going on, which no lost session does."""
        assert self._keeper is not None
        await asyncio.shield(self._keeper)

    async def _keep(self, session: Session) -> None:
        """Open another session whenever one has ended."""
        while True:
            await self._until_end(session)
            self._log(f"the session has ended: {session.error or 'the server has closed it'}; dialling again")
            session = await self._dial_again()
            self._log("the session is there again")

    async def _until_end(self, session: Session) -> None:
        """Serve the session until the server ends it or it is lost; raises what else keeps it from being served."""
        reading = asyncio.create_task(_read_to_end(session))
        parts = [reading, asyncio.create_task(self._accept(session))]
        if self._table is not None:
            parts.append(asyncio.create_task(self._table.run()))
        running = set(parts)
        try:
            while not reading.done():
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for part in ended:
                    try:
                        part.result()
                    except MultiError as error:
                        logger.info("the session has ended: %s", error, extra={"session": session.id.hex()})
        finally:
            self._session = None  # at once: what comes in from now on waits for the next one
            self._opened.clear()
            # The server says nothing more: what runs over the session shall end with it, and not wait.
            session.abort("the server has ended forwarding")
            self._table = None
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await session.settle()

    async def _dial_again(self) -> Session:
        delay, said = REDIAL_DELAY, ""
        while True:
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_REDIAL_DELAY)
            session = None
            try:
                session = await open_session(self._config)
                await self._use(session)
                return session
            except (MultiError, OSError) as error:
                if session is not None:
                    await close_session(session)
                if str(error) != said:
                    said = str(error)
                    self._log(f"no session yet: {said}")
            except BaseException:
                if session is not None:
                    session.abort()
                raise

    # --- connections of the server's ports ---

    async def _accept(self, session: Session) -> None:
        async for reader, writer in session.streams():
            self._start_stream(reader, writer)

    def _start_stream(self, reader: SessionReader, writer: SessionWriter) -> None:
        stream = Pair(reader, writer)
        self.start(stream, self._accepted(stream))

    async def _accepted(self, stream: Pair) -> None:
        """A connection to a port of the server's, which leads to a target here."""
        assert isinstance(stream.reader, SessionReader)
        assert isinstance(stream.writer, SessionWriter)
        try:
            async with asyncio.timeout(HEAD_TIMEOUT):
                head = await read_head(stream.reader)
            remote = self._targets.get(head.listener) if isinstance(head, Accepted) else None
            if remote is None:
                raise ForwardRefused(Code.BAD_REQUEST, "nothing is known of such a port here")
            sock = await dial(remote.target, None)
        except ForwardRefused as error:
            self._log(f"a connection from the server is refused: {error}")
            self.counters.failed += 1
            stream.writer.write(encode_answer(error.code, str(error)))
            stream.writer.close()
            return
        try:
            near = Pair(*await asyncio.open_connection(sock=sock, limit=BUFFERED))
        except BaseException:
            sock.close()
            raise
        if remote.treatment.steering is not None:  # the server has opened the stream, and follows its client
            session: Session = stream.writer.get_extra_info("session")
            session.set_steering(**remote.treatment.steering, streams=[stream.writer])
        stream.writer.write(encode_answer(Code.OK, str(Address(*sock.getpeername()[:2]))))
        await relay(near, stream, self.counters)


async def _read_to_end(session: Session) -> None:
    while await session.reader.read(BUFFERED):
        pass


def parse_bound(text: str) -> Address:
    """The address in the answer to LISTEN. Raises RemoteProtocolError."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise RemoteProtocolError(f"the server listens nowhere: {error}") from None
