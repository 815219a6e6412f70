"""Multipath QUIC with implementations that are not ours, and of our two engines with each other: `make interop`.

Real engines, modelled links, virtual time: picoquic is loaded into the process, noq is one of its own. What is not to
be had is skipped, and said at the end; exit code 1 if anything fails or nothing could be played.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from multi.lab.cert import write_development_certificates
from tests.interop import peers


def main() -> int:
    status, skipped = 0, []
    pythons: dict[str, str] = {}
    for name, get in (("picoquic", peers.picoquic), ("noq", peers.noq), ("native", peers.native)):
        print(f"interop: getting {name}", file=sys.stderr, flush=True)
        try:
            found = get()
        except peers.Unavailable as error:
            skipped.append(f"{name} SKIPPED: {error}")
        else:
            pythons[name] = str(found) if name == "picoquic" else sys.executable
    with tempfile.TemporaryDirectory(prefix="multi-interop-") as folder:
        write_development_certificates(Path(folder), [])
        for name, python in pythons.items():
            command = [python, "-m", "tests.interop.play", name, folder]
            status |= (
                subprocess.run(command, cwd=peers.ROOT, env=peers.environment(python), check=False).returncode != 0
            )
    for line in skipped:
        print(f"\ninterop: {line}", file=sys.stderr)
    return 1 if status or not pythons else 0


if __name__ == "__main__":
    sys.exit(main())
