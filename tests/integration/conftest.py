"""Fixtures of the integration tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from multi.lab.cert import write_development_certificates


@pytest.fixture(scope="session")
def development_certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that `multi cert` would have written."""
    directory = tmp_path_factory.mktemp("development")
    write_development_certificates(directory, [])
    return directory
