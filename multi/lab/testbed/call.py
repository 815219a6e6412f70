"""Calls a Python function in another process and brings back what it returned or raised.

The function travels by name, so it must be importable; its arguments and its result are pickled. What it prints goes to
standard error.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import multi
from multi.lab.testbed.errors import TestbedError

COMMAND = (sys.executable, "-c", "from multi.lab.testbed.call import main; main()")


def pack(function: Callable[..., object], arguments: Sequence[object], keywords: Mapping[str, object]) -> bytes:
    """A call, for the other process. Raises TestbedError for a function or argument that cannot travel."""
    name = getattr(function, "__qualname__", repr(function))
    if getattr(function, "__module__", "__main__") == "__main__" or "<" in name:
        raise TestbedError(f"{name} cannot be imported by another process: put it at the top level of a module")
    try:
        return pickle.dumps(sys.path) + pickle.dumps((function, arguments, keywords))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise TestbedError(f"{name} or its arguments cannot be passed to another process: {error}") from None


def make(packed: BinaryIO) -> Any:
    """Make a call that another process has packed; its modules are looked for where that process finds them."""
    sys.path[:] = pickle.load(packed)
    function, arguments, keywords = pickle.load(packed)
    return function(*arguments, **keywords)


def outcome(packed: bytes, status: int) -> object:
    """What the function returned; raises what it raised, or TestbedError if the process died."""
    if not packed:
        raise TestbedError(f"the process of a function ended with status {status} before it returned")
    succeeded, value, trace = pickle.loads(packed)
    if succeeded:
        return value
    if isinstance(value, BaseException):
        value.add_note(f"In the other process:\n{trace}")
        raise value
    raise TestbedError(f"a function failed in its process: {value}\n{trace}")


def environment() -> dict[str, str]:
    """Ours, with the directory this library is imported from on the path."""
    root = str(Path(multi.__file__).parents[1])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}


def main() -> None:
    """Read one call from standard input, make it, write the outcome to standard output."""
    import traceback

    with os.fdopen(os.dup(1), "wb") as results:
        os.dup2(2, 1)
        try:
            value = make(sys.stdin.buffer)
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
            packed = pickle.dumps((True, value, ""))
        except Exception as error:
            trace = traceback.format_exc()
            try:
                packed = pickle.dumps((False, error, trace))
                pickle.loads(packed)  # some exceptions can be packed only
            except Exception:
                packed = pickle.dumps((False, f"{type(error).__name__}: {error}", trace))
        sys.stdout.flush()
        results.write(packed)
