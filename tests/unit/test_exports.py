"""What `import multi` offers is pinned, and the driver performs every effect there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import multi
from multi.asyncio.driver import handled_effects, known_effects

EXPORTS = [
    "WAIT",
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
    "Warned",
    "__version__",
    "connect",
    "load_config",
    "open_connection",
    "register_scheduler",
    "register_transport",
    "start_server",
]


def test_exports_are_pinned() -> None:
    assert sorted(multi.__all__) == sorted(EXPORTS)
    for name in EXPORTS:
        assert getattr(multi, name) is not None


def test_star_import_brings_exactly_the_exports() -> None:
    program = "from multi import *; print(*sorted(n for n in dir() if n != '__version__' and n[0] != '_'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == sorted(name for name in EXPORTS if name[0] != "_")


FIRST_SESSION = """
import asyncio, sys
import multi

async def main():
    there = set(sys.modules)
    listen = {"listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}}
    async with await multi.start_server(lambda reader, writer: None, listen) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await multi.open_connection(
            {"connection_priority": [["tcp", "ipv4", "any"]], "remote_host": "127.0.0.1", "remote_port": port}
        )
        writer.close()
        await writer.wait_closed()
    print(*sorted(m for m in set(sys.modules) - there if m.partition(".")[0] in OURS))

OURS = {"multi", "aioquic", "cryptography", "pydantic", "ssl"}
asyncio.run(main())
"""


def test_the_first_session_waits_for_no_import() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_SESSION], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def test_a_package_run_as_a_program_gets_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "application").mkdir()
    (tmp_path / "application" / "__init__.py").write_text(
        "import multi, sys\nprint('multi.asyncio.client' in sys.modules)"
    )
    (tmp_path / "application" / "__main__.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "application"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "True\n"


def test_errors_are_what_an_application_may_catch() -> None:
    assert issubclass(multi.SessionLost, ConnectionError)
    assert issubclass(multi.SessionRefused, ConnectionError)
    assert issubclass(multi.StreamReset, multi.SessionLost)
    assert issubclass(multi.TransportError, OSError)
    assert issubclass(multi.NoUsableConnection, multi.TransportError)
    assert issubclass(multi.ConfigError, ValueError)
    assert issubclass(multi.LocalProtocolError, RuntimeError)
    for name in EXPORTS:
        value = getattr(multi, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, multi.MultiError)


def test_driver_performs_every_effect() -> None:
    assert set(handled_effects()) == set(known_effects())
