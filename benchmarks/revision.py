"""Of which code a stored measurement speaks."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path


def described() -> str:
    """The revision the benchmarks run from, in git's words; "unknown" without git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    return "unknown"
