"""Coupled congestion control: the paths of one connection take together no more of a bottleneck than one flow would.

LIA is RFC 6356, OLIA is draft-khalili-mptcp-congestion-control. Both change only how windows grow in congestion
avoidance; slow start and the halving after losses are Reno's (RFC 9002 section 7.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

INITIAL_WINDOW = 10  # datagrams (RFC 9002 section 7.2)
MINIMUM_WINDOW = 2  # datagrams
LOSS_FACTOR = 0.5


class Coupling(Enum):
    """How windows grow together."""

    LIA = "lia"
    OLIA = "olia"


@dataclass
class CoupledPaths:
    """The windows of the paths of one connection."""

    coupling: Coupling
    datagram: int
    """Bytes, the largest one."""
    windows: list[CoupledWindow] = field(default_factory=list)

    def add(self) -> CoupledWindow:
        """A path more."""
        made = CoupledWindow(self)
        self.windows.append(made)
        return made

    def remove(self, window: CoupledWindow) -> None:
        """A path less."""
        if window in self.windows:
            self.windows.remove(window)

    def increase(self, window: CoupledWindow, acked: int) -> float:
        """Bytes by which one window grows in congestion avoidance for `acked` bytes on its path."""
        measured = [each for each in self.windows if each.rtt]
        if not window.rtt or not measured:
            return acked * self.datagram / window.size  # as alone
        total_rate = sum(each.size / each.rtt for each in measured)
        if self.coupling is Coupling.LIA:
            total = sum(each.size for each in measured)
            alpha = total * max(each.size / each.rtt**2 for each in measured) / total_rate**2
            return min(alpha * acked * self.datagram / total, acked * self.datagram / window.size)
        share = (window.size / window.rtt**2) / total_rate**2
        return acked * self.datagram * (share + self._olia_shift(window, measured) / window.size)

    def _olia_shift(self, window: CoupledWindow, measured: list[CoupledWindow]) -> float:
        """OLIA's alpha: moves windows from the largest to those of paths that would bear more."""
        largest = max(each.size for each in measured)
        best = max(each.between_losses**2 / each.rtt for each in measured)
        at_most = [each for each in measured if each.size == largest]
        collected = [each for each in measured if each.between_losses**2 / each.rtt == best and each.size < largest]
        if not collected:
            return 0.0
        if window in collected:
            return 1 / (len(measured) * len(collected))
        return -1 / (len(measured) * len(at_most)) if window in at_most else 0.0


class CoupledWindow:
    """The congestion window of one path, bytes."""

    def __init__(self, paths: CoupledPaths) -> None:
        self._paths = paths
        self.size = float(INITIAL_WINDOW * paths.datagram)
        self.threshold = float("inf")
        self.rtt = 0.0
        """Smoothed, seconds."""
        self._since_loss = self._before_loss = 0

    @property
    def between_losses(self) -> int:
        """Bytes acknowledged since the last loss, or between the last two if that was more."""
        return max(self._since_loss, self._before_loss)

    def acked(self, count: int) -> None:
        """Bytes were acknowledged."""
        self._since_loss += count
        if self.size < self.threshold:
            self.size += count
        else:
            self.size = max(self._least, self.size + self._paths.increase(self, count))

    def lost(self) -> None:
        """Something was lost, for the first time since what was sent then has been acknowledged."""
        self._before_loss, self._since_loss = self._since_loss, 0
        self.threshold = self.size = max(self._least, self.size * LOSS_FACTOR)

    def collapse(self) -> None:
        """Nothing at all gets through (RFC 9002 section 7.6)."""
        self.size = self._least

    @property
    def _least(self) -> float:
        return float(MINIMUM_WINDOW * self._paths.datagram)
