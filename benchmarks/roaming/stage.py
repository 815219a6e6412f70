"""The stage of a roaming measurement: the testbed, a session between two processes on it, and what happens to links.

A play (`benchmarks.roaming.rows`) gets a `Stage` and does to it what its row is about. This module runs things and
notes when; what the notes mean is decided in `benchmarks.roaming.figures`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import pickle
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from benchmarks import environment
from benchmarks.roaming.end import Assignment, EndRecord, Order, Traffic, open_once
from multi.lab.cert import write_development_certificates
from multi.lab.testbed import Host, Link, LinkSpec, Testbed, TestbedError, load_profile

__all__ = ["LINKS", "Mark", "Measurement", "SessionRun", "Stage", "Timing", "Transport", "Variant", "stage"]

PORT, BASELINE_PORT, PROBE_PORT = 7788, 7789, 7790
LINKS = {"wifi": "wifi", "5g": "cellular"}
"""The links of the testbed, and their kinds in a session's configuration."""

START_TIMEOUT = 30.0  # seconds; two Python processes on a busy machine
OPEN_TIMEOUT = 20.0  # seconds
ABANDON_TIMEOUT = 3.0  # seconds
USABLE_TIMEOUT = 30.0  # seconds a link may take to be usable after it was given back, by programs that start for it
PROBE_INTERVAL = 0.004  # seconds between two datagrams that ask whether a link is usable


Transport: TypeAlias = Literal["tcp", "quic", "quic-qh3", "mptcp", "mixed", "one-mptcp", "mpquic-aioquic", "mpquic-noq"]


@dataclass(frozen=True, slots=True)
class Variant:
    """What else a row may be measured with."""

    transport: Transport = "tcp"
    version: Literal[4, 6] = 4
    way: Literal["down", "up"] = "down"
    loop: Literal["asyncio", "uvloop"] = "asyncio"
    congestion: Literal["bbr", "cubic"] = "bbr"
    scale: float = 1.0
    """Of the networks' rates; below 1 several sessions can be measured side by side."""

    def __str__(self) -> str:
        scaled = f"-{self.scale:g}" if self.scale != 1 else ""
        return f"{self.transport}-ipv{self.version}-{self.way}-{self.loop}-{self.congestion}{scaled}"

    def transport_over(self, link: str) -> str:
        match self.transport:
            case "mixed":
                return {"wifi": "tcp", "5g": "quic"}[link]
            case "quic-qh3":
                return "quic"
            case "one-mptcp":
                return "mptcp"
            case "mpquic-aioquic" | "mpquic-noq":
                return "mpquic"
            case _:
                return self.transport

    @property
    def engine(self) -> str:
        return {"quic-qh3": "qh3", "mpquic-noq": "noq"}.get(self.transport, "aioquic")

    @property
    def needs_certificate(self) -> bool:
        return self.transport not in ("tcp", "mptcp", "one-mptcp")

    @property
    def one_connection(self) -> bool:
        """Over both networks."""
        return self.transport in ("one-mptcp", "mpquic-aioquic", "mpquic-noq")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things last, in seconds. The full run keeps what the promises say; continuous integration is shorter."""

    settle: float
    """From the first byte until the session counts as undisturbed."""
    undisturbed: float
    spread: float
    """The event comes up to so much later, at random."""
    after: float
    """Watched after the last event."""
    baseline_skip: float
    baseline: float
    """Of the session over 5G alone; 0 for none."""
    absence: float
    """How long carrier or address of WiFi are gone."""
    loss: float
    flap: float
    nothing: float
    opens: int
    patience: float
    """From the end of the sending until everything has to be there; 16 MiB at 35 Mbit/s take 4 s."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something was done to the session or to a link; it was in force at `after` at the latest."""

    name: str
    before: float
    after: float


@dataclass(slots=True)
class SessionRun:
    """A session from its opening to its end, as both ends saw it."""

    client: EndRecord
    server: EndRecord
    sender: Literal["client", "server"]
    stopped: float
    """When the sender was told to stop; the receiver is watched until then."""

    @property
    def receiving(self) -> EndRecord:
        return self.server if self.sender == "client" else self.client

    @property
    def sending(self) -> EndRecord:
        return self.client if self.sender == "client" else self.server


@dataclass(slots=True)
class Measurement:
    """All that was seen of one run of a row."""

    variant: Variant
    timing: Timing
    run: SessionRun | None = None
    marks: list[Mark] = field(default_factory=list)
    usable: dict[str, float] = field(default_factory=dict)
    """When a link was first usable again."""
    baseline: SessionRun | None = None
    """The same session over 5G alone."""
    opens: dict[str, list[float]] = field(default_factory=dict)
    """Seconds until a session was open, by configuration."""
    trouble: str = ""
    """What kept the run from its end."""

    def mark(self, name: str) -> Mark:
        return next(mark for mark in self.marks if mark.name == name)


class _End:
    """One end as a process."""

    def __init__(self, host: Host, assignment: Assignment) -> None:
        code = "import sys; from benchmarks.roaming.end import main; sys.exit(main())"
        self._record = Path(assignment.record)
        self._complaints = self._record.with_suffix(".errors")
        self._name = host.name
        self._process: subprocess.Popen[str] = host.popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints.open("w"),
            text=True,
            env=environment(),
            start_new_session=True,  # an interruption at the terminal is for us
        )
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._listener = threading.Thread(target=self._listen, args=(asyncio.get_running_loop(),))
        self._listener.start()
        self._write(assignment.encoded())

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def order(self, order: Order) -> None:
        self._write(order.encoded())

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own: a pipe cannot be waited for in another way everywhere."""
        assert self._process.stdout is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended before this process
            for line in self._process.stdout:
                loop.call_soon_threadsafe(self._answers.put_nowait, json.loads(line))
            loop.call_soon_threadsafe(self._answers.put_nowait, {"over": True})

    async def answer(self, key: str, timeout: float) -> dict[str, Any]:
        """Wait for this answer; others are passed over. Raises TestbedError when it does not come."""
        try:
            async with asyncio.timeout(timeout):
                while key not in (answer := await self._answers.get()):
                    if "over" in answer or "done" in answer:
                        self._answers.put_nowait(answer)
                        raise TestbedError(f"the {self._name}'s end is over: {answer.get('error') or self.complaint()}")
        except TimeoutError:
            raise TestbedError(f"the {self._name}'s end did not say {key!r} within {timeout:g} s") from None
        return answer

    def complaint(self) -> str:
        """The last line of its standard error."""
        lines = self._complaints.read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "no reason given")

    def record(self) -> EndRecord:
        """What it kept; empty when it did not come to that."""
        if not self._record.exists():
            return EndRecord(error=f"the {self._name}'s end has left no record: {self.complaint()}")
        loaded = pickle.loads(self._record.read_bytes())
        assert isinstance(loaded, EndRecord)
        return loaded

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()


class _Session:
    """A session between two ends that wait for orders."""

    def __init__(self, server: _End, client: _End, sender: Literal["client", "server"], patience: float) -> None:
        self.server, self.client, self.sender, self._patience = server, client, sender, patience

    @property
    def sending(self) -> _End:
        return self.client if self.sender == "client" else self.server

    async def finish(self) -> SessionRun:
        """Stop the sender, wait until everything has arrived, and take the records."""
        stopped = time.monotonic()
        self.sending.order(Order("stop"))
        ends = (self.client, self.server)
        try:
            for end, timeout in zip(ends, (self._patience, ABANDON_TIMEOUT), strict=True):
                await end.answer("done", timeout)
        except TestbedError:
            for end in ends:
                end.order(Order("abandon"))
            for end in ends:
                with contextlib.suppress(TestbedError):  # the record says that it is missing
                    await end.answer("done", ABANDON_TIMEOUT)
        return SessionRun(self.client.record(), self.server.record(), self.sender, stopped)


class Stage:
    """What a play can reach. Methods that change something note when, under a name."""

    def __init__(self, testbed: Testbed, variant: Variant, timing: Timing, seed: int, work: Path) -> None:
        self.testbed, self.variant, self.timing = testbed, variant, timing
        self.random = random.Random(seed)
        self.seen = Measurement(variant, timing)
        self._work = work
        self._ends: list[_End] = []
        self._session: _Session | None = None

    @property
    def wifi(self) -> Link:
        return self.testbed.links["wifi"]

    @property
    def cellular(self) -> Link:
        return self.testbed.links["5g"]

    # --- sessions ---

    def entry(self, link: str, **more: object) -> dict[str, object]:
        """An element of `connection_priority`."""
        ip = f"ipv{self.variant.version}"
        return {"transport": self.variant.transport_over(link), "ip": ip, "interface": LINKS[link], **more}

    def config(
        self, entries: Sequence[dict[str, object]], multi_config: Mapping[str, object] | None = None, port: int = PORT
    ) -> dict[str, Any]:
        """A client's configuration: nothing but what has to be said."""
        config: dict[str, Any] = {
            "connection_priority": list(entries),
            "remote_host": self.testbed.server.address(self.variant.version),
            "remote_port": port,
            "interfaces": self.testbed.interface_kinds,
        }
        if multi_config:
            config["multi_config"] = dict(multi_config)
        if self.variant.needs_certificate:
            config["ssl_config"] = {"ca": str(self._work / "ca.pem"), "server_name": "localhost"}
            config[self._engine_key] = {"engine": self.variant.engine}
        return config

    @property
    def _engine_key(self) -> str:
        return "mpquic_config" if self.variant.one_connection else "quic_config"

    def _server_config(self, port: int) -> dict[str, Any]:
        transports = sorted({self.variant.transport_over(link) for link in LINKS})
        config: dict[str, Any] = {"listen": {"host": "::", "port": port, "transports": transports}}
        if self.variant.needs_certificate:
            if not (self._work / "ca.pem").exists():
                write_development_certificates(self._work, [])
            config["ssl_config"] = {
                "cert": str(self._work / "server-cert.pem"),
                "key": str(self._work / "server-key.pem"),
            }
            config[self._engine_key] = {"engine": self.variant.engine}
        return config

    def _end(self, host: Host, config: dict[str, Any], traffic: Traffic, name: str, *, serves: bool) -> _End:
        sends = traffic != "none" and serves == (self.variant.way == "down")
        record = str(self._work / f"{name}-{host.name}.record")
        end = _End(host, Assignment(config, serves, sends, traffic, self.variant.loop, record))
        self._ends.append(end)
        return end

    def _pair(self, config: dict[str, Any], traffic: Traffic, name: str, port: int) -> _Session:
        server = self._end(self.testbed.server, self._server_config(port), traffic, name, serves=True)
        client = self._end(self.testbed.client, config, traffic, name, serves=False)
        return _Session(server, client, "server" if self.variant.way == "down" else "client", self.timing.patience)

    async def start(
        self,
        links: Sequence[str] = ("wifi", "5g"),
        *,
        traffic: Traffic = "full",
        baseline: bool = False,
        **multi_config: object,
    ) -> None:
        """Open the session, let it run undisturbed, and return at a random moment."""
        baseline = baseline and self.timing.baseline > 0
        entries = [self.entry(link) for link in links]
        if self.variant.one_connection:
            entries = [{**entries[0], "interface": [LINKS[link] for link in links]}]
        config = self.config(entries, multi_config)
        session = self._pair(config, traffic, "session", PORT)
        pairs = [session]
        if baseline:
            alone = self.config([self.entry("5g")], multi_config, port=BASELINE_PORT)
            pairs.append(self._pair(alone, "full", "baseline", BASELINE_PORT))
        await asyncio.gather(
            *(end.answer("ready", START_TIMEOUT) for pair in pairs for end in (pair.server, pair.client))
        )
        for version_link in self.testbed.links.values():
            await self.usable(version_link, note=False)
        if baseline:
            pairs[1].client.order(Order("open"))
            await pairs[1].client.answer("opened", OPEN_TIMEOUT)
            await asyncio.sleep(self.timing.baseline_skip + self.timing.baseline)
            self.seen.baseline = await pairs[1].finish()
        self._session = session
        session.client.order(Order("open"))
        await session.client.answer("opened", OPEN_TIMEOUT)
        await asyncio.sleep(self.timing.settle + self.timing.undisturbed + self.random.uniform(0, self.timing.spread))

    async def finish(self) -> None:
        """Watch a little longer, then end the session."""
        assert self._session is not None
        await asyncio.sleep(self.timing.after)
        await self.stop()

    async def stop(self) -> None:
        assert self._session is not None
        session, self._session = self._session, None
        self.seen.run = await session.finish()

    async def hand_over(self, to: str, name: str) -> None:
        """Have the client hand over to a link; its failure is the run's trouble."""
        assert self._session is not None
        before = time.monotonic()
        self._session.client.order(Order("handover", LINKS[to]))
        try:
            answer = await self._session.client.answer("handover", 15.0)
        except TestbedError as error:
            self.seen.trouble = str(error)
            self.seen.marks.append(Mark(name, before, time.monotonic()))
            return
        self.seen.marks.append(Mark(name, answer["before"], answer["after"]))
        if answer["error"]:
            self.seen.trouble = f"handover to {to}: {answer['error']}"

    async def open_times(self, name: str, config: dict[str, Any], count: int) -> None:
        """Open sessions one after the other, each in a process of its own, to a server that takes them."""
        for _ in range(count):
            server = self._end(self.testbed.server, self._server_config(PORT), "none", name, serves=True)
            try:
                await server.answer("ready", START_TIMEOUT)
                seconds = await self.testbed.client.run_python(open_once, config, self.variant.loop)
                self.seen.opens.setdefault(name, []).append(seconds)
            except (TestbedError, OSError) as error:
                self.seen.trouble = f"{name}: {type(error).__name__}: {error}"
            finally:
                server.kill()

    # --- what happens to links ---

    def do(self, name: str, change: Callable[[], None]) -> None:
        before = time.monotonic()
        change()
        self.seen.marks.append(Mark(name, before, time.monotonic()))

    async def usable(self, link: Link, *, address: str = "", note: bool = True) -> float:
        """Wait until a datagram from this link's address reaches the server; return and note when it did."""
        own = address or link.client_address(self.variant.version)
        when = await asyncio.to_thread(self._probe, link.interface, own)
        if note:
            self.seen.usable[link.name] = when
        return when

    def _probe(self, interface: str, own: str) -> float:
        family = socket.AF_INET6 if self.variant.version == 6 else socket.AF_INET
        with self.testbed.server.socket(family, socket.SOCK_DGRAM) as receiver:
            receiver.bind((self.testbed.server.address(self.variant.version), PROBE_PORT))
            receiver.settimeout(PROBE_INTERVAL)
            token = os.urandom(8)
            deadline = time.monotonic() + USABLE_TIMEOUT
            while time.monotonic() < deadline:
                self._knock(interface, own, receiver.getsockname()[:2], token)
                with contextlib.suppress(TimeoutError, BlockingIOError):
                    if receiver.recv(64) == token:
                        return time.monotonic()
        raise TestbedError(f"{interface} was not usable within {USABLE_TIMEOUT:g} s")

    def _knock(self, interface: str, own: str, where: tuple[str, int], token: bytes) -> None:
        """Send one datagram, if the address is there: IPv6 takes no tentative one."""
        family = socket.AF_INET6 if ":" in own else socket.AF_INET
        with self.testbed.client.socket(family, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            try:
                sender.bind((own, 0))
                sender.sendto(token, where)
            except OSError as error:
                gone = (errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENODEV)
                if error.errno not in gone:
                    raise

    async def change_address(self, name: str, link: Link) -> None:
        """Another network takes over: the old address goes, and a new one with its routes comes."""
        version = self.variant.version
        old = link.client_address(version)
        new = old[:-1] + "77"
        # Asked all the time: the session may be faster than the process that changes the address is at its end.
        usable = asyncio.ensure_future(self.usable(link, address=new))
        try:
            before, after = await self.testbed.client.run_python(
                replace_address, link.interface, version, old, new, link.server_address(version)
            )
            self.seen.marks.append(Mark(name, before, after))
        finally:
            await usable

    def kill_ends(self) -> None:
        for end in self._ends:
            end.kill()


def replace_address(interface: str, version: int, old: str, new: str, gateway: str) -> tuple[float, float]:
    """Change the address of an interface of this host as a new lease does; return when that began and ended."""
    from pyroute2 import IPRoute

    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    prefix = 64 if version == 6 else 24
    table = 1977
    with IPRoute() as netlink:
        index = socket.if_nametoindex(interface)
        before = time.monotonic()
        netlink.addr("del", index=index, address=old, prefixlen=prefix, family=family)
        netlink.addr("add", index=index, address=new, prefixlen=prefix, family=family)
        netlink.route("replace", dst="default", gateway=gateway, oif=index, family=family, priority=1)
        netlink.route("replace", dst="default", gateway=gateway, oif=index, family=family, table=table)
        netlink.rule("add", src=new, src_len=128 if version == 6 else 32, table=table, family=family, priority=table)
        return before, time.monotonic()


def _scaled(link: LinkSpec, scale: float) -> LinkSpec:
    """The link with rates of so much; what waits in its queues waits as long."""
    down, up = (replace(figures, rate_mbps=figures.rate_mbps * scale) for figures in (link.down, link.up))
    return replace(link, down=down, up=up)


@contextlib.asynccontextmanager
async def stage(variant: Variant, timing: Timing, seed: int, *, real_addresses: bool) -> AsyncIterator[Stage]:
    """A testbed with WiFi and 5G; `real_addresses`: IPv6 addresses are tentative at first."""
    testbed = Testbed(
        [_scaled(link, variant.scale) for link in load_profile("wifi_and_5g")],
        congestion=variant.congestion,
        detect_duplicates=real_addresses and variant.version == 6,
        seed=seed,
    )
    with tempfile.TemporaryDirectory(prefix="multi-roaming-", ignore_cleanup_errors=True) as work:
        async with testbed:
            made = Stage(testbed, variant, timing, seed, Path(work))
            try:
                yield made
            finally:
                made.kill_ends()
