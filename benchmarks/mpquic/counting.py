"""An engine that counts its acknowledgements, and can be told to leave ACK Blocks out as implementations do."""

from __future__ import annotations

from typing import Any

from aioquic.quic.rangeset import RangeSet
from aioquic.quic.recovery import K_TIME_THRESHOLD, QuicPacketSpace

from multi.transports.mpquic.path import Path, PathRecovery
from multi.transports.mpquic.private import PrivateConnection, PrivateEngine

__all__ = ["Counts", "counting_engine", "counts_of"]


class Counts:
    """Of one end."""

    def __init__(self) -> None:
        self.acks = self.ranges = self.full = 0
        """Acknowledgements, ranges in them, and those with as many blocks as they may have."""
        self.ack_bytes = self.stream_bytes = 0
        """Of frames of acknowledgements, and of data in STREAM frames, repetitions included."""


class _Counting(PrivateConnection):
    most_blocks = 0
    lowest_first = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.counts = Counts()

    def _write_path_ack(self, builder: Any, path: Path, now: float) -> None:
        space, counts = path.space, self.counts
        whole = space.ack_queue
        told = self._told(whole)
        space.ack_queue, before = told, builder._buffer.tell()
        try:
            super()._write_path_ack(builder, path, now)
        finally:
            space.ack_queue = whole
        counts.acks += 1
        counts.ranges += len(told)
        counts.full += 0 < self.most_blocks < len(told)
        counts.ack_bytes += builder._buffer.tell() - before

    def _told(self, whole: RangeSet) -> RangeSet:
        """The range with the largest number is always told."""
        most = self.most_blocks
        if not most or len(whole) <= most + 1:
            return whole
        ranges = list(whole)
        return RangeSet([*ranges[:most], ranges[-1]] if self.lowest_first else ranges[-most - 1 :])

    def _write_stream_frame(self, builder: Any, space: Any, stream: Any, max_offset: int) -> int:
        take = stream.sender.get_frame

        def counted(*arguments: Any, **more: Any) -> Any:
            frame = take(*arguments, **more)
            self.counts.stream_bytes += len(frame.data) if frame is not None else 0
            return frame

        stream.sender.get_frame = counted
        try:
            used: int = super()._write_stream_frame(builder, space, stream, max_offset)
            return used
        finally:
            del stream.sender.get_frame


class _ByTime(PathRecovery):
    """As RFC 9002 section 6.1, without the threshold of packets: what has come may have been left out."""

    def _detect_loss(self, *, now: float, space: QuicPacketSpace) -> None:
        rtt = max(self._rtt_latest, self._rtt_smoothed) if self._rtt_initialized else self._rtt_initial
        lost, space.loss_time = [], None
        for number, packet in space.sent_packets.items():  # in the order in which they were sent
            if number > space.largest_acked_packet:
                break
            lost_at = (packet.sent_time or 0.0) + K_TIME_THRESHOLD * rtt
            if now < lost_at:
                space.loss_time = lost_at
                break
            lost.append(packet)
        persistent = self._in_persistent_congestion(packets=lost)
        self._on_packets_lost(now=now, packets=lost, persistent_congestion=persistent, space=space)


def counting_engine(blocks: int, order: str, *, lost_by_time: bool = False) -> type[PrivateEngine]:
    """With at most so many additional ACK Blocks, 0 = as many as fit; in `order` they are kept, `newest` or `lowest`
    first. `lost_by_time`: see `Setup`."""

    class Connection(_Counting):
        most_blocks = blocks
        lowest_first = order == "lowest"
        RECOVERY = _ByTime if lost_by_time else PathRecovery

    class Engine(PrivateEngine):
        CONNECTION = Connection

    return Engine


def counts_of(engine: Any) -> Counts:
    """Of an engine made by a class of `counting_engine`."""
    counts = engine._connection.counts
    assert isinstance(counts, Counts)
    return counts
