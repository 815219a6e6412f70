"""What to forward, as it is written on the command line: `-L [addr:]port:host:port`, `--socks [addr:]port`.

Each may be followed by options: `2222:host:22,priority=0`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from multi.errors import ConfigError, printable
from multi.forward.opening import DEFAULT_PRIORITY
from multi.forward.protocol import Address, parse_address, parse_port

LOOPBACK = "127.0.0.1"
EVERYWHERE = "*"
LOWEST_PRIORITY = 7
_HOST = r"(\[[^\[\]]+\]|[^:\[\],]+)"
_FORWARD = re.compile(rf"(?:{_HOST}:)?(\d+):{_HOST}:(\d+)")
_LISTENER = re.compile(rf"(?:{_HOST}:)?(\d+)")


@dataclass(frozen=True, slots=True)
class Listener:
    """A port of this machine for a proxy."""

    listen: Address
    priority: int = DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class Forward:
    """Connections to `listen` lead to `target` at the other end, in streams of this priority, 0 (first) to 7."""

    listen: Address
    target: Address
    priority: int = DEFAULT_PRIORITY

    def __str__(self) -> str:
        return f"{self.listen}:{self.target}"


def parse_forward(text: str, option: str) -> Forward:
    """`[addr:]port:host:port[,priority=N]`; without `addr` on loopback, `*` is every address. Raises ConfigError."""
    form = "[ADDR:]PORT:HOST:PORT"
    match, priority = _split(text, _FORWARD, option, form)
    try:
        return Forward(_listen(match[1], match[2]), parse_address(f"{match[3]}:{match[4]}"), priority)
    except ValueError as error:
        raise ConfigError(f"{error}; allowed: {form}", option) from None


def parse_listener(text: str, option: str) -> Listener:
    """`[addr:]port[,priority=N]`. Raises ConfigError."""
    form = "[ADDR:]PORT"
    match, priority = _split(text, _LISTENER, option, form)
    try:
        return Listener(_listen(match[1], match[2]), priority)
    except ValueError as error:
        raise ConfigError(f"{error}; allowed: {form}", option) from None


def _listen(host: str | None, port: str) -> Address:
    if host == EVERYWHERE:
        return Address(EVERYWHERE, parse_port(port))
    return parse_address(f"{host or LOOPBACK}:{port}")


def _split(text: str, pattern: re.Pattern[str], option: str, form: str) -> tuple[re.Match[str], int]:
    spec, *options = text.split(",")
    match = pattern.fullmatch(spec)
    if match is None:
        raise ConfigError(f"found {printable(text)!r}; allowed: {form}", option)
    priority = DEFAULT_PRIORITY
    for item in options:
        key, _, value = item.partition("=")
        if key != "priority" or not re.fullmatch(f"[0-{LOWEST_PRIORITY}]", value):
            raise ConfigError(f"found {printable(item)!r}; allowed: priority=0 to priority={LOWEST_PRIORITY}", option)
        priority = int(value)
    return match, priority
