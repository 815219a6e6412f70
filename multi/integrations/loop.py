"""The adapter of an event loop, as a context: for libraries that call the running loop themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from multi.integrations.adapter import CALLS, Mapped
from multi.integrations.adapter import SessionLoop as SessionLoop


def _over(host: Any, port: int) -> None:
    """What calls lead to whose context has ended: an ordinary connection."""


@contextmanager
def sessions(mapped: Mapped = lambda host, port: {}) -> Iterator[SessionLoop]:
    """Meanwhile the running loop's own calls do so, for libraries that take no loop: as the context begun last says."""
    adapter = SessionLoop(mapped)
    of_loop = vars(adapter._loop)
    begun = of_loop.setdefault("_multi_sessions", [])
    begun.append((adapter, {name: of_loop[name] for name in CALLS if name in of_loop}))
    of_loop.update({name: getattr(adapter, name) for name in CALLS})
    try:
        yield adapter
    finally:
        adapter._mapped = _over  # contexts may end in any order
        while begun and begun[-1][0]._mapped is _over:
            _, outer = begun.pop()
            for name in CALLS:
                del of_loop[name]
            of_loop.update(outer)
