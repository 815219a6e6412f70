"""Programs that measure `multi` beside other parties: `python -m benchmarks`, run from the repository's root.

`basics` and `everyday` need nothing but loopback; `links`, `grid`, `paper` and `roaming` emulate networks in a testbed;
`mpquic` has real QUIC engines in virtual time; `routing` has servers on paper.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"


def environment() -> dict[str, str]:
    """That of a process which starts elsewhere, and imports this checkout all the same."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": paths}
