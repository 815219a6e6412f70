"""Cubic as aioquic has it, with another end of slow start.

aioquic ends it for good as soon as a few round trips are a quarter longer than the shortest; from there a window grows
by some datagrams a second. A few milliseconds in which acknowledgements wait for each other are enough on a short path,
and the rest of a download is many times slower than what the path carries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf
from typing import Any

from aioquic.quic.congestion.base import register_congestion_control
from aioquic.quic.congestion.cubic import CubicCongestionControl
from aioquic.quic.packet_builder import QuicSentPacket

from multi.multipath.cap import rise_of

SAMPLES = 8  # round trips one after the other, all of them longer
REDUCTION = 0.7  # of a window when something is lost (RFC 9438 section 4.6)
MIN_DATAGRAMS = 2  # that it keeps
MORE, LONGER = 4 / 3, 9 / 8  # a window so much larger, and round trips not even so much longer: no queue of its own
OF_THE_WINDOW = (
    *("congestion_window", "ssthresh", "_first_slow_start", "_starting_congestion_avoidance", "K", "_W_est", "_W_max"),
    *("_cwnd_epoch", "_t_epoch", "_lost"),
)
"""What a loss changes."""
ROUNDS = 2  # for which a window is held, the second of which tells whether it was a queue of its own


class SlowStart:
    """Tells by round trips whether a window that doubles fills a queue, as HyStart++ does (RFC 9406).

    While they are longer than the shortest the window is held. A queue of its own stays then, and slow start is over;
    if round trips become shorter again it was a passing delay, and the window doubles on. So it does whenever they are
    short again and nothing was lost yet: what stood for longer were acknowledgements that waited for each other, or
    the data of somebody else. So it does too when the window has grown by a third since and round trips have not: they
    would have, behind a queue of its own. The way has become longer.
    """

    def __init__(self) -> None:
        self._shortest = inf
        self._latest: deque[float] = deque(maxlen=SAMPLES)
        self._least = inf
        """In the round that is looked at while the window is held."""
        self._since = inf
        """When that round began; inf = the window is not held."""
        self._rounds = 0
        self.over = False
        """It is a queue of its own: until it is gone the window grows as slowly as after a loss."""
        self._begin = 0, 0.0
        """The window and the round trip when it was over, or when the round trip was longer with a larger window."""

    @property
    def holds(self) -> bool:
        """Round trips are longer: the window is to stay as it is, or nearly so once that is a queue of its own."""
        return self._since < inf

    def measured(self, rtt: float, now: float) -> None:
        """A round trip has taken so many seconds."""
        self._shortest = min(self._shortest, rtt)
        self._least = min(self._least, rtt)
        self._latest.append(rtt)
        if self._since == inf and len(self._latest) == SAMPLES and self._is_long(min(self._latest)):
            self._since, self._least, self._rounds = now, inf, 0

    def comes_back_otherwise(self, shortest: float, now: float) -> None:
        """From now on round trips are those of another way back, on which the shortest has taken so many seconds, inf =
        there was none."""
        self._shortest, self._least = shortest, inf
        self._latest.clear()
        if self._since < inf:
            self._since = now

    def acknowledged(self, sent_at: float, now: float, window: int) -> None:
        """What was sent at `sent_at` has arrived; times are in seconds, the window in bytes."""
        if sent_at < self._since or self._least == inf:
            return
        self._rounds += 1
        if self._rounds >= ROUNDS:  # round trips in the first were those of what was sent before
            self._judge(window)
        if self._rounds < ROUNDS or self.over:
            self._since, self._least = now, inf
        else:
            self._since = inf
            self._latest.clear()

    def _judge(self, window: int) -> None:
        over, rtt = self._is_long(self._least), self._least
        if over and self.over and window >= self._begin[0] * MORE:
            if rtt < self._begin[1] * LONGER:
                self._shortest, over = rtt, False
            self._begin = window, rtt
        elif not self.over:
            self._begin = window, rtt
        self.over = over

    def _is_long(self, rtt: float) -> bool:
        return rtt >= self._shortest + rise_of(self._shortest)


class AioquicCubic(CubicCongestionControl):
    """See the module."""

    NAME = "multi-cubic"
    """By which aioquic makes it."""

    def reset(self) -> None:
        super().reset()
        self.slow_start = SlowStart()
        self._lost = False
        """Something was: slow start is over for good."""
        self._before: dict[str, Any] = {}
        """What it knew before something was taken for lost, until that has arrived or is."""

    def on_packet_sent(self, *, packet: QuicSentPacket) -> None:
        # aioquic begins anew where what was acknowledged last had been sent two seconds before. Who waits for
        # acknowledgements is not idle: where a round trip takes that long no window would ever grow.
        if self.bytes_in_flight and self.last_ack:
            self.last_ack = packet.sent_time or 0.0
        super().on_packet_sent(packet=packet)

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        window = self.congestion_window
        super().on_packet_acked(now=now, packet=packet)
        self.last_ack = now
        if self._lost:
            return
        over = self.slow_start.over
        self.slow_start.acknowledged(packet.sent_time or 0.0, now, self.congestion_window)
        if self.slow_start.holds and not over:
            self.congestion_window = window
        if self.slow_start.over != over:
            self.ssthresh = None if over else window
            self._first_slow_start = True  # aioquic begins its cubic curve with the first window that does not double

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        window, in_flight, before = self.congestion_window, self.bytes_in_flight, self._congestion_recovery_start_time
        known = {name: getattr(self, name) for name in OF_THE_WINDOW}
        super().on_packets_lost(now=now, packets=packets)
        if self._congestion_recovery_start_time != before:
            self._before, self._lost = self._before or known, True
            # aioquic reduces what is still in flight. While a sender waits for something else, such as room for what
            # comes behind the gap, that is far less than what the path and its queue hold.
            held = window - (in_flight - self.bytes_in_flight)
            self.ssthresh = max(int(held * REDUCTION), MIN_DATAGRAMS * self._max_datagram_size)
            self.congestion_window = self.ssthresh

    def nothing_was_lost(self) -> None:
        """All that was taken for lost has arrived: it was overtaken."""
        if self._before and self._before["congestion_window"] > self.congestion_window:
            vars(self).update(self._before)
        self.forget_before()

    def forget_before(self) -> None:
        """Of what was taken for lost until now some was, or nothing."""
        self._before = {}

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        self.rtt = rtt
        if not self._lost:
            self.slow_start.measured(rtt, now)


register_congestion_control(AioquicCubic.NAME, AioquicCubic)
