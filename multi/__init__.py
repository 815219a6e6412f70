"""One session over all the networks of a device.

reader, writer = await multi.open_connection("config.json")
server = await multi.start_server(on_client, "server.json")
async with multi.connect("config.json") as session: ...

`import multi` loads next to nothing, so that a program that needs a part of it (the command line) starts at once. The
first name that is used loads everything behind all of them: no session that opens waits for an import, and where the
event loop must not wait either, `from multi import open_connection` at the top of a program loads it before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:  # __getattr__ would make every misspelt name an existing one
    from multi._exports import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        if name == "__all__" or name[:2] != "__":
            exports = vars(import_module("multi._exports"))
            public = {key: value for key, value in exports.items() if key[0] != "_"}
            globals().update(public, __all__=[*public, "__version__"])
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
