"""What a testbed is made of: links and their figures, checked when they are made, and profiles in files.

A profile is JSON: `{"links": {"wifi": {"interface": "wlan0", "kind": "wifi", "down": {...}, "up": {...}}}}` with the
fields of `LinkSpec` and `Direction`. `both` stands for `down` and `up` together. Durations are milliseconds here,
because this is where people write figures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from multi.lab.testbed.errors import TestbedError

T = TypeVar("T")
Way = Literal["down", "up"]
DIRECTIONS: Final[tuple[Way, Way]] = ("down", "up")

KINDS = ("eth", "wifi", "cellular")
MAX_LINKS = 100  # the number of a link is part of its addresses
MAX_NAME = 12  # characters; the server's end is called `s-<name>` and IFNAMSIZ is 16 with the closing zero
MIN_MTU = 1280  # RFC 8200 section 5
MAX_MTU = 9216
MAX_DELAY_MS = 60_000.0
MIN_RATE_MBPS = 0.001
MAX_RATE_MBPS = 100_000.0
DEFAULT_QUEUE_MS = 50.0


@dataclass(frozen=True, slots=True)
class Direction:
    """The figures of one direction of a link. Raises TestbedError for figures no link can have.

    `rate_mbps` counts IP packets. A packet takes `delay_ms` plus or minus up to `jitter_ms` (uniform, never
    overtaking) after it has left the queue; `loss` is the probability of a random loss. The queue drops from the
    tail and holds `queue_ms` at the present rate, or `queue_bytes` where that is given.
    """

    rate_mbps: float
    delay_ms: float
    jitter_ms: float = 0.0
    loss: float = 0.0
    queue_ms: float = DEFAULT_QUEUE_MS
    queue_bytes: int | None = None

    def __post_init__(self) -> None:
        _number("rate_mbps", self.rate_mbps, MIN_RATE_MBPS, MAX_RATE_MBPS)
        _number("delay_ms", self.delay_ms, 0.0, MAX_DELAY_MS)
        _number("jitter_ms", self.jitter_ms, 0.0, MAX_DELAY_MS)
        _number("loss", self.loss, 0.0, 1.0)
        _number("queue_ms", self.queue_ms, 0.0, MAX_DELAY_MS)
        if self.jitter_ms > self.delay_ms:
            raise TestbedError(
                f"jitter_ms: {self.jitter_ms:g} is more than delay_ms ({self.delay_ms:g}): packets would arrive "
                "before they are sent"
            )
        if self.queue_bytes is not None and (
            isinstance(self.queue_bytes, bool) or not isinstance(self.queue_bytes, int) or self.queue_bytes < 0
        ):
            raise TestbedError(f"queue_bytes: {self.queue_bytes!r} is no number of bytes")

    @property
    def bytes_per_second(self) -> float:
        return self.rate_mbps * 1e6 / 8

    @property
    def queue_limit(self) -> float:
        """Bytes that may wait."""
        return self.bytes_per_second * self.queue_ms / 1e3 if self.queue_bytes is None else float(self.queue_bytes)


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """One link: how it is called, the client's interface, and what it carries in each direction.

    `kind` is the word for it in the `interfaces` of a session configuration.
    """

    name: str
    interface: str
    down: Direction
    up: Direction
    kind: str = "eth"
    ipv4: bool = True
    ipv6: bool = True
    mtu: int = 1500

    def __post_init__(self) -> None:
        for field, text in (("name", self.name), ("interface", self.interface)):
            if not isinstance(text, str) or not _is_name(text):
                raise TestbedError(
                    f"{field}: {text!r} is no name; 1 to {MAX_NAME} letters, digits, '-', '_' and '.' are allowed"
                )
        if self.interface == "lo":
            raise TestbedError("interface: 'lo' is the loopback interface and always there")
        if self.kind not in KINDS:
            raise TestbedError(f"{self.name}.kind: {self.kind!r} is unknown; known: {', '.join(KINDS)}")
        if isinstance(self.mtu, bool) or not isinstance(self.mtu, int) or not MIN_MTU <= self.mtu <= MAX_MTU:
            raise TestbedError(f"{self.name}.mtu: {self.mtu!r} is outside {MIN_MTU} to {MAX_MTU}")
        for field, wanted in (("ipv4", self.ipv4), ("ipv6", self.ipv6)):
            if not isinstance(wanted, bool):
                raise TestbedError(f"{field}: {wanted!r} is neither true nor false")
        if not (self.ipv4 or self.ipv6):
            raise TestbedError(f"{self.name}: a link needs ipv4 or ipv6")

    @classmethod
    def symmetric(cls, name: str, interface: str, figures: Direction, *, kind: str = "eth") -> LinkSpec:
        """A link with the same figures both ways."""
        return cls(name, interface, figures, figures, kind)

    def direction(self, way: Way) -> Direction:
        return self.down if way == "down" else self.up

    def with_direction(self, way: Way, figures: Direction) -> LinkSpec:
        return replace(self, down=figures) if way == "down" else replace(self, up=figures)


def check_links(links: Sequence[LinkSpec]) -> tuple[LinkSpec, ...]:
    """The links, if they can be together on one testbed; else raises TestbedError."""
    if not 1 <= len(links) <= MAX_LINKS:
        raise TestbedError(f"a testbed has 1 to {MAX_LINKS} links, not {len(links)}")
    for field, names in (("name", [s.name for s in links]), ("interface", [s.interface for s in links])):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise TestbedError(f"two links have the {field} {twice[0]!r}")
    return tuple(links)


def paper_links() -> tuple[LinkSpec, ...]:
    """The links of the paper's measurements: Ethernet, WiFi and 5G."""
    return load_profile("paper")


def builtin_profiles() -> tuple[str, ...]:
    """The names `load_profile` knows besides files."""
    folder = resources.files("multi.lab.testbed") / "profiles"
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def load_profile(name: str | Path) -> tuple[LinkSpec, ...]:
    """Links from a JSON file, or from one that comes with the library by its bare name. Raises TestbedError."""
    text = _profile_text(name)
    try:
        raw: object = json.loads(text)
    except ValueError as error:
        raise TestbedError(f"{name}: not JSON: {error}") from None
    match raw:
        case {"links": dict(links), **rest} if not rest:
            pass
        case _:
            raise TestbedError(f"{name}: a profile is an object with nothing but `links`, an object")
    try:
        return check_links([_link(key, value) for key, value in links.items()])
    except TestbedError as error:
        raise TestbedError(f"{name}: {error}") from None


def _profile_text(name: str | Path) -> str:
    known = builtin_profiles()
    if str(name) in known:
        return (resources.files("multi.lab.testbed") / "profiles" / f"{name}.json").read_text("utf-8")
    try:
        return Path(name).read_text("utf-8")
    except FileNotFoundError:
        raise TestbedError(f"{name}: no such profile; a file, or one of {', '.join(known)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TestbedError(f"{name}: cannot be read: {error}") from None


def _link(name: str, raw: object) -> LinkSpec:
    given = {"name": name, **_object(raw, f"links.{name}")}
    both = given.pop("both", None)
    for way in DIRECTIONS:
        if (figures := given.get(way, both)) is not None:
            place = f"links.{name}.{way}"
            given[way] = _made(Direction, _object(figures, place), place)
    return _made(LinkSpec, given, f"links.{name}")


def _object(raw: object, place: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise TestbedError(f"{place}: an object is wanted, not {type(raw).__name__}")
    return raw


def _made(kind: type[T], fields: dict[str, Any], place: str) -> T:
    try:
        return kind(**fields)
    except TestbedError as error:
        raise TestbedError(f"{place}: {error}") from None
    except TypeError as error:  # a field is missing, or unknown
        raise TestbedError(f"{place}: {str(error).partition(' ')[2]}") from None


def _is_name(text: str) -> bool:
    allowed = all(c.isascii() and (c.isalnum() or c in "-_.") for c in text)
    return allowed and 1 <= len(text) <= MAX_NAME and text[0].isalnum()


def _number(name: str, value: object, low: float, high: float) -> None:
    # Not math.isfinite: it cannot take an integer beyond any float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise TestbedError(f"{name}: {value!r} is no finite number")
    if not low <= value <= high:
        raise TestbedError(f"{name}: {value:g} is outside {low:g} to {high:g}")
