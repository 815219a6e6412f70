"""Gets the foreign implementations: picoquic in an environment of its own, noq built from the registry."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.interop.noq import BINARY, FOLDER

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-interop"
PICOQUIC = "aiopquic==0.6.1"  # the symbols that are used are not promised
NEEDED = ("aioquic", "cryptography", "pydantic")  # by our engine
OLDEST_PYTHON = (3, 12)  # for which there are wheels of it
OLDEST_CARGO = (1, 88)


class Unavailable(Exception):
    """A peer is not to be had here, and why."""


def picoquic() -> Path:
    """The interpreter that has it."""
    python = ENVIRONMENT / "bin" / "python"
    if not _succeeds(str(python), "-I", "-c", "import aiopquic, aioquic, pydantic"):
        found = _new_python()
        if found is None:
            raise Unavailable(f"no Python {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer")
        _run("no environment", found, "-m", "venv", "--clear", str(ENVIRONMENT))
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--only-binary", "aiopquic"]
        _run("pip fails", *pip, "-c", str(ROOT / "constraints.txt"), *NEEDED, PICOQUIC)
    return python


def noq() -> Path:
    """The binary."""
    if shutil.which("cargo") is None:
        raise Unavailable("no cargo")
    said = subprocess.run(["cargo", "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_CARGO:
        raise Unavailable(f"cargo 1.88 or newer is needed, found {said.strip()!r}")
    if shutil.which("cc") is None:
        raise Unavailable("no C compiler")
    _run("no Cargo.lock", sys.executable, str(ROOT / "native" / "lock.py"), "restore", str(FOLDER))
    _run("cargo fails", "cargo", "build", "--release", "--locked", "--quiet", "--manifest-path", f"{FOLDER}/Cargo.toml")
    return BINARY


def environment(python: str) -> dict[str, str]:
    """To run the scenarios with that interpreter. Ours may find the native engine elsewhere, as it found it here; what
    another version would find there was built for ours."""
    inherited = os.environ.get("PYTHONPATH") if python == sys.executable else None
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), inherited)))}


def native() -> None:
    """Our engine that `make native` builds."""
    if find_spec("multi_noq") is None:
        raise Unavailable("`make native` builds it")


def _new_python() -> str | None:
    names = [f"python3.{minor}" for minor in range(15, OLDEST_PYTHON[1] - 1, -1)]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions" / "*" / "bin" / "python3"
    check = f"import sys, venv; sys.exit(sys.version_info < {OLDEST_PYTHON})"
    return next((name for name in (*names, *sorted(glob.glob(str(versions)))) if _succeeds(name, "-c", check)), None)


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _run(otherwise: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise Unavailable(f"{otherwise}: {last}")
