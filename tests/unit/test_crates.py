"""The lists of crates that are built from a registry: which ones, and no word of where that is."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("folder", ["native", "tests/interop/noq_peer"])
def test_a_list_has_the_checksum_of_each_crate_and_no_address(folder: str) -> None:
    packages = tomllib.loads((ROOT / folder / "crates.lock").read_text())["package"]
    (own,) = [package for package in packages if "checksum" not in package]
    assert own["name"] == tomllib.loads((ROOT / folder / "Cargo.toml").read_text())["package"]["name"]
    assert not any("source" in package for package in packages)
