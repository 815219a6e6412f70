"""What to forward, as it is written on the command line: `-L [addr:]port:host:port`, `--socks [addr:]port`.

Each may be followed by options: `2222:host:22,priority=0,steering=latency,max_rtt_ms=80`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multi.config import load_steering
from multi.errors import ConfigError, printable
from multi.forward.protocol import HostPort, parse_address, parse_port

LOOPBACK = "127.0.0.1"
EVERYWHERE = "*"
LOWEST_PRIORITY = 7
ALLOWED = ("priority", "steering", "max_rtt_ms", "max_loss")
_HOST = r"(\[[^\[\]]+\]|[^:\[\],]+)"
_FORWARD = re.compile(rf"(?:{_HOST}:)?(\d+):{_HOST}:(\d+)")
_LISTENER = re.compile(rf"(?:{_HOST}:)?(\d+)")


@dataclass(frozen=True, slots=True)
class Treatment:
    """How the streams of a rule are carried."""

    priority: int = 3
    """0 (first) to 7."""
    steering: Mapping[str, Any] | None = None
    """As an object of the configuration; None = as the session."""


USUAL = Treatment()


@dataclass(frozen=True, slots=True)
class ProxyListener:
    """A port of this machine for a proxy."""

    listen: HostPort
    treatment: Treatment = USUAL


@dataclass(frozen=True, slots=True)
class Forward:
    """Connections to `listen` lead to `target` at the other end."""

    listen: HostPort
    target: HostPort
    treatment: Treatment = USUAL

    def __str__(self) -> str:
        return f"{self.listen}:{self.target}"


def parse_forward(text: str, option: str) -> Forward:
    """`[addr:]port:host:port[,OPTION=VALUE]`; without `addr` on loopback, `*` is every address. Raises ConfigError."""
    form = "[ADDR:]PORT:HOST:PORT"
    match, treatment = _split(text, _FORWARD, option, form)
    try:
        return Forward(_listen(match[1], match[2]), parse_address(f"{match[3]}:{match[4]}"), treatment)
    except ValueError as error:
        raise ConfigError(f"{error}; allowed: {form}", option) from None


def parse_listener(text: str, option: str) -> ProxyListener:
    """`[addr:]port[,OPTION=VALUE]`. Raises ConfigError."""
    form = "[ADDR:]PORT"
    match, treatment = _split(text, _LISTENER, option, form)
    try:
        return ProxyListener(_listen(match[1], match[2]), treatment)
    except ValueError as error:
        raise ConfigError(f"{error}; allowed: {form}", option) from None


def _listen(host: str | None, port: str) -> HostPort:
    if host == EVERYWHERE:
        return HostPort(EVERYWHERE, parse_port(port))
    return parse_address(f"{host or LOOPBACK}:{port}")


def _split(text: str, pattern: re.Pattern[str], option: str, form: str) -> tuple[re.Match[str], Treatment]:
    spec, *options = text.split(",")
    match = pattern.fullmatch(spec)
    if match is None:
        raise ConfigError(f"found {printable(text)!r}; allowed: {form}", option)
    return match, parse_treatment(options, option)


def parse_treatment(options: Sequence[str], option: str) -> Treatment:
    """What follows a rule: `priority=N`, `steering=MODE` and its `max_rtt_ms=N`, `max_loss=N`. Raises ConfigError."""
    given: dict[str, str] = {}
    for item in options:
        key, _, value = item.partition("=")
        if key not in ALLOWED or not value or key in given:
            raise ConfigError(f"found {printable(item)!r}; allowed, once each: {', '.join(ALLOWED)}=VALUE", option)
        given[key] = value
    priority = given.pop("priority", str(USUAL.priority))
    if not re.fullmatch(f"[0-{LOWEST_PRIORITY}]", priority):
        raise ConfigError(f"found priority={printable(priority)}; allowed: 0 to {LOWEST_PRIORITY}", option)
    return Treatment(int(priority), _steering(given, option) if given else None)


def _steering(given: Mapping[str, str], option: str) -> Mapping[str, Any]:
    asked: dict[str, str | float] = {}
    try:
        for key, value in given.items():
            asked["mode" if key == "steering" else key] = value if key == "steering" else float(value)
    except ValueError:
        raise ConfigError(f"found {printable(key)}={printable(value)}; allowed: a number", option) from None
    try:
        load_steering(asked)
    except ConfigError as error:
        raise ConfigError(f"steering: {error}", option) from None
    return asked
