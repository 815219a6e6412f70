"""Letting go of a session that ends in time, of one that does not, and of one that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import AsyncMock, Mock

import pytest

from multi.asyncio.closing import abandon, close_in_time
from multi.errors import SessionLost


async def at_once() -> None:
    """It is closed."""


async def never() -> None:
    await asyncio.Event().wait()


async def lost() -> None:
    raise SessionLost


@pytest.mark.parametrize(("close", "aborted"), [(at_once, False), (never, True), (lost, True)])
async def test_what_does_not_end_in_order_and_in_time_is_ended(
    close: Callable[[], Awaitable[None]], aborted: bool
) -> None:
    session = Mock(close=close, settle=AsyncMock())
    await close_in_time(session, 0.01)
    assert session.abort.called is aborted
    assert session.settle.await_count == aborted


@pytest.mark.parametrize(("error", "told"), [(ValueError("no room"), "no room"), (KeyboardInterrupt(), "interrupted")])
async def test_the_peer_hears_why_a_session_is_given_up(error: BaseException, told: str) -> None:
    session = Mock(settle=AsyncMock())
    await abandon(session, error)
    session.abort.assert_called_once_with(told)
    session.settle.assert_awaited_once()
