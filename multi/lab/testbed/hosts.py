"""A client host and a server host with emulated links between them, as seen by a program that uses them.

The hosts are network namespaces and everything between them is done by a relay process (`multi.lab.testbed.relay`), so
what runs in the hosts talks to the kernel's real TCP, MPTCP and UDP. When this process ends, however it ends, all is
gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar, TypeVarTuple, cast

from multi.lab.testbed import call
from multi.lab.testbed.errors import TestbedError, TestbedNotAllowed
from multi.lab.testbed.namespaces import enter, inside
from multi.lab.testbed.relay import Interceptor, Relay, RelayLink, WayStatistics, receive, send
from multi.lab.testbed.specs import (
    DIRECTIONS,
    HOSTS,
    SERVER_ADDRESSES,
    HostName,
    LinkAddresses,
    LinkSpec,
    Way,
    check_links,
    link_addresses,
)
from multi.lab.testbed.wiring import Backend, Build

logger = logging.getLogger("multi.lab.testbed")

START_TIMEOUT = 60.0  # seconds for the relay to start, on a machine that is busy
ANSWER_TIMEOUT = 10.0  # seconds; the relay answers within milliseconds unless the machine is overloaded
END_TIMEOUT = 2.0  # seconds a relay gets to end by itself

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
Command = Sequence[str | os.PathLike[str]]


class Testbed:
    """The hosts and the links; use it with `with` or `async with`.

    `backend`: TAP devices where they may be opened, else veth pairs. `congestion`: the TCP congestion control of both
    hosts, or of each by name; empty is the system's default. `detect_duplicates`: leave IPv6 addresses tentative for a
    second or two when they appear, as real systems do. `mptcp`: fail where the kernel has no MPTCP, and let the
    client's kernel make subflows over all links. `seed`: of random loss and jitter.
    """

    __test__ = False  # not a test, whatever pytest thinks of the name

    def __init__(
        self,
        links: Sequence[LinkSpec],
        *,
        backend: Backend = "auto",
        congestion: str | Mapping[HostName, str] = "",
        detect_duplicates: bool = False,
        mptcp: bool = False,
        seed: int = 0,
    ) -> None:
        """Raises TestbedError for links that cannot be together."""
        if backend not in ("auto", "tap", "veth"):
            raise TestbedError(f"backend: {backend!r} is unknown; known: auto, tap, veth")
        by_host = dict.fromkeys(HOSTS, congestion) if isinstance(congestion, str) else dict(congestion)
        specs = check_links(links)
        self._build = Build(specs, backend, by_host, detect_duplicates, mptcp, seed, owner=0)
        self.backend = backend
        """`tap` or `veth`, once it is up."""
        self.rootless = False
        """Whether it lives in a user namespace, once it is up."""
        self._relay: _RelayProcess | None = None
        self._namespaces: dict[HostName, int] = {}
        self._user_namespace: int | None = None
        self.client = Host(self, "client")
        self.server = Host(self, "server")
        self.links: dict[str, Link] = {spec.name: Link(self, n, spec) for n, spec in enumerate(specs, 1)}

    def start(self) -> None:
        """Make everything; takes some tenths of a second. Raises TestbedError, and then nothing is left behind."""
        if self._relay is not None:
            raise TestbedError("this testbed is up already")
        self._relay = _RelayProcess()
        try:
            built, descriptors = self._relay.ask(Relay.build, replace(self._build, owner=os.getpid()))
            self.backend, self.rootless = built.backend, built.rootless
            self._namespaces = dict(zip(HOSTS, descriptors[:2], strict=True))
            self._user_namespace = descriptors[2] if built.rootless else None
        except BaseException:
            self.close()
            raise
        if not built.mptcp:
            logger.warning("this kernel has no MPTCP: MPTCP connections cannot be made on this testbed")

    def close(self) -> None:
        """End all processes in the hosts and take everything down; a second time does nothing."""
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.end()
        for descriptor in self._namespaces.values():
            os.close(descriptor)
        if self._user_namespace is not None:
            os.close(self._user_namespace)
        self._namespaces, self._user_namespace = {}, None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(TestbedError):
                await starting
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def relay_process(self) -> int:
        """The id of the process that carries everything."""
        return self._running().process

    @property
    def interface_kinds(self) -> dict[str, list[str]]:
        """The client's interfaces by kind: the `interfaces` of a session configuration."""
        kinds: dict[str, list[str]] = {}
        for link in self.links.values():
            kinds.setdefault(link.spec.kind, []).append(link.spec.interface)
        return kinds

    def statistics(self) -> dict[str, WayStatistics]:
        """What each link has carried and lost so far, and how much waits in its queues now."""
        return self.ask(Relay.statistics)

    def ask(self, request: Callable[[Relay, *Arguments], Result], *arguments: *Arguments) -> Result:
        """Have the relay do something; for the parts of a testbed. Raises TestbedError."""
        return self._running().ask(request, *arguments)[0]

    def open_socket(self, host: HostName, family: int, kind: int, protocol: int) -> socket.socket:
        _none, (descriptor,) = self._running().ask(Relay.open_socket, host, family, kind, protocol)
        return socket.socket(family, kind, protocol, fileno=descriptor)

    def namespace(self, host: HostName) -> tuple[int, int | None]:
        """Descriptors of a host's network namespace, and of the user namespace it belongs to if it is not ours."""
        self._running()
        return self._namespaces[host], self._user_namespace

    def _running(self) -> _RelayProcess:
        if self._relay is None:
            raise TestbedError("this testbed is not up")
        return self._relay


class Link:
    """A link of a testbed. Changes are in force when a method returns, and raise TestbedError if they cannot be."""

    def __init__(self, testbed: Testbed, number: int, spec: LinkSpec) -> None:
        self._testbed = testbed
        self.spec = spec
        self.dark: dict[Way, bool] = dict.fromkeys(DIRECTIONS, False)
        """Directions that lose every packet."""
        self._addresses = {addresses.version: addresses for addresses in link_addresses(number, spec)}

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def interface(self) -> str:
        """The client's interface."""
        return self.spec.interface

    @property
    def versions(self) -> tuple[int, ...]:
        """The IP versions it carries."""
        return tuple(self._addresses)

    def client_address(self, version: int = 4) -> str:
        """The client's address on this link; `version` is 4 or 6."""
        return self._of_version(version).client

    def server_address(self, version: int = 4) -> str:
        """The server's address on this link, reachable over this one only (see `Host.address`)."""
        return self._of_version(version).server

    def set(self, *, direction: Way | None = None, **figures: float) -> None:
        """Change figures of `Direction` of one direction, or of both; what is not named stays as it is."""
        if "queue_ms" in figures and "queue_bytes" in figures:
            raise TestbedError("queue_ms and queue_bytes: give one of them")
        changes: dict[str, Any] = figures | ({"queue_bytes": None} if "queue_ms" in figures else {})
        # All figures are checked before the first is in force.
        wanted = {way: replace(self.spec.direction(way), **changes) for way in _ways(direction)}
        for way, changed in wanted.items():
            self._ask(RelayLink.shape, way, changed)
            self.spec = self.spec.with_direction(way, changed)

    def blackhole(self, on: bool, direction: Way | None = None) -> None:
        """Lose every packet, also those on their way, without a sign."""
        self._ask(RelayLink.blackhole, _ways(direction), on)
        self.dark.update(dict.fromkeys(_ways(direction), on))

    def carrier(self, on: bool) -> None:
        """Pull the client's cable, or put it in again."""
        self._ask(RelayLink.carrier, on)

    def remove_address(self, version: int | None = None) -> None:
        """Take the client's addresses and the routes that need them."""
        self._ask(RelayLink.set_addresses, self._versions(version), False)

    def restore_address(self, version: int | None = None) -> None:
        """Give them back."""
        self._ask(RelayLink.set_addresses, self._versions(version), True)

    def vanish(self) -> None:
        """Take the client's interface away, as when a modem is pulled out."""
        self._ask(RelayLink.set_presence, False)

    def reappear(self) -> None:
        """Bring it back: the same name and addresses, another index."""
        self._ask(RelayLink.set_presence, True)

    def intercept(self, make: Callable[..., Interceptor] | None, *arguments: object, **keywords: object) -> None:
        """Put somebody into the path: `make(*arguments)` is called in the relay and sees every frame; None = nobody.

        The function must be importable by its name, and its arguments picklable; see `Interceptor`.
        """
        self._ask(RelayLink.intercept, None if make is None else call.pack(make, arguments, keywords))

    def ask_interceptor(self, question: object) -> Any:
        """What the interceptor answers. Raises TestbedError with its traceback when it has failed."""
        return pickle.loads(self._ask(RelayLink.ask_interceptor, pickle.dumps(question)))

    def inject(self, way: Way, *frames: bytes) -> None:
        """Let frames enter the link as if a host had sent them. At most 100 KiB at a time."""
        self._ask(RelayLink.inject, way, *frames)

    def statistics(self) -> WayStatistics:
        return self._testbed.statistics()[self.name]

    def _ask(self, request: Callable[[RelayLink, *Arguments], Result], *arguments: *Arguments) -> Result:
        return self._testbed.ask(Relay.of_link, self.name, request, *arguments)

    def _of_version(self, version: int) -> LinkAddresses:
        if version not in self._addresses:
            raise TestbedError(f"{self.name} carries no IPv{version}")
        return self._addresses[version]

    def _versions(self, version: int | None) -> tuple[int, ...]:
        return tuple(self._addresses) if version is None else (self._of_version(version).version,)


class Host:
    """A host of a testbed: where programs run and sockets are made."""

    def __init__(self, testbed: Testbed, name: HostName) -> None:
        self._testbed = testbed
        self.name = name

    def address(self, version: int = 4) -> str:
        """Where to reach this host: the server's address is the same over every link, the client's is its first."""
        if self.name == "server":
            return SERVER_ADDRESSES[version]
        return next(iter(self._testbed.links.values())).client_address(version)

    def popen(self, command: Command, **options: Any) -> subprocess.Popen[Any]:
        """Start a program on this host, as subprocess.Popen does. It ends with the testbed at the latest."""
        return subprocess.Popen(command, preexec_fn=partial(enter, *self._testbed.namespace(self.name)), **options)

    async def exec(
        self,
        command: Command,
        *,
        input: str = "",
        check: bool = True,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on this host to its end. It is killed on timeout (TimeoutError) and cancellation.

        With `check`, raises TestbedError with its standard error if it fails.
        """
        status, *outputs = await self._run(command, input.encode(), subprocess.PIPE, timeout, env)
        output, errors = (text.decode(errors="replace") for text in outputs)
        if check and status:
            words = " ".join(os.fspath(word) for word in command)
            raise TestbedError(f"{self.name}: {words}: ended with status {status}: {errors.strip()}")
        return subprocess.CompletedProcess(command, status, output, errors)

    async def run_python(
        self, function: Callable[..., Result] | Callable[..., Awaitable[Result]], *arguments: object, **keywords: object
    ) -> Result:
        """Call a function, plain or async, in a process on this host; return what it returns, raise what it raises.

        The function must be importable by its name, and everything that travels must be picklable.
        """
        packed = call.pack(function, arguments, keywords)
        status, output, _none = await self._run(call.COMMAND, packed, None, None, call.environment())
        return cast(Result, call.outcome(output, status))

    async def run_code(self, code: str, *, timeout: float | None = None) -> str:
        """Run Python source in a process on this host; return what it prints. Raises TestbedError if it fails."""
        done = await self.exec([sys.executable, "-c", code], timeout=timeout, env=call.environment())
        return done.stdout

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is on this host meanwhile: sockets made here stay there. Do not await inside.

        Needs root, or that the program has called `multi.lab.testbed.enter_user_namespace()` when it started; else
        raises TestbedNotAllowed, and `socket()` is the way.
        """
        network, user = self._testbed.namespace(self.name)
        if user is not None:
            raise TestbedNotAllowed(
                "a thread cannot enter a host without root; use socket(), exec() or run_python(), or call "
                "multi.lab.testbed.enter_user_namespace() when the program starts"
            )
        with inside(network):
            yield

    def socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM, protocol: int = 0) -> socket.socket:
        """A socket that belongs to this host, to be used from here. Raises TestbedError. Needs no root."""
        return self._testbed.open_socket(self.name, family, kind, protocol)

    async def _run(
        self,
        command: Command,
        input: bytes,
        errors: int | None,
        timeout: float | None,
        env: Mapping[str, str] | None,
    ) -> tuple[int, bytes, bytes]:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=env,
                preexec_fn=partial(enter, *self._testbed.namespace(self.name)),
            )
        except OSError as error:
            raise TestbedError(f"{self.name}: cannot run {os.fspath(command[0])}: {error.strerror}") from error
        try:
            async with asyncio.timeout(timeout):
                output, complaints = await process.communicate(input)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        return process.returncode or 0, output or b"", complaints or b""


class _RelayProcess:
    """The relay as its owner has it: a process and a socket."""

    def __init__(self) -> None:
        # Messages, not a stream; other processes we start must not inherit our end.
        self._socket, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(START_TIMEOUT)
        self._lock = threading.Lock()
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "multi.lab.testbed", str(far.fileno())],
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=call.environment(),
                start_new_session=True,  # an interruption at the terminal is for its owner
            )

    @property
    def process(self) -> int:
        return self._process.pid

    def ask(self, request: Callable[[Relay, *Arguments], Result], *arguments: *Arguments) -> tuple[Result, list[int]]:
        """What a method of the relay returns, and descriptors that came with it."""
        try:
            with self._lock:
                send(self._socket, (request, arguments))
                reply, descriptors = receive(self._socket)
                self._socket.settimeout(ANSWER_TIMEOUT)  # it has started
        except TimeoutError:
            raise TestbedError(f"the relay did not answer within {self._socket.gettimeout():g} seconds") from None
        except (EOFError, OSError):
            raise TestbedError("the relay of this testbed has died") from None
        if isinstance(reply, TestbedError):
            raise reply
        return reply, descriptors

    def end(self) -> None:
        """Let it sweep and go, and wait for that."""
        self._socket.settimeout(ANSWER_TIMEOUT)
        with contextlib.suppress(TestbedError):
            self.ask(Relay.sweep)
        self._socket.close()
        try:
            self._process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _ways(direction: Way | None) -> tuple[Way, ...]:
    if direction is None:
        return DIRECTIONS
    if direction not in DIRECTIONS:
        raise TestbedError(f"direction: {direction!r} is unknown; known: {', '.join(DIRECTIONS)}")
    return (direction,)
