"""The two ends of an MPTCP connection as programs: they run on the hosts of a testbed and talk in lines of JSON.

What they can be told on standard input: `report` (the server) and `quit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from multi.errors import TransportError
from multi.linux.mptcp_pm import MptcpPathManager, path_manager_type, why_no_subflows
from multi.types import Candidate, Family, Source

if TYPE_CHECKING:  # slow to import, and not needed by what only looks at a host
    from multi.transports.base import Channel

PORT = 7788
CHUNK = bytes(65536)
CAPABILITY_VERSION_3 = 0x20080522  # include/uapi/linux/capability.h


def state() -> list[str]:
    """The addresses of the host's endpoints."""
    with MptcpPathManager() as manager:
        return [endpoint.address for endpoint in manager.endpoints()]


def accepting() -> str:
    """Why this host does not accept all subflows."""
    from multi.transports.mptcp.subflows import why_few_accepted

    return why_few_accepted()


def administer(addresses: list[tuple[str, int]], subflows: int) -> None:
    """What an administrator does: endpoints (address, interface index) and a limit."""
    with MptcpPathManager() as manager:
        for address, index in addresses:
            manager.add_endpoint(address, index)
        manager.set_subflow_limit(subflows)


def choose(path_manager: str) -> bool:
    """Set the path manager of this host; False if this kernel has no such choice."""
    for name, value in (("path_manager", path_manager), ("pm_type", str(int(path_manager == "userspace")))):
        file = Path("/proc/sys/net/mptcp") / name
        if file.exists():
            with contextlib.suppress(OSError):  # not ours to set, or no such value
                file.write_text(value)
            return path_manager_type() == path_manager
    return False


def drop_privileges() -> None:
    """Give up all capabilities, which works in a user namespace too."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")


def reason(candidate: Candidate, privileged: bool) -> tuple[str, float]:
    """What `why_no_subflows` says on this host, and the least processor time it took."""
    if not privileged:
        drop_privileges()
    times = []
    for _ in range(20):
        before = time.thread_time()
        said = why_no_subflows(candidate)
        times.append(time.thread_time() - before)
    return said, min(times)


class Receiver:
    """Counts what comes, and the longest time nothing came."""

    behind = False
    proved = True
    waiting = 0

    def __init__(self) -> None:
        self.bytes = 0
        self.gap = 0.0
        self._last = time.monotonic()

    def report(self) -> dict[str, float]:
        now = time.monotonic()
        found = {"bytes": self.bytes, "gap": max(self.gap, now - self._last)}
        self.bytes, self.gap = 0, 0.0
        return found

    def data_received(self, data: memoryview, lane: int) -> None:
        now = time.monotonic()
        self.gap, self._last = max(self.gap, now - self._last), now
        self.bytes += len(data)

    def batch_finished(self) -> None:
        pass

    def writable(self) -> None:
        pass

    def connection_lost(self, error: TransportError | None) -> None:
        tell({"lost": str(error or "closed")})


class Sender(Receiver):
    """Sends as much as goes."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def writable(self) -> None:
        while self._channel.credit():
            self._channel.write([CHUNK], 0)
            self._channel.flush()


def tell(what: object) -> None:
    print(json.dumps(what), flush=True)


async def serve(address: str, kind: str) -> None:
    from multi.transports import transport
    from multi.transports.base import TransportSettings

    receiver = Receiver()

    def accepted(channel: Channel) -> None:
        channel.start(receiver)

    listener = await transport(kind).listen(address, PORT, TransportSettings(), accepted)
    tell({"listening": True})
    async for line in lines():
        if line == "report":
            tell(receiver.report())
    listener.close()


async def send(address: str, interfaces: list[str]) -> None:
    from multi.transports import transport
    from multi.transports.base import TransportSettings

    family = Family.IPV6 if ":" in address else Family.IPV4
    first, *more = interfaces
    sources = tuple(Source(name) for name in more)
    candidate = Candidate("mptcp", family, "server", address, PORT, interface=first, more_sources=sources)
    channel = await transport("mptcp").dial(candidate, TransportSettings())
    tell({"dialled": channel.info.detail, "fell_back": channel.info.fell_back})
    sender = Sender(channel)
    channel.start(sender)
    sender.writable()
    watching = asyncio.create_task(watch(channel))
    async for _line in lines():
        pass
    watching.cancel()
    channel.abort()


async def watch(channel: Channel) -> None:
    """Tell of every change of what the channel says of itself."""
    said = None
    while True:
        channel.sample()
        info = channel.info
        if (info.detail, info.subflows) != said:
            said = (info.detail, info.subflows)
            tell({"subflows": info.subflows, "detail": info.detail})
        await asyncio.sleep(0.01)


async def lines() -> AsyncIterator[str]:
    """What comes on standard input, until it ends or says `quit`."""
    loop = asyncio.get_running_loop()
    while (line := (await loop.run_in_executor(None, sys.stdin.readline)).strip()) not in ("", "quit"):
        yield line


def main(role: str, address: str, options: dict[str, str]) -> None:
    if options.get("unprivileged"):
        drop_privileges()
    if role == "server":
        work = serve(address, options.get("kind", "mptcp"))
    else:
        work = send(address, options["interfaces"].split(","))
    if options.get("uvloop"):
        import uvloop

        uvloop.run(work)
    else:
        asyncio.run(work)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
