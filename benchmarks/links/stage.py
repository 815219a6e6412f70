"""Where measurements on emulated links happen: a testbed, servers of `multi bench` on it, and one run of a party."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks import environment
from benchmarks.basics.loopback import await_iperf3
from benchmarks.links import plain
from multi.lab.cert import write_development_certificates
from multi.lab.testbed import Host, LinkSpec, Testbed

PLAIN_PORT = 7799
PORTS = {"sealed": 7788, "unprotected": 7789, "tls": 7790}
"""One server for each way a session may be protected. The one with certificates also serves QUIC."""
ON_UVLOOP = "import sys, uvloop; uvloop.install(); from multi.cli.main import main; sys.exit(main())"

Entry = tuple[str, str | Sequence[str]]
"""Transport and interface."""


@dataclass(frozen=True, slots=True)
class Result:
    """One transfer as its receiver saw it. `bins` are Mbit/s in steps of 0.1 s from the first byte on."""

    mbps: float
    bins: tuple[float, ...]
    longest_gap_ms: float = 0.0
    sent_again: int = 0
    paths: int = 1
    carried: tuple[str, ...] = ()
    """`multi`: MB that came over each connection."""

    def mean(self, start: float, end: float) -> float:
        """Mean Mbit/s from `start` to `end` seconds after the first byte; what did not come counts as nothing."""
        first, last = round(start * 10), round(end * 10)
        return sum(self.bins[first:last]) / (last - first)


class Stage:
    """A testbed with servers on it."""

    def __init__(self, testbed: Testbed, work: Path) -> None:
        self.testbed = testbed
        self.work = work
        self._plain_port = PLAIN_PORT

    @classmethod
    @contextmanager
    def open(
        cls,
        links: Sequence[LinkSpec],
        congestion: str,
        work: Path,
        *,
        mptcp: bool = False,
        protections: Sequence[str] = tuple(PORTS),
        quic: dict[str, Any] | None = None,
        mpquic: dict[str, Any] | None = None,
    ) -> Iterator[Self]:
        """The links, and a server of `multi bench` for each of the protections. `quic`, `mpquic`: their `quic_config`
        or `mpquic_config`, the latter in place of plain QUIC."""
        with ExitStack() as stack:
            testbed = stack.enter_context(Testbed(links, congestion=congestion, mptcp=mptcp))
            write_development_certificates(work, [])
            stage = cls(testbed, work)
            for protection in protections:
                stack.enter_context(stage._serving(protection, quic or {}, mpquic))
            yield stage

    @contextmanager
    def _serving(self, protection: str, quic: dict[str, Any], mpquic: dict[str, Any] | None) -> Iterator[None]:
        config: dict[str, Any] = {"listen": {"host": "::", "port": PORTS[protection], "transports": ["tcp"]}}
        if protection == "tls":
            config["listen"]["transports"] = ["tcp", "quic" if mpquic is None else "mpquic"]
            config["quic_config"] = quic
            config["mpquic_config"] = mpquic or {}
            config["ssl_config"] = {name: str(self.work / f"server-{name}.pem") for name in ("cert", "key")}
        elif protection == "unprotected":
            config["protect"] = "never"
        path = self._written("server", config)
        with serving(self.testbed.server, ["-m", "multi", "bench", "serve", str(path)]):
            yield

    def _written(self, name: str, config: dict[str, Any]) -> Path:
        path = self.work / f"{name}.json"
        path.write_text(json.dumps(config))
        return path

    def config(self, entries: Sequence[Entry], protection: str, **more: Any) -> dict[str, Any]:
        """A client's configuration: nothing but what has to be said. More goes into `multi_config`."""
        config: dict[str, Any] = {
            "connection_priority": [[transport, "ipv4", interface] for transport, interface in entries],
            "multi_config": {"connect": "par", **more},
            "remote_host": self.testbed.server.address(),
            "remote_port": PORTS[protection],
            "interfaces": self.testbed.interface_kinds,
        }
        if protection == "tls":
            config["ssl_config"] = {"ca": str(self.work / "ca.pem"), "server_name": "localhost"}
        elif protection == "unprotected":
            config["protect"] = "never"
        return config

    async def session(
        self,
        entries: Sequence[Entry],
        seconds: float,
        *,
        down: bool,
        protection: str = "sealed",
        uvloop: bool = False,
        quic: dict[str, Any] | None = None,
        mpquic: dict[str, Any] | None = None,
    ) -> Result:
        """A session of `multi bench`."""
        config = self.config(entries, protection)
        if quic:
            config["quic_config"] = quic
        if mpquic:
            config["mpquic_config"] = mpquic
        return await self._bench(self.testbed.client, config, seconds, down=down, uvloop=uvloop)

    async def loopback(self, transport: str, seconds: float, *, quic: dict[str, Any] | None = None) -> Result:
        """One connection of `multi` inside the server's host."""
        config = self.config([(transport, "any")], "tls") | {"remote_host": "127.0.0.1"}
        if quic:
            config["quic_config"] = quic
        return await self._bench(self.testbed.server, config, seconds, down=True)

    async def _bench(
        self, host: Host, config: dict[str, Any], seconds: float, *, down: bool, uvloop: bool = False
    ) -> Result:
        program = ["-c", ON_UVLOOP] if uvloop else ["-m", "multi"]
        path = self._written("client", config)
        command = [sys.executable, *program, "bench", "run", str(path), "-t", str(seconds), "--json"]
        done = await host.exec(command + (["-R"] if down else []), timeout=seconds * 4 + 30)
        found = json.loads(done.stdout)
        return Result(
            found["mbps"],
            tuple(interval["mbps"] for interval in found["intervals"]),
            found["longest_gap_ms"],
            found["retransmitted_bytes"],
            len(found["connections"]),
            tuple(f"{c['transport']}/{c['interface']} {c['bytes'] / 1e6:.0f}" for c in found["connections"]),
        )

    async def plain(self, kind: plain.Kind, interface: str, seconds: float, *, down: bool) -> Result:
        """Kernel TCP, MPTCP or asyncio streams over one interface, MPTCP over all when none is given."""
        self._plain_port += 1  # the last run's connection may still be in TIME_WAIT
        address, port = self.testbed.server.address(), self._plain_port
        serving = asyncio.create_task(
            self.testbed.server.run_python(plain.serve, kind, address, port, seconds if down else 0.0)
        )
        try:
            theirs = await self.testbed.client.run_python(
                plain.dial, kind, address, port, interface, 0.0 if down else seconds
            )
            received = theirs if down else await serving
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        assert received is not None
        bins = tuple(size * 8 / plain.BIN / 1e6 for size in received.bins)
        return Result(received.mbps, bins, paths=received.paths)

    async def iperf3(self, interface: str, seconds: float, *, down: bool) -> Result:
        """iperf3 over TCP, one stream, 128 KiB a write."""
        self._plain_port += 1
        port = str(self._plain_port)
        server = self.testbed.server.popen(
            ["iperf3", "-s", "-1", "-p", port, "--forceflush"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            await_iperf3(server)
            command = ["iperf3", "-c", self.testbed.server.address(), "--bind-dev", interface, "-p", port]
            command += ["-l", "128K", "-t", str(round(seconds)), "--json", *(["-R"] if down else [])]
            report = json.loads((await self.testbed.client.exec(command, timeout=seconds * 4 + 30)).stdout)
        finally:
            server.kill()
            server.communicate()
        return Result(report["end"]["sum_received"]["bits_per_second"] / 1e6, ())


@contextmanager
def serving(host: Host, program: Sequence[str]) -> Iterator[None]:
    """A Python program on a host, from its first word on. Raises EOFError when it ends without one."""
    server = host.popen([sys.executable, *program], stdout=subprocess.PIPE, env=environment())
    assert server.stdout is not None
    try:
        if not server.stdout.readline():
            raise EOFError(f"{' '.join(program)} did not start")
        yield
    finally:
        server.kill()  # SIGTERM would let it wait for its sessions
        server.wait(10)
        server.stdout.close()


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Median and the outermost values."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
