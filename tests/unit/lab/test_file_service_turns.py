"""Turns for what a client can ask much of with a line: one at a time, and no source has them all."""

from __future__ import annotations

import asyncio

from multi.lab.files.turns import WorkTurns


async def test_one_waits_for_another_source_once_however_many_of_that_one_wait() -> None:
    turns, taken = WorkTurns(), list[str]()

    async def work(source: str, times: int) -> None:
        for _ in range(times):
            async with turns.turn(source):
                await asyncio.sleep(0)
                taken.append(source)

    many = [asyncio.create_task(work("many", 10)) for _ in range(50)]
    await asyncio.sleep(0)
    await work("alone", 10)
    assert taken.count("many") <= 12
    await asyncio.gather(*many)
    assert taken.count("many") == 500


async def test_nobody_works_beside_another() -> None:
    turns, working = WorkTurns(), 0

    async def work(source: str) -> None:
        nonlocal working
        async with turns.turn(source):
            working += 1
            await asyncio.sleep(0)
            assert working == 1
            working -= 1

    await asyncio.gather(*(work(f"source {number % 3}") for number in range(30)))


async def test_a_turn_that_is_not_waited_for_any_more_is_the_next_ones() -> None:
    turns = WorkTurns()

    async def wait(source: str) -> None:
        async with turns.turn(source):
            raise AssertionError("it was given up")

    async with turns.turn("a"):
        waiting = [asyncio.create_task(wait(source)) for source in ("a", "b")]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    for source in ("a", "b"):
        async with asyncio.timeout(5), turns.turn(source):
            pass
