"""aioquic with several paths behind a PathEngine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import aioquic

from multi.errors import TransportError
from multi.multipath.facts import PathFacts
from multi.transports.mpquic.connection import MultipathConnection
from multi.transports.mpquic.names import missing
from multi.transports.mpquic.paths import MultipathConfiguration
from multi.transports.quic.aioquic_engine import AioquicEngine
from multi.transports.quic.engine import EngineSettings, PathEngine, RoundTrips, answering, round_trips_of, third_party
from multi.transports.quic.udp_port import Burst, PeerAddress

WRITTEN_FOR = "1.7."
"""Versions of aioquic whose private names `names` has."""


def check() -> None:
    """Raise TransportError if the aioquic that is installed is another than this was written for."""
    names = missing()
    if names or not aioquic.__version__.startswith(WRITTEN_FOR):
        what = f": it has no {', '.join(names)}" if names else ""
        raise TransportError(
            f"mpquic needs aioquic {WRITTEN_FOR}x, and {aioquic.__version__} is installed{what}; "
            "pip install 'aioquic>=1.7,<1.8', or use the transport quic"
        )


class AioquicPathEngine(AioquicEngine, PathEngine):
    """See `PathEngine`."""

    CONNECTION = MultipathConnection
    _connection: MultipathConnection

    @classmethod
    def configure(cls, settings: EngineSettings) -> Any:
        check()
        known = super().configure(settings)
        same = {each.name: getattr(known, each.name) for each in fields(known)}
        return MultipathConfiguration(**same, policy=settings.policy)

    @property
    def multipath(self) -> bool:
        return self._connection.multipath

    @property
    def takes_paths(self) -> bool:
        return self._connection.takes_paths

    def open_path(self, address: PeerAddress, now: float, backup: bool = False) -> int | None:
        with third_party:
            return self._connection.open_path(address, now, backup)

    def abandon_path(self, path: int, code: int, now: float) -> None:
        with third_party:
            self._connection.abandon_path(path, code, now)

    def suspect_path(self, path: int, now: float) -> None:
        with third_party:
            self._connection.suspect_path(path, now)

    def set_backup(self, path: int, backup: bool) -> None:
        with third_party:
            self._connection.set_backup(path, backup)

    def paths(self) -> Sequence[PathFacts]:
        return self._connection.facts()

    def bursts(self, now: float) -> list[Burst]:
        with third_party:
            made = self._connection.packets_to_send(now, self.waiting)
        self._count(len(made), now)
        return [Burst(data, len(data), address, path) for data, address, path in made]

    def _answering(self) -> Sequence[PathFacts]:
        return answering(self._connection.facts())

    @property
    def congestion_window(self) -> int:
        return sum(path.congestion_window for path in self._answering())

    @property
    def bytes_in_flight(self) -> int:
        return sum(path.bytes_in_flight for path in self._answering())

    @property
    def round_trips(self) -> RoundTrips:
        return round_trips_of(self._answering())
