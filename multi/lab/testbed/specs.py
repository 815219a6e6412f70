"""What a testbed is made of: links, their figures and addresses, checked when they are made, and profiles in files.

A profile is JSON: `{"links": {"wifi": {"interface": "wlan0", "kind": "wifi", "down": {...}, "up": {...}}}}` with the
fields of `LinkSpec` and `Direction`. `both` stands for `down` and `up` together. Durations are milliseconds here,
because this is where people write figures.

Addresses are fixed by the number of a link, so that they can be written down. Link n (from 1) is 10.77.n.0/24 and
fd77:n::/64; the server has .1 and ::1 there, the client .2 and ::2. The server has 10.77.0.1 and fd77::1 besides,
reachable over every link, as a real server has one address whatever the way to it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from multi.lab.testbed.errors import TestbedError

T = TypeVar("T")
HostName = Literal["client", "server"]
HOSTS: Final[tuple[HostName, HostName]] = ("client", "server")
Way = Literal["down", "up"]
DIRECTIONS: Final[tuple[Way, Way]] = ("down", "up")

SERVER_ADDRESSES = {4: "10.77.0.1", 6: "fd77::1"}
PROFILES = Path(__file__).with_name("profiles")
KINDS = ("eth", "wifi", "cellular")
MAX_LINKS = 100  # the number of a link is part of its addresses
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,11}")  # the server's end is `s-<name>`, and IFNAMSIZ is 16 with a zero
MIN_MTU, MAX_MTU = 1280, 9216  # RFC 8200 section 5; jumbo frames
DEFAULT_QUEUE_MS = 50.0
MAX_MS = 60_000.0
FIGURES = {
    "rate_mbps": (0.001, 100_000.0),
    "delay_ms": (0.0, MAX_MS),
    "jitter_ms": (0.0, MAX_MS),
    "loss": (0.0, 1.0),
    "queue_ms": (0.0, MAX_MS),
}
"""What a figure may be, from and to."""


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
        for name, (low, high) in FIGURES.items():
            value = getattr(self, name)
            # Not math.isfinite: it cannot take an integer beyond any float.
            if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
                raise TestbedError(f"{name}: {value!r} is no finite number")
            if not low <= value <= high:
                raise TestbedError(f"{name}: {value:g} is outside {low:g} to {high:g}")
        if self.jitter_ms > self.delay_ms:
            raise TestbedError(
                f"jitter_ms: {self.jitter_ms:g} is more than delay_ms ({self.delay_ms:g}): packets would arrive "
                "before they are sent"
            )
        if self.queue_bytes is not None and (type(self.queue_bytes) is not int or self.queue_bytes < 0):
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
            if not isinstance(text, str) or not NAME.fullmatch(text):
                raise TestbedError(
                    f"{field}: {text!r} is no name; 1 to 12 letters, digits, '-', '_' and '.' are allowed"
                )
        if self.interface == "lo":
            raise TestbedError("interface: 'lo' is the loopback interface and always there")
        if self.kind not in KINDS:
            raise TestbedError(f"{self.name}.kind: {self.kind!r} is unknown; known: {', '.join(KINDS)}")
        if type(self.mtu) is not int or not MIN_MTU <= self.mtu <= MAX_MTU:
            raise TestbedError(f"{self.name}.mtu: {self.mtu!r} is outside {MIN_MTU} to {MAX_MTU}")
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


@dataclass(frozen=True, slots=True)
class LinkAddresses:
    """The addresses of one family on one link."""

    version: int
    prefix: int
    network: str
    client: str
    server: str

    def of(self, host: HostName) -> str:
        return self.client if host == "client" else self.server


def link_addresses(number: int, spec: LinkSpec) -> tuple[LinkAddresses, ...]:
    """The addresses of link `number`, IPv4 first; none of a family the link does not carry."""
    v4, v6 = f"10.77.{number}", f"fd77:{number:x}:"
    of_ipv4 = LinkAddresses(4, 24, f"{v4}.0/24", f"{v4}.2", f"{v4}.1")
    of_ipv6 = LinkAddresses(6, 64, f"{v6}:/64", f"{v6}:2", f"{v6}:1")
    return (of_ipv4,) * spec.ipv4 + (of_ipv6,) * spec.ipv6


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
    return tuple(sorted(path.stem for path in PROFILES.glob("*.json")))


def load_profile(name: str | Path) -> tuple[LinkSpec, ...]:
    """Links from a JSON file, or from one that comes with the library by its bare name. Raises TestbedError."""
    known = builtin_profiles()
    path = PROFILES / f"{name}.json" if str(name) in known else Path(name)
    try:
        match json.loads(path.read_text("utf-8")):
            case {"links": dict(links), **rest} if not rest:
                return check_links([_link(key, value) for key, value in links.items()])
            case _:
                raise TestbedError("a profile is an object with nothing but `links`, an object")
    except TestbedError as error:
        raise TestbedError(f"{name}: {error}") from None
    except FileNotFoundError:
        raise TestbedError(f"{name}: no such profile; a file, or one of {', '.join(known)}") from None
    except OSError as error:
        raise TestbedError(f"{name}: cannot be read: {error}") from None
    except ValueError as error:
        raise TestbedError(f"{name}: not JSON: {error}") from None


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
