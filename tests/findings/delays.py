"""How much longer something takes under an attack than without, in the same run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from statistics import median

MORE = 1.0  # seconds by which no flood delays an opening, a JOIN or a return
ROUNDS, MORE_ROUNDS = 3, 4  # of each, and of each besides where the first would not do

Measured = Callable[[], Awaitable[dict[str, float]]]
"""Does something, and says how many seconds each part of it took."""


async def delays(calm_round: Measured, attacked_round: Measured) -> dict[str, float]:
    """Seconds by which the median under attack is above the median without, of each part.

    A busy machine makes now one and now the other late. Where a delay is too long, more rounds are measured of both,
    and the medians of all count.
    """
    calm: dict[str, list[float]] = {}
    attacked: dict[str, list[float]] = {}
    found: dict[str, float] = {}
    for rounds in (ROUNDS, MORE_ROUNDS):
        for measured, took in ((calm_round, calm), (attacked_round, attacked)):
            for _ in range(rounds):
                for part, seconds in (await measured()).items():
                    took.setdefault(part, []).append(seconds)
        found = {part: median(attacked[part]) - median(calm[part]) for part in calm}
        if max(found.values()) < MORE:
            break
    return found


async def delay(calm_round: Callable[[], Awaitable[float]], attacked_round: Callable[[], Awaitable[float]]) -> float:
    """The same where there is one part."""

    async def calm() -> dict[str, float]:
        return {"": await calm_round()}

    async def attacked() -> dict[str, float]:
        return {"": await attacked_round()}

    return (await delays(calm, attacked))[""]
