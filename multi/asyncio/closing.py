"""How a program lets go of a session that it has opened: in order if that takes no time, at once if it cannot go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from multi.errors import MultiError

if TYPE_CHECKING:
    from multi.asyncio.session import Session

CLOSE_TIMEOUT = 3.0  # seconds for an orderly end, when all is done


async def close_in_time(session: Session, timeout: float = CLOSE_TIMEOUT) -> None:
    """End it in order, or at once if that takes longer. Raises nothing: what matters has been done before."""
    try:
        async with asyncio.timeout(timeout):
            await session.close()
    except (MultiError, TimeoutError):
        session.abort()
        await session.settle()


async def abandon(session: Session, error: BaseException) -> None:
    """End it at once because of `error`: the peer's log should say more than that the client went away."""
    session.abort(str(error) or "interrupted")
    await session.settle()
