"""Results on disk: a line of JSON for each cell, appended as soon as it is there, and the packed file of earlier days.

The packed file is committed with the project; lines of the working file win over it.
"""

from __future__ import annotations

import gzip
import json
import platform
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from os import SEEK_END
from pathlib import Path

from benchmarks.mpquic.cells import Outcome

__all__ = ["PACKED", "Entry", "Store", "machine"]

PACKED = Path(__file__).with_name("results.jsonl.gz")


@dataclass(frozen=True, slots=True)
class Entry:
    """What is stored of a cell."""

    cell: str
    outcome: Outcome
    commit: str
    machine: str
    processor_seconds: float

    def encoded(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def decoded(cls, text: str) -> Entry:
        """Raises ValueError, KeyError or TypeError if it is none."""
        read = json.loads(text)
        return cls(**{**read, "outcome": Outcome(**read["outcome"])})


class Store:
    """The entries of one kind of run."""

    def __init__(self, working: Path, packed: Path | None = None) -> None:
        self._working, self._packed = working, packed

    def entries(self) -> dict[str, Entry]:
        """By the keys of cells."""
        found: dict[str, Entry] = {}
        if self._packed is not None and self._packed.exists():
            with gzip.open(self._packed, "rt") as lines:
                found.update((entry.cell, entry) for entry in _read(lines))
        if self._working.exists():
            with self._working.open() as lines:
                found.update((entry.cell, entry) for entry in _read(lines))
        return found

    def put(self, entry: Entry) -> None:
        """Append it."""
        self._working.parent.mkdir(parents=True, exist_ok=True)
        with self._working.open("ab+") as file:
            if file.tell() and (file.seek(-1, SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")  # what was cut off does not take this one with it
            file.write(entry.encoded().encode() + b"\n")

    def pack(self, cells: Container[str]) -> int:
        """Put their entries into the packed file; how many they are. The same entries make the same file."""
        assert self._packed is not None
        entries = sorted((e for e in self.entries().values() if e.cell in cells), key=lambda entry: entry.cell)
        text = "".join(entry.encoded() + "\n" for entry in entries)
        self._packed.write_bytes(gzip.compress(text.encode(), mtime=0))
        return len(entries)


def _read(lines: Iterable[str]) -> Iterator[Entry]:
    """A line that was cut off when a run was killed is left out."""
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):
            yield Entry.decoded(line)


def machine() -> str:
    """Where it was measured: in virtual time it has influence on processor seconds alone."""
    model = platform.machine()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{model}, Linux {kernel}, Python {platform.python_version()}"
