"""One connection that came in at this end, as a stream to the other end. Both ends do this: for -L, and for -R."""

from __future__ import annotations

import asyncio

from multi.asyncio.session import Session
from multi.asyncio.streams import SessionReader
from multi.discovery.resources import allowed_descriptors
from multi.forward.protocol import Code, ForwardRefused, Head, encode_head, read_answer
from multi.forward.relay import Counters, Pair, relay
from multi.forward.specs import USUAL, Treatment

ANSWER_TIMEOUT = 30.0  # seconds for a stream and its answer; longer than a far end gives a dial
MAX_CONNECTIONS = 8192  # that came in at one end at the same time; a flood is refused before it takes the memory


def room_for(taken: int) -> bool:
    """Whether this process may carry another connection beside `taken` ones, each of which takes a descriptor.

    A quarter of those that the system allows is left: without any, asyncio's servers stop accepting, so that whoever
    connects hangs, and no connection of a session is opened.
    """
    return taken < allowed_descriptors() * 3 // 4


async def open_stream(session: Session, head: Head, treatment: Treatment = USUAL) -> Pair:
    """Ask the other end for what `head` says; bytes may be sent before the answer, which is the first thing to read.

    Raises ForwardRefused when the other end allows no more streams for too long, SessionLost.
    """
    first = encode_head(head)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            reader, writer = await session.open_stream(treatment.priority, steering=treatment.steering)
    except TimeoutError:
        raise ForwardRefused(Code.BUSY, "the session has as many streams as the other end allows") from None
    writer.write(first)
    return Pair(reader, writer)


async def answer_of(stream: Pair) -> str:
    """The address the other end has connected to or listens on.

    Raises ForwardRefused, RemoteProtocolError, SessionLost.
    """
    assert isinstance(stream.reader, SessionReader)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            return await read_answer(stream.reader)
    except TimeoutError:
        raise ForwardRefused(Code.TIMED_OUT, f"no answer from the other end within {ANSWER_TIMEOUT:g} s") from None


async def forward(near: Pair, session: Session, head: Head, treatment: Treatment, counters: Counters) -> None:
    """Forward a connection until it has ended in both directions; what ends it early resets both and is raised."""
    try:
        stream = await open_stream(session, head, treatment)
    except BaseException:
        counters.failed += 1
        near.reset()
        raise
    await relay(near, stream, counters, answer_of(stream))
