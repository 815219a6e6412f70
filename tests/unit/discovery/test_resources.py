"""What is done when the system is out of something."""

from __future__ import annotations

import os

import pytest

from multi.discovery.resources import SpareDescriptor, allowed_descriptors


def test_the_system_says_how_many_descriptors_there_may_be() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    try:
        assert allowed_descriptors() == before[0] - 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_spare_descriptor_is_there_for_something_else_until_it_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spare = SpareDescriptor()
    assert spare.give()
    assert not spare.give()

    def none_left(path: str, flags: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", none_left)
        assert not spare.take()
        assert not spare.give()
    assert spare.take()
    assert spare.take()
    assert spare.give()
