"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from multi.lab.cert import write_development_certificates
from tests.integration.callbacks import callbacks_bounded


@pytest.fixture(scope="session")
def development_certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that `multi cert` would have written."""
    directory = tmp_path_factory.mktemp("development")
    write_development_certificates(directory, [])
    return directory


@pytest.fixture
def bounded_callbacks() -> Iterator[None]:
    """For every test of an attack: no callback on asyncio's loop takes longer than it may (see `callbacks`)."""
    with callbacks_bounded():
        yield
