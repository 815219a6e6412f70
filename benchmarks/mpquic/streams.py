"""Engines of aioquic that serve one stream before all others, or tell over which path the packets of each have come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from multi.transports.mpquic.aioquic_engine import AioquicPathEngine
from multi.transports.mpquic.connection import MultipathConnection

__all__ = ["HearingEngine", "packets_of", "serving_first"]


def serving_first(stream: int) -> type[AioquicPathEngine]:
    """One that sends what there is of this stream before all else, where streams would take turns."""

    class Connection(MultipathConnection):
        def _waiting(self) -> Any:
            return sorted(super()._waiting(), key=lambda each: each.stream is None or each.stream.stream_id != stream)

    class Engine(AioquicPathEngine):
        CONNECTION = Connection

    return Engine


class _Hearing(MultipathConnection):
    def __init__(self, **settings: Any) -> None:
        self.packets: dict[int, Counter[int]] = {}
        self._streams_in_packet: set[int] = set()
        super().__init__(**settings)

    def _payload_received(self, context: Any, plain: bytes, crypto_frame_required: bool = False) -> tuple[bool, bool]:
        self._streams_in_packet.clear()
        try:
            return super()._payload_received(context, plain, crypto_frame_required)
        finally:
            for stream in self._streams_in_packet:
                self.packets.setdefault(stream, Counter())[self._current.id] += 1

    def _handle_stream_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        begin = buf.tell()
        self._streams_in_packet.add(buf.pull_uint_var())
        buf.seek(begin)
        super()._handle_stream_frame(context, frame_type, buf)


class HearingEngine(AioquicPathEngine):
    """See `packets_of`."""

    CONNECTION = _Hearing
    _connection: _Hearing


def packets_of(engine: Any, stream: int) -> Mapping[int, int]:
    """Of a `HearingEngine`: packets with frames of the stream that have come over each path."""
    assert isinstance(engine, HearingEngine)
    return engine._connection.packets.get(stream, {})
