"""The stage of the paper's evaluation: its three links on the testbed, the two ends, and iperf3.

Runs things and says what was seen. The ends (`benchmarks.paper.end`) are processes that are kept for many small
transfers and replaced for large ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import environment
from benchmarks.paper.end import Order
from multi.lab.cert import write_development_certificates
from multi.lab.testbed import Host, Testbed, TestbedError, paper_links

__all__ = ["CONGESTION", "IperfResult", "PaperStage", "Transfer", "iperf3_is_installed", "paper_stage"]

CONGESTION = "cubic"  # of Ubuntu 20.04, which the paper ran
IPERF_PORT = 5201
START_TIMEOUT = 30.0  # seconds; two Python processes on a busy machine
MARGIN = 15.0  # seconds beyond an order's own timeout


def iperf3_is_installed() -> bool:
    return shutil.which("iperf3") is not None


@dataclass(frozen=True, slots=True)
class IperfResult:
    """What the receiver got."""

    mbps: float
    lost_percent: float
    """Datagrams; 0 for TCP."""


@dataclass(slots=True)
class Transfer:
    """One transfer as both ends saw it; `time.monotonic()` and bytes."""

    opening: float
    opened: float
    last: float
    """When the receiving application read the last byte."""
    received: int
    carried: dict[str, int]
    """Payload the receiver got, by interface or by the client's address."""
    samples: list[tuple[float, int, dict[str, int]]]
    handovers: list[dict[str, Any]]
    faults: list[str]


class _End:
    """One end as a process: an order, an answer."""

    def __init__(self, host: Host, role: str, directory: Path, *arguments: str) -> None:
        code = "import sys; from benchmarks.paper.end import main; sys.exit(main())"
        self._name = host.name
        self._complaints = directory / f"{host.name}.errors"
        with self._complaints.open("w") as complaints:
            self._process: subprocess.Popen[str] = host.popen(
                [sys.executable, "-c", code, role, str(directory), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                env=environment(),
                process_group=0,  # an interruption at the terminal is for us
            )

    def order(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    async def answer(self, timeout: float, key: str = "done") -> dict[str, Any]:
        """The next answer with this key, or the last one. Raises TestbedError when it does not come."""
        assert self._process.stdout is not None
        reading = asyncio.ensure_future(asyncio.to_thread(self._process.stdout.readline))
        done, _ = await asyncio.wait([reading], timeout=timeout)
        if not done:
            self._process.kill()  # which ends the reading, too
            await reading
            raise TestbedError(f"the {self._name}'s end did not answer within {timeout:g} s")
        line = reading.result()
        if not line:
            raise TestbedError(f"the {self._name}'s end is over: {self._complaint()}")
        answer: dict[str, Any] = json.loads(line)
        return answer if key in answer or "done" in answer else await self.answer(timeout, key)

    def _complaint(self) -> str:
        """The last line of its standard error."""
        lines = self._complaints.read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "no reason given")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()


class PaperStage:
    """The testbed with the paper's links, and both ends."""

    def __init__(self, testbed: Testbed, directory: Path) -> None:
        self.testbed = testbed
        self._directory = directory
        self._ends: tuple[_End, _End] | None = None
        self._known: set[str] = set()
        write_development_certificates(directory, [])

    def renew(self) -> None:
        """The next transfer is between new processes."""
        ends, self._ends = self._ends, None
        self._known.clear()
        for end in ends or ():
            end.kill()

    def new_to(self, kind: str) -> bool:
        """Whether the present processes do this for the first time."""
        if self._ends is not None and kind in self._known:
            return False
        self._known.add(kind)
        return True

    def config(
        self, connections: Sequence[tuple[str, str]], version: int, port: int, *, secured: bool, sealed: bool
    ) -> dict[str, Any]:
        """A client's configuration for (transport, link) pairs; everything that is not named is a default."""
        links = self.testbed.links
        config: dict[str, Any] = {
            "connection_priority": [[kind, f"ipv{version}", links[link].interface] for kind, link in connections],
            "remote_host": self.testbed.server.address(version),
            "remote_port": port,
            "interfaces": self.testbed.interface_kinds,
        }
        if secured:
            config["ssl_config"] = {"ca": str(self._directory / "ca.pem"), "server_name": "localhost"}
        elif not sealed:
            config["protect"] = "never"
        return config

    async def transfer(self, order: Order, on_opened: Callable[[float], Awaitable[None]] | None = None) -> Transfer:
        """Have the client make one transfer. Raises TestbedError when an end does not answer any more."""
        server, client = await self._both()
        client.order(order.encoded())
        timeout = order.timeout + MARGIN
        seen = await client.answer(timeout, "opened")
        if "done" not in seen:
            if on_opened is not None:
                await on_opened(seen["opened"])
            seen = await client.answer(timeout)
        faults = []
        if "error" in seen:
            self.renew()
            return Transfer(0.0, 0.0, 0.0, 0, {}, [], [], [seen["error"]])
        server.order("last")
        answer = await server.answer(timeout)
        if answer.get("error"):
            faults.append(f"server: {answer['error']}")
        receiver = seen if order.receives else answer
        if receiver.get("damaged_at") is not None:
            faults.append(f"bytes differ from offset {receiver['damaged_at']} on")
        return Transfer(
            seen["opening"],
            seen["opened"],
            receiver.get("last", 0.0),
            receiver.get("received", 0),
            receiver.get("carried", {}),
            [(at, read, carried) for at, read, carried in seen["samples"]],
            seen["handovers"],
            faults,
        )

    async def _both(self) -> tuple[_End, _End]:
        if self._ends is None:
            links = self.testbed.links.values()
            addresses = [link.server_address(version) for link in links for version in link.versions]
            self._ends = (
                _End(self.testbed.server, "serve", self._directory, *addresses),
                _End(self.testbed.client, "connect", self._directory),
            )
            for end in self._ends:
                await end.answer(START_TIMEOUT)
        return self._ends

    def by_link(self, carried: dict[str, int]) -> dict[str, int]:
        """Bytes by the name of a link instead of its interface or the client's address on it."""
        names: dict[str, str] = {}
        for link in self.testbed.links.values():
            addresses = [link.client_address(version) for version in link.versions]
            names |= dict.fromkeys((link.interface, *addresses, *(f"[{a}]" for a in addresses)), link.name)
        found: dict[str, int] = {}
        for key, count in carried.items():
            name = names.get(key, key)
            found[name] = found.get(name, 0) + count
        return found

    def series(self, seen: Transfer) -> list[tuple[float, int, dict[str, int]]]:
        """The samples of a transfer, in seconds since its opening and by link."""
        return [(round(at - seen.opened, 3), read, self.by_link(carried)) for at, read, carried in seen.samples]

    async def iperf(self, link: str, version: int, kind: str, seconds: float, *, receives: bool) -> IperfResult:
        """Raises TestbedError."""
        address = self.testbed.links[link].server_address(version)
        command = ["iperf3", "-c", address, "-p", str(IPERF_PORT), "-t", f"{seconds:g}", "-J"]
        command += ["-R"] if receives else []
        if kind == "udp":
            # A little more than the link takes: the receiver's rate counts.
            rate = self.testbed.links[link].spec.direction("down" if receives else "up").rate_mbps
            command += ["-u", "-b", f"{rate * 1.02:.0f}M"]
        server = self.testbed.server.popen(
            ["iperf3", "-s", "-p", str(IPERF_PORT), "-B", address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            for attempt in range(20):
                await asyncio.sleep(0.1)
                done = await self.testbed.client.exec(command, check=False, timeout=seconds + 30.0)
                result = json.loads(done.stdout or "{}")
                if "unable to connect" not in result.get("error", "") or attempt == 19:
                    break
        finally:
            server.kill()
            server.wait()
        if "error" in result or done.returncode:
            raise TestbedError(f"iperf3: {result.get('error') or done.stderr.strip()}")
        total = result["end"].get("sum_received") or result["end"]["sum"]
        return IperfResult(total["bits_per_second"] / 1e6, total.get("lost_percent", 0.0))


@contextlib.asynccontextmanager
async def paper_stage(seed: int) -> AsyncIterator[PaperStage]:
    """Raises TestbedNotAllowed where there can be no testbed."""
    testbed = Testbed(paper_links(), congestion=CONGESTION, seed=seed)
    with TemporaryDirectory(prefix="multi-paper-", ignore_cleanup_errors=True) as directory:
        async with testbed:
            made = PaperStage(testbed, Path(directory))
            try:
                yield made
            finally:
                made.renew()
