"""Which paths a client's connection should have: as its networks come and go, opens, suspects, demotes, abandons.

Hears of networks from whoever listens to the system, and of paths from the engine; says what is to be done as a list of
effects. Silence is no business of it: the engine notices that by its probe timeouts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from multi.multipath.facts import PathError
from multi.types import Source

FLAP = 2.0  # seconds that a path outlives its network: carriers that go for a moment are common
RETRY_FIRST = 0.5  # seconds after which a path that could not be opened is tried again
MAX_RETRY_INTERVAL = 30.0
PLACES_KEPT = 32  # networks that are gone are remembered for the trial when they come back
MAX_TRIAL = 0.6  # seconds, as for the connections of a session
TRIAL_FORGIVEN = 10.0  # seconds that a network lasts before its earlier losses count no more


@dataclass(frozen=True, slots=True)
class OpenPath:
    """From there; with `backup` it carries nothing while others work."""

    source: Source
    backup: bool


@dataclass(frozen=True, slots=True)
class AbandonPath:
    """For good; ids are never used again."""

    source: Source
    path: int
    code: PathError


@dataclass(frozen=True, slots=True)
class SuspectPath:
    """What is in flight there is sent on others now."""

    path: int


@dataclass(frozen=True, slots=True)
class SetBackup:
    """Or active again."""

    path: int
    backup: bool


PathAction = OpenPath | AbandonPath | SuspectPath | SetBackup


class _Place:
    """One network that a path is wanted over."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.wanted = True
        self.path: int | None = None
        self.answered = False
        """The peer has, on this path."""
        self.opening = False
        self.retry_at = 0.0
        self.retry_after = RETRY_FIRST
        self.gone_at: float | None = None
        """When its network went away."""
        self.back_at = -inf
        self.losses = 0
        self.trial_until: float | None = None
        self.fading = False
        self.backup = False
        """As the peer has been told last."""


class PathKeeper:
    """See the module. Addresses of a source that are empty stand for any of its interface."""

    def __init__(self, first: Source, trial: float) -> None:
        """Path 0 goes from `first`; `trial`: seconds for which a path over a network that came back is a backup."""
        self._trial = trial
        self._places = {_key(first): _Place(first)}
        self._places[_key(first)].path = 0
        self._places[_key(first)].answered = True
        self._preferred: Collection[str] = ()
        """Interfaces; none: all."""
        self._only: int | None = None
        self._effects: list[PathAction] = []

    def effects(self) -> list[PathAction]:
        """What is to be done, in order; once."""
        made, self._effects = self._effects, []
        return made

    # --- what happens  ---

    def use(self, sources: Iterable[Source], now: float, blocked: Collection[str] = ()) -> None:
        """These are there and wanted, and no others; over interfaces that are `blocked` nothing may go any more."""
        wanted = {_key(source): source for source in sources}
        for key, source in wanted.items():
            place = self._places.setdefault(key, _Place(source))
            if place.gone_at is not None:
                self._came_back(place, now)
            place.wanted = True
        for key, place in list(self._places.items()):
            if key not in wanted and place.wanted:
                place.wanted = False
                if place.gone_at is None:
                    self._went(place, now)
                if place.source.interface in blocked:
                    place.gone_at = now - FLAP
        if len(self._places) > PLACES_KEPT:
            self._places = {
                key: place
                for key, place in self._places.items()
                if place.wanted or place.opening or place.path is not None
            }
        self._act(now)

    def network_lost(self, interface: str, address: str, now: float) -> None:
        """The system is certain: the interface has no carrier any more, or with `address`, has lost that one."""
        for place in self._on(interface):
            if address and place.source.address not in ("", address):
                continue
            if place.gone_at is None:
                self._went(place, now)
            if address:
                place.gone_at = now - FLAP
        self._act(now)

    def signal_changed(self, interface: str, fading: bool, now: float) -> None:
        """A network grows weak while it still works, or is well again."""
        for place in self._on(interface):
            place.fading = fading
        self._act(now)

    def slept(self) -> None:
        """The machine was suspended: nothing is known of any path."""
        self._effects += [SuspectPath(place.path) for place in self._places.values() if place.path is not None]

    def prefer(self, interfaces: Collection[str], now: float) -> None:
        """Let the paths over these carry everything; none: all paths."""
        self._preferred = interfaces
        self._act(now)

    def use_only(self, path: int | None) -> None:
        """Let the others carry nothing while this path is one of those that are to carry data; None: all are used."""
        self._only = path
        self._tell_status()

    def carrying(self) -> list[int]:
        """Paths on which the peer has answered and that are to carry data, if not one of them alone."""
        places = (place for place in self._places.values() if place.answered and not self._spared(place))
        return [place.path for place in places if place.path is not None]

    def answered(self, interfaces: Collection[str]) -> list[int]:
        """Paths over these on which the peer has answered."""
        over = (place for place in self._places.values() if place.source.interface in interfaces)
        return [place.path for place in over if place.path is not None and place.answered]

    def networks(self, paths: Collection[int]) -> list[str]:
        """Where these go from: interfaces, or addresses."""
        places = (place for place in self._places.values() if place.path in paths)
        return [place.source.interface or place.source.address for place in places]

    def opened(self, source: Source, path: int, now: float) -> None:
        """The engine opens a path for an effect; it may still fail."""
        place = self._places[_key(source)]
        place.opening = False
        if not place.wanted:
            self._effects.append(AbandonPath(source, path, PathError.NO_ERROR))
            return
        place.path, place.answered = path, False
        self._act(now)

    def not_opened(self, source: Source, now: float) -> None:
        """No socket could be made, or the peer has given no id yet."""
        place = self._places[_key(source)]
        place.opening = False
        self._retry(place, now)

    def validated(self, path: int, now: float) -> None:
        """The peer answers on it."""
        for place in self._places.values():
            if place.path == path:
                place.answered = True
                place.retry_after = RETRY_FIRST
                if place.trial_until is not None:
                    place.trial_until = now + self._trial_of(place)

    def closed(self, path: int, now: float) -> None:
        """It was abandoned, by whomever."""
        for place in self._places.values():
            if place.path == path:
                place.path, place.backup = None, False
                self._retry(place, now)
        self._act(now)

    def next_timer(self) -> float | None:
        """When `handle_timer` is due."""
        times = [
            at
            for place in self._places.values()
            for at in (
                place.gone_at + FLAP if place.gone_at is not None and self._may_go(place) else inf,
                place.trial_until if place.trial_until is not None and place.path is not None else inf,
                place.retry_at if self._to_open(place) else inf,
            )
        ]
        return min(times, default=inf) if min(times, default=inf) < inf else None

    def handle_timer(self, now: float) -> None:
        """Some time has passed."""
        self._act(now)

    # --- what is done about it  ---

    def _went(self, place: _Place, now: float) -> None:
        place.gone_at = now
        place.losses = place.losses + 1 if now - place.back_at < TRIAL_FORGIVEN else 1
        place.trial_until = None
        if place.path is not None:
            self._effects.append(SuspectPath(place.path))

    def _came_back(self, place: _Place, now: float) -> None:
        place.gone_at, place.back_at, place.retry_at = None, now, now
        place.retry_after = RETRY_FIRST
        place.trial_until = now + self._trial_of(place)

    def _trial_of(self, place: _Place) -> float:
        return min(self._trial * 2.0 ** max(0, place.losses - 1), max(self._trial, MAX_TRIAL))

    def _retry(self, place: _Place, now: float) -> None:
        place.retry_at = now + place.retry_after
        place.retry_after = min(2 * place.retry_after, MAX_RETRY_INTERVAL)

    def _act(self, now: float) -> None:
        for place in self._places.values():
            gone = place.gone_at is not None and now >= place.gone_at + FLAP
            if gone and place.path is not None and self._may_go(place):
                self._effects.append(AbandonPath(place.source, place.path, PathError.PATH_UNSTABLE_OR_POOR))
                place.path, place.backup = None, False
            if place.trial_until is not None and place.path is not None and now >= place.trial_until:
                place.trial_until = None
            if self._to_open(place) and now >= place.retry_at:
                place.opening = True
                place.backup = self._backup_wanted(place)
                self._effects.append(OpenPath(place.source, place.backup))
        self._tell_status()

    def _tell_status(self) -> None:
        for place in self._places.values():
            if place.path is not None and place.backup != (wanted := self._backup_wanted(place)):
                place.backup = wanted
                self._effects.append(SetBackup(place.path, wanted))

    def _backup_wanted(self, place: _Place) -> bool:
        return self._spared(place) or (place.path != self._only and self._only in self.carrying())

    def _spared(self, place: _Place) -> bool:
        """For its network, or since others are preferred."""
        on_trial = place.gone_at is not None or place.trial_until is not None or place.fading
        return on_trial or bool(self._preferred and place.source.interface not in self._preferred)

    def _to_open(self, place: _Place) -> bool:
        return place.path is None and not place.opening and place.wanted and place.gone_at is None

    def _may_go(self, place: _Place) -> bool:
        """It is not the last path."""
        return place.path is not None and any(
            other.path is not None for other in self._places.values() if other is not place
        )

    def _on(self, interface: str) -> Sequence[_Place]:
        return [place for place in self._places.values() if place.source.interface == interface]


def _key(source: Source) -> tuple[str, str]:
    return source.interface, source.address
