"""What has been used of data budgets: a file that all programs of a user share.

Counting never waits for the disk and never fails. `sync` adds to the file what was counted since, and hears what
others have; where it cannot, what was counted stays in memory until it can, and `problem` says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from multi.discovery.resources import NO_STATE_DIRECTORY, state_directory

try:
    import fcntl
except ImportError:  # not on Windows: there, programs that write at the same time may miss a few seconds of each other
    fcntl = None  # type: ignore[assignment]

LOCK_TIMEOUT = 2.0  # seconds; who holds the lock writes one small file, unless it was stopped
LOCK_RETRY = 0.02  # seconds
KEPT = 12  # periods of one budget; a clock that was wrong for a while must not cost the figures of the right time
MAX_SIZE = 1 << 20  # bytes; a file that is larger is none of ours

Usage = dict[str, dict[str, int]]
"""Name of a budget -> first day of a period (ISO 8601) -> bytes."""


class Ledger:
    """See the module. Methods may be called in any thread; only `sync` blocks."""

    def __init__(self, path: Path | None) -> None:
        """`path` None: there is no place for a file."""
        self._path = path
        self._guard = threading.Lock()
        """Of the figures."""
        self._one = threading.Lock()
        """Held by who synchronises."""
        self._known: Usage = {}
        self._fresh: Usage = {}
        """Counted here, and not in the file yet."""
        self.problem = "" if path is not None else NO_STATE_DIRECTORY
        """Why the file is not used now; empty = it is."""

    def add(self, name: str, period: str, count: int) -> None:
        """Count so many bytes more."""
        with self._guard:
            _add(self._fresh, name, period, count)

    def used(self, name: str, period: str) -> int:
        """Bytes counted by all programs, as of the last `sync`, and by this one since."""
        with self._guard:
            return self._known.get(name, {}).get(period, 0) + self._fresh.get(name, {}).get(period, 0)

    def forget_fresh(self) -> None:
        """What was counted and not written is another process's to write."""
        self._guard, self._one, self._fresh = threading.Lock(), threading.Lock(), {}

    def sync(self) -> None:
        """Exchange figures with the file. Takes milliseconds, seconds where somebody holds the lock."""
        if self._path is None:
            return
        with self._one:
            try:
                with self._guard:
                    writing = {name: dict(periods) for name, periods in self._fresh.items()}
                stored = self._exchange(self._path, writing)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self.problem = f"{self._path}: {reason}"
                return
            with self._guard:
                self._known, self.problem = stored, ""
                for name, periods in writing.items():
                    for period, count in periods.items():
                        _add(self._fresh, name, period, -count)
                self._fresh = {
                    name: left for name, p in self._fresh.items() if (left := {k: v for k, v in p.items() if v})
                }

    def _exchange(self, path: Path, writing: Usage) -> Usage:
        if not writing:
            return _read(path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            counts = _read(path)
            for name, periods in writing.items():
                for period, count in periods.items():
                    _add(counts, name, period, count)
                counts[name] = {period: counts[name][period] for period in _kept(counts[name], periods)}
            _write(path, counts)
        return counts


def _kept(stored: dict[str, int], written: dict[str, int]) -> list[str]:
    """The newest periods, and those that are counted now."""
    return sorted({*sorted(stored)[-KEPT:], *written})


def _add(counts: Usage, name: str, period: str, count: int) -> None:
    periods = counts.setdefault(name, {})
    periods[period] = periods.get(period, 0) + count


def _read(path: Path) -> Usage:
    """Raises OSError where it cannot be read, ValueError where it is not what was written."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SIZE + 1)
    except FileNotFoundError:
        return {}
    if len(data) > MAX_SIZE:
        raise ValueError(f"more than {MAX_SIZE} bytes")
    try:
        counts = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("damaged: no JSON") from None
    whole = isinstance(counts, dict) and all(isinstance(periods, dict) for periods in counts.values())
    if not whole or not all(type(n) is int and n >= 0 for periods in counts.values() for n in periods.values()):
        raise ValueError("damaged: no record of data budgets")
    return counts  # type: ignore[no-any-return]  # checked above


def _write(path: Path, counts: Usage) -> None:
    """All of it or nothing, also when the power fails."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with open(number, "w") as file:
            json.dump(counts, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Beside the file, which is another one after every write. Raises TimeoutError where somebody does not let go."""
    number = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        if fcntl is not None:
            until = time.monotonic() + LOCK_TIMEOUT
            while True:
                try:
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        raise TimeoutError("another program holds its lock") from None
                    time.sleep(LOCK_RETRY)
        yield
    finally:
        os.close(number)


def default_path() -> Path | None:
    """None where there is no place for it."""
    directory = state_directory()
    return directory / "budgets.json" if directory is not None else None


_ledgers: dict[Path | None, Ledger] = {}


def shared_ledger() -> Ledger:
    """The one of this process: its sessions see at once what the others have used."""
    path = default_path()
    return _ledgers.setdefault(path, Ledger(path))


def _forked() -> None:
    for ledger in _ledgers.values():
        ledger.forget_fresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
