"""UDP over the datagrams of a session: a flow, from one address here to one there, is a stream and what names it.

The stream opens the flow, tells whether the other end takes it, and ends it; the bytes travel as datagrams that begin
with its number, so none is ever repeated or waited for. Decided here: how many flows there are, which gives way to
another, how long an idle one lasts, and what waits until a new one is answered.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Coroutine, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, cast

from multi.asyncio.session import Session
from multi.errors import DatagramTooLarge, LocalProtocolError, MultiError
from multi.forward.opening import answer_of, open_stream
from multi.forward.protocol import Flow, ForwardRefused, HostPort
from multi.forward.relay import ENDS, Counters, StreamPair
from multi.forward.specs import Treatment

logger = logging.getLogger("multi.forward")

TIME_TO_LIVE = 0.3  # seconds a datagram may wait for a connection; a program that cares sends it again by then
IDLE_TIMEOUT = 120.0  # seconds without a datagram that end a flow (RFC 4787 REQ-5: not less than two minutes)
MAX_FLOWS = 1024  # at the same time, of all ports together; then one has to give way to another
MAX_ENDING = 64  # more at the end that is asked for them: those that have given way may not have ended there yet
REPLACED_EVERY = 0.01  # seconds from one that gives way to the next: whoever fills it gets no more work done by more
MAX_PENDING = 16  # datagrams of a flow that wait for its answer
MAX_PENDING_BYTES = 4 << 20  # bytes of them, of all flows together
_FLOW = struct.Struct("!I")

Receive = Callable[[bytes], None]


class FlowTable:
    """The datagrams of one session, by the stream that stands for their flow. Raises LocalProtocolError without any."""

    def __init__(self, session: Session) -> None:
        self._datagrams = session.datagrams(ttl=TIME_TO_LIVE, copies="auto")
        self._in_pairs = session.datagrams(ttl=TIME_TO_LIVE, copies=2)
        self._flows: dict[int, tuple[StreamPair, Receive]] = {}

    def __len__(self) -> int:
        return len(self._flows)

    def add(self, stream: StreamPair, receive: Receive) -> None:
        """Datagrams of this flow go to `receive` from now on."""
        self._flows[stream_id(stream)] = stream, receive

    def remove(self, number: int) -> None:
        self._flows.pop(number, None)

    def send(self, number: int, data: bytes) -> bool:
        """Send one, twice where the flow's stream is steered so; False when it is dropped because it fits nowhere."""
        flow = self._flows.get(number)
        redundant = flow is not None and flow[0].writer.get_extra_info("steering") == "redundant"
        datagrams = self._in_pairs if redundant else self._datagrams
        try:
            datagrams.send(_FLOW.pack(number) + data)
        except DatagramTooLarge:
            logger.info("a datagram of %d bytes is dropped: %d fit", len(data), self._datagrams.max_size - _FLOW.size)
            return False
        except MultiError as error:
            logger.debug("a datagram is dropped: %s", error)
            return False
        return True

    async def run(self) -> None:
        """Hand out what comes until the session ends."""
        async for message in self._datagrams:
            if len(message) >= _FLOW.size:
                flow = self._flows.get(_FLOW.unpack_from(message)[0])
                if flow is not None:
                    flow[1](message[_FLOW.size :])


class ForwardPort(asyncio.DatagramProtocol):
    """A UDP socket whose datagrams go to `received`, with the address they came from.

    What the kernel does not take is dropped, as in a queue that is full. asyncio's transport would keep it, and
    the one of Python 3.13.0 counts eight bytes of each datagram for ever: it would never resume.
    """

    def __init__(self, received: Callable[[bytes, HostPort], None]) -> None:
        self._received = received
        self._transport: asyncio.DatagramTransport | None = None
        self._socket: socket.socket | None = None
        """The transport's, to send with; None when it is closed."""
        self._connected = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)
        self._socket = socket.socket(fileno=transport.get_extra_info("socket").fileno())
        self._connected = transport.get_extra_info("peername") is not None

    def connection_lost(self, exc: Exception | None) -> None:
        self._let_go()

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._received(data, HostPort(*addr[:2]))

    def error_received(self, exc: Exception) -> None:
        """Nobody listens there now; UDP has no more to say about it."""

    def send(self, data: bytes, to: HostPort | None = None) -> None:
        """Send to an address, or to the one the socket is connected to."""
        if self._socket is None or self._transport is None or self._transport.is_closing():
            return
        with suppress(OSError):
            if to is None or self._connected:
                self._socket.send(data)
            else:
                self._socket.sendto(data, tuple_of(to))

    @property
    def address(self) -> HostPort:
        assert self._transport is not None
        return HostPort(*self._transport.get_extra_info("sockname")[:2])

    def close(self) -> None:
        self._let_go()
        if self._transport is not None:
            self._transport.close()

    def _let_go(self) -> None:
        if self._socket is not None:
            self._socket.detach()  # the transport closes it
            self._socket = None


def tuple_of(address: HostPort) -> tuple[str, int]:
    return address.host, address.port


class IdleClock:
    """Says when nothing has been heard for IDLE_TIMEOUT."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.at = self._loop.time()
        """When something was heard last."""

    def heard(self) -> None:
        self.at = self._loop.time()

    async def until_idle(self) -> None:
        while (left := self.at + IDLE_TIMEOUT - self._loop.time()) > 0:  # noqa: ASYNC110 - most sleep two minutes
            await asyncio.sleep(left)


async def until_end_or_idle(stream: StreamPair, clock: IdleClock) -> None:
    """Return when the other end has ended the flow, or nothing came for too long; then end it here too."""
    ended = asyncio.ensure_future(stream.reader.read(1))
    idle = asyncio.ensure_future(clock.until_idle())
    try:
        await asyncio.wait({ended, idle}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (ended, idle):
            task.cancel()
        await asyncio.gather(ended, idle, return_exceptions=True)
    stream.writer.close()


def stream_id(stream: StreamPair) -> int:
    return int(stream.writer.get_extra_info("stream"))


class Flows:
    """Flows that begin at this end: one for each key of a port, made when its first datagram comes.

    `table` waits for the session there is now and its datagrams. Where there are as many as there may be, the one that
    was idle longest gives way to another, first of all one that was never answered: so nobody who sends from thousands
    of addresses keeps others out until those are given up.
    """

    def __init__(self, table: Callable[[], Coroutine[Any, Any, tuple[Session, FlowTable]]], counters: Counters) -> None:
        self._table = table
        self._counters = counters
        self._flows: dict[tuple[ForwardPort, Hashable], _Flow] = {}
        self._pending = _Pending()
        self._replaced_at = -inf

    def datagram(
        self, port: ForwardPort, key: Hashable, target: HostPort, data: bytes, reply: Receive, treatment: Treatment
    ) -> None:
        """Send `data` to `target` in the flow `key` of a port; what comes back in it goes to `reply`."""
        flow = self._flows.get((port, key))
        if flow is None:
            if len(self._flows) >= MAX_FLOWS and not self._one_gives_way():
                self._counters.failed += 1
                return
            flow = self._flows[port, key] = _Flow(self._counters, self._pending, reply)
            flow.task = asyncio.create_task(self._run(flow, target, treatment))
            flow.task.add_done_callback(partial(self._ended, (port, key), flow))
        flow.send(data)

    def _one_gives_way(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now - self._replaced_at < REPLACED_EVERY:
            return False
        self._replaced_at = now
        key, flow = min(self._flows.items(), key=lambda item: (item[1].answered, item[1].clock.at))
        del self._flows[key]
        if flow.task is not None:
            flow.task.cancel()
        return True

    def _ended(self, key: tuple[ForwardPort, Hashable], flow: _Flow, _: asyncio.Task[None]) -> None:
        """Also if it was cancelled before it had begun."""
        flow.forget()
        if self._flows.get(key) is flow:
            del self._flows[key]

    async def _run(self, flow: _Flow, target: HostPort, treatment: Treatment) -> None:
        with self._counters.another():
            try:
                session, table = await self._table()
                await flow.run(session, table, target, treatment)
            except ENDS as error:
                self._counters.failed += 1
                logger.info("datagrams to %s: %s", target, error)
                if isinstance(error, ForwardRefused | LocalProtocolError):
                    await asyncio.sleep(1.0)  # the next datagram would only ask again

    async def close(self, port: ForwardPort) -> None:
        """End those of a port."""
        port.close()
        tasks = [flow.task for (of, _), flow in self._flows.items() if of is port and flow.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class _Pending:
    """Bytes that wait for an answer, of all flows together."""

    size: int = 0


class _Flow:
    def __init__(self, counters: Counters, all_pending: _Pending, reply: Receive) -> None:
        self.task: asyncio.Task[None] | None = None
        self.clock = IdleClock()
        self.answered = False
        """Something came back."""
        self._counters = counters
        self._reply = reply
        self._pending: list[bytes] = []
        self._all_pending = all_pending
        self._out: Receive | None = None

    def send(self, data: bytes) -> None:
        self.clock.heard()
        if self._out is not None:
            self._out(data)
        elif len(self._pending) < MAX_PENDING and self._all_pending.size + len(data) <= MAX_PENDING_BYTES:
            self._pending.append(data)
            self._all_pending.size += len(data)

    def forget(self) -> None:
        """What waits for an answer is of no use any more."""
        self._all_pending.size -= sum(map(len, self._pending))
        self._pending.clear()

    def _receive(self, data: bytes) -> None:
        self.clock.heard()
        self.answered = True
        self._counters.count_received(len(data))
        self._reply(data)

    async def run(self, session: Session, table: FlowTable, target: HostPort, treatment: Treatment) -> None:
        stream = await open_stream(session, Flow(target), treatment)
        number = stream_id(stream)

        def out(data: bytes) -> None:
            if table.send(number, data):
                self._counters.count_sent(len(data))

        table.add(stream, self._receive)
        try:
            await answer_of(stream)
            self._out = out
            for data in self._pending:
                out(data)
            self.forget()
            await until_end_or_idle(stream, self.clock)
        except BaseException:
            stream.reset()
            raise
        finally:
            table.remove(number)
