"""How long a path may leave what was sent there without an answer while another path answers."""

from __future__ import annotations

from collections.abc import Sequence

from multi.multipath.facts import PathFacts, PathState

PATIENCE = 2.0  # probe timeouts without an acknowledgement while more is sent; in one, what leaves at once may queue
ACK_DELAY = 0.025  # seconds; RFC 9000's default of what a peer may wait before it acknowledges
GRANULARITY = 0.001  # seconds, of a timer (RFC 9002)


class SilenceWatch:
    """Paths of a connection whose engine puts a probe off with each packet sent (RFC 9002 section 6.2.1).

    Who sends steadily would not notice that its path is dead before the window is full.
    """

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, float]] = {}
        """What of a path was acknowledged, and from when on nothing more has been."""
        self.due_at: float | None = None
        """When the first of them has been silent for too long."""

    def update(self, paths: Sequence[PathFacts], now: float) -> list[int]:
        """The paths that have been silent for too long; they are told once in that time."""
        waiting = [path for path in paths if path.state is PathState.ACTIVE and path.rtt]
        if len(waiting) < 2:
            waiting = []
        before, self._since, self.due_at = self._since, {}, None
        silent: list[int] = []
        for path in waiting:
            if not path.bytes_in_flight:
                continue
            acked, since = before.get(path.id, (path.acked, now))
            due_at = since + PATIENCE * _probe_timeout(path)
            if path.acked > acked:
                since = now
            elif now >= due_at:
                silent.append(path.id)
                since = now
            self._since[path.id] = path.acked, since
            due_at = since + PATIENCE * _probe_timeout(path)
            self.due_at = due_at if self.due_at is None else min(self.due_at, due_at)
        return silent


def _probe_timeout(path: PathFacts) -> float:
    return path.rtt + max(4 * path.rtt_variation, GRANULARITY) + ACK_DELAY
