"""For all tests: no timing decides, and a failing example is the same for everybody."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# What servers keep for their next start is no business of whoever runs the tests; processes of tests inherit it.
_STATE = tempfile.TemporaryDirectory(prefix="multi-state-")
os.environ["XDG_STATE_HOME"] = _STATE.name

# Who runs tests in the background of a shell, or under nohup, has these ignored, and so would all processes of tests.
# Nothing inherits a handler.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files unread that have no test of those that run alone, when only these are wanted."""
    wanted = config.getoption("markexpr") != "alone" or collection_path.suffix != ".py"
    return None if wanted or "mark.alone" in collection_path.read_text() else True


def pytest_collection_finish() -> None:
    """Keep modules and collected tests out of garbage collection.

    Tests that look for what was left open collect garbage before and after, and what lives as long as the process made
    that most of their processor time.
    """
    gc.collect()
    gc.freeze()


_collected = 0.0


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Collect the garbage of simulators, whole networks in circles with all that is under way in them.

    With all else frozen Python waits for so many objects that a process of tests came to 3.4 GB.
    """
    global _collected
    if time.monotonic() > _collected + 1:
        gc.collect()
        _collected = time.monotonic()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested, each reason once: in the list that pytest makes of it a reason has a line a test."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
