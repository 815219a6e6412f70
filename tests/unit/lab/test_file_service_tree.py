"""Names from a peer: what becomes an open file inside the directory, and what is refused."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multi.lab.files import tree as tree_module
from multi.lab.files.protocol import LATEST, FileRefused, Item, Problem
from multi.lab.files.tree import EXPIRY, PARTIAL_PREFIX, FileTree, allowed_mode


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "plain").write_text("plain")
    (root / "sub" / "deep").write_text("deep")
    (tmp_path / "secret").write_text("secret")
    (root / "out").symlink_to("../secret")
    (root / "in").symlink_to("plain")
    (root / "dangling").symlink_to("nowhere")
    (root / "away").symlink_to("..")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture
def tree(root: Path) -> Iterator[FileTree]:
    with FileTree(root) as tree:
        yield tree


def read(tree: FileTree, name: str) -> bytes:
    with tree.locate(name) as location:
        descriptor = location.open_for_reading()
        try:
            return os.read(descriptor, 100)
        finally:
            os.close(descriptor)


def test_regular_files_at_any_depth_are_opened(tree: FileTree) -> None:
    assert read(tree, "plain") == b"plain"
    assert read(tree, "sub/deep") == b"deep"


@pytest.mark.parametrize(
    ("name", "problem", "reason"),
    [
        ("", Problem.BAD_REQUEST, "the name is empty"),
        (".", Problem.BAD_REQUEST, "'.' is no part of a name"),
        ("sub/./deep", Problem.BAD_REQUEST, "'.' is no part of a name"),
        ("..", Problem.FORBIDDEN, "'..' is refused"),
        ("../secret", Problem.FORBIDDEN, "'..' is refused"),
        ("sub/../../secret", Problem.FORBIDDEN, "'..' is refused"),
        ("/etc/passwd", Problem.FORBIDDEN, "absolute names are refused"),
        ("sub//deep", Problem.BAD_REQUEST, "a part of the name is empty"),
        ("plain/", Problem.BAD_REQUEST, "a part of the name is empty"),
        ("pl\0ain", Problem.BAD_REQUEST, "a name cannot hold a NUL"),
        ("x" * 256, Problem.BAD_REQUEST, "the name is too long"),
        ("/".join(["x" * 200] * 21), Problem.BAD_REQUEST, "the name is too long"),
        ("\ud800", Problem.BAD_REQUEST, "this is no file name"),
        ("absent", Problem.NOT_FOUND, "absent: no such file"),
        ("nowhere/absent", Problem.NOT_FOUND, "there is no directory nowhere"),
        ("plain/deep", Problem.NOT_FOUND, "a part of it is not a directory"),
        ("out", Problem.FORBIDDEN, "it is a symbolic link"),
        ("in", Problem.FORBIDDEN, "it is a symbolic link"),
        ("dangling", Problem.FORBIDDEN, "it is a symbolic link"),
        ("loop", Problem.FORBIDDEN, "it is a symbolic link"),
        ("away/secret", Problem.FORBIDDEN, "away is a symbolic link"),
        ("loop/x", Problem.FORBIDDEN, "loop is a symbolic link"),
        ("sub", Problem.FORBIDDEN, "it is a directory"),
        ("pipe", Problem.FORBIDDEN, "it is not a regular file"),
        (".multi-partial-0", Problem.FORBIDDEN, "names of unfinished files are refused"),
        ("sub/.multi-partial-0", Problem.FORBIDDEN, "names of unfinished files are refused"),
    ],
)
def test_other_names_are_refused_with_a_reason(tree: FileTree, name: str, problem: Problem, reason: str) -> None:
    with pytest.raises(FileRefused) as refusal:
        read(tree, name)
    assert reason in str(refusal.value)
    assert refusal.value.problem is problem


def test_reasons_cannot_steer_a_terminal(tree: FileTree) -> None:
    with pytest.raises(FileRefused) as refusal:
        read(tree, "\x1b[2J")
    assert str(refusal.value).isprintable()


def test_directory_swapped_for_a_link_never_leads_outside(root: Path, tree: FileTree) -> None:
    (root.parent / "deep").write_text("secret")
    (root / "link").symlink_to("..")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (root / "sub").rename(root / "aside")
            (root / "link").rename(root / "sub")
            (root / "sub").rename(root / "link")
            (root / "aside").rename(root / "sub")

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen, tries, deadline = set(), 0, time.monotonic() + 30
    try:
        # Which of the two threads runs when is the machine's: for some time it may be the wrong one.
        while tries < 3000 or (b"deep" not in seen and time.monotonic() < deadline):
            tries += 1
            try:
                seen.add(read(tree, "sub/deep"))
            except FileRefused as error:
                seen.add(error.problem.value.encode())
    finally:
        stop.set()
        swapper.join()
    assert b"secret" not in seen
    assert b"deep" in seen


def test_no_descriptor_stays_open_after_a_refusal(tree: FileTree) -> None:
    before = os.listdir("/proc/self/fd")
    for name in ("../secret", "sub/absent", "away/secret", "pipe", "sub"):
        with pytest.raises(FileRefused):
            read(tree, name)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_partial_file_is_hidden_locked_and_renamed(root: Path, tree: FileTree) -> None:
    with tree.locate("sub/new") as location, tree.locate("sub/new") as other:
        descriptor = location.open_partial()
        os.write(descriptor, b"content")
        assert not (root / "sub" / "new").exists()
        with pytest.raises(FileRefused, match="another transfer of it is under way"):
            other.open_partial()
        location.commit(force=False)
        os.close(descriptor)
    assert (root / "sub" / "new").read_bytes() == b"content"
    assert sorted(p.name for p in (root / "sub").iterdir()) == ["deep", "new"]


def test_next_transfer_after_a_rename_gets_a_fresh_partial_file(root: Path, tree: FileTree) -> None:
    with tree.locate("new") as location:
        first = location.open_partial()
        location.commit(force=False)
        second = location.open_partial()
        os.write(second, b"unfinished")
        os.close(first)
        os.close(second)
    assert (root / "new").read_bytes() == b""


def test_name_taken_meanwhile_is_not_overwritten(root: Path, tree: FileTree, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def late(*arguments: Any, **options: Any) -> None:
        (root / "new").write_text("theirs")  # after the check, before the rename
        link(*arguments, **options)

    with tree.locate("new") as location:
        os.close(location.open_partial())
        monkeypatch.setattr(os, "link", late)
        with pytest.raises(FileRefused, match="come into being meanwhile") as refusal:
            location.commit(force=False)
    assert refusal.value.problem is Problem.EXISTS
    assert (root / "new").read_text() == "theirs"


def test_crash_in_the_middle_of_a_commit_does_not_endanger_the_finished_file(root: Path, tree: FileTree) -> None:
    with tree.locate("new") as location:
        os.close(location.open_partial())
        (hidden,) = (p for p in root.iterdir() if p.name.startswith(".multi-partial-"))
        hidden.write_text("finished")
        (root / "new").hardlink_to(hidden)
        again = location.open_partial()
        assert os.fstat(again).st_size == 0
        os.ftruncate(again, 0)
        os.close(again)
    assert (root / "new").read_text() == "finished"


def test_failed_transfer_leaves_a_partial_file_only_when_it_is_of_use(root: Path, tree: FileTree) -> None:
    for content, useless, kept in [(b"", False, 0), (b"x", False, 1), (b"x", True, 0)]:
        with tree.locate("new") as location:
            descriptor = location.open_partial()
            os.write(descriptor, content)
            location.abandon(useless=useless)
            os.close(descriptor)
        assert len([p for p in root.iterdir() if p.name.startswith(".multi-partial-")]) == kept


def test_a_directory_that_is_gone_meanwhile_takes_no_file(root: Path, tree: FileTree) -> None:
    (root / "brief").mkdir()
    with tree.locate("brief/new") as location:
        (root / "brief").rmdir()
        with pytest.raises(FileRefused) as refusal:
            location.open_partial()
    assert refusal.value.problem is Problem.NOT_FOUND


@pytest.mark.parametrize("name", ["out", "in", "pipe", "sub"])
def test_force_replaces_regular_files_only(tree: FileTree, name: str) -> None:
    with tree.locate(name) as location, pytest.raises(FileRefused) as refusal:
        location.check_free(force=True)
    assert refusal.value.problem is Problem.FORBIDDEN


def test_partial_file_that_is_a_link_is_not_followed(root: Path, tree: FileTree) -> None:
    with tree.locate("new") as location:
        os.close(location.open_partial())
        (hidden,) = (p for p in root.iterdir() if p.name.startswith(".multi-partial-"))
        hidden.unlink()
        hidden.symlink_to("plain")
        with pytest.raises(FileRefused, match="symbolic link"):
            location.open_partial()


def partial_of(root: Path) -> Path:
    (hidden,) = root.glob(".multi-partial-*")
    return hidden


def test_partial_file_that_others_may_write_to_is_not_built_upon(root: Path, tree: FileTree) -> None:
    with tree.locate("new") as location:
        os.close(location.open_partial())
        partial_of(root).write_text("theirs")
        partial_of(root).chmod(0o666)
        with partial_of(root).open("r+") as theirs:
            ours = location.open_partial()
            theirs.write("changed")
        assert os.fstat(ours).st_size == 0
        assert os.path.samestat(os.fstat(ours), partial_of(root).stat())
        os.close(ours)


def test_each_owner_has_a_partial_file_of_his_own(tree: FileTree) -> None:
    sizes = []
    for owner in ("alice", "bob", "", "alice"):
        with tree.locate("new", owner) as location:
            descriptor = location.open_partial()
            sizes.append(os.fstat(descriptor).st_size)
            os.write(descriptor, b"content")
            os.close(descriptor)
    assert sizes == [0, 0, 0, 7]


def test_unfinished_files_expire_in_all_directories_unless_somebody_goes_on_with_them(
    root: Path, tree: FileTree
) -> None:
    names = ("new", "sub/new", "sub/fresh")
    for name in names:
        with tree.locate(name) as location:
            os.close(location.open_partial())
    hidden = sorted(root.rglob(".multi-partial-*"))
    for path in (*hidden, root / "plain"):
        os.utime(path, (0, path.stat().st_mtime - EXPIRY - 60))
    with tree.locate("sub/fresh") as location:
        os.close(location.open_partial())
        tree.expire_partials()
    kept = list(root.rglob(".multi-partial-*"))
    assert (len(hidden), len(kept)) == (3, 1)
    assert kept[0].parent == root / "sub"
    assert (root / "plain").exists()


def test_longest_names_have_room_for_a_partial_file(root: Path, tree: FileTree) -> None:
    with tree.locate("x" * 255) as location:
        os.close(location.open_partial())
        location.commit(force=False)
    assert (root / ("x" * 255)).exists()


def test_mode_of_received_files_grants_no_more_than_the_umask() -> None:
    before = os.umask(0o027)
    try:
        assert allowed_mode(0o6777) == 0o750
        assert allowed_mode(0o444) == 0o640
        assert allowed_mode(0) == 0o600
    finally:
        os.umask(before)


# --- listings  ---


def names(tree: FileTree, directory: str = "") -> list[str]:
    entries, complete = tree.listing(directory)
    assert complete
    return sorted(entry.name for entry in entries)


def test_a_listing_has_exactly_the_files_that_can_be_read_with_their_size_and_date(root: Path, tree: FileTree) -> None:
    (root / f"{PARTIAL_PREFIX}x").write_text("unfinished")
    os.utime(root / "plain", (0, 1_700_000_000))
    os.utime(root / "sub" / "deep", (0, -5))
    assert sorted(tree.listing("")[0], key=lambda entry: entry.name) == [
        Item("plain", 5, 1_700_000_000),
        Item("sub/deep", 4, 0),
    ]
    for name in names(tree):
        assert read(tree, name)
    assert names(tree, "sub") == ["sub/deep"]


@pytest.mark.parametrize(("name", "problem"), [
    ("absent", Problem.NOT_FOUND),
    ("plain", Problem.NOT_FOUND),
    ("away", Problem.FORBIDDEN),
    ("..", Problem.FORBIDDEN),
    ("sub/../..", Problem.FORBIDDEN),
    ("/", Problem.FORBIDDEN),
    (".", Problem.BAD_REQUEST),
])  # fmt: skip
def test_only_directories_inside_are_listed(tree: FileTree, name: str, problem: Problem) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileRefused) as refusal:
        tree.listing(name)
    assert refusal.value.problem is problem
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("limit", ["MAX_ENTRIES", "MAX_LOOKS"])
def test_a_listing_is_cut_off_at_its_limits_and_says_so(
    root: Path, tree: FileTree, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    for number in range(20):
        (root / "sub" / str(number)).touch()
    monkeypatch.setattr(tree_module, limit, 10)
    descriptors = len(os.listdir("/proc/self/fd"))
    entries, complete = tree.listing("")
    assert not complete
    assert len(entries) <= 10
    assert "plain" in [entry.name for entry in entries], "the top comes first"
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_listing_ends_in_time(tree: FileTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "LISTING_TIME", -1.0)
    assert tree.listing("") == ([], False)


def test_dates_stay_within_the_calendar(root: Path, tree: FileTree) -> None:
    try:
        os.utime(root / "plain", (0, LATEST + 10**6))
    except OverflowError:
        pytest.skip("this system has no such dates")
    (entry,) = (entry for entry in tree.listing("")[0] if entry.name == "plain")
    assert 0 < entry.modified <= LATEST
