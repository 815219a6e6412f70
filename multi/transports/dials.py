"""Dials of one connection beside each other: over several networks, or in several ways over one.

Which connections a session wants, and which it dials, is decided by `multi.paths`; this is below.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from multi.transports.base import Channel

SMALL_AFTER = 1.0  # seconds without an answer after which small packets are tried as well: large ones may vanish
HEAD_START = 0.250  # seconds that a network is tried before the next one is, too: RFC 8305 section 8

C = TypeVar("C", bound=Channel)


async def first_to_answer(
    dials: Sequence[Callable[[], Coroutine[Any, Any, C]]], head_start: float, *, after_failure: bool
) -> C:
    """The channel of whichever dial is done first; the others are given up.

    Each has a `head_start` of some seconds before the next one is begun, too, and with `after_failure` none where all
    that were begun have failed. Raises what the first has failed with.
    """
    coming, begun = list(dials), list[asyncio.Task[C]]()
    won: asyncio.Task[C] | None = None
    try:
        while not all(dial.done() for dial in begun) or (coming and (after_failure or not begun)):
            if coming:
                begun.append(asyncio.create_task(coming.pop(0)()))
            wait = head_start if coming else None
            await asyncio.wait([d for d in begun if not d.done()], timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            won = next((dial for dial in begun if dial.done() and dial.exception() is None), None)
            if won is not None:
                await _give_up([dial for dial in begun if dial is not won])
                return won.result()
        return begun[0].result()
    except BaseException:
        await _give_up(begun)  # with the winner, where it was on its way out
        raise
    finally:
        begun.clear()  # what is raised here knows this frame, which must not hold it in turn


async def _give_up(dials: Sequence[asyncio.Task[C]]) -> None:
    for dial in dials:
        dial.cancel()
        dial.add_done_callback(_abort_channel)  # also where nobody waits any more
    await asyncio.gather(*dials, return_exceptions=True)


def _abort_channel(dial: asyncio.Task[C]) -> None:
    if not dial.cancelled() and dial.exception() is None:
        dial.result().abort()
