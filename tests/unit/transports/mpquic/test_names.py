"""The private names of aioquic that several paths need: all there in the version that is installed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from multi.transports import mpquic, quic
from multi.transports.mpquic.names import PER_PATH, RECOVERY, USED, missing


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


def test_what_is_used_is_listed_and_no_more() -> None:
    made = QuicConnection(configuration=QuicConfiguration(is_client=True))
    listed = {*PER_PATH, *USED, *RECOVERY}
    used = {word for word in _words() if word in listed or (_is_private(word) and _is_of(made, word))}
    assert used == listed


def _words() -> Iterator[str]:
    """Attributes, strings and methods of the modules that know aioquic."""
    for package in (mpquic, quic):
        for path in Path(package.__path__[0]).glob("*.py"):
            if path.name == "names.py":
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                match node:
                    case ast.Attribute(attr=word) | ast.Constant(value=str(word)) | ast.FunctionDef(name=word):
                        yield word


def _is_private(word: str) -> bool:
    return word.startswith("_") and not word.startswith("__")


def _is_of(made: QuicConnection, word: str) -> bool:
    return hasattr(made, word) or hasattr(made._loss, word)
