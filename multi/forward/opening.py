"""One connection that came in at this end, as a stream to the other end. Both ends do this: for -L, and for -R.

It decides how many come in with one turn of the event loop, and how many are being opened at once: however many want
to be forwarded, those that are forwarded already wait for a few of them and not for all.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from multi.asyncio.session import Session
from multi.asyncio.streams import SessionReader
from multi.discovery.resources import allowed_descriptors
from multi.forward.protocol import Code, ForwardRefused, Head, HostPort, encode_head, read_answer
from multi.forward.relay import BUFFERED, MIN_READ, Counters, StreamPair, read_at_most, relay
from multi.forward.specs import USUAL, Treatment

ANSWER_TIMEOUT = 30.0  # seconds for a stream and its answer; longer than a far end gives a dial
ACCEPTED_AT_ONCE = 16  # connections in one turn of the event loop: asyncio takes as many as may wait in the kernel
BACKLOG = 4096  # connections a port may have waiting to be accepted, as far as the system allows
MAX_OPENING = 64  # connections of one session that are being opened at once; others wait for their turn
MAX_OPENING_OF_ONE = 0.75  # share of them for one target: if it does not answer, others are reached all the same
MAX_TURN = 1.0  # seconds; who waits longer for a target does nothing in that time
MAX_CONNECTIONS = 8192  # that came in at one end at the same time; a flood is refused before it takes the memory


def room_for(taken: int) -> bool:
    """Whether this process may carry another connection beside `taken` ones, each of which takes a descriptor.

    A quarter of those that the system allows is left: without any, asyncio's servers stop accepting, so that whoever
    connects hangs, and no connection of a session is opened.
    """
    return taken < allowed_descriptors() * 3 // 4


async def listen(
    accepted: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None], host: str | None, port: int
) -> asyncio.Server:
    """A server for connections that are to be forwarded. Raises OSError."""

    def first_read_little(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read_at_most(writer.transport, MIN_READ)  # thousands may wait for their turn
        accepted(reader, writer)

    server = await asyncio.start_server(first_read_little, host, port, limit=BUFFERED, backlog=ACCEPTED_AT_ONCE)
    for sock in server.sockets:
        with socket.socket(fileno=os.dup(sock.fileno())) as same:
            same.listen(BACKLOG)
    return server


class Turn:
    """The right to open one connection, held until it is `over`: when it is open, or has taken too long."""

    def __init__(self, release: Callable[[], None], patience_ends: float) -> None:
        self._release: Callable[[], None] | None = release
        self.patience_ends = patience_ends
        """When it has waited long enough for a stream, its turn included: all who wait have to hear in time of none."""

    def over(self) -> None:
        """The next one has its turn."""
        if self._release is not None:
            self._release()
            self._release = None


class OpeningTurns:
    """The connections of one session that are being opened: so many at once, in the order in which they were asked for.

    All else that a session carries is served in between: opening one costs far more than a few bytes on their way.
    """

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)
        self._most_of_one = max(int(most * MAX_OPENING_OF_ONE), 1)
        self._of: WeakValueDictionary[HostPort, asyncio.Semaphore] = WeakValueDictionary()
        """By target, as long as anybody is opened there or waits for that."""

    @asynccontextmanager
    async def turn(self, asked: StreamPair, target: HostPort) -> AsyncIterator[Turn]:
        """Be one of them, until the turn is over or the context is left. Those to one target wait for each other first.

        Raises what `asked` was reset with: nobody has waited for its connection until now.
        """
        assert isinstance(asked.reader, asyncio.StreamReader)
        patience_ends = asyncio.get_running_loop().time() + ANSWER_TIMEOUT
        own = self._of.get(target)
        if own is None:
            own = self._of[target] = asyncio.Semaphore(self._most_of_one)
        await own.acquire()
        try:
            await self._free.acquire()
        except BaseException:
            own.release()
            raise

        def release() -> None:
            self._free.release()
            own.release()

        turn = Turn(release, patience_ends)
        lapse = asyncio.get_running_loop().call_later(MAX_TURN, turn.over)
        try:
            if (gone := asked.reader.exception()) is not None:
                raise gone
            yield turn
        finally:
            lapse.cancel()
            turn.over()


async def open_stream(
    session: Session, head: Head, treatment: Treatment = USUAL, turn: Turn | None = None
) -> StreamPair:
    """Ask the other end for what `head` says; bytes may be sent before the answer, which is the first thing to read.

    Raises ForwardRefused when the other end allows no more streams for too long, SessionLost.
    """
    first = encode_head(head)
    until = asyncio.get_running_loop().time() + ANSWER_TIMEOUT if turn is None else turn.patience_ends
    try:
        async with asyncio.timeout_at(until):
            reader, writer = await session.open_stream(treatment.priority, steering=treatment.steering)
    except TimeoutError:
        raise ForwardRefused(Code.BUSY, "the session has as many streams as the other end allows") from None
    writer.write(first)
    return StreamPair(reader, writer)


async def answer_of(stream: StreamPair) -> str:
    """The address the other end has connected to or listens on.

    Raises ForwardRefused, RemoteProtocolError, SessionLost.
    """
    assert isinstance(stream.reader, SessionReader)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            return await read_answer(stream.reader)
    except TimeoutError:
        raise ForwardRefused(Code.TIMED_OUT, f"no answer from the other end within {ANSWER_TIMEOUT:g} s") from None


async def forward(
    near: StreamPair,
    session: Session,
    head: Head,
    treatment: Treatment,
    counters: Counters,
    turn: Turn | None = None,
) -> None:
    """Forward a connection until it has ended in both directions; what ends it early resets both and is raised.

    Its `turn` is over when the other end has answered.
    """
    try:
        stream = await open_stream(session, head, treatment, turn)
    except BaseException:
        counters.failed += 1
        near.reset()
        raise

    async def answered() -> None:
        await answer_of(stream)
        if turn is not None:
            turn.over()

    await relay(near, stream, counters, answered())
