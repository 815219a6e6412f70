"""How long a path may leave what was sent there without an answer while another one answers, and is left alone then."""

from __future__ import annotations

from collections.abc import Sequence

from multi.multipath.facts import PathFacts, PathState

PATIENCE = 2.0  # probe timeouts without an acknowledgement while more is sent; in one, what leaves at once may queue
MAX_PROBE_INTERVAL = 1.0  # seconds between probes of a suspect path, or its timeout: when it is back it should be known
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
        answering = [path for path in paths if path.state is PathState.ACTIVE]
        waiting = [path for path in answering if path.bytes_in_flight and path.rtt] if len(answering) > 1 else []
        before, self._since = self._since, {}
        silent: list[int] = []
        due: list[float] = []
        for path in waiting:
            acked, since = before.get(path.id, (path.acked, now))
            patience = PATIENCE * _probe_timeout(path)
            if path.acked > acked:
                since = now
            elif now >= since + patience:
                silent.append(path.id)
                since = now
            self._since[path.id] = path.acked, since
            due.append(since + patience)
        self.due_at = min(due, default=None)
        return silent


class ProbeWatch:
    """Suspect paths of a connection whose engine waits twice as long after each probe, without end."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, float]] = {}
        """Bytes sent on a path, and since when it has been as many."""
        self.due_at: float | None = None
        """When the next probe is."""

    def update(self, paths: Sequence[PathFacts], now: float) -> list[int]:
        """The paths to be probed now, on which nothing was sent for long."""
        before, self._since = self._since, {}
        due: list[int] = []
        times: list[float] = []
        for path in paths:
            if path.state is not PathState.SUSPECT:
                continue
            sent, since = before.get(path.id, (path.sent, now))
            wait = max(MAX_PROBE_INTERVAL, _probe_timeout(path))
            if path.sent != sent or now >= since + wait:
                if path.sent == sent:
                    due.append(path.id)
                since = now
            self._since[path.id] = path.sent, since
            times.append(since + wait)
        self.due_at = min(times, default=None)
        return due


def _probe_timeout(path: PathFacts) -> float:
    return path.rtt + max(4 * path.rtt_variation, GRANULARITY) + ACK_DELAY
