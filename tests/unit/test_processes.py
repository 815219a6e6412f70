"""What tests start ends with them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import MORTAL

STARTS = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL).pid
while open(f"/proc/{child}/comm").read() != "sleep\\n":
    pass  # it has begun, and is not yet what it shall be
print(child, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not MORTAL, reason="needs setpriv")
def test_a_process_does_not_outlive_a_test_that_is_killed() -> None:
    words = [sys.executable, "-I", "-S", "-c", STARTS, *MORTAL, "sleep", "300"]
    child = int(subprocess.run(words, stdout=subprocess.PIPE, check=False, timeout=60).stdout)
    for _ in range(500):
        if not runs(child):
            return
        time.sleep(0.02)
    pytest.fail("it lives")


def runs(process: int) -> bool:
    """Whether it does, and is not only waited for by nobody."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
