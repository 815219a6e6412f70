"""Testbeds for the tests of the testbed."""

from __future__ import annotations

from multi.lab.testbed.pytest_plugin import make_testbed

__all__ = ["make_testbed"]
