"""Changes to the crate of the native engine: made in the source they were written for, and in no other."""

from __future__ import annotations

import importlib.util
import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """`native/hooks.py`, which stands beside no package."""
    spec = importlib.util.spec_from_file_location("native_hooks", NATIVE / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


def crate_of(hooks: ModuleType, folder: Path, checksum: str) -> dict[Path, str]:
    """A crate in this folder, as `cargo vendor` leaves one, but with nothing in it of what is looked for. Returns what
    is in its files."""
    for file in {change.file for change in hooks.CHANGES}:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("// nothing of what is looked for\n")
    for file in hooks.NEW_FILES:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / ".cargo-checksum.json").write_text(json.dumps({"files": {}, "package": checksum}))
    return contents(folder)


def contents(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_crate_with_another_checksum_is_refused_with_both_and_left_as_it_was(
    hooks: ModuleType, tmp_path: Path
) -> None:
    before = crate_of(hooks, tmp_path, "ab" * 32)
    with pytest.raises(SystemExit) as refused:
        hooks.apply(tmp_path)
    said = str(refused.value.code)
    assert all(part in said for part in (hooks.CRATE, "ab" * 32, hooks.CHECKSUM, hooks.VERSION))
    assert contents(tmp_path) == before


def test_a_source_without_the_words_of_a_change_is_refused_with_the_file_and_the_words(
    hooks: ModuleType, tmp_path: Path
) -> None:
    """The checksum is right: somebody has changed the source, or the hooks."""
    before = crate_of(hooks, tmp_path, hooks.CHECKSUM)
    first = hooks.CHANGES[0]
    with pytest.raises(SystemExit) as refused:
        hooks.apply(tmp_path)
    assert str(refused.value.code) == f"{first.file}: {first.words!r} is there 0 times, not 1"
    assert (tmp_path / first.file).read_text() == before[tmp_path / first.file]


@pytest.mark.parametrize(("where", "made"), [("before", "a new b."), ("after", "a bnew ."), ("instead", "a new .")])
def test_a_change_stands_where_it_says(hooks: ModuleType, where: str, made: str) -> None:
    assert hooks.Change("a file", where, "b", "new ").made_in("a b.") == made


def test_a_change_at_words_that_occur_more_often_than_it_says_is_refused(hooks: ModuleType) -> None:
    with pytest.raises(SystemExit, match="'b' is there 2 times, not 1"):
        hooks.before("a file", "b", "new").made_in("a b a b")
    assert hooks.before("a file", "b", "new ", 2, 1).made_in("a b a b") == "a b a new b"


def test_the_hooks_are_for_the_crate_that_is_built(hooks: ModuleType) -> None:
    packages = tomllib.loads((NATIVE / "crates.lock").read_text())["package"]
    (built,) = [package for package in packages if package["name"] == hooks.CRATE]
    assert (built["version"], built["checksum"]) == (hooks.VERSION, hooks.CHECKSUM)
    wanted = tomllib.loads((NATIVE / "Cargo.toml").read_text())["dependencies"][hooks.CRATE]
    assert wanted["version"] == f"={hooks.VERSION}"
