"""The private names of aioquic that several paths need: all there in the version that is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aioquic.quic.connection import QuicConnection

from multi.transports.mpquic.names import PER_PATH, USED, missing


@pytest.fixture(autouse=True)
def looked_for_anew() -> Iterator[None]:
    missing.cache_clear()
    yield
    missing.cache_clear()


def test_nothing_is_missing() -> None:
    assert missing() == []
    assert not set(PER_PATH) & set(USED)


def test_what_another_version_has_no_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(QuicConnection, "_write_ping_frame")
    assert missing() == ["_write_ping_frame"]
