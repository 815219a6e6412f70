"""How many bytes a modelled transport may have under way: the congestion controls of Linux, simplified. Pure.

They follow `tcp_cubic.c` (RFC 9438, with HyStart) and `tcp_bbr.c` (BBR version 1) in what decides throughput: growth,
the reaction to losses, pacing, the probing of rate and round trip. Left out are undoing a reduction after a spurious
timeout and BBR's detection of policers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf

SEGMENT = 1448  # bytes of payload of a full packet: 1500 less IPv4 and TCP with timestamps
INITIAL_WINDOW = 10 * SEGMENT  # RFC 6928


@dataclass(slots=True)
class Acknowledged:
    """What one acknowledgement has told."""

    now: float
    size: int
    """Bytes it newly covers."""
    lost: int
    """Bytes found lost by it."""
    rtt: float
    """Of the last packet it covers; 0 = no sample."""
    rate: float
    """Delivery rate over the flight of that packet; 0 = no sample."""
    application_limited: bool
    in_flight: int
    """Bytes under way, after it."""
    prior_in_flight: int
    delivered: int
    """All bytes acknowledged so far."""
    prior_delivered: int
    """The same when that packet was sent."""
    sent: int
    """All bytes sent so far, with those that were sent again."""
    recovering: bool


class Cubic:
    """CUBIC with HyStart (RFC 9438; `tcp_cubic.c`), and PRR after a loss (RFC 6937; `tcp_cwnd_reduction`)."""

    _C = 0.4
    _BETA = 0.7
    _HYSTART_FROM = 16 * SEGMENT
    _HYSTART_DELAY = (0.004, 0.016)  # seconds of queueing that end slow start, by an eighth of the round trip
    _TRAIN_GAP = 0.002  # seconds between acknowledgements of one train

    looks_for_min_rtt = False
    """Sends next to nothing for a moment: the rates measured then say nothing of the path."""

    def __init__(self) -> None:
        self.window = INITIAL_WINDOW
        """Bytes that may be under way; looked at before every packet, as `pacing` is."""
        self.pacing = 0.0
        """Bytes per second; 0 = as fast as the window allows."""
        self._threshold = inf
        self._most = 0.0
        """Segments at the last reduction."""
        self._epoch = -1.0
        self._origin = 0.0
        self._k = 0.0
        self._friendly = 0.0
        self._exact = float(INITIAL_WINDOW)
        self._delay_min = inf
        self._round_ends = 0
        self._round_began = 0.0
        self._round_rtt = inf
        self._samples = 0
        self._last_ack = 0.0
        self._train_ended = False
        self._reduces_from = 0.0
        """The window that a loss found; 0 = it was a timeout, after which it grows from one packet again."""
        self._sent_before: int | None = None
        """All bytes sent before the reduction; None = no acknowledgement has come since."""
        self._delivered_since = 0

    def acknowledged(self, ack: Acknowledged) -> None:
        if ack.rtt:
            self._delay_min = min(self._delay_min, ack.rtt)
        if ack.recovering and self._reduces_from:
            self._reduce(ack)
            return
        if self._exact < self._threshold:
            self._watch_delay(ack)
        limited = ack.prior_in_flight + 2 * SEGMENT < self.window
        if self._exact < self._threshold:
            if ack.prior_in_flight * 2 >= self.window:  # in slow start half of a window in use counts as all of it
                self._exact = min(self._exact + ack.size, max(self._threshold, self._exact))
        elif not limited:
            self._avoid(ack)
        self.window = int(self._exact)

    def _watch_delay(self, ack: Acknowledged) -> None:
        if ack.prior_delivered >= self._round_ends:
            self._round_ends = ack.delivered + ack.in_flight
            self._round_began = self._last_ack = ack.now
            self._round_rtt, self._samples, self._train_ended = inf, 0, False
        if self._exact < self._HYSTART_FROM or not ack.rtt:
            return
        if ack.now - self._last_ack <= self._TRAIN_GAP and not self._train_ended:
            self._last_ack = ack.now
            if ack.now - self._round_began > self._delay_min / 2:
                self._threshold = self._exact
                return
        else:
            self._train_ended = True
        self._samples += 1
        if self._samples <= 8:
            self._round_rtt = min(self._round_rtt, ack.rtt)
        least, most = self._HYSTART_DELAY
        if self._samples >= 8 and self._round_rtt > self._delay_min + min(max(self._delay_min / 8, least), most):
            self._threshold = self._exact

    def _avoid(self, ack: Acknowledged) -> None:
        segments = self._exact / SEGMENT
        if self._epoch < 0:
            self._epoch = ack.now
            self._friendly = segments
            if segments >= self._most:
                self._k, self._origin = 0.0, segments
            else:
                self._k, self._origin = ((self._most - segments) / self._C) ** (1 / 3), self._most
        at = ack.now - self._epoch + self._delay_min
        target = self._origin + self._C * (at - self._k) ** 3
        acked = ack.size / SEGMENT
        self._friendly += 3 * (1 - self._BETA) / (1 + self._BETA) * acked / segments
        target = min(max(target, self._friendly), 1.5 * segments)
        if target > segments:
            segments += (target - segments) / segments * acked
        else:
            segments += 0.01 * acked / segments
        self._exact = segments * SEGMENT

    def _reduce(self, ack: Acknowledged) -> None:
        """Send in proportion to what arrives: a window that shrinks at once would let out a burst as losses show."""
        if self._sent_before is None:
            self._sent_before = ack.sent
        self._delivered_since += ack.size
        sent, room = ack.sent - self._sent_before, self._threshold - ack.in_flight
        if room < 0:
            more = self._delivered_since * self._threshold / self._reduces_from - sent
        else:
            more = min(room, max(self._delivered_since - sent, ack.size) + (0 if ack.lost else SEGMENT))
        self.window = ack.in_flight + int(max(more, 0 if sent else SEGMENT))

    def recovery_begins(self, in_flight: int) -> None:
        self._reduces_from, self._sent_before, self._delivered_since = self._exact, None, 0
        segments = self._exact / SEGMENT
        self._most = segments * (1 + self._BETA) / 2 if segments < self._most else segments
        self._threshold = self._exact = max(2.0 * SEGMENT, self._exact * self._BETA)
        self._epoch = -1.0
        self.window = in_flight + SEGMENT

    def recovery_ends(self) -> None:
        self.window = int(self._exact)

    def timed_out(self) -> None:
        self._most = self._exact / SEGMENT
        self._threshold = max(2.0 * SEGMENT, self._exact * self._BETA)
        self._exact = float(SEGMENT)
        self._epoch, self._reduces_from = -1.0, 0.0
        self.window = SEGMENT


class Bbr:
    """BBR version 1 (Cardwell et al., ACM Queue 2016; `tcp_bbr.c`)."""

    _HIGH_GAIN = 2.885
    _CYCLE = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    _RATE_ROUNDS = 10
    _RTT_WINDOW = 10.0
    _PROBE_RTT = 0.200
    _MARGIN = 0.99  # of the rate is paced, so that queues drain
    _MIN_WINDOW = 4 * SEGMENT
    _EXTRA_ROUNDS = 5
    _MAX_EXTRA = 0.100  # seconds of the rate that aggregation may add

    def __init__(self, first_phase: int = 2) -> None:
        self.window = INITIAL_WINDOW
        self.pacing = 0.0
        self._state = "startup"
        self._rates: deque[tuple[int, float]] = deque()
        self._rate = 0.0
        self._min_rtt = inf
        self._min_rtt_at = 0.0
        self._round = 0
        self._round_ends = 0
        self._full_rate = 0.0
        self._full_rounds = 0
        self._full = False
        self._phase = first_phase
        self._phase_at = 0.0
        self._pacing_gain = self._window_gain = self._HIGH_GAIN
        self._conserving = False
        self._saved_window = 0
        self._probe_done: float | None = None
        self._probe_round = False
        self._extra_at = 0.0
        self._extra_size = 0
        self._extras: deque[tuple[int, int]] = deque()

    def acknowledged(self, ack: Acknowledged) -> None:
        round_start = ack.prior_delivered >= self._round_ends
        if round_start:
            self._round_ends = ack.delivered
            self._round += 1
            self._conserving = False
        self._measure(ack)
        self._count_extra(ack)
        self._cycle(ack)
        self._look_for_full(ack, round_start)
        self._drain(ack)
        self._probe(ack, round_start)
        self._set_pacing(ack)
        self._set_window(ack)

    @property
    def looks_for_min_rtt(self) -> bool:
        return self._state == "probe rtt"

    def _measure(self, ack: Acknowledged) -> None:
        if ack.rate and (not ack.application_limited or ack.rate >= self._rate):
            while self._rates and self._rates[-1][1] <= ack.rate:
                self._rates.pop()
            self._rates.append((self._round, ack.rate))
        while len(self._rates) > 1 and self._rates[0][0] <= self._round - self._RATE_ROUNDS:
            self._rates.popleft()
        self._rate = self._rates[0][1] if self._rates else 0.0

    def _count_extra(self, ack: Acknowledged) -> None:
        """Acknowledgements that come in lumps must not leave the window too small."""
        expected = self._rate * (ack.now - self._extra_at)
        if self._extra_size <= expected or self._extra_size + ack.size > 2**20 * SEGMENT:
            self._extra_at, self._extra_size, expected = ack.now, 0, 0.0
        self._extra_size += ack.size
        extra = min(int(self._extra_size - expected), self.window)
        while self._extras and self._extras[-1][1] <= extra:
            self._extras.pop()
        self._extras.append((self._round, extra))
        while len(self._extras) > 1 and self._extras[0][0] <= self._round - 2 * self._EXTRA_ROUNDS:
            self._extras.popleft()

    def _product(self, gain: float) -> float:
        if self._min_rtt == inf:
            return float(INITIAL_WINDOW)
        return max(float(self._MIN_WINDOW), gain * self._rate * self._min_rtt)

    def _cycle(self, ack: Acknowledged) -> None:
        if self._state != "probe rate":
            return
        elapsed = ack.now - self._phase_at > self._min_rtt
        gain = self._CYCLE[self._phase]
        if gain > 1.0:
            over = elapsed and (ack.lost > 0 or ack.prior_in_flight >= self._product(gain))
        elif gain < 1.0:
            over = elapsed or ack.prior_in_flight <= self._product(1.0)
        else:
            over = elapsed
        if over:
            self._phase = (self._phase + 1) % len(self._CYCLE)
            self._phase_at = ack.now
            self._pacing_gain = self._CYCLE[self._phase]

    def _look_for_full(self, ack: Acknowledged, round_start: bool) -> None:
        if self._full or not round_start or ack.application_limited:
            return
        if self._rate >= self._full_rate * 1.25:
            self._full_rate, self._full_rounds = self._rate, 0
            return
        self._full_rounds += 1
        self._full = self._full_rounds >= 3

    def _drain(self, ack: Acknowledged) -> None:
        if self._state == "startup" and self._full:
            self._state = "drain"
            self._pacing_gain, self._window_gain = 1 / self._HIGH_GAIN, self._HIGH_GAIN
        if self._state == "drain" and ack.in_flight <= self._product(1.0):
            self._probe_rate(ack.now)

    def _probe_rate(self, now: float) -> None:
        self._state = "probe rate"
        self._phase_at = now
        self._pacing_gain, self._window_gain = self._CYCLE[self._phase], 2.0

    def _probe(self, ack: Acknowledged, round_start: bool) -> None:
        expired = ack.now > self._min_rtt_at + self._RTT_WINDOW
        if ack.rtt and (ack.rtt <= self._min_rtt or expired):
            self._min_rtt, self._min_rtt_at = ack.rtt, ack.now
        if expired and self._state != "probe rtt":
            self._state = "probe rtt"
            self._pacing_gain = self._window_gain = 1.0
            self._saved_window = max(self._saved_window if ack.recovering else 0, self.window)
            self._probe_done = None
        if self._state != "probe rtt":
            return
        if self._probe_done is None:
            if ack.in_flight <= self._MIN_WINDOW:
                self._probe_done, self._probe_round = ack.now + self._PROBE_RTT, False
                self._round_ends = ack.delivered
            return
        self._probe_round = self._probe_round or round_start
        if self._probe_round and ack.now >= self._probe_done:
            self._min_rtt_at = ack.now
            self.window = max(self.window, self._saved_window)
            if self._full:
                self._probe_rate(ack.now)
            else:
                self._state = "startup"
                self._pacing_gain = self._window_gain = self._HIGH_GAIN

    def _set_pacing(self, ack: Acknowledged) -> None:
        if not self.pacing and ack.rtt:
            self.pacing = self._HIGH_GAIN * self.window / ack.rtt
        pacing = self._pacing_gain * self._rate * self._MARGIN
        if self._full or pacing > self.pacing:
            self.pacing = pacing

    def _set_window(self, ack: Acknowledged) -> None:
        window = self.window
        if ack.lost:
            window = max(window - ack.lost, SEGMENT)
        if self._conserving:
            window = max(window, ack.in_flight + ack.size)
        else:
            extra = min(self._extras[0][1] if self._extras else 0, self._rate * self._MAX_EXTRA) if self._full else 0
            burst = max(2 * SEGMENT, self.pacing * 0.001)
            target = int(self._product(self._window_gain) + extra + 3 * burst)
            if self._state == "probe rate" and self._phase == 0:
                target += 2 * SEGMENT
            if self._full:
                window = min(window + ack.size, target)
            elif window < target or ack.delivered < INITIAL_WINDOW:
                window += ack.size
        window = max(window, self._MIN_WINDOW)
        self.window = min(window, self._MIN_WINDOW) if self._state == "probe rtt" else window

    def recovery_begins(self, in_flight: int) -> None:
        self._save()
        self._conserving = True
        self.window = max(in_flight + SEGMENT, self._MIN_WINDOW)

    def recovery_ends(self) -> None:
        self._conserving = False
        self.window = max(self.window, self._saved_window)

    def timed_out(self) -> None:
        self._save()
        self._full_rate = 0.0
        self._conserving = False
        self.window = SEGMENT

    def _save(self) -> None:
        if self._state != "probe rtt":
            self._saved_window = max(self._saved_window if self._conserving else 0, self.window)


CONGESTION: dict[str, type[Cubic | Bbr]] = {"bbr": Bbr, "cubic": Cubic}
"""By the names Linux has for them."""
