"""`Cargo.lock` without the address that cargo writes into it: `crates.lock` is all the rest of it, and what is kept.

    python native/lock.py restore FOLDER     make FOLDER/Cargo.lock of FOLDER/crates.lock, as cargo wants it
    python native/lock.py keep FOLDER        make FOLDER/crates.lock of FOLDER/Cargo.lock, after `cargo update`

Both name each crate with its version and the checksum that cargo compares it with.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path


def restore(folder: Path) -> None:
    """SystemExit where cargo does not tell how it calls its registry."""
    kept = (folder / "crates.lock").read_text()
    made = re.sub(r"^checksum = ", f'source = "{_registry(folder)}"\nchecksum = ', kept, flags=re.M)
    lock = folder / "Cargo.lock"
    if not lock.exists() or lock.read_text() != made:
        lock.write_text(made)


def keep(folder: Path) -> None:
    lock = (folder / "Cargo.lock").read_text()
    (folder / "crates.lock").write_text(re.sub(r"^source = .*\n", "", lock, flags=re.M))


def _registry(folder: Path) -> str:
    """Where the crates of a package come from if it does not say so: what cargo writes for each of them."""
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"]
    said = subprocess.run([*command, "--manifest-path", str(folder / "Cargo.toml")], capture_output=True, text=True)
    if said.returncode:
        raise SystemExit(f"native: cargo metadata failed: {said.stderr.strip()}")
    (package,) = json.loads(said.stdout)["packages"]
    return str(package["dependencies"][0]["source"])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["restore", folder]:
            restore(Path(folder))
        case ["keep", folder]:
            keep(Path(folder))
        case _:
            raise SystemExit(__doc__)
