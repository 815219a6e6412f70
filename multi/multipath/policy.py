"""What a configuration wants of a connection with several paths, whatever engine it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

from multi.schedulers import create_scheduler, scheduler_names
from multi.schedulers.base import DEFAULT_SCHEDULER, Scheduler

DEFAULT_PATH_SCHEDULER = DEFAULT_SCHEDULER
PrivateModeName = Literal["uniflows", "one_number_space", "trust_announced_paths"]
PRIVATE_MODES: tuple[str, ...] = get_args(PrivateModeName)


def path_schedulers() -> list[str]:
    """Names of those that choose paths. A channel leaves copies to the session, so `redundant` is none of them."""
    return [name for name in scheduler_names(aliases=True) if name != "redundant"]


def path_scheduler(name: str) -> Callable[[], Scheduler]:
    """Makes the scheduler `name`, for a connection each."""
    return lambda: create_scheduler(name, {})


class AckPath(Enum):
    """Where acknowledgements travel. What a suspect path brought is acknowledged on a healthy one in any case."""

    BEST = "best"
    """On the path that delivers first."""
    SAME = "same"
    """On the path of what they acknowledge."""
    ALL = "all"
    """On every path, as many copies."""


@dataclass(frozen=True, slots=True)
class PathPolicy:
    """The same for all connections of a listener, or of a client."""

    paths: int = 4
    """Most at the same time."""
    congestion: str = "cubic"
    """`cubic`, `reno`, `lia`, `olia` or `bbr`, as far as the engine has it."""
    ack_path: AckPath = AckPath.BEST
    max_queue: float = 0.015
    """Seconds of queueing on each path that are filled at most; 0 = no bound but congestion control."""
    private_modes: tuple[str, ...] = ()
    """What RFC 10069 does not have: names in `PRIVATE_MODES`."""
    scheduler: Callable[[], Scheduler] = lambda: create_scheduler(DEFAULT_PATH_SCHEDULER, {})
    """Makes what chooses paths; each connection has its own."""
