"""One process of a server that has several: what its parent gives it, and what it tells its parent.

It takes connections from its own sockets on the common port. Those that begin with the route token of another worker
are passed on to that one, unread; so each ends with whoever has their session, and nobody keeps a directory.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

from multi.asyncio.control import ServerAnswers, answer_safely
from multi.asyncio.rare_warnings import RareWarnings
from multi.asyncio.reset_key import ResetKey
from multi.asyncio.server import ClientCallback, Place, Server
from multi.asyncio.signals import StopSignals
from multi.config import Config
from multi.errors import ConfigError, MultiError
from multi.transports.base import Arrival, SocketSteering
from multi.types import DEFAULT_LIMIT, LISTEN_BACKLOG
from multi.workers.counts import SharedCounts
from multi.workers.first_bytes import route_named
from multi.workers.logs import LogsToParent

logger = logging.getLogger("multi.workers")
_warnings = RareWarnings(logger)

PASSED, UNSEEN = b"p", b"u"  # notes with a connection: it is yours, and from whom; nobody has looked at it
DATAGRAM = b"d"  # note with a datagram after it: where it came, in a line of JSON
MAX_NOTE = 256  # bytes
MAX_DATAGRAM = 65_536
TAKEN_AT_ONCE = 64  # connections and datagrams that others pass on; then those that are served get their turn
SIGN_OF_LIFE = 1.0  # seconds from one to the next
PASSED_ON = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
MAX_LINE = 64 << 20  # bytes of an answer to the parent: ten thousand sessions with all their connections
_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


class Descriptor:
    """A file descriptor that goes with a process to be started."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (reduction.DupFd(self.number),)


def _received(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is started with."""

    index: int
    parent: int
    """Process id."""
    config: Config
    main: Callable[[Worker], object]
    sockets: Mapping[tuple[str, int], socket.socket]
    """See `Place`."""
    inbox: socket.socket
    outboxes: Sequence[socket.socket]
    """Where others take what is passed on to them, by their index; at its own index what is not used."""
    channel: socket.socket
    """To the parent: requests, and answers to them, a line each."""
    logs: socket.socket
    levels: Mapping[str, int]
    memory: Descriptor
    """Of `SharedCounts`."""
    key: bytes
    """Of the counts that all of them share."""
    reset_key: bytes
    """See `Place`."""
    base: bytes
    """Of the route: what all of them have in common."""


def work(job: Job) -> None:
    """The whole life of a worker's process."""
    _end_with(job.parent)
    for number in PASSED_ON:
        # A terminal and a service manager send them to all processes; the parent tells what they mean for this one. It
        # is no SIG_IGN, which programs that are started from here would inherit.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    LogsToParent(job.logs).install(job.levels)
    worker = Worker(job)
    try:
        job.main(worker)
    except (MultiError, OSError) as error:
        if worker.started:
            logger.error("worker %d failed: %s", job.index, error)
        else:
            worker.cannot_start(error)
        sys.exit(1)
    except Exception:
        logger.exception("worker %d failed", job.index)
        sys.exit(1)


def _end_with(parent: int) -> None:
    """When the parent is killed nobody would end this process, and its sockets would go on taking connections."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it was killed before


class Worker:
    """This process, as its main function sees it."""

    def __init__(self, job: Job) -> None:
        self.config = job.config
        self.started = False
        self._job = job
        counts = SharedCounts(job.memory.number, len(job.outboxes), job.index, job.key)
        route = job.base + bytes([job.index])
        steering = PassingOn(job.base, job.index, job.inbox, job.outboxes, counts)
        self._place = Place(job.sockets, steering, ResetKey(job.reset_key), route, counts, steering.elsewhere)
        self._counts = counts
        self._listening: asyncio.Task[None] | None = None
        self._signals: StopSignals | None = None

    async def start_server(
        self, on_client: ClientCallback, *, limit: int = DEFAULT_LIMIT, backlog: int = LISTEN_BACKLOG
    ) -> Server:
        """As `multi.start_server`, on the sockets that the parent has bound. Once in a process."""
        server = Server(on_client, self.config, limit, backlog, self._place)
        self._live()
        await server.start_serving()
        self.started = True
        # Told in the next turn: by then whoever has called this takes the signals that the parent passes on.
        self._listening = asyncio.get_running_loop().create_task(self._answer(server), name="requests of the parent")
        return server

    def _live(self) -> None:
        self._counts.live()
        asyncio.get_running_loop().call_later(SIGN_OF_LIFE, self._live)

    def stop_signals(self, server: Server, say: Callable[[str], None]) -> StopSignals:
        """Those that the parent passes on."""
        self._signals = StopSignals(server, say)
        return self._signals

    def cannot_start(self, error: Exception) -> None:
        self._tell(type="ConfigError" if isinstance(error, ConfigError) else "TransportError", failed=str(error))

    def _tell(self, **message: object) -> None:
        with suppress(OSError):
            self._job.channel.sendall(json.dumps(message).encode() + b"\n")

    async def _answer(self, server: Server) -> None:
        self._tell(ready=True)
        answers = ServerAnswers(server)
        reader, writer = await asyncio.open_connection(sock=self._job.channel, limit=MAX_LINE)
        try:
            while line := await reader.readline():
                request = json.loads(line)
                if "signal" in request:
                    if self._signals is not None:
                        self._signals.take(signal.Signals(request["signal"]))
                    continue
                method, target, body = request["method"], request["target"], request["body"].encode()
                answer = await answer_safely(answers.everything, method, target, body)
                told = {"id": request["id"], "status": answer.status, "body": answer.body.decode()}
                writer.write(json.dumps(told).encode() + b"\n")
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()
        os._exit(1)  # without the parent there is no server


class PassingOn(SocketSteering):
    """Connections go to the worker whose index their route ends with.

    Where that has died they stay: any worker may say that nobody knows their sessions, so clients hear of it at once.
    """

    def __init__(
        self,
        base: bytes,
        index: int,
        inbox: socket.socket,
        outboxes: Sequence[socket.socket],
        counts: SharedCounts,
    ) -> None:
        self._base, self._index, self._counts = base, index, counts
        self._inbox, self._outboxes = inbox, outboxes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._take: Callable[[socket.socket, str | None], None] | None = None
        self._take_datagram: dict[int, Callable[[bytes, Arrival], None]] = {}

    def passed_on(self, sock: socket.socket, first: bytes, client: str) -> bool | None:
        route = route_named(first)
        if route is None:
            return None
        owner = self._owner(route)
        if owner is None:
            return False
        pass_on(self._outboxes[owner], sock, PASSED + client.encode())
        return True  # also where that failed: here nobody knows the session, and must not say so

    def elsewhere(self, route: bytes) -> bool:
        """Whether another worker has the sessions of `route`."""
        return self._owner(route) is not None

    def answers_for(self, route: bytes) -> bool:
        index = self._worker_of(route)
        return index is not None and not self._counts.serves(index)

    def _owner(self, route: bytes) -> int | None:
        """The worker that is meant, where it is another one and lives."""
        index = self._worker_of(route)
        return index if index is not None and index != self._index and self._counts.serves(index) else None

    def _worker_of(self, route: bytes) -> int | None:
        ours = bool(route) and route[:-1] == self._base and route[-1] < len(self._outboxes)
        return route[-1] if ours else None

    def start(self, take: Callable[[socket.socket, str | None], None]) -> None:
        self._take = take
        self._listen()

    def take_datagrams(self, port: int, take: Callable[[bytes, Arrival], None]) -> None:
        self._take_datagram[port] = take
        self._listen()

    def _listen(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox.setblocking(False)
        self._loop.add_reader(self._inbox.fileno(), self._on_readable)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._inbox.fileno())

    def _on_readable(self) -> None:
        with suppress(BlockingIOError, InterruptedError):
            for _ in range(TAKEN_AT_ONCE):
                what, descriptors, _, _ = socket.recv_fds(self._inbox, MAX_NOTE + MAX_DATAGRAM, 1)
                if what.startswith(DATAGRAM):
                    self._datagram(what)
                client = what.decode()[1:] if what.startswith(PASSED) else None
                for descriptor in descriptors:
                    sock = socket.socket(fileno=descriptor)
                    if self._take is not None:
                        self._take(sock, client)
                    else:
                        sock.close()  # nobody listens for connections yet, or none are wanted: the client dials again

    def _datagram(self, what: bytes) -> None:
        note, _, data = what[len(DATAGRAM) :].partition(b"\n")
        port, peer, local, interface = json.loads(note)
        if (take := self._take_datagram.get(port)) is not None:
            take(data, (tuple(peer), bytes.fromhex(local), interface))


def pass_on(outbox: socket.socket, sock: socket.socket, note: bytes) -> None:
    """The worker there gets it, once it comes to it; `sock` may be closed here. Waits for nobody."""
    with_it = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sock.fileno().to_bytes(4, sys.byteorder))]
    try:
        outbox.sendmsg([note], with_it, socket.MSG_DONTWAIT)  # socket.send_fds of Python 3.11 forgets the flag
    except OSError as error:  # it takes nothing any more: it hangs, or is flooded
        _warnings.warn("passing on", "a connection could not be passed on to another worker: %s", error.strerror)


def pass_datagram_on(outbox: socket.socket, port: int, arrival: Arrival, data: bytes) -> None:
    """The worker there gets it, as if it had come for that one. It may be lost, as all datagrams may."""
    peer, local, interface = arrival
    note = DATAGRAM + json.dumps([port, peer, local.hex(), interface]).encode() + b"\n"
    with suppress(OSError):
        outbox.sendmsg([note, data], (), socket.MSG_DONTWAIT)
