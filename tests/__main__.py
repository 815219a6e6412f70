"""All tests: `python -m tests [--fast] [options of pytest]`.

Most tests wait more than they compute and run side by side; those that measure run afterwards, one at a time. With
`--fast` only what needs no network runs: unit tests of the library, not those of benchmarks, and the simulator, without
what is slow: most of the random runs, transfers over unequal paths, and whole QUIC engines in virtual time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from time import perf_counter

NO_TESTS = 5  # exit code of pytest when nothing was selected
# Three more than there are processors: more than half of their time they wait. Files as they come: by default those of
# few tests come last, and those are the long ones.
WORKERS = min(5, (os.cpu_count() or 1) + 3)
SIDE_BY_SIDE = ["-m", "not alone", "-n", str(WORKERS), "--dist", "loadfile", "--no-loadscope-reorder"]
ALONE = ["-m", "alone"]
LIBRARY = ["tests/unit", "tests/sim", "--ignore=tests/unit/benchmarks"]
FAST = [*LIBRARY, "-m", "not slow", "-n", "auto", "--dist", "worksteal", "-q"]

LOOK = 0.5  # seconds in which is seen how busy the machine is
GAP = 0.001  # seconds; a loop that takes longer for a turn had no processor
ENOUGH = 0.5  # of a processor for one process; with less, tests fail for their bounds in seconds alone


def share_of_a_processor() -> float:
    """What one busy process gets here, while nothing of ours runs beside it: 1 on an idle machine."""
    started = last = perf_counter()
    lost = 0.0
    while last - started < LOOK:
        now = perf_counter()
        if now - last > GAP:
            lost += now - last
        last = now
    return 1 - lost / (last - started)


def main(arguments: list[str]) -> int:
    selections = [SIDE_BY_SIDE, ALONE]
    if "--fast" in arguments:
        arguments = [argument for argument in arguments if argument != "--fast"]
        selections = [FAST]
    if (share := share_of_a_processor()) < ENOUGH:
        print(f"tests: others use this machine: one process gets {share:.0%} of a processor", file=sys.stderr)
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
