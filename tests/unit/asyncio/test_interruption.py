"""What interrupts a program that runs in the background, or under nohup."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from multi.asyncio.interruption import INTERRUPTIONS, run_interruptible


@pytest.fixture(autouse=True)
def _handlers_are_put_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *INTERRUPTIONS)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("of_sigint", [signal.default_int_handler, signal.SIG_IGN])
@pytest.mark.parametrize("number", INTERRUPTIONS)
def test_a_signal_interrupts_although_sigint_is_ignored(number: signal.Signals, of_sigint: signal.Handlers) -> None:
    cleaned_up = []

    async def main() -> None:
        try:
            signal.raise_signal(number)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned_up.append(number)

    signal.signal(signal.SIGINT, of_sigint)
    with pytest.raises(KeyboardInterrupt):
        run_interruptible(main())
    assert cleaned_up == [number]


def test_a_signal_that_is_ignored_stays_so() -> None:
    async def main() -> str:
        signal.raise_signal(signal.SIGHUP)
        await asyncio.sleep(0.01)
        return "done"

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert run_interruptible(main()) == "done"


def test_another_thread_is_not_interrupted() -> None:
    async def main() -> str:
        return "done"

    with ThreadPoolExecutor() as threads:
        assert threads.submit(lambda: run_interruptible(main())).result() == "done"
