"""How much may be in flight on a path beyond what it carries: control that waits for losses fills any buffer.

What queues cannot be taken back when the path dies, and what is urgent waits behind it (Morawski and Karbowanczyk see
delays of six times the path's).
"""

from __future__ import annotations

from math import inf

RATE_WINDOW = 0.010  # seconds, the shortest time a rate is measured over
NEARLY = 7 / 8  # of what may be in flight: so full a path shows what it carries
LATE_WINDOW = 0.2  # seconds, the longest while what is delivered is late: round trips are as long as the queue then
RATE_GAIN = 0.3  # weight of a sample that is smaller; a larger one counts at once, since what it shows has happened

ROUND = 0.05  # seconds at least in which a queue is looked for: a busy process is in some of the shorter ones
MIN_RISE, MAX_RISE = 0.004, 0.016  # seconds
DATAGRAM = 1350  # bytes, about one
MIN_BYTES = 8 * DATAGRAM  # with fewer in flight losses are not told from disorder
GROWTH = 1.25  # of a bound that was used up and behind which nothing queues, as BBR tries for more
REGAIN = 2.0  # after it was taken for a queue that the way has become longer, until there is a queue
LITTLE = 1 / 48  # of a bound behind which much of the queue stands that is allowed: so much more at a time, ...
FULL = 15 / 16  # ... until so much of that queue does
RELEASE, TARGET = 1 / 2, 3 / 4  # of the queue that is allowed: with less the path takes more; what is aimed at
MORE = 7 / 4  # of the least bound, where that is tried
LOOK = 5 / 8  # of what is in flight, to see whether a round trip that was believed is one still
FEWER, SHORTER = 3 / 4, 7 / 8  # so few bytes in flight, and a round trip not even so much shorter: no queue of ours
HOLD, HOLD_TIME = 3, 0.3  # rounds that are too long, and seconds, before a first bound where more has not made them so
PEAK_FADES = 0.98  # of the largest rate of late is left after a round
PEAK_SHARE = 1 / 2  # of it; who carries less could carry more
LONGER_TIME = 10.0  # seconds for which a round trip that is no queue is believed, as BBR believes its smallest one
LONGER_ROUNDS = 20  # round trips, where those are more


def rise_of(shortest: float) -> float:
    """Seconds by which round trips are longer than the shortest when a queue grows (RFC 9406 section 4.2)."""
    return min(max(MIN_RISE, shortest / 8), MAX_RISE)


class RateMeter:
    """Acknowledged bytes per second over windows of at least one round trip.

    Judged as in draft-cheng-iccrg-delivery-rate-estimation: a sample of a time in which the sender had less to send
    than the path would have taken tells what the path carries at least, so it counts only where it raises the rate.
    """

    def __init__(self) -> None:
        self.rate = 0.0
        """Bytes per second; 0 = nothing was acknowledged yet."""
        self.is_lower_bound = True
        """No sample yet was bounded by the path: a few control frames tell nothing of what it carries."""
        self._since = 0.0
        self._acked = 0
        self._limited_until = 1
        """Bytes acknowledged in all when what was sent while there was too little has gone by."""
        self._late_until = 0
        """The same for what was sent before the path was found to have become slow."""

    @property
    def known(self) -> float:
        """The rate, 0 where only lower bounds of it are known."""
        return 0.0 if self.is_lower_bound else self.rate

    def begins(self, now: float, acked: int) -> None:
        """Much is sent where next to nothing was in flight: the pause before is no time in which less came through."""
        self._since, self._acked = now, acked

    def sent(self, acked: int, in_flight: int, most: int) -> None:
        """So many bytes are acknowledged in all and in flight now, and `most` might be, unless a pacer still waits."""
        if in_flight < most * NEARLY:
            self._limited_until = max(1, acked + in_flight)
        self._late_until = min(self._late_until, acked + in_flight)  # some of it may have been lost

    def late(self, in_flight: int) -> None:
        """So many bytes come much later than they should: they wait for the path, which carries what it delivers."""
        if self._acked >= self._late_until:
            self._since = 0.0  # what was delivered before tells nothing of now
        self._late_until = self._acked + in_flight

    def update(self, now: float, acked: int, rtt: float) -> None:
        """`acked` bytes in all so far, `rtt` seconds."""
        elapsed = now - self._since
        if late := self._acked < self._late_until:
            if acked == self._acked:
                return
            rtt = min(rtt, LATE_WINDOW) if acked < self._late_until else 0.0  # no pause is to count that follows
        if elapsed < max(RATE_WINDOW, rtt):
            return
        if acked > self._acked and self._since:
            self._sample((acked - self._acked) / elapsed, late, self._acked < self._limited_until)
        self._since, self._acked = now, acked

    def _sample(self, measured: float, late: bool, limited: bool) -> None:
        if late:
            self.rate, self.is_lower_bound = measured, False
        elif limited:
            self.rate = max(self.rate, measured)
        elif self.is_lower_bound:
            self.rate, self.is_lower_bound = max(self.rate, measured), False
        else:
            self.rate = max(measured, self.rate + RATE_GAIN * (measured - self.rate))


class QueueBound:
    """How many bytes may be in flight on a path so that about `max_queue` seconds of them queue, 0 = any.

    While a queue stands what is delivered is what the path carries, however little there was to send: the bound is that
    rate times the smallest round trip and `max_queue`, as the window of FAST TCP (Wei, Jin, Low, Hegde, ToN 2006).
    Where less than half of `max_queue` stands and the bound was used up, it grows; with more it grows little, for what
    stands may be another's, and a bound that stayed would leave the path to him: 0.12 of it was left to one whose
    acknowledgements waited for as much that went the other way. It never vanishes at once, for the congestion window
    has gone on growing behind it. After it was made much smaller it doubles up to half of what it was, unless a queue
    shows that this was right: a path that stood still for a moment delivered little in it.

    While the window grows and there is no bound yet, more bytes in flight tell whose queue stands. Where they make
    round trips longer by half as much at least, it is ours; where they make them no longer it is another's, and that
    round trip counts as the smallest for some time. A download that began beside an upload took the queue of that for
    its own, and with as much of it as one may have was left 0.01 of its path for good.

    Where fewer bytes in flight make round trips no shorter, only the rate smaller, there is no queue of ours: the way
    has become longer, or others fill its queue. What was taken is given back, and that round trip counts as the
    smallest. Where there cannot be fewer, some more make it no longer then, which is tried now and then. Others make
    round trips swing: beside an upload of CUBIC, with 400 ms of queue, a download was left 0.02 of its path. So they
    may be somewhat shorter, and while that is believed each further proof is worth a larger bound.
    """

    def __init__(self, max_queue: float) -> None:
        self._max_queue = max_queue
        self._bound = inf
        self._round = _Round()
        self._settled = True
        """What is seen in this round was sent under the bound there is."""
        self._begin: tuple[float, float] | None = None
        """Bytes in flight and the round trip, when it began to be too long or has changed clearly since."""
        self._longer, self._longer_until = 0.0, -inf
        """A round trip that is no queue of ours, and until when that is believed."""
        self._growth = GROWTH
        self._peak = 0.0
        """The largest rate of late, bytes per second."""
        self._regain_to = 0.0
        """Half the bound before it was made smaller, until a queue shows that this was right."""
        self._try_more_at = -inf
        self._fewer = (0, 0.0, inf)
        """Most bytes in flight, rate and round trip, when those bytes were fewer than now, while there is no bound."""
        self._long = 0
        """Rounds in a row that were too long."""

    def most(self, window: int) -> int:
        """Bytes that may be in flight where congestion control allows `window` of them."""
        return min(window, int(self._bound)) if self._bound < inf else window

    def update(self, now: float, acked: int, in_flight: int, rtt: float, min_rtt: float) -> None:
        """`acked` bytes in all so far; `rtt`: of the latest round trip, inf = there is no new one, `min_rtt`: the
        smallest of those that came back the same way, seconds."""
        if not self._max_queue:
            return
        current = self._round
        current.most = max(current.most, in_flight)
        if rtt - min_rtt < current.least - current.shortest:
            current.least, current.shortest = rtt, min_rtt
        if current.least == inf or now < current.since + max(ROUND, current.least):
            return
        before = self._bound
        if self._settled and current.since:
            rate = (acked - current.acked) / (now - current.since)
            self._judge(now, rate, current, max(current.shortest, self._longer if now < self._longer_until else 0.0))
        self._settled = self._bound == before
        self._round = _Round(now, acked)

    def _judge(self, now: float, rate: float, seen: _Round, shortest: float) -> None:
        rtt, self._peak = seen.least, max(rate, self._peak * PEAK_FADES)
        if seen.most < MIN_BYTES / 2:
            return  # so few tell nothing, and far more may always be in flight
        until = now + max(LONGER_TIME, LONGER_ROUNDS * rtt)
        made_longer = False
        if self._bound == inf:
            made_longer, made_no_longer = self._compare(seen.most, rate, rtt, shortest)
            if made_no_longer:
                self._longer, self._longer_until, shortest = rtt, until, rtt
        if rtt <= shortest + self._max_queue:
            self._begin, self._long = None, 0
            self._go_on(rate, rtt - shortest, seen.most, shortest)
            return
        self._long += 1
        if self._bound < inf or made_longer or self._long >= HOLD or self._long * rtt >= HOLD_TIME:
            self._reduce(now, rate, rtt, shortest, until)

    def _compare(self, most: int, rate: float, rtt: float, shortest: float) -> tuple[bool, bool]:
        """Whether more bytes have made round trips as much longer as a queue of ours would, and whether no longer."""
        fewer, its_rate, its_rtt = self._fewer
        more = most >= fewer * GROWTH
        if more or most < fewer:
            self._fewer = most, rate, rtt
        longer = more and 2 * rtt * fewer > its_rtt * (fewer + most)
        much = self._max_queue * RELEASE
        same = shortest + much < rtt < its_rtt + min(rise_of(shortest), much) / 2
        return longer, more and same and rate >= its_rate * GROWTH

    def _go_on(self, rate: float, queue: float, most: int, shortest: float) -> None:
        """No more stands than may: `queue` seconds."""
        if queue >= self._max_queue * RELEASE:
            self._growth, self._regain_to = GROWTH, 0.0
        if most >= self._bound * NEARLY or self._bound <= MIN_BYTES:  # of which whole datagrams may fill less
            self._bound += self._step(queue, rate * (shortest + self._max_queue * FULL))

    def _reduce(self, now: float, rate: float, rtt: float, shortest: float, until: float) -> None:
        """More stands than may, unless fewer bytes show that it is not ours."""
        in_flight = rate * rtt
        self._regain_to = self._bound / 2 if self._begin is None and self._bound < inf else 0.0
        least = float(MIN_BYTES)
        known = self._longer * SHORTER < rtt < (self._longer * GROWTH + self._max_queue) / SHORTER  # a queue besides
        if self._begin is not None and _not_ours(self._begin, (in_flight, rtt)):
            self._longer, self._longer_until = rtt, until
            carried_more = self._begin[0] < self._begin[1] * self._peak * PEAK_SHARE
            more = 1.0 if not known else REGAIN if carried_more else self._growth
            self._growth = self._growth if known else REGAIN
            self._bound, self._begin = max(self._bound, more * self._begin[0]), None
            return
        if self._begin is None or not _alike(rtt, self._begin[1], SHORTER):
            if not known or self._begin is not None:
                self._growth = GROWTH
            self._begin = in_flight, rtt
            least = max(least, in_flight * LOOK if known else 0.0)
        elif self._bound <= MIN_BYTES and now >= self._try_more_at:
            self._begin, self._try_more_at = (in_flight, rtt), until
            least *= MORE
        elif known:
            self._bound = max(least, self._begin[0] * LOOK)
            return
        else:
            self._growth = GROWTH
        self._bound = max(least, rate * (shortest + self._max_queue * TARGET))

    def _step(self, queue: float, full: float) -> float:
        """Bytes by which a bound that was used up grows; `queue`: seconds of it now, `full`: the bound with which
        nearly all of it stands that may."""
        if queue < self._max_queue * RELEASE:
            growth = REGAIN if self._bound * REGAIN <= self._regain_to else self._growth
            return max(self._bound * (growth - 1), MIN_BYTES / 2)
        return max(0.0, min(DATAGRAM, self._bound * LITTLE, full - self._bound))


def _not_ours(begin: tuple[float, float], now: tuple[float, float]) -> bool:
    """Whether the queue is another's: bytes in flight and the round trip, when that became too long and now.

    A queue of ours, and with it the round trip, would be as much shorter as there are fewer bytes in flight.
    """
    (before, its_rtt), (in_flight, rtt) = begin, now
    if in_flight < before * FEWER:
        return rtt * 2 * before > its_rtt * (before + in_flight)  # not even half as much shorter
    return not _alike(in_flight, before, FEWER) and _alike(rtt, its_rtt, SHORTER)


def _alike(one: float, other: float, share: float) -> bool:
    return other * share < one < other / share


class _Round:
    """What is seen of a path in a round trip: what was acknowledged before, the round trip with the shortest queue and
    how long it is without, most in flight."""

    __slots__ = ("acked", "least", "most", "shortest", "since")

    def __init__(self, since: float = 0.0, acked: int = 0) -> None:
        self.since, self.acked = since, acked
        self.least, self.shortest, self.most = inf, 0.0, 0
