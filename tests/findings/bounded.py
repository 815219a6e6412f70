"""For tests that are expected to fail with AssertionError: what else goes wrong in them raises something else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run on a loop of its own; raise TimeoutError when it takes too long."""
    return asyncio.run(asyncio.wait_for(scenario, 20))


def given(holds: object, found: object = "") -> None:
    """Raise RuntimeError unless what a test starts from is as it should be."""
    if not holds:
        raise RuntimeError(f"this test starts from something else: {found}")


async def within(seconds: float, condition: Callable[[], object]) -> bool:
    """Whether it holds in time."""
    for _ in range(int(seconds * 100)):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return bool(condition())


async def reached(condition: Callable[[], object], what: str) -> None:
    """Wait until it holds; raise RuntimeError when it never does."""
    given(await within(10, condition), f"never happened: {what}")
