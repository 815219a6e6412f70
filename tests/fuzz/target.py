"""What is fuzzed: functions of bytes that raise when a promise of `multi` is broken, and how they are judged.

A target gives its input to code that reads what others wrote and lets through the one exception that code documents.
Everything else is a finding: another exception, a broken property, memory out of proportion, and, where a driver asks
for it, time out of proportion. How inputs are made is left to the drivers.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType

__all__ = ["Finding", "Judge", "LineCoverage", "Target", "Violation", "check", "may_raise"]

MEMORY_BASE = 64 * 1024  # bytes an input may cost whatever its size: the objects of an answer and of its error
MEMORY_FACTOR = 64  # bytes per byte of input: a byte of JSON may become an object
SAMPLED = 64  # one input of so many has its memory measured, which makes it several times slower
SECONDS = 1.0  # of processor time for one input; honest ones take less than a hundredth of it


class Violation(AssertionError):
    """A property does not hold."""


def check(holds: bool, promise: str) -> None:
    """Raise Violation with the broken promise."""
    if not holds:
        raise Violation(promise)


@contextmanager
def may_raise(*documented: type[Exception]) -> Iterator[None]:
    """Let pass exactly what is documented: a subclass of RemoteProtocolError is documented, a ValueError is not."""
    try:
        yield
    except documented:
        pass


@dataclass(frozen=True, slots=True)
class Target:
    """A function to be fuzzed."""

    name: str
    run: Callable[[bytes], None]
    """Deterministic: the same bytes do the same."""
    seeds: Callable[[], Sequence[bytes]]
    """Valid or interesting inputs, made by the encoders of `multi`."""
    modules: tuple[ModuleType, ...]
    """Whose coverage counts."""
    short: int = 200
    """Inputs of the short run in the test suite."""
    weight: int = 1
    """Share of a long run's time."""
    longest: int = 4096
    """Bytes of the inputs drivers make."""
    memory_base: int = MEMORY_BASE
    memory_factor: int = MEMORY_FACTOR
    words: tuple[bytes, ...] = ()
    """Pieces that mutations put in: magic numbers, keys, names."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that broke a promise, and how."""

    target: str
    kind: str
    """Equal for inputs that very likely show the same fault."""
    data: bytes
    details: str

    def __str__(self) -> str:
        return f"{self.target}: {self.kind}\n  input: {self.data!r}\n{self.details}"


@dataclass(slots=True)
class Judge:
    """Runs inputs and keeps one finding of each kind."""

    target: Target
    timed: bool
    """Whether time counts: not where the verdict must be the same on every machine."""
    sampled: int = SAMPLED
    inputs: int = 0
    slowest: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)

    def run(self, data: bytes) -> None:
        self.inputs += 1
        started = time.process_time()
        logging.disable()  # strangers cause warnings: not thousands in a second
        try:
            self.target.run(data)
            if self.sampled and self.inputs % self.sampled == 1:
                self._measure(data)
                started = time.process_time()
        except Exception as error:
            self._found(_kind(error), data, traceback.format_exc())
        finally:
            logging.disable(logging.NOTSET)
        if self.timed:
            self._check_time(data, time.process_time() - started)

    def _measure(self, data: bytes) -> None:
        """Run once more: the first run has filled the caches that every program has."""
        allowed = self.target.memory_base + self.target.memory_factor * len(data)
        gc.disable()  # what a collection finds is not of this input
        tracemalloc.start()
        try:
            self.target.run(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        check(peak <= allowed, f"{peak} bytes of memory for {len(data)} bytes; allowed: {allowed}")

    def _check_time(self, data: bytes, seconds: float) -> None:
        self.slowest = max(self.slowest, seconds)
        if seconds <= SECONDS:
            return
        started = time.process_time()  # once more: it may have been a collection
        try:
            self.target.run(data)
        except Exception:  # judged above
            pass
        if (again := time.process_time() - started) > SECONDS:
            self._found(f"slow in {self.target.name}", data, f"{again:.1f} s of processor time")

    def _found(self, kind: str, data: bytes, details: str) -> None:
        known = self.findings.get(kind)
        if known is None or len(data) < len(known.data):
            self.findings[kind] = Finding(self.target.name, kind, data, details)


def _kind(error: Exception) -> str:
    """The exception and the innermost place in `multi`, or in a target, that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/multi/" in f.filename or "/tests/" in f.filename]
    place = own[-1] if own else frames[-1]
    words = str(error)[:60] if isinstance(error, Violation) else ""
    digits = str.maketrans("0123456789", "##########")
    return (
        f"{type(error).__name__} at {place.filename.rpartition('/')[2]}:{place.name} {words.translate(digits)}".strip()
    )


def module_lines(module: ModuleType) -> set[tuple[str, int]]:
    """(file, line) of every line of a function in `module` that can run."""
    assert module.__file__ is not None
    with open(module.__file__, encoding="utf-8") as file:
        code = compile(file.read(), module.__file__, "exec")
    found: set[tuple[str, int]] = set()
    waiting = [c for c in code.co_consts if hasattr(c, "co_code")]
    while waiting:
        part = waiting.pop()
        inner = [c for c in part.co_consts if hasattr(c, "co_code")]
        waiting += inner
        if part.co_flags & 1:  # CO_OPTIMIZED: a function; the bodies of classes ran when they were imported
            found |= {(module.__file__, line) for _, _, line in part.co_lines() if line and line != part.co_firstlineno}
    return found


class LineCoverage:
    """Which lines of some modules have run: slow, for a sample of the inputs."""

    def __init__(self, modules: Sequence[ModuleType]) -> None:
        self.all: set[tuple[str, int]] = set().union(*(module_lines(module) for module in modules))
        self._files = {file for file, _ in self.all}
        self.seen: set[tuple[str, int]] = set()

    def run(self, target: Target, data: bytes) -> None:
        def local(frame: object, event: str, _argument: object) -> object:
            if event == "line":
                self.seen.add((frame.f_code.co_filename, frame.f_lineno))  # type: ignore[attr-defined]
            return local

        def trace(frame: object, _event: str, _argument: object) -> object:
            return local if frame.f_code.co_filename in self._files else None  # type: ignore[attr-defined]

        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            target.run(data)
        except Exception:  # judged elsewhere
            pass
        finally:
            sys.settrace(None)

    @property
    def hit(self) -> int:
        return len(self.seen & self.all)

    def __str__(self) -> str:
        return f"{self.hit} of {len(self.all)} lines ({100 * self.hit // max(1, len(self.all))} %)"
