"""`mpquic_config`: what a configuration may say about QUIC connections with several paths."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from multi.multipath.policy import (
    DEFAULT_PATH_SCHEDULER,
    AckPath,
    PathPolicy,
    PrivateModeName,
    path_scheduler,
    path_schedulers,
)
from multi.transports.settings import DAY, Range, TransportSection


class MpquicSettings(TransportSection):
    """QUIC connections with several paths (RFC 10069). What is not said here is taken from `quic_config`."""

    idle_timeout: Annotated[float, Range(0.1, DAY)] = 60.0
    """Seconds without receiving anything on any path after which a connection is given up (RFC 9000 section 10.1; the
    smaller value of both ends counts). Default 60: as for QUIC."""
    engine: Literal["auto", "noq", "aioquic"] = "auto"
    """QUIC implementation; both ends may use different ones. `noq` is the native engine, several times as fast, which
    `make native` builds; `aioquic`, 1.7, is always there. Default `auto`: `noq` if it is built, otherwise `aioquic`;
    for `bbr` and for `ack_path: all` the one that has it. `multi check` says which."""
    paths: Annotated[int, Range(1, 8)] = 4
    """Paths at the same time; the smaller value of both ends counts. Default 4: more networks than a device has."""
    scheduler: str = DEFAULT_PATH_SCHEDULER
    """Which path gets the next bytes: the name of a scheduler of `multi_config.scheduler` but `redundant`, without
    parameters. Default `adaptive`: where they arrive first; with the engine `aioquic`, and where the processor is busy,
    over one path as long as that carries about as much as all."""
    congestion: Literal["cubic", "reno", "bbr", "lia", "olia"] = "cubic"
    """Congestion control of each path. `lia` and `olia` couple them: together they take no more of a shared bottleneck
    than one connection; `bbr` (version 3) needs the engine `noq`. Default `cubic`: networks of a device rarely share
    one, and it fills each."""
    ack_path: Literal["best", "same", "all"] = "best"
    """Where acknowledgements travel: `best` on the path that delivers them first, `same` on the path of what they
    acknowledge, `all` on every path (engine `aioquic`). With `noq`, `best` works like `same`. Default `best`: the
    sender hears of everything as early as it can."""
    queue_most_ms: Annotated[int, Range(0, 1000)] = 15
    """Longest queue on a path, in milliseconds; 0 = only congestion control bounds it. While a queue is longer, no more
    is in flight than the path carries in its smallest round trip and three quarters of this time; while it is shorter
    than half of this, that bound grows by a quarter at a time, and little while it is longer. Default 15: what is
    queued cannot be taken back when the network dies, and urgent data waits behind it."""
    trial_ms: Annotated[int, Range(0, 10_000)] = 200
    """Milliseconds for which a path over a network that has come back is a backup; up to 600 if losses follow each
    other closely. Default 200: a network that has just appeared often goes again."""
    private_modes: Annotated[tuple[PrivateModeName, ...], Field(strict=False)] = ()
    """What RFC 10069 does not have, for experiments with the engine `aioquic`: servers that send where clients ask them
    to, one packet number space for all paths, data for a path before its address has answered. In force where both ends
    name them; other implementations get the RFC. docs/security.md says what they weaken. Default none."""

    @field_validator("scheduler")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in path_schedulers():
            raise ValueError(f"one of {', '.join(path_schedulers())}")
        return name

    @field_validator("congestion")
    @classmethod
    def _engine_has_it(cls, congestion: str, info: ValidationInfo) -> str:
        if congestion == "bbr" and info.data.get("engine") == "aioquic":
            raise ValueError('"cubic", "reno", "lia" or "olia" with the engine "aioquic"; only "noq" has "bbr"')
        return congestion

    @field_validator("ack_path")
    @classmethod
    def _engine_sends_copies(cls, ack_path: str, info: ValidationInfo) -> str:
        if ack_path == "all" and (info.data.get("engine") == "noq" or info.data.get("congestion") == "bbr"):
            raise ValueError('"best" or "same" with the engine "noq", which sends no copies and alone has "bbr"')
        return ack_path

    @field_validator("private_modes")
    @classmethod
    def _engine_is_private(
        cls, modes: tuple[PrivateModeName, ...], info: ValidationInfo
    ) -> tuple[PrivateModeName, ...]:
        if modes and (info.data.get("engine") == "noq" or info.data.get("congestion") == "bbr"):
            raise ValueError('only with the engine "aioquic", which has no "bbr"')
        return modes

    @property
    def chosen_engine(self) -> Literal["noq", "aioquic"]:
        """`engine`, or what `auto` is on this machine."""
        if self.engine != "auto":
            return self.engine
        if self.ack_path == "all" or self.private_modes:
            return "aioquic"
        return "noq" if self.congestion == "bbr" or find_spec("multi_noq") is not None else "aioquic"

    @property
    def tries_fewer(self) -> bool:
        """Whether data may be left to one path: aioquic alone is so slow, and another scheduler has its reasons."""
        return self.chosen_engine == "aioquic" and self.scheduler == DEFAULT_PATH_SCHEDULER and not self.private_modes

    def policy(self) -> PathPolicy:
        """As engines take it."""
        return PathPolicy(
            paths=self.paths,
            congestion=self.congestion,
            ack_path=AckPath(self.ack_path),
            max_queue=self.queue_most_ms / 1000,
            private_modes=self.private_modes,
            scheduler=path_scheduler(self.scheduler),
        )
