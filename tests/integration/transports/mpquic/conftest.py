"""What the tests of this folder begin with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from multi.transports.base import TransportSettings
from multi.transports.mpquic.settings import MpquicSettings
from tests.engines import engine_or_skip
from tests.integration.certificates import certificates_in


@pytest.fixture(params=["aioquic", "noq"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param != "aioquic":
        engine_or_skip(request.param)
    return str(request.param)


@pytest.fixture
def settings(tmp_path: Path, engine: str) -> tuple[TransportSettings, TransportSettings]:
    """Of the client and of the server, both with this engine."""
    files = certificates_in(tmp_path / "certificates")
    sections = {"mpquic": MpquicSettings.model_validate({"engine": engine})}
    return replace(files.client_settings(), sections=sections), replace(files.server_settings(), sections=sections)
