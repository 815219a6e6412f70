"""Checks of scheduler parameters, which arrive as floats from a configuration or from the peer."""

from __future__ import annotations

from multi.errors import ConfigError


def whole(name: str, value: float, low: int, high: int) -> int:
    """Return `value` as an int; ConfigError unless it is a whole number from `low` to `high`."""
    if value != int(value) or not low <= value <= high:
        raise ConfigError(f"found {value:g}; allowed: a whole number from {low} to {high}", name)
    return int(value)


def between(name: str, value: float, low: float, high: float) -> float:
    """Return `value`; ConfigError unless it lies from `low` to `high`."""
    if not low <= value <= high:
        raise ConfigError(f"found {value:g}; allowed: {low:g} to {high:g}", name)
    return value
