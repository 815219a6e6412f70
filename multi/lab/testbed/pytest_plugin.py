"""Fixtures for tests that need a testbed. Import them in a conftest.py, or load this module as a plugin.

Where a testbed is not allowed, the tests are skipped with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from multi.lab.testbed.errors import TestbedNotAllowed
from multi.lab.testbed.hosts import Testbed
from multi.lab.testbed.specs import LinkSpec

MakeTestbed = Callable[..., Testbed]
"""(links, **options of Testbed) -> Testbed, running; it ends with the test."""


@contextlib.contextmanager
def started(links: tuple[LinkSpec, ...], **options: Any) -> Iterator[Testbed]:
    """A running testbed, or a skipped test."""
    testbed = Testbed(links, **options)
    try:
        testbed.start()
    except TestbedNotAllowed as error:
        pytest.skip(f"NO TESTBED HERE: {error}")
    with contextlib.closing(testbed):
        yield testbed


@pytest.fixture
def make_testbed() -> Iterator[MakeTestbed]:
    """Makes testbeds for one test."""
    with contextlib.ExitStack() as stack:

        def make(links: tuple[LinkSpec, ...], **options: Any) -> Testbed:
            return stack.enter_context(started(links, **options))

        yield make
