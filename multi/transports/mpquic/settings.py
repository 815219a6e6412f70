"""`mpquic_config`: what a configuration may say about QUIC connections with several paths."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import field_validator

from multi.multipath.policy import AckPath, PathPolicy, path_scheduler, path_schedulers
from multi.transports.settings import DAY, Range, TransportSection


class MpquicSettings(TransportSection):
    """QUIC connections with several paths (RFC 10069). What is not said here is taken from `quic_config`."""

    idle_timeout: Annotated[float, Range(0.1, DAY)] = 60.0
    """Seconds without receiving anything on any path after which a connection is given up (RFC 9000 section 10.1; the
    smaller value of both ends counts). Default 60: as for QUIC."""
    engine: Literal["aioquic"] = "aioquic"
    """QUIC implementation. Default `aioquic`, 1.7: it is always there."""
    paths: Annotated[int, Range(1, 8)] = 4
    """Paths at the same time; the smaller value of both ends counts. Default 4: more networks than a device has."""
    scheduler: str = "adaptive"
    """Which path gets the next bytes: the name of a scheduler of `multi_config.scheduler` but `redundant`, without
    parameters. Default `adaptive`: where they arrive first."""
    congestion: Literal["cubic", "reno", "lia", "olia"] = "cubic"
    """Congestion control of each path. `lia` and `olia` couple them: together they take no more of a shared bottleneck
    than one connection. Default `cubic`: networks of a device rarely share one, and it fills each."""
    ack_path: Literal["best", "same", "all"] = "best"
    """Where acknowledgements travel: on the path that delivers them first, on the path of what they acknowledge, or on
    every path. Default `best`: the sender hears of everything as early as it can."""
    queue_most_ms: Annotated[int, Range(0, 1000)] = 15
    """Milliseconds that may stand in the queue of a path; 0 = no bound but congestion control. Where more stands for a
    tenth of a second, no more is in flight than the path carries in its round trip and this. Default 15: what queues
    cannot be taken back when the network dies, and what is urgent waits behind it."""
    trial_ms: Annotated[int, Range(0, 10_000)] = 200
    """Milliseconds for which a path over a network that came back is a backup; up to 600 after losses that follow
    closely. Default 200: a network that has just appeared often goes again."""

    @field_validator("scheduler")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in path_schedulers():
            raise ValueError(f"one of {', '.join(path_schedulers())}")
        return name

    def policy(self) -> PathPolicy:
        """As engines take it."""
        return PathPolicy(
            paths=self.paths,
            congestion=self.congestion,
            ack_path=AckPath(self.ack_path),
            max_queue=self.queue_most_ms / 1000,
            scheduler=path_scheduler(self.scheduler),
        )
