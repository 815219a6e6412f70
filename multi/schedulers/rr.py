"""Round robin: the paper's scheduler (sections III-B4 and V-B)."""

from __future__ import annotations

from collections.abc import Sequence

from multi.schedulers.base import WAIT, ConnectionView, SendRequest
from multi.schedulers.estimates import earliest
from multi.schedulers.registry import register_scheduler


@register_scheduler("RR")
class RoundRobin:
    """Alternates segment by segment among the connections with credit; a blocked one loses its turn.

    Strict alternation would pull all connections down to the slowest. Reinjected bytes are late already and
    go where they arrive first.
    """

    def __init__(self) -> None:
        self._last = -1

    def select(self, request: SendRequest, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        if request.reinjection:
            return earliest(connections, request.size)
        able = [connection for connection in connections if connection.credit > 0]
        if not able:
            return WAIT
        choice = next((connection for connection in able if connection.id > self._last), able[0])
        self._last = choice.id
        return (choice,)
