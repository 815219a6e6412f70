"""One session over all the networks of a device.

reader, writer = await multi.open_connection("config.json")
server = await multi.start_server(on_client, "server.json")
async with multi.connect("config.json") as session: ...

`import multi` loads next to nothing, and a name what it needs: little with `open_connection` and `start_server`; the
first session of a process loads the rest, in a thread. Who would rather have it loaded when the program starts imports
`Session` beside them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:  # __getattr__ would make every misspelt name an existing one
    from multi._exports import *  # noqa: F403
else:
    _names: dict[str, str] = {}

    def __getattr__(name: str) -> object:
        if name == "__all__" or name[:2] != "__":
            exports = _names or _table()
            if name == "__all__":
                value: object = [*exports, "__version__"]
            elif name in exports:
                value = getattr(import_module(exports[name]), name)
            else:
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            globals()[name] = value
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def _table() -> dict[str, str]:
        """Where each public name comes from: what `_exports` would import, read without importing it."""
        spec = find_spec("multi._exports")
        source = spec.loader.get_source(spec.name) if spec is not None else None
        if source is None:  # no source is shipped, as in a frozen program
            return dict.fromkeys((name for name in vars(import_module("multi._exports")) if name[0] != "_"), spec.name)
        lines = [line.split() for line in source.splitlines() if line.startswith("from ")]
        _names.update({words[3]: words[1] for words in lines})
        return _names

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
