"""How the programs of `make interop` are started; what they play needs other implementations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop import peers


def test_what_our_interpreter_finds_elsewhere_its_programs_find_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The native engine may have been built somewhere else."""
    (tmp_path / "prebuilt.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-c", "import prebuilt, tests.interop.scenarios"]
    assert subprocess.run(command, cwd=tmp_path, env=peers.environment(sys.executable), check=False).returncode == 0


def test_another_interpreter_does_not_find_what_was_built_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/built/for/another/version")
    assert peers.environment("/somewhere/python3.12")["PYTHONPATH"] == str(peers.ROOT)
