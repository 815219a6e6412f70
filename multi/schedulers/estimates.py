"""Estimates from the facts of a connection: its rate, and when bytes given to it would arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, inf, log, log2
from typing import TypeVar

from multi.schedulers.base import WAIT, ConnectionView

PROBE = 32 * 1024  # bytes: two usual segments, enough for a first rate sample, 0.25 s at 1 Mbit/s
INITIAL_WINDOW = 14_600  # bytes: ten packets, RFC 6928
PACKET = 1448  # bytes of payload
GROWN = 1.25 * INITIAL_WINDOW  # bytes of a window that acknowledgements have made larger
STALL = 0.200  # seconds without anything new in order that a reader would notice, where much has come behind it
TRICKLE = 1 / 20  # of what was sent and has not come in order; as little as that is nothing
ASSUMED_RTT = 0.1  # seconds, for a connection that tells nothing at all


def rate_of(connection: ConnectionView) -> float:
    """Delivery rate, else one congestion window per round trip, else 0.0 = unknown."""
    rate = connection.rate
    if rate > 0.0:
        return rate
    rtt = connection.rtt or connection.min_rtt
    return connection.congestion_window / rtt if rtt > 0.0 else 0.0


def arrival(connection: ConnectionView, size: int) -> float:
    """Seconds until the last of `size` bytes given to the connection now would reach the peer.

    (queue + size) / rate + half the smallest round trip + `asymmetry`. The queue is what is in flight, overtaken or
    not, beyond one bandwidth-delay product, and at least what has not left the transport; the session counts those
    bytes in `in_flight` as well, so the two are not added. A connection that has just begun sends its congestion
    window, and twice as much with every round trip: the smoothed one, whose growth is the first sign of a slow path.
    Once the window has grown, acknowledgements keep coming, each of which lets two packets leave. A connection of which
    nothing is known is taken for infinitely fast until `PROBE` bytes are in flight, or it would never be measured.
    """
    rate = connection.rate
    in_flight = connection.in_flight + connection.overtaken
    min_rtt = connection.min_rtt or connection.rtt
    if rate <= 0.0:
        window = connection.congestion_window
        if not window:
            if in_flight < PROBE:
                return min_rtt / 2 + connection.asymmetry
            window = INITIAL_WINDOW
        trip = connection.rtt or min_rtt or ASSUMED_RTT
        if window > GROWN and in_flight >= window:
            return connection.asymmetry + trip * (
                0.5 + log2(1.0 + (connection.not_sent + size) * log(2.0) / (2 * window))
            )
        return connection.asymmetry + trip * (flights(window, in_flight + size) - 0.5)
    queue = in_flight - rate * min_rtt
    not_sent = connection.not_sent
    if queue < not_sent:
        queue = not_sent
    sending = (queue + size) / rate
    if connection.accelerates and min_rtt > 0.0:
        sending = min_rtt * log2(1.0 + sending / min_rtt)
    return sending + min_rtt / 2 + connection.asymmetry


def doubt(connection: ConnectionView, size: int) -> float:
    """Seconds that `size` bytes may be later than they are expected: while no rate is known, a round trip a window."""
    window = connection.congestion_window
    if connection.rate > 0.0 or not window:
        return 0.0
    return (connection.rtt or connection.min_rtt) * (connection.in_flight + size) / window


def stalls(connection: ConnectionView) -> float:
    """How likely what is given to the connection waits for a repetition of something lost before it: 0.0 to 1.0."""
    return min(1.0, connection.loss * max(connection.in_flight, INITIAL_WINDOW) / PACKET)


def flights(window: int, size: int) -> int:
    """Round trips that begin until `size` bytes have left, where a window leaves at once and doubles with each."""
    return ceil(log2(1.0 + size / window)) if size > window else 1


def tells(connection: ConnectionView) -> bool:
    """Whether an estimate rests on a rate, or a round trip (in which every transport moves ten packets)."""
    return connection.rate > 0.0 or connection.rtt > 0.0 or connection.min_rtt > 0.0


def earliest(connections: Iterable[ConnectionView], size: int) -> Sequence[ConnectionView]:
    """The connection with credit on which `size` bytes arrive first; nobody when none has credit."""
    able = [connection for connection in connections if connection.credit > 0]
    return (min(able, key=lambda connection: arrival(connection, size)),) if able else WAIT


C = TypeVar("C", bound=ConnectionView)


def soonest(connections: Sequence[C]) -> C:
    """The connection on which a small segment given to it now arrives first: for what must not wait to be measured."""
    if len(connections) == 1:
        return connections[0]
    best, earliest = connections[0], inf
    for connection in connections:
        if tells(connection) and (at := arrival(connection, 0)) < earliest:
            best, earliest = connection, at
    return best


def latency(connection: ConnectionView) -> float:
    """Round-trip time to sort by: unknown comes last, a keep-alive will tell it soon."""
    return connection.rtt or connection.min_rtt or inf


def nearest(connections: Iterable[ConnectionView]) -> Sequence[ConnectionView]:
    """The connection with credit and the lowest round-trip time; nobody when none has credit."""
    able = [connection for connection in connections if connection.credit > 0]
    return (min(able, key=latency),) if able else WAIT


def window_of(connection: ConnectionView) -> float:
    """Congestion window in bytes, else the bandwidth-delay product, else 0 = unknown."""
    return connection.congestion_window or connection.rate * connection.rtt
