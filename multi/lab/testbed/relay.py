"""The relay process: carries the frames of all links between their ends, and changes the testbed when told to.

One thread, one `select`. It ends when its owner does, whatever way that happens: it watches the owner's process and the
socket between them. (PR_SET_PDEATHSIG would not do: it fires when the *thread* that started the relay ends.) With it
go the interfaces it holds, the processes left in the namespaces, and so the namespaces.

Owner and relay talk over a socket pair nobody else has: one request, one reply. A request is a method of `Relay` with
its arguments, a reply is what it returns or the TestbedError it raises. They are pickled, because both ends are the
same program at the same version.
"""

from __future__ import annotations

import contextlib
import gc
import io
import math
import os
import pickle
import select
import signal
import socket
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Any, Protocol, TypeVar, TypeVarTuple

from multi.lab.testbed import call
from multi.lab.testbed.devices import READ_SIZE, wire_size
from multi.lab.testbed.errors import TestbedError
from multi.lab.testbed.namespaces import exact_timers, inside, processes_inside
from multi.lab.testbed.pipe import Pipe, PipeStatistics
from multi.lab.testbed.specs import DIRECTIONS, HOSTS, Direction, HostName, LinkSpec, Way
from multi.lab.testbed.wiring import Backend, Build, Hosts, LinkEnds

BATCH = 32  # frames read from one end before the others get their turn
PRIORITY = -10  # nice value, where allowed: lateness of the relay is jitter of the links
HOST_LATENCY = 0.080e-3  # seconds a frame takes besides, mostly waking up: part of a link's delay, not on top of it
# Waking from a long sleep is late by 0.1 to 0.5 ms on virtual machines. So we get up early and stay awake till then;
# not for short sleeps, which end in time and are so many under load that we would never sleep.
LONG_SLEEP = 0.75e-3
EARLY = 0.3e-3
MESSAGE_SIZE = 1 << 17  # bytes
MAX_DESCRIPTORS = 4

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Built:
    backend: Backend
    rootless: bool
    mptcp: bool


@dataclass(frozen=True, slots=True)
class WayStatistics:
    down: PipeStatistics
    up: PipeStatistics


def send(sock: socket.socket, message: object, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(sock, [pickle.dumps(message)], list(descriptors))


def receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """The next message and what came with it. Raises EOFError when the other end has gone."""
    data, descriptors, _flags, _address = socket.recv_fds(sock, MESSAGE_SIZE, MAX_DESCRIPTORS)
    if not data:
        raise EOFError
    return pickle.loads(data), descriptors


class Interceptor(Protocol):
    """Somebody in the path, who sees every frame of a link and decides what goes on: what `Link.intercept` has made.

    It is made by a function that the relay imports by its name, lives in the relay's process, is quick and sees frames
    in order. Frames are as the kernels give them: a virtio-net header of ten bytes (see `multi.lab.testbed.devices`),
    then Ethernet. With an empty header a frame is one packet with its checksums complete.
    """

    def frame(self, way: Way, frame: bytes) -> Iterable[tuple[Way, bytes]]:
        """A frame is about to enter the link; return what enters it instead, in order, on either way.

        An empty result loses the frame. What is returned is not shown to `frame` again.
        """

    def asked(self, question: object) -> object:
        """The answer to `Link.ask_interceptor`; both travel pickled."""


class RelayLink(LinkEnds):
    """A link: its ends, the two pipes between them, and what cuts it. Its public methods are what the owner may ask."""

    def __init__(self, hosts: Hosts, number: int, spec: LinkSpec, random: Random) -> None:
        super().__init__(hosts, number, spec)
        self.pipes: dict[Way, Pipe] = {way: Pipe(spec.direction(way), random, HOST_LATENCY) for way in DIRECTIONS}
        self.interceptor: Interceptor | None = None
        self._failure = ""
        """Of the interceptor. One that fails loses its frames and says why when asked."""
        self._blackholes: dict[Way, bool] = dict.fromkeys(DIRECTIONS, False)
        self._carrier = True

    def shape(self, way: Way, figures: Direction) -> None:
        self.spec = self.spec.with_direction(way, figures)
        self.pipes[way].shape(figures, monotonic())
        self.limit_pieces(way)

    def blackhole(self, ways: tuple[Way, ...], on: bool) -> None:
        self._blackholes.update(dict.fromkeys(ways, on))
        self._cut_or_mend()

    def carrier(self, on: bool) -> None:
        self._carrier = on
        self._cut_or_mend()
        if self.client is not None:
            self.client.carrier(on)

    def set_presence(self, on: bool) -> None:
        """Whether the client's interface exists."""
        if on == (self.client is not None):
            return
        if on:
            self.appear()
            if not self._carrier:
                self.carrier(False)
        else:
            self.vanish()
        self._cut_or_mend()

    def _cut_or_mend(self) -> None:
        for way, pipe in self.pipes.items():
            pipe.cut(self._blackholes[way] or not self._carrier or self.client is None)

    def intercept(self, packed: bytes | None) -> None:
        """Show the frames to what a packed call makes; None = to nobody any more."""
        try:
            self.interceptor = None if packed is None else call.make(io.BytesIO(packed))
        except Exception:
            raise TestbedError(f"the interceptor cannot be made: {traceback.format_exc()}") from None
        self._failure = ""

    def ask_interceptor(self, question: bytes) -> bytes:
        """Question and answer are pickled."""
        if self.interceptor is None:
            raise TestbedError(f"nobody intercepts {self.spec.name}")
        if not self._failure:
            try:
                return pickle.dumps(self.interceptor.asked(pickle.loads(question)))
            except Exception:
                self._failure = traceback.format_exc()
        raise TestbedError(f"the interceptor has failed: {self._failure}")

    def inject(self, way: Way, *frames: bytes) -> None:
        """Frames enter as if a host had sent them; no interceptor sees them."""
        for frame in frames:
            size, packets = wire_size(frame)
            self.pipes[way].accept(frame, size, packets, monotonic())

    def show(self, way: Way, frame: bytes) -> None:
        """To the interceptor, and let enter what it says."""
        if self.interceptor is None or self._failure:
            return
        try:
            entering = list(self.interceptor.frame(way, frame))
        except Exception:  # foreign code: the relay and the other links must outlive it
            self._failure = traceback.format_exc()
            return
        for its_way, one in entering:
            self.inject(its_way, one)


@dataclass(frozen=True, slots=True)
class Road:
    """Where frames come from, what happens to them and where they go."""

    source: int
    pipe: Pipe
    sink: int
    way: Way
    link: RelayLink


class Relay:
    """All links of one testbed."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._owner = -1
        self._owner_id = 0
        self._hosts: Hosts | None = None
        self._links: dict[str, RelayLink] = {}
        self._roads: dict[int, Road] = {}
        self._watched = [control.fileno()]
        self._awake_until = 0.0
        self._passing: list[int] = []
        """Descriptors that go with the next reply, and are closed then."""

    def run(self) -> None:
        """Until the owner has gone."""
        try:
            while self._round():
                pass
        finally:
            self.sweep()

    def _round(self) -> bool:
        """Deliver what has arrived, wait for the next event, take in what has come. False at the end."""
        wake = math.inf
        for road in self._roads.values():
            wake = min(wake, self._deliver(road))
        readable, _, _ = select.select(self._watched, [], [], self._patience(wake))
        for descriptor in readable:
            if descriptor in self._roads:
                self._take_in(self._roads[descriptor])
            elif descriptor == self._owner or (descriptor == self._control.fileno() and not self._serve()):
                return False
            # Anything else is of an interface that has vanished in this round.
        return True

    def _patience(self, wake: float) -> float | None:
        """How long to sleep when the next frame arrives at `wake`."""
        if wake == math.inf:
            return None
        now = monotonic()
        if wake - now > LONG_SLEEP:
            self._awake_until = wake
            return wake - now - EARLY
        return 0.0 if now < self._awake_until else max(0.0, wake - now)

    def _deliver(self, road: Road) -> float:
        """Pass on what has arrived; return when the next frame does."""
        pipe = road.pipe
        while (due := pipe.next_arrival) is not None:
            now = monotonic()
            if due > now:
                return due
            frame = pipe.arrived(now)
            if frame is not None:
                # An interface that is down loses frames, and so does a full one.
                with contextlib.suppress(OSError):
                    os.write(road.sink, frame)
        return math.inf

    @staticmethod
    def _take_in(road: Road) -> None:
        pipe, source, link = road.pipe, road.source, road.link
        # Until there is nothing more to read, or the interface is down.
        with contextlib.suppress(OSError):
            for _ in range(BATCH):
                frame = os.read(source, READ_SIZE)
                if link.interceptor is not None:
                    link.show(road.way, frame)
                else:
                    size, packets = wire_size(frame)
                    pipe.accept(frame, size, packets, monotonic())

    def _serve(self) -> bool:
        """One request. False when the owner has gone."""
        try:
            (method, arguments), _none = receive(self._control)
        except (EOFError, OSError):
            return False
        reply: object
        try:
            reply = method(self, *arguments)
        except TestbedError as error:
            reply = error
        except OSError as error:
            reply = TestbedError(error.strerror or str(error))
        with contextlib.suppress(OSError):
            send(self._control, reply, self._passing)
        while self._passing:
            os.close(self._passing.pop())
        return True

    # What the owner may ask. Raises TestbedError, or OSError.

    def build(self, build: Build) -> Built:
        """Make everything. Passes descriptors of the namespaces: client, server, user (if any)."""
        if os.getppid() != build.owner:
            raise TestbedError("the owner has gone")
        self._owner, self._owner_id = os.pidfd_open(build.owner), build.owner
        hosts = self._hosts = Hosts(build)
        random = Random(build.seed)
        for number, spec in enumerate(build.links, 1):
            self._links[spec.name] = RelayLink(hosts, number, spec, random)
        self._make_roads()
        namespaces = [hosts.of[host].descriptor for host in HOSTS]
        self._passing += map(os.dup, [*namespaces, hosts.user_namespace] if hosts.rootless else namespaces)
        return Built(hosts.backend, hosts.rootless, hosts.mptcp)

    def open_socket(self, host: HostName, family: int, kind: int, protocol: int) -> None:
        """Passes its descriptor."""
        if self._hosts is None:
            raise TestbedError("nothing has been built yet")
        with inside(self._hosts.of[host].descriptor):
            self._passing.append(socket.socket(family, kind, protocol).detach())

    def of_link(self, name: str, method: Callable[[RelayLink, *Arguments], Result], *arguments: *Arguments) -> Result:
        """What a method of a link returns."""
        result = method(self._links[name], *arguments)
        self._make_roads()  # its interface may have come or gone
        return result

    def statistics(self) -> dict[str, WayStatistics]:
        now = monotonic()
        return {
            name: WayStatistics(link.pipes["down"].statistics(now), link.pipes["up"].statistics(now))
            for name, link in self._links.items()
        }

    def sweep(self) -> None:
        """Kill what is left in the namespaces of the hosts; a process that forks meanwhile is met again."""
        if self._hosts is None:
            return
        inodes = {os.fstat(host.descriptor).st_ino for host in self._hosts.of.values()}
        for _ in range(3):
            left = set(processes_inside(inodes)) - {os.getpid(), self._owner_id}
            for process in left:
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            if not left:
                return

    def _make_roads(self) -> None:
        self._roads = {}
        for link in self._links.values():
            server = link.server.descriptor
            # Without the client's end everything is cut: what the server sends is read and lost.
            client = link.client.descriptor if link.client is not None else server
            self._roads[server] = Road(server, link.pipes["down"], client, "down", link)
            if client != server:
                self._roads[client] = Road(client, link.pipes["up"], server, "up", link)
        self._watched = [self._control.fileno(), self._owner, *self._roads]


def main(descriptor: int) -> None:
    """Relay for the process at the other end of this socket."""
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # the owner decides
    exact_timers()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    gc.freeze()
    gc.disable()  # nothing here makes cycles per frame, and a collection would be jitter
    # `select` takes descriptors below 1024 only; the owner may have had many open.
    low = os.dup(descriptor)
    os.close(descriptor)
    os.set_inheritable(low, False)
    with socket.socket(fileno=low) as control:
        Relay(control).run()
