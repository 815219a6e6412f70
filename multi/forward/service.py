"""The far end of forwarding: what the server of a session does for its client, as far as the rules let it.

It decides how many connections are opened at once, how long each step may take, and which ports a client listens on
here. What may be reached is decided by `rules`, how it is reached by `dial`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakValueDictionary

from cryptography import x509
from cryptography.x509.oid import NameOID

from multi.asyncio.dns import Lookup
from multi.asyncio.lookups import MAX_THREADS, THREADS, Share
from multi.asyncio.session import Session
from multi.asyncio.sources import source_of
from multi.asyncio.streams import SessionReader, SessionWriter
from multi.config import Config
from multi.errors import LocalProtocolError, printable
from multi.forward.dial import dial_udp, open_target, refusal_of
from multi.forward.opening import (
    ACCEPTED_AT_ONCE,
    MAX_CONNECTIONS,
    MAX_OPENING,
    OpeningTurns,
    forward,
    listen,
    room_for,
)
from multi.forward.protocol import (
    HELLO,
    Accepted,
    Code,
    Connect,
    Flow,
    ForwardRefused,
    HostPort,
    RemoteListen,
    encode_answer,
    is_hello,
    read_head,
)
from multi.forward.relay import BUFFERED, ENDS, Counters, StreamPair, relay
from multi.forward.rules import UNPRIVILEGED, Permissions, Rules
from multi.forward.specs import Treatment
from multi.forward.udp import MAX_ENDING, MAX_FLOWS, FlowTable, ForwardPort, IdleClock, stream_id, until_end_or_idle

logger = logging.getLogger("multi.forward")

HELLO_TIMEOUT = 30.0  # seconds from opening the session to its first line; a client says it at once
HEAD_TIMEOUT = 10.0  # seconds from opening a stream to its head; a client sends both together
MAX_STREAMS = 4096  # connections forwarded in a session, where the configuration says nothing of streams
MAX_LISTENERS = 16  # ports that one session listens on
LOOKUPS = MAX_THREADS // 8  # of names at once for one session, those included that it has given up
LOOKUPS_OF_SOURCE = MAX_THREADS // 2  # the same for all sessions of a source, also for those that have ended


def with_room_for_streams(config: Config) -> Config:
    """The configuration with as many streams as forwarding needs, unless it says how many it wants."""
    if "max_streams" in config.limits.model_fields_set:
        return config
    limits = config.limits.model_copy(update={"max_streams": MAX_STREAMS})
    return config.model_copy(update={"limits": limits})


class ForwardService:
    """`serve` is the `on_client` of a server; `log` gets a line for each session's end and what was refused."""

    def __init__(self, rules: Rules, *, log: Callable[[str], None], lookup: Lookup | None = None) -> None:
        self._rules = rules
        self.log = log
        self.lookup = lookup
        self.counters = Counters()
        self._taken = 0
        self._lookups_of: WeakValueDictionary[str, Share] = WeakValueDictionary()
        """By source, as long as there is a session of it or an answer to come for one."""

    @property
    def full(self) -> bool:
        """All sessions together have as many connections as this process may carry."""
        return not room_for(self._taken)

    @contextmanager
    def place(self) -> Iterator[None]:
        """What a connection takes as long as it lasts."""
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1

    def lookups(self, who: str) -> Share:
        """What a session may look up at once: others are not to wait for the names it asks for."""
        source = who
        with suppress(ValueError):
            source = source_of(who)
        of_source = self._lookups_of.get(source)
        if of_source is None:
            of_source = self._lookups_of[source] = Share(LOOKUPS_OF_SOURCE, THREADS)
        return Share(LOOKUPS, of_source)

    @property
    def running(self) -> int:
        """Connections that are forwarded now."""
        return self.counters.open

    async def serve(self, reader: SessionReader, writer: SessionWriter, first: bytes | None = None) -> None:
        """One session: forward for it until its client ends.

        `first` is the line it has begun with, where that was read already.
        """
        session: Session = writer.get_extra_info("session")
        who = printable(str(writer.get_extra_info("peername", ("unknown", 0))[0]))
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                line = await reader.readline() if first is None else first
            if not is_hello(line):
                self.log(f"forwarding ({who}): refused: the client does not ask for it")
                return
            writer.write(HELLO)
            # Who a client is does not change: each of its connections has proved to belong to this session.
            permissions = self._rules.of(identities(writer))
            client = _Client(session, permissions, self, who)
            await client.run(reader)
        except (*ENDS, ValueError, TimeoutError) as error:
            logger.info("forwarding for %s stopped: %s", who, error, extra={"session": session.id.hex()})
        finally:
            writer.close()

    def refused(self, who: str, error: ForwardRefused) -> None:
        self.counters.failed += 1
        if error.code is Code.NOT_ALLOWED:
            self.log(f"forwarding ({who}): {error}")
        else:
            logger.info("forwarding for %s: %s", who, error)


def identities(writer: SessionWriter) -> list[str]:
    """What a client has proved to be, as the keys of a file of rules name it: `psk:NAME`, `cert:NAME`."""
    names = []
    if psk := writer.get_extra_info("psk_id"):
        names.append(f"psk:{psk if isinstance(psk, str) else psk.decode('utf-8', 'replace')}")
    if der := writer.get_extra_info("peercert"):
        certificate = x509.load_der_x509_certificate(der)
        names += [f"cert:{a.value!s}" for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        with suppress(x509.ExtensionNotFound):
            alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names += [f"cert:{name}" for name in alternative.get_values_for_type(x509.DNSName)]
    return names


class _Client:
    """What runs for one session."""

    def __init__(self, session: Session, permissions: Permissions, service: ForwardService, who: str) -> None:
        self._session = session
        self._permissions = permissions
        self._service = service
        self._who = who
        self._lookups = service.lookups(who)
        self._about = {"session": session.id.hex()}
        """For lines of the log."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._relaying: set[asyncio.Task[Any]] = set()
        """Those of them that carry a connection."""
        self._opening = OpeningTurns(MAX_OPENING)
        self._coming = OpeningTurns(MAX_OPENING)
        """Of ports listened on for the client."""
        self._listeners = 0
        self._flows: FlowTable | None = None

    async def run(self, reader: SessionReader) -> None:
        """Until the client ends stream 0, or the session does."""
        accepting = asyncio.create_task(self._accept())
        with suppress(LocalProtocolError):  # the client takes no datagrams
            self._flows = FlowTable(self._session)
            self._start(self._flows.run())
        try:
            while await reader.read(BUFFERED):
                pass
            await self._finish()
        finally:
            tasks = [accepting, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish(self) -> None:
        """What has come and is ended may still be on its way to its target: wait for that, as long as the session."""
        over = asyncio.ensure_future(self._session.wait_closed())
        try:
            while self._relaying and not over.done():
                await asyncio.wait({over, *self._relaying}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            await asyncio.gather(over, return_exceptions=True)

    async def _accept(self) -> None:
        begun = 0
        async for reader, writer in self._session.streams():
            self._start(self._stream(reader, writer))
            begun += 1
            if not begun % ACCEPTED_AT_ONCE:
                await asyncio.sleep(0)  # a client may open thousands together

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stream(self, reader: SessionReader, writer: SessionWriter) -> None:
        """One stream of the client's."""
        stream = StreamPair(reader, writer)
        try:
            async with asyncio.timeout(HEAD_TIMEOUT):
                head = await read_head(reader)
            if isinstance(head, Connect | Flow) and self._service.full:
                raise ForwardRefused(Code.BUSY, "the server has no descriptor to spare for another connection")
            if isinstance(head, Connect):
                with self._service.place():
                    await self._connect(head, stream)
            elif isinstance(head, RemoteListen):
                await self._listen(head, stream)
            elif isinstance(head, Flow):
                with self._service.place():
                    await self._flow(head, stream)
            else:
                raise ForwardRefused(Code.BAD_REQUEST, "a client does not accept connections for a server")
        except ForwardRefused as error:
            self._service.refused(self._who, error)
            writer.write(encode_answer(error.code, str(error)))
            writer.close()
        except (*ENDS, EOFError, TimeoutError) as error:
            logger.debug("forwarded connection of %s ended: %s", self._who, error, extra=self._about)
            stream.reset()
        except BaseException:
            stream.reset()
            raise

    async def _connect(self, head: Connect, stream: StreamPair) -> None:
        async with self._opening.turn(stream, head.target):
            near, address = await open_target(
                head.target, self._permissions, lookup=self._service.lookup, share=self._lookups
            )
        logger.info("forwarding for %s: connected to %s", self._who, head.target, extra=self._about)
        stream.writer.write(encode_answer(Code.OK, str(address)))
        task = asyncio.current_task()
        assert task is not None
        self._relaying.add(task)
        try:
            await relay(near, stream, self._service.counters)
        finally:
            self._relaying.discard(task)

    async def _listen(self, head: RemoteListen, stream: StreamPair) -> None:
        """Listen until the client ends the stream."""
        address = self._granted(head.address)
        self._listeners += 1  # before anything is awaited: others ask at the same time
        try:
            await self._listen_on(address, head.priority, stream)
        finally:
            self._listeners -= 1
        stream.writer.close()

    async def _listen_on(self, address: HostPort, priority: int, stream: StreamPair) -> None:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            near = StreamPair(reader, writer)
            if len(self._tasks) >= MAX_CONNECTIONS or self._service.full:
                self._service.counters.failed += 1
                near.reset()
            else:
                self._start(self._accepted(near, bound, priority))

        try:
            server = await listen(accepted, address.host, address.port)
        except OSError as error:
            raise refusal_of(error, f"cannot listen on {address}") from None
        bound = HostPort(*server.sockets[0].getsockname()[:2])
        self._service.log(f"forwarding ({self._who}): listening on {bound}")
        try:
            stream.writer.write(encode_answer(Code.OK, str(bound)))
            while await stream.reader.read(BUFFERED):
                pass
        finally:
            server.close()

    async def _accepted(self, near: StreamPair, listener: HostPort, priority: int) -> None:
        """A connection to a port listened on for the client, who says where it leads."""
        peer = HostPort(*near.writer.get_extra_info("peername")[:2])
        head = Accepted(listener, peer)
        try:
            with self._service.place():
                async with self._coming.turn(near, listener) as turn:
                    await forward(near, self._session, head, Treatment(priority), self._service.counters, turn)
        except ENDS as error:
            logger.info("connection to %s for %s ended: %s", listener, self._who, error, extra=self._about)

    async def _flow(self, head: Flow, stream: StreamPair) -> None:
        """Datagrams to one address and back, until one side ends the stream or nothing comes for too long."""
        table = self._flows
        if table is None or len(table) >= MAX_FLOWS + MAX_ENDING:
            raise ForwardRefused(Code.BUSY, "no datagrams in this session" if table is None else "too many flows")
        number, clock, counters = stream_id(stream), IdleClock(), self._service.counters

        def back(data: bytes, _: HostPort) -> None:
            clock.heard()
            if table.send(number, data):
                counters.count_sent(len(data))

        def out(data: bytes) -> None:
            clock.heard()
            counters.count_received(len(data))
            port.send(data)

        port = ForwardPort(back)
        table.add(stream, out)  # before anything is awaited: others ask at the same time
        try:
            async with self._opening.turn(stream, head.target):
                sock = await dial_udp(head.target, self._permissions, lookup=self._service.lookup, share=self._lookups)
            bound = str(HostPort(*sock.getpeername()[:2]))
            await asyncio.get_running_loop().create_datagram_endpoint(lambda: port, sock=sock)
            clock.heard()
            with counters.another():
                stream.writer.write(encode_answer(Code.OK, bound))
                await until_end_or_idle(stream, clock)
        finally:
            table.remove(number)
            port.close()

    def _granted(self, wanted: HostPort) -> HostPort:
        """The loopback address to listen on. Raises ForwardRefused."""
        host = {"localhost": "127.0.0.1"}.get(wanted.host, wanted.host)
        if host not in ("127.0.0.1", "::1"):
            raise ForwardRefused(Code.NOT_ALLOWED, f"listening on {wanted} is not allowed: only on loopback")
        if not self._permissions.may_listen(wanted.port):
            hint = f" below {UNPRIVILEGED[0]}" if 0 < wanted.port < UNPRIVILEGED[0] else ""
            raise ForwardRefused(
                Code.NOT_ALLOWED, f"listening on {wanted} is not allowed: the port{hint} is not granted"
            )
        if self._listeners >= MAX_LISTENERS:
            raise ForwardRefused(Code.BUSY, f"more than {MAX_LISTENERS} ports listened on")
        return HostPort(host, wanted.port)
