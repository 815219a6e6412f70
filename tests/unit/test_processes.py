"""What tests start ends with them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import MORTAL

ROOT = Path(__file__).parents[2]
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


IN_THE_BACKGROUND = """
import signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
import tests.conftest
subprocess.run([sys.executable, "-I", "-S", "-c", sys.argv[1]], check=True)
"""
IS_INTERRUPTED = """
import signal
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
"""


def test_tests_in_the_background_can_interrupt_what_they_start() -> None:
    subprocess.run([sys.executable, "-c", IN_THE_BACKGROUND, IS_INTERRUPTED], cwd=ROOT, check=True, timeout=60)


def runs(process: int) -> bool:
    """Whether it does, and is not only waited for by nobody."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
