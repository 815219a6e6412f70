"""The parent of a server's workers: it binds, starts them, and starts those again that die. It serves nobody.

All sockets stay open here, so a worker that dies is followed by one with the same sockets. While there is none, those
who connect go to the others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from itertools import count
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from zlib import crc32

from multi.asyncio.control import REQUEST_TIMEOUT, ControlSockets
from multi.asyncio.reset_key import reset_key_of
from multi.asyncio.server import listened_to
from multi.asyncio.signals import GRACE
from multi.config import Config
from multi.errors import ConfigError, MultiError, TransportError
from multi.linux import systemd
from multi.linux.reuseport import PlaceInId, share_port, steer_by_connection_id
from multi.transports.base import BoundTransport, loaded_transport, transport_type
from multi.transports.quic.connection_ids import ConnectionIds
from multi.transports.quic.udp_port import PeerAddress, UdpPort
from multi.transports.sockets import listening_socket
from multi.types import ROUTE_LENGTH
from multi.workers.answers import AnswersOfAll, WorkerAnswer
from multi.workers.counts import clear, shared_memory, signs_of_life
from multi.workers.logs import levels, log_of_worker
from multi.workers.worker import (
    MAX_LINE,
    PASSED_ON,
    SIGN_OF_LIFE,
    UNSEEN,
    Descriptor,
    Job,
    Worker,
    pass_datagram_on,
    pass_on,
    work,
)

logger = logging.getLogger("multi.workers")

KEY_LENGTH = 32  # bytes
SETTLED = 10.0  # seconds; who dies sooner may die of the same again
FIRST_PAUSE, MAX_PAUSE = 0.25, 10.0  # seconds before such a worker is started again; twice as long each time
ANSWER_TIME = 0.4 * REQUEST_TIMEOUT  # seconds; a handler may keep a worker busy, and a command asks all of them twice
PATIENCE = 5.0  # seconds beyond what a signal gives workers to end, a second one none; then who is there is killed
LOG_PACKET = 256 * 1024  # bytes
ACCEPTED_AT_ONCE = 64  # connections for a worker that is not there; then others get their turn

Main = Callable[[Worker], object]


class Stranded:
    """Datagrams that come for a worker that is not there: others begin connections, and say which are gone."""

    def __init__(self, sock: socket.socket, others: Sequence[socket.socket]) -> None:
        """`others`: where workers that are there take what is passed on to them."""
        self._others = others
        self._port = UdpPort(sock.dup())  # the socket itself is for the worker's successor
        self._port.start(self)

    def close(self) -> None:
        self._port.close()

    def datagrams_received(self, data: bytes, segment: int, address: PeerAddress, at: float) -> None:
        chosen = self._others[crc32(repr(address.peer).encode()) % len(self._others)]  # each peer's go to the same
        for start in range(0, len(data), segment):
            pass_datagram_on(chosen, self._port.address[1], address, data[start : start + segment])

    def burst_finished(self) -> None:
        """Whoever has them answers."""

    def port_writable(self) -> None:
        """Nothing is sent here."""

    def port_failed(self, error: OSError) -> None:
        """It is not connected."""


class WorkerSlot:
    """A place among the workers: its sockets stay, its processes come and go."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.sockets: dict[tuple[str, int], socket.socket] = {}
        """To listen on, by transport and configured port."""
        self.inbox, self.outbox = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ready = asyncio.Event()
        """Its worker serves."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when it begins to serve, and when it has ended."""
        self.failure: MultiError | None = None
        """Why its worker could not start."""
        self._stranded: list[Stranded] = []
        self._process: SpawnProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._answers: dict[int, asyncio.Future[WorkerAnswer | None]] = {}
        self._numbers = count()

    async def run(self, process: SpawnProcess, channel: socket.socket) -> int:
        """Wait until a worker has ended; return its exit code, negative for the number of a signal."""
        loop = asyncio.get_running_loop()
        self._process = process
        reader, self._writer = await asyncio.open_connection(sock=channel, limit=MAX_LINE)
        listening = loop.create_task(self._listen(reader), name=f"channel of worker {self.index}")
        assert process.pid is not None
        watched = os.pidfd_open(process.pid)  # children of the worker may outlive it and hold all else open
        ended = asyncio.Event()
        loop.add_reader(watched, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(watched)
            os.close(watched)
            process.kill()  # unless it has ended
            process.join()
            self.ready.clear()
            self.on_change()
            await asyncio.wait({listening}, timeout=1.0)  # what it has said last
            listening.cancel()
            self._writer.transport.abort()
        assert process.exitcode is not None
        return process.exitcode

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if "failed" in message:
                    kind = ConfigError if message["type"] == "ConfigError" else TransportError
                    self.failure = kind(message["failed"])
                elif "ready" in message:
                    self.ready.set()
                    self.on_change()
                elif (answer := self._answers.get(message["id"])) is not None and not answer.done():
                    answer.set_result((HTTPStatus(message["status"]), json.loads(message["body"])))
        except OSError:
            pass  # it was killed with requests unread
        finally:
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_result(None)

    async def ask(self, method: str, target: str, body: bytes = b"") -> WorkerAnswer | None:
        """(status, what its JSON says), as its control socket would answer; None where it does not, or not in time."""
        if not self.ready.is_set() or self._writer is None:
            return None
        number = next(self._numbers)
        answer: asyncio.Future[WorkerAnswer | None] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        request = {"id": number, "method": method, "target": target, "body": body.decode(errors="replace")}
        self._writer.write(json.dumps(request).encode() + b"\n")
        try:
            async with asyncio.timeout(ANSWER_TIME):
                return await answer
        except TimeoutError:
            logger.warning("worker %d has not answered within %g s", self.index, ANSWER_TIME)
            return None
        finally:
            del self._answers[number]

    def signal(self, number: int) -> None:
        """To its worker, if it serves: who does not yet has nothing to end, and is killed."""
        if number == signal.SIGKILL or not self.ready.is_set() or self._writer is None:
            if self._process is not None:
                self._process.kill()
        else:
            self._writer.write(json.dumps({"signal": number}).encode() + b"\n")

    def strand(self, others: Sequence[socket.socket]) -> None:
        """Let those who are there have its datagrams: by their outboxes; none = it takes them itself."""
        for stranded in self._stranded:
            stranded.close()
        self._stranded = [
            Stranded(sock, others) for sock in self.sockets.values() if others and sock.type == socket.SOCK_DGRAM
        ]

    def close(self) -> None:
        self.strand([])
        for sock in (*self.sockets.values(), self.inbox, self.outbox):
            sock.close()


class Supervisor:
    """Of the workers of one server."""

    def __init__(self, config: Config, workers: int, main: Main, backlog: int) -> None:
        """Each of `workers` processes calls `main(worker)`: a new interpreter has to be able to import it.

        Raises ConfigError where that, or this system, does not allow it.
        """
        assert config.listen is not None
        _check(main)
        self._config, self._listen, self._main, self._backlog = config, config.listen, main, backlog
        self._context = multiprocessing.get_context("spawn")
        self._key = os.urandom(KEY_LENGTH)
        self._reset_key = reset_key_of(config)
        self._base = self._listen.route_bytes(os.urandom).ljust(ROUTE_LENGTH - 1, b"\0")
        self._memory = shared_memory(workers)
        self._logs, self._log_writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._slots = [WorkerSlot(index) for index in range(workers)]
        self._started = False
        self._signals = 0
        self._stopped_by = signal.SIGTERM
        self._stopping = asyncio.Event()
        self._next = 0
        self.port = 0
        self._answers = AnswersOfAll(self._slots)
        self.control = ControlSockets(self._answers)

    async def run(self, started: Callable[[Supervisor], None]) -> signal.Signals:
        """Until all have ended; `started(self)` is called once they serve. Return the signal that ended them.

        Raises ConfigError and TransportError where they cannot start.
        """
        loop = asyncio.get_running_loop()
        for number in PASSED_ON:
            loop.add_signal_handler(number, self._signalled, number)
        self._logs.setblocking(False)
        loop.add_reader(self._logs.fileno(), self._log)
        keepers: list[asyncio.Task[None]] = []
        watching: list[asyncio.Task[None]] = []
        try:
            await self._bind()
            for slot in self._slots:
                slot.on_change = partial(self._changed, slot)
                keepers.append(loop.create_task(self._keep(slot), name=f"keeper of worker {slot.index}"))
            await self._all_ready(keepers)
            if (control := self._config.control) is not None:
                await self.control.open(self._config.control_path, control.metrics_port, self.port)
            if not self._signals:
                started(self)
            watching.append(loop.create_task(self._watch(), name="watchdog of the workers"))
            await asyncio.gather(*keepers)
        finally:
            for task in (*watching, *keepers):
                task.cancel()  # a keeper kills its worker
            await asyncio.gather(*watching, *keepers, return_exceptions=True)
            self._close()
        return self._stopped_by

    # --- sockets ---

    async def _bind(self) -> None:
        """One port for all transports, and of each a socket for every worker."""
        if given := systemd.inherited_sockets():
            for sock in given:
                sock.close()
            raise ConfigError("workers share ports that are opened here: systemd has to open none", "workers")
        for wanted in self._listen.ports:
            port = wanted
            for name in listened_to(self._listen.transports):
                port = await self._bind_group(name, wanted, port)
            self.port = self.port or port

    async def _bind_group(self, name: str, wanted: int, port: int) -> int:
        """Bind `port`, 0 = a free one, for every worker; return it. The configuration has it as `wanted`."""
        host, transport = self._listen.host, await loaded_transport(name)
        if not isinstance(transport, BoundTransport):
            raise ConfigError(f"transport {name!r} binds its sockets itself, so it cannot have workers", "workers")
        with listening_socket(host, port, transport.open_socket) as alone:  # a group would let in another server's
            port = alone.getsockname()[1]
        for slot in self._slots:
            sock = listening_socket(host, port, lambda family: share_port(transport.open_socket(family)))
            slot.sockets[name, wanted] = sock
            if not transport_type(name).over_udp:
                sock.listen(self._backlog)
        if transport_type(name).over_udp:
            ids = ConnectionIds(self._base + b"\0")
            place = PlaceInId(first=ids.new()[0], length=ids.length, position=ROUTE_LENGTH)
            steer_by_connection_id(self._slots[0].sockets[name, wanted], place, len(self._slots))
        return port

    def _changed(self, slot: WorkerSlot) -> None:
        if self._answers.draining and slot.ready.is_set():
            slot.signal(signal.SIGKILL)  # it was being started when the others were told to stop
        self._rearrange()

    def _rearrange(self) -> None:
        """Who comes where no worker listens gets one of those that do."""
        loop = asyncio.get_running_loop()
        others = [slot.outbox for slot in self._slots if slot.ready.is_set()] if self._started else []
        for slot in self._slots:
            absent = bool(others) and not slot.ready.is_set()
            slot.strand(others if absent else [])
            for sock in slot.sockets.values():
                if sock.type == socket.SOCK_STREAM:
                    if absent:
                        loop.add_reader(sock.fileno(), self._take_for_others, sock)
                    else:
                        loop.remove_reader(sock.fileno())

    def _take_for_others(self, listener: socket.socket) -> None:
        ready = [slot for slot in self._slots if slot.ready.is_set()]
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, _address = listener.accept()
            except OSError:
                return
            with sock:
                self._next += 1
                pass_on(ready[self._next % len(ready)].outbox, sock, UNSEEN)

    def _close(self) -> None:
        loop = asyncio.get_running_loop()
        self.control.close()
        self._started = False
        self._rearrange()
        self._log()
        loop.remove_reader(self._logs.fileno())
        for slot in self._slots:
            slot.close()
        self._logs.close()
        self._log_writer.close()
        os.close(self._memory)
        self._reset_key.release()

    # --- processes ---

    async def _all_ready(self, keepers: list[asyncio.Task[None]]) -> None:
        """Raises what keeps a worker from serving."""
        ready = [asyncio.ensure_future(slot.ready.wait()) for slot in self._slots]
        try:
            waiting = asyncio.ensure_future(asyncio.wait(ready))
            await asyncio.wait({waiting, *keepers}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        finally:
            for each in ready:
                each.cancel()
        for keeper in keepers:
            if keeper.done():
                keeper.result()
        self._started = True
        self._rearrange()

    async def _watch(self) -> None:
        """Kill workers that hang. What counts is looks in vain: time passes for a process that is stopped itself."""
        silent: Counter[WorkerSlot] = Counter()
        heard: dict[WorkerSlot, int] = {}
        while (patience := self._config.worker_timeout) is not None:
            await asyncio.sleep(SIGN_OF_LIFE)
            for slot in self._slots:
                before, heard[slot] = heard.get(slot), signs_of_life(self._memory, slot.index)
                silent[slot] = silent[slot] + 1 if heard[slot] == before and slot.ready.is_set() else 0
                if silent[slot] * SIGN_OF_LIFE > patience:
                    logger.error("worker %d has given no sign of life for %g s, and is killed", slot.index, patience)
                    slot.signal(signal.SIGKILL)
                    silent[slot] = 0

    async def _keep(self, slot: WorkerSlot) -> None:
        """Start a worker, and again when it ends, for whatever reason."""
        clock, pause = asyncio.get_running_loop().time, 0.0
        while not (self._stopping.is_set() or self._answers.draining):
            began = clock()
            code = await self._life(slot)
            clear(self._memory, slot.index)
            self._answers.ended(slot)
            if self._stopping.is_set() or self._answers.draining:
                return
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            if not self._started:
                raise slot.failure or TransportError(f"worker {slot.index} {how} before it served")
            pause = 0.0 if clock() >= began + SETTLED else min(max(FIRST_PAUSE, 2 * pause), MAX_PAUSE)
            logger.error("worker %d %s, its sessions with it; it is started again in %g s", slot.index, how, pause)
            if slot.failure is not None:
                logger.error("worker %d: %s", slot.index, slot.failure)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    async def _life(self, slot: WorkerSlot) -> int:
        slot.failure = None
        ours, theirs = socket.socketpair()
        job = Job(
            index=slot.index,
            parent=os.getpid(),
            config=self._config,
            main=self._main,
            sockets=slot.sockets,
            inbox=slot.inbox,
            outboxes=[other.outbox for other in self._slots],
            channel=theirs,
            logs=self._log_writer,
            levels=levels(),
            memory=Descriptor(self._memory),
            key=self._key,
            reset_key=self._reset_key.value,
            base=self._base,
        )
        process = self._context.Process(target=work, args=(job,), name=f"multi-worker-{slot.index}")
        with theirs:
            resource_tracker.ensure_running()  # it would let the signals through that are held back now
            signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until the worker can take them
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        return await slot.run(process, ours)

    def _log(self) -> None:
        with suppress(BlockingIOError):
            while packet := self._logs.recv(LOG_PACKET):
                log_of_worker(packet)

    def _signalled(self, number: signal.Signals) -> None:
        """Each worker does what a server does alone; the parent sees to it that all of them end."""
        loop = asyncio.get_running_loop()
        if number == signal.SIGHUP:
            for slot in self._slots:
                if slot.ready.is_set():
                    slot.signal(number)
            return
        self._signals += 1
        if self._signals == 1:
            self._stopped_by = signal.Signals(number)
            self._stopping.set()
            seconds = GRACE
            if number == signal.SIGTERM:
                seconds = self._config.drain_timeout
                systemd.service.stopping("draining", seconds + PATIENCE)
            loop.call_later(seconds + PATIENCE, self._kill)
        elif self._signals == 2:
            loop.call_later(PATIENCE, self._kill)
        for slot in self._slots:
            slot.signal(number if self._signals < 3 else signal.SIGKILL)

    def _kill(self) -> None:
        for slot in self._slots:
            if slot.ready.is_set():
                logger.error("worker %d has not ended in time, and is killed", slot.index)
            slot.signal(signal.SIGKILL)


def _check(main: Main) -> None:
    if sys.platform != "linux":
        raise ConfigError("several processes on one port need Linux", "workers")
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself asks
        message = "a worker imports the program again: what starts the server belongs under if __name__ == '__main__'"
        raise ConfigError(message, "workers")
    try:
        pickle.dumps(main)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        message = f"what serves clients has to be importable, for each worker is a new process ({error})"
        raise ConfigError(message, "workers") from error
