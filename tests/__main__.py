"""All tests: `python -m tests [--fast] [options of pytest]`.

Most tests wait more than they compute and run side by side; those that measure run afterwards, one at a time. With
`--fast` only what needs no network runs: unit tests of the library, not those of benchmarks, and the simulator, without
what is slow: most of the random runs, and whole QUIC engines in virtual time.
"""

from __future__ import annotations

import os
import subprocess
import sys

NO_TESTS = 5  # exit code of pytest when nothing was selected
# Two more than there are processors, since nearly half of their time they wait. Files as they come: by default those of
# few tests come last, and those are the long ones.
WORKERS = min(4, (os.cpu_count() or 1) + 2)
SIDE_BY_SIDE = ["-m", "not alone", "-n", str(WORKERS), "--dist", "loadfile", "--no-loadscope-reorder"]
ALONE = ["-m", "alone"]
LIBRARY = ["tests/unit", "tests/sim", "--ignore=tests/unit/benchmarks"]
FAST = [*LIBRARY, "-m", "not slow", "-n", "auto", "--dist", "worksteal", "-q"]


def main(arguments: list[str]) -> int:
    selections = [SIDE_BY_SIDE, ALONE]
    if "--fast" in arguments:
        arguments = [argument for argument in arguments if argument != "--fast"]
        selections = [FAST]
    # The tests start hundreds of processes: each would compile the package anew.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    codes = [
        subprocess.run([sys.executable, "-m", "pytest", *selection, *arguments], env=environment).returncode
        for selection in selections
    ]
    ran = [code for code in codes if code != NO_TESTS]
    return max(ran, default=NO_TESTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
