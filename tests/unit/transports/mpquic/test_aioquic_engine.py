"""aioquic with several paths: only the version it was written for, and what it tells of all paths together."""

from __future__ import annotations

import aioquic
import pytest

from multi.errors import TransportError
from multi.transports.mpquic.aioquic_engine import WRITTEN_FOR, check
from tests.unit.transports.mpquic.ends import TEN, connected, engine


def test_the_installed_version_is_the_one_it_was_written_for(monkeypatch: pytest.MonkeyPatch) -> None:
    check()
    major, minor, _ = aioquic.__version__.split(".")
    monkeypatch.setattr(aioquic, "__version__", f"{major}.{int(minor) + 1}.0")
    with pytest.raises(TransportError, match=f"mpquic needs aioquic {WRITTEN_FOR}x"):
        check()


def test_figures_of_the_connection_are_those_of_all_paths_that_answer() -> None:
    client = engine(connected([TEN, TEN]).client)
    one, other = client.paths()
    assert client.congestion_window == one.congestion_window + other.congestion_window
    assert client.bytes_in_flight == one.bytes_in_flight + other.bytes_in_flight
    assert client.round_trips.smallest == pytest.approx(0.044, abs=0.004)
