"""What is pinned for development can be installed with the oldest Python that is supported."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]


def test_every_pinned_package_takes_the_oldest_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line.partition("==")[0] for line in lines if "==" in line]
    refusing = []
    for name in pinned:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # not for this machine, or this Python
        wanted = found.metadata["Requires-Python"]
        if wanted and oldest not in SpecifierSet(wanted):
            refusing.append(f"{name} {found.version}: {wanted}")
    assert len(pinned) > 50
    assert refusing == []
