"""Warnings for which strangers decide how often there is cause: few of them reach the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from time import monotonic

INTERVAL = 10.0  # seconds between two warnings of a kind


class RareWarnings:
    """At most one warning of a kind every `INTERVAL`, which says how many there were cause for since the last one."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = monotonic) -> None:
        self._logger, self._clock = logger, clock
        self._kinds: dict[str, tuple[float, int]] = {}
        """Until when it is silent of each, and how many it has left out."""

    def warn(self, kind: str, text: str, *arguments: object) -> None:
        silent_until, left_out = self._kinds.get(kind, (-inf, 0))
        now = self._clock()
        if now < silent_until:
            self._kinds[kind] = (silent_until, left_out + 1)
            return
        self._logger.warning(text + " (%d more since the last warning)", *arguments, left_out)
        self._kinds[kind] = (now + INTERVAL, 0)
