"""`multi` offers the names of its documents, lazily; the driver performs every effect there is."""

from __future__ import annotations

import ast
import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import multi
from multi import _exports
from multi.reasons import Cause, Reason

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.py")]

EXPORTS: list[str] = multi.__all__  # type: ignore[attr-defined] # made with the first name that is used


def test_every_name_is_there() -> None:
    for name in EXPORTS:
        assert getattr(multi, name) is not None
        assert name in dir(multi)
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        _ = multi.conect  # type: ignore[attr-defined] # that is the question


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_and_examples_use_names_that_are_exported(document: Path) -> None:
    used = set(re.findall(r"\bmulti\.([A-Za-z_]+)\(", document.read_text()))
    assert used <= set(EXPORTS)


def test_type_checkers_see_the_names_that_are_there_at_run_time() -> None:
    """They follow `X as X` only (PEP 484), and see neither assignments to `globals()` nor `__getattr__`."""
    assert _exports.__file__ is not None
    tree = ast.parse(Path(_exports.__file__).read_text())
    _docstring, *imports = tree.body
    seen = [alias.asname for line in imports if isinstance(line, ast.ImportFrom) for alias in line.names]
    assert len(imports) == len(seen) == len(set(seen))
    assert [*seen, "__version__"] == EXPORTS


def test_star_import_brings_exactly_the_exports() -> None:
    program = "from multi import *; print(*sorted(n for n in dir() if n != '__version__' and n[0] != '_'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == sorted(name for name in EXPORTS if name[0] != "_")


def test_a_name_loads_what_it_needs_and_no_more() -> None:
    program = """
import sys, multi
print(*(name for name in sys.modules if name.startswith("multi.")))
from multi import SessionLost, connect, create_connection, create_server, open_connection, start_server
print(*(heavy for heavy in ("pydantic", "cryptography", "aioquic", "multi.protocol", "ssl") if heavy in sys.modules))
from multi import Session
print("multi.asyncio.driver" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "\nssl\nTrue\n", "asyncio itself loads ssl"


def test_without_its_source_every_name_is_there_all_the_same() -> None:
    """As in a frozen program."""
    program = """
import importlib.machinery, multi
importlib.machinery.SourceFileLoader.get_source = lambda self, name: None
print(multi.Role.ACTIVE.name, multi.open_connection.__name__, len(multi.__all__))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == f"ACTIVE open_connection {len(EXPORTS)}\n"


def test_errors_are_what_an_application_may_catch() -> None:
    assert issubclass(multi.SessionLost, ConnectionResetError)
    assert issubclass(multi.SessionRefused, ConnectionError)
    assert issubclass(multi.StreamReset, multi.SessionLost)
    assert issubclass(multi.TransportError, OSError)
    assert issubclass(multi.NoUsableConnection, multi.TransportError)
    assert issubclass(multi.ConfigError, ValueError)
    assert issubclass(multi.LocalProtocolError, RuntimeError)
    for name in EXPORTS:
        value = getattr(multi, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, multi.MultiError)


@pytest.mark.parametrize(
    "error",
    [
        multi.ConfigError("nothing", "a.b"),
        multi.RemoteProtocolError("too much", Cause.FLOW_CONTROL),
        multi.NoUsableConnection("none", [("tcp", "refused")]),
        multi.SessionRefused(Reason(Cause.REFUSED, "no")),
        multi.SessionLost(Reason(Cause.PEER_ABORTED, "")),
        multi.StreamReset(Reason(Cause.PEER_ABORTED, "the peer reset this stream"), 7, 99),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_copied_and_sent_to_another_process(error: multi.MultiError) -> None:
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is type(error)
        assert (str(other), vars(other)) == (str(error), vars(error))
        if isinstance(error, multi.SessionLost | multi.SessionRefused):
            assert isinstance(other, multi.SessionLost | multi.SessionRefused)
            assert other.reason.cause is error.reason.cause
