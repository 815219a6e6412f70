"""One session over all the networks of a device.

reader, writer = await multi.open_connection("config.json")
server = await multi.start_server(on_client, "server.json")
async with multi.connect("config.json") as session: ...
"""

from multi.aio.client import connect, open_connection
from multi.aio.info import ConnectionInfo
from multi.aio.server import Server, start_server
from multi.aio.session import Session
from multi.aio.streams import SessionReader, SessionWriter
from multi.config import Config, load_config
from multi.core.events import (
    AttemptFailed,
    ConnectionChanged,
    Event,
    EventsDropped,
    RoleChanged,
    SchedulerChanged,
    SessionConfirmed,
    SessionDetached,
    SessionEnded,
    SessionResumed,
    Warned,
)
from multi.core.ids import ConnectionState, Role
from multi.core.scheduler import WAIT, ConnectionView, Scheduler, SendRequest
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
from multi.schedulers import register_scheduler
from multi.transports import register_transport

__version__ = "0.1.0"

__all__ = [
    "WAIT",
    "AttemptFailed",
    "Config",
    "ConfigError",
    "ConnectionChanged",
    "ConnectionInfo",
    "ConnectionState",
    "ConnectionView",
    "Event",
    "EventsDropped",
    "LocalProtocolError",
    "MultiError",
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
    "StreamReset",
    "TransportError",
    "Warned",
    "__version__",
    "connect",
    "load_config",
    "open_connection",
    "register_scheduler",
    "register_transport",
    "start_server",
]
