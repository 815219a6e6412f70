"""An engine of aioquic that serves one stream before all others."""

from __future__ import annotations

from typing import Any

from multi.transports.mpquic.aioquic_engine import AioquicPathEngine
from multi.transports.mpquic.connection import MultipathConnection

__all__ = ["serving_first"]


def serving_first(stream: int) -> type[AioquicPathEngine]:
    """One that sends what there is of this stream before all else, where streams would take turns."""

    class Connection(MultipathConnection):
        def _waiting(self) -> Any:
            return sorted(super()._waiting(), key=lambda each: each.stream is None or each.stream.stream_id != stream)

    class Engine(AioquicPathEngine):
        CONNECTION = Connection

    return Engine
