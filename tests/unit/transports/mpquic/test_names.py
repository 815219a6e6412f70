"""The private names of aioquic that several paths need: all there in the version that is installed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.connection import QuicConnection
from aioquic.quic.stream import QuicStreamSender

from multi.transports import mpquic, quic
from multi.transports.mpquic.names import PER_PATH, USED, missing, needed


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
    assert missing() == ["QuicConnection._write_ping_frame"]


def test_so_is_what_its_streams_have_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    initialize = QuicStreamSender.__init__

    def other(sender: QuicStreamSender, **settings: Any) -> None:
        initialize(sender, **settings)
        del sender._pending_eof

    monkeypatch.setattr(QuicStreamSender, "__init__", other)
    assert missing() == ["QuicStreamSender._pending_eof"]


def test_what_is_used_is_listed_and_no_more() -> None:
    known = needed()
    listed = {name for _, names in known for name in names}
    used = {
        word
        for word in _words()
        if word in listed or (_is_private(word) and any(hasattr(thing, word) for thing, _ in known))
    }
    assert used == listed


def _words() -> Iterator[str]:
    """Attributes, strings and methods of the modules that know aioquic."""
    for package in (mpquic, quic):
        for path in Path(package.__path__[0]).glob("*.py"):
            text = path.read_text("utf-8")
            if path.name == "names.py" or "from aioquic.quic" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                match node:
                    case ast.Attribute(attr=word) | ast.Constant(value=str(word)) | ast.FunctionDef(name=word):
                        yield word


def _is_private(word: str) -> bool:
    return word.startswith("_") and not word.startswith("__")
