"""What tests of attacks rely on: a callback that takes long is found, by chance once or whenever it runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.integration.callbacks import (
    CALLBACK,
    REPEATED,
    Callbacks,
    callbacks_bounded,
    callbacks_measured,
    told_callbacks,
)
from tests.integration.support import run


def work(seconds: float) -> None:
    """Use the processor for so long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def called(*seconds: float) -> Callbacks:
    """What is measured of calls that take so long, and of a test that itself takes longer."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    with callbacks_measured() as found:
        for each in seconds:
            # Of this module, as a server's would be of another: what is left out are steps of tasks.
            loop.call_soon(work, each)
        loop.call_soon(done.set)
        await done.wait()
        work(2 * CALLBACK)
        await asyncio.sleep(0)
    return found


LONG, SHORT = 1.5 * CALLBACK, 0.0


def test_a_callback_that_takes_long_is_found_and_a_test_s_own_step_is_none() -> None:
    found = run(called(LONG))
    assert [name for _, name in found.too_long] == ["work"]
    assert found.longest[0] >= LONG
    with pytest.raises(AssertionError, match=r"callbacks above \d+ ms of the processor: work \d"):
        found.check()


def test_one_that_took_long_once_is_not_held_against_a_callback_that_did_not_again() -> None:
    assert run(called(LONG, *[SHORT] * REPEATED)).held
    assert not run(called(LONG, *[SHORT] * (REPEATED - 1))).held
    assert not run(called(LONG, LONG, *[SHORT] * 10)).held


def test_a_block_that_failed_fails_with_its_own_error() -> None:
    async def scenario() -> None:
        with callbacks_bounded():
            asyncio.get_running_loop().call_soon(work, LONG)
            await asyncio.sleep(0)
            raise LookupError

    with pytest.raises(LookupError):
        run(scenario())


def test_what_is_told_in_a_file_is_what_was_measured(tmp_path: Path) -> None:
    found = run(called(LONG, SHORT))
    found.tell(tmp_path / "callbacks.json")
    assert told_callbacks(tmp_path / "callbacks.json") == found
