"""Build the module `multi_noq` and put it beside the packages of the Python that runs this. Called by `make native`.

    python native/build.py [FOLDER]     the folder to put it into, instead of that of the packages
    python native/build.py --check      only say what is missing, if anything is

Everything in between is below `native/target`, which git ignores: the sources of all crates, checked by cargo against
`crates.lock`, the changes of `hooks.py` in one of them, and what the compiler makes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import hooks
import lock

HERE = Path(__file__).parent
TARGET = HERE / "target"
SOURCES = TARGET / "vendor"
STAMP = TARGET / "sources.sha256"
OLDEST = (1, 88)  # of cargo: noq-proto's own `rust-version`
# The module suits all of them (abi3): what was compiled under one is not compiled again under another.
ANY_PYTHON = os.environ | {"PYO3_NO_PYTHON": "1"}
FROM_SOURCES = (
    "--config",
    'source.crates-io.replace-with="fetched"',
    "--config",
    f'source.fetched.directory="{SOURCES}"',
)


def main(folder: Path) -> None:
    check_tools()
    lock.restore(HERE)
    fetch()
    cargo("build", "--release", "--locked", "--offline", "--target-dir", str(TARGET), *FROM_SOURCES)
    suffix = "dylib" if sys.platform == "darwin" else "so"
    made = folder / "multi_noq.abi3.so"
    # Under a new name first: a process that uses the old one keeps it.
    shutil.copy(TARGET / "release" / f"libmulti_noq.{suffix}", made.with_suffix(".new"))
    made.with_suffix(".new").replace(made)
    print(f"native: {made}")


def check_tools() -> None:
    """SystemExit with what is missing."""
    try:
        said = subprocess.run(["cargo", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise SystemExit("native: cargo 1.88 or newer is needed (rustup.rs, or your distribution's package)") from None
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise SystemExit(f"native: cargo 1.88 or newer is needed, found {said.strip()!r}")
    if shutil.which("cc") is None:
        raise SystemExit("native: a C compiler is needed (cc; on Debian and Ubuntu: apt-get install gcc libc6-dev)")


def fetch() -> None:
    """All sources, the changes made, once for each state of what decides about them."""
    deciding = ["crates.lock", "hooks.py", *sorted(hooks.NEW_FILES.values())]
    state = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in deciding)).hexdigest()
    if STAMP.exists() and STAMP.read_text() == state:
        return
    STAMP.unlink(missing_ok=True)
    shutil.rmtree(SOURCES, ignore_errors=True)
    cargo("vendor", "--locked", "--quiet", str(SOURCES))
    hooks.apply(SOURCES / hooks.CRATE)
    # What comes from a registry never changes, as far as cargo knows.
    cargo("clean", "--release", "--quiet", "--package", hooks.CRATE, "--target-dir", str(TARGET), *FROM_SOURCES)
    STAMP.write_text(state)


def cargo(command: str, *arguments: str) -> None:
    """Run it quietly on standard output, which `make` users read; it says what it does on standard error."""
    where = ["--manifest-path", str(HERE / "Cargo.toml")]
    done = subprocess.run(["cargo", command, *where, *arguments], stdout=subprocess.DEVNULL, env=ANY_PYTHON)
    if done.returncode:
        raise SystemExit(f"native: cargo {command} failed")


if __name__ == "__main__":
    if "--check" in sys.argv:
        check_tools()
    else:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("platlib")))
