"""One session over all the networks of a device.

reader, writer = await multi.open_connection("config.json")
server = await multi.start_server(on_client, "server.json")
async with multi.connect("config.json") as session: ...

All of it is imported at once: an event loop must not wait for imports when the first session opens. Only the
command line (`multi`, `python -m multi.…`), which needs no more than a part, imports names when they are first used.
"""

from __future__ import annotations

import os.path
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multi.asyncio.client import connect, open_connection
    from multi.asyncio.info import ConnectionInfo
    from multi.asyncio.server import Server, start_server
    from multi.asyncio.session import Session
    from multi.asyncio.streams import SessionReader, SessionWriter
    from multi.config import Config, load_config
    from multi.errors import (
        ConfigError,
        LocalProtocolError,
        MultiError,
        NoUsableConnection,
        RemoteProtocolError,
        SessionLost,
        SessionRefused,
        StreamReset,
        TransportError,
    )
    from multi.events import (
        AddressesAnnounced,
        AttemptFailed,
        ConnectionChanged,
        Event,
        EventsDropped,
        HandoverChanged,
        HandoverState,
        NetworkChanged,
        RoleChanged,
        SchedulerChanged,
        SessionConfirmed,
        SessionDetached,
        SessionEnded,
        SessionResumed,
        SignalChanged,
        Warned,
    )
    from multi.schedulers import register_scheduler
    from multi.schedulers.base import WAIT, ConnectionView, Scheduler, SendRequest
    from multi.transports import register_transport
    from multi.types import ConnectionState, Role

__version__ = "0.1.0"

__all__ = [
    "AddressesAnnounced",
    "AttemptFailed",
    "Config",
    "ConfigError",
    "ConnectionChanged",
    "ConnectionInfo",
    "ConnectionState",
    "ConnectionView",
    "Event",
    "EventsDropped",
    "HandoverChanged",
    "HandoverState",
    "LocalProtocolError",
    "MultiError",
    "NetworkChanged",
    "NoUsableConnection",
    "RemoteProtocolError",
    "Role",
    "RoleChanged",
    "Scheduler",
    "SchedulerChanged",
    "SendRequest",
    "Server",
    "Session",
    "SessionConfirmed",
    "SessionDetached",
    "SessionEnded",
    "SessionLost",
    "SessionReader",
    "SessionRefused",
    "SessionResumed",
    "SessionWriter",
    "SignalChanged",
    "StreamReset",
    "TransportError",
    "WAIT",
    "Warned",
    "__version__",
    "connect",
    "load_config",
    "open_connection",
    "register_scheduler",
    "register_transport",
    "start_server",
]

_HOMES = {
    "multi.asyncio.client": (
        "connect",
        "open_connection",
    ),
    "multi.asyncio.info": ("ConnectionInfo",),
    "multi.asyncio.server": (
        "Server",
        "start_server",
    ),
    "multi.asyncio.session": ("Session",),
    "multi.asyncio.streams": (
        "SessionReader",
        "SessionWriter",
    ),
    "multi.config": (
        "Config",
        "load_config",
    ),
    "multi.events": (
        "AddressesAnnounced",
        "AttemptFailed",
        "ConnectionChanged",
        "Event",
        "EventsDropped",
        "HandoverChanged",
        "HandoverState",
        "NetworkChanged",
        "RoleChanged",
        "SchedulerChanged",
        "SessionConfirmed",
        "SessionDetached",
        "SessionEnded",
        "SessionResumed",
        "SignalChanged",
        "Warned",
    ),
    "multi.types": (
        "ConnectionState",
        "Role",
    ),
    "multi.schedulers.base": (
        "WAIT",
        "ConnectionView",
        "Scheduler",
        "SendRequest",
    ),
    "multi.errors": (
        "ConfigError",
        "LocalProtocolError",
        "MultiError",
        "NoUsableConnection",
        "RemoteProtocolError",
        "SessionLost",
        "SessionRefused",
        "StreamReset",
        "TransportError",
    ),
    "multi.schedulers": ("register_scheduler",),
    "multi.transports": ("register_transport",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would take every misspelt name for an existing one

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _is_command_line() -> bool:
    program = os.path.basename(next(iter(getattr(sys, "argv", ())), ""))
    if program != "-m":
        return os.path.splitext(program)[0] == "multi"
    # Python says "-m" as long as it looks for the module it was told to run, and imports the packages it is in.
    given = sys.orig_argv
    module = given[given.index("-m") + 1] if "-m" in given[:-1] else ""
    return module.partition(".")[0] == "multi"


if not _is_command_line():
    for _home in _HOMES:
        import_module(_home)
