"""Programs that measure `multi` beside other parties: `python -m benchmarks`, run from the repository's root.

`basics` and `everyday` need nothing but loopback; `links`, `grid`, `paper` and `roaming` emulate networks in a testbed;
`mpquic` has real QUIC engines in virtual time; `routing` has servers on paper.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"
