"""Digests of what happens in 2,000 random runs, one for each seed: `golden_traces.txt`.

    python -m tests.sim.golden

runs them again, writes the file anew and prints the seeds whose digest changed. A change that is not meant to change
what a session does changes none of them. One that is says which and why, and renews the file in the same commit.
"""

from __future__ import annotations

import argparse
import sys
from multiprocessing import Pool
from pathlib import Path

from tests.sim.random_run import trace_digest

FILE = Path(__file__).with_name("golden_traces.txt")
SEEDS = range(2_000)
SEEDS_A_LINE = 10


def stored() -> list[str]:
    """The digest of each seed, in order."""
    return FILE.read_text("ascii").split() if FILE.exists() else []


def write(digests: list[str]) -> None:
    lines = [digests[at : at + SEEDS_A_LINE] for at in range(0, len(digests), SEEDS_A_LINE)]
    FILE.write_text("".join(" ".join(line) + "\n" for line in lines), "ascii")


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    before = stored()
    with Pool() as pool:
        now = pool.map(trace_digest, SEEDS, chunksize=20)
    changed = [seed for seed in SEEDS if before[seed : seed + 1] != now[seed : seed + 1]]
    write(now)
    sys.stdout.write(f"{len(changed)} of {len(now)} changed: {' '.join(map(str, changed))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
