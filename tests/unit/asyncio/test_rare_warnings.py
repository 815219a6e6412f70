"""What strangers cause again and again is told now and then."""

from __future__ import annotations

import logging

import pytest

from multi.asyncio.rare_warnings import INTERVAL, RareWarnings


def test_what_happens_again_and_again_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    warnings = RareWarnings(logging.getLogger("multi.test"), lambda: now)
    for _ in range(1000):
        warnings.warn("room", "no %s for %s", "room", "192.0.2.0/24")
    assert caplog.messages == ["no room for 192.0.2.0/24 (0 more since the last warning)"]
    now = INTERVAL
    warnings.warn("room", "no %s for %s", "room", "198.51.100.0/24")
    assert caplog.messages[1:] == ["no room for 198.51.100.0/24 (999 more since the last warning)"]


def test_one_kind_does_not_silence_another(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RareWarnings(logging.getLogger("multi.test"), lambda: 0.0)
    for kind in ("room", "time", "room"):
        warnings.warn(kind, f"no {kind}")
    assert caplog.messages == [f"no {kind} (0 more since the last warning)" for kind in ("room", "time")]
