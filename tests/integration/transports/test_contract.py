"""The promises of `multi.transports.base`, kept by every transport on both event loops and IP versions."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from multi.errors import TransportError
from multi.transports import transport, transport_names
from multi.transports.base import Channel, Listener, TransportSettings, transport_type
from multi.types import MESSAGES, Candidate, Family
from tests.engines import engine_or_skip
from tests.integration.certificates import certificates_in
from tests.integration.support import no_descriptors, pattern, until

T = TypeVar("T")
TIMEOUT = 150.0  # seconds; far above what any of these needs, on a busy machine too
LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
LOOPS = ["asyncio", "uvloop"]
ENGINES = ["quic+qh3", "quic+noq", "mpquic+aioquic", "mpquic+noq"]
PLAIN = [name for name in transport_names() if name != "mpquic"]  # whose engine depends on the machine
SECURE = ["quic", *ENGINES, "tcp+tls", "mptcp+tls"]

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


class Recorder:
    """A sink that remembers everything and can be awaited."""

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self.behind = False
        self.proved = True
        self.waiting = 0
        self.received: dict[int, bytearray] = {}
        self.batches = 0
        self.writable_calls = 0
        self.lost: list[TransportError | None] = []
        self.on_data: Callable[[bytes, int], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self._changed = asyncio.Event()

    def data_received(self, data: memoryview, lane: int) -> None:
        assert not self.lost, "data after connection_lost"
        self.received.setdefault(lane, bytearray()).extend(data)
        if self.on_data is not None:
            self.on_data(bytes(data), lane)

    def batch_finished(self) -> None:
        self.batches += 1
        self._changed.set()

    def writable(self) -> None:
        assert self.channel is not None
        assert self.channel.credit() > 0
        self.writable_calls += 1
        if self.on_writable is not None:
            self.on_writable()
        self._changed.set()

    def connection_lost(self, error: TransportError | None) -> None:
        self.lost.append(error)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def until_received(self, size: int, lane: int = 0) -> bytes:
        await self.until(lambda: len(self.received.get(lane, b"")) >= size or bool(self.lost))
        return bytes(self.received.get(lane, b""))

    async def until_lost(self) -> TransportError | None:
        await self.until(lambda: bool(self.lost))
        return self.lost[0]

    def attach(self, channel: Channel) -> None:
        self.channel = channel
        channel.start(self)


@dataclass
class Server:
    """A listening transport that starts a recorder on each accepted channel."""

    listener: Listener
    channels: list[Channel] = field(default_factory=list)
    sinks: list[Recorder] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def sink(self, index: int = 0) -> Recorder:
        while len(self.sinks) <= index:
            self.arrived.clear()
            await self.arrived.wait()
        return self.sinks[index]


async def listening(name: str, settings: TransportSettings, host: str = LOOPBACK[Family.IPV4], port: int = 0) -> Server:
    def accept(channel: Channel) -> None:
        sink = Recorder()
        server.channels.append(channel)
        server.sinks.append(sink)
        sink.attach(channel)
        server.arrived.set()

    server = Server(await transport(name).listen(host, port, settings, accept))
    return server


@dataclass(frozen=True)
class Case:
    """One transport over one IP version on one event loop."""

    name: str
    family: Family
    loop: str
    settings: TransportSettings
    server_settings: TransportSettings

    def run(self, scenario: Awaitable[T]) -> T:
        async def bounded() -> T:
            return await asyncio.wait_for(scenario, TIMEOUT)

        factory = asyncio.new_event_loop
        if self.loop == "uvloop":
            factory = pytest.importorskip("uvloop").new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(bounded())

    def candidate(self, port: int, **changes: object) -> Candidate:
        host = LOOPBACK[self.family]
        base = Candidate(self.name, self.family, "localhost", host, port)
        return replace(base, **changes)  # type: ignore[arg-type]  # field names are the test's own

    async def listen(self, host: str = "", port: int = 0) -> Server:
        return await listening(self.name, self.server_settings, host or LOOPBACK[self.family], port)

    async def dial(self, server: Server, **changes: object) -> tuple[Channel, Recorder]:
        candidate = self.candidate(server.listener.address[1], **changes)
        channel = await transport(self.name).dial(candidate, self.settings)
        sink = Recorder()
        sink.attach(channel)
        return channel, sink

    async def pair(self) -> tuple[Server, Channel, Recorder, Channel, Recorder]:
        server = await self.listen()
        channel, sink = await self.dial(server)
        if channel.info.lanes > 1:
            # Over datagrams only our side has finished the handshake; the first bytes show that the peer did.
            channel.write([b"."], 0)
            channel.flush()
        peer_sink = await server.sink()
        if channel.info.lanes > 1:
            await peer_sink.until_received(1)
            peer_sink.received.clear()
        return server, channel, sink, server.channels[0], peer_sink


def settings_of(name: str, request: pytest.FixtureRequest) -> tuple[TransportSettings, TransportSettings]:
    """What the client and the server need to be told."""
    if name not in SECURE:
        return TransportSettings(), TransportSettings()
    files = certificates_in(request.getfixturevalue("tmp_path_factory").getbasetemp() / "certificates")
    client, server = files.client_settings(), files.server_settings()
    if name in ENGINES:
        protocol, engine = name.split("+")
        engine_or_skip(engine)
        sections = {protocol: transport_type(protocol).settings.model_validate({"engine": engine})}
        return replace(client, sections=sections), replace(server, sections=sections)
    return client, server


@pytest.fixture(params=[*PLAIN, *ENGINES, "tcp+tls", "mptcp+tls"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LOOPS)
def loop_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[Family.IPV4, Family.IPV6], ids=["ipv4", "ipv6"])
def family(request: pytest.FixtureRequest) -> Family:
    if request.param is Family.IPV6 and not ipv6_works():
        pytest.skip("no IPv6 loopback here")
    return Family(request.param)


@pytest.fixture
def case(name: str, family: Family, loop_name: str, request: pytest.FixtureRequest) -> Case:
    client, server = settings_of(name, request)
    return Case(name.partition("+")[0], family, loop_name, client, server)


@pytest.fixture
def case4(name: str, loop_name: str, request: pytest.FixtureRequest) -> Case:
    """Where the IP version makes no difference."""
    client, server = settings_of(name, request)
    return Case(name.partition("+")[0], Family.IPV4, loop_name, client, server)


def ipv6_works() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def write_all(channel: Channel, sink: Recorder, data: bytes, lane: int, chunk: int) -> None:
    """Write as a well-behaved caller does: only as much as there is credit for, the rest when writable."""
    view = memoryview(data)
    position = 0

    def go() -> None:
        nonlocal position
        while position < len(view) and (credit := channel.credit()) > 0:
            end = min(len(view), position + credit)
            channel.write([view[at : min(at + chunk, end)] for at in range(position, end, chunk)], lane)
            channel.flush()
            position = end

    sink.on_writable = go
    go()


def more_than_credit(case: Case) -> bytes:
    """More than a channel takes at once, and than the kernel takes from it where it buffers."""
    return pattern(2_000_000 if transport_type(case.name).over_udp else 8_000_000)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def one_descriptor() -> Iterator[None]:
    """One can be opened."""
    gc.collect()  # or what earlier tests have left is closed meanwhile
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(number) for number in os.listdir("/proc/self/fd"))
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
        while True:
            held.append(os.dup(0))
    except OSError:
        os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in held:
            os.close(number)


def test_bytes_are_echoed_on_every_lane_in_odd_chunks(case: Case) -> None:
    async def scenario() -> None:
        server, channel, sink, peer, peer_sink = await case.pair()
        size = 300_000
        for lane in range(channel.info.lanes):
            data = pattern(size, lane + 1)

            def echo(chunk: bytes, lane: int) -> None:
                peer.write([chunk], lane)
                peer.flush()

            peer_sink.on_data = echo
            write_all(channel, sink, data, lane, 1237)
            assert await sink.until_received(size, lane) == data
        assert sink.batches > 0
        channel.abort()
        server.listener.close()

    case.run(scenario())


def test_messages_arrive_whole_in_place_of_a_lane_where_there_are_any(case4: Case) -> None:
    async def scenario() -> None:
        server, channel, sink, other, other_sink = await case4.pair()
        for sender, receiver in ((channel, other_sink), (other, sink)):
            most = sender.info.message_size
            if not most:
                assert not transport_type(case4.name).over_udp
                continue
            sender.write([b"and a lane"], 0)
            said: dict[int, int] = {}  # of which byte each message is made, and how long it is
            missing = {most - n for n in range(5)}
            while missing:  # on a busy machine some are lost, as in a network that carries large packets no more
                attempt = dict(enumerate(missing, 65 + len(said)))
                said |= attempt
                sender.write([bytes([byte]) * size for byte, size in attempt.items()], MESSAGES)
                sender.flush()
                with suppress(TimeoutError):
                    await asyncio.wait_for(receiver.until_received(sum(said.values()), MESSAGES), 1.0)
                got = receiver.received.get(MESSAGES, b"")
                whole = {byte: got.count(byte) for byte in set(got)}
                assert whole.items() <= said.items()
                missing -= set(whole.values())
            assert await receiver.until_received(10) == b"and a lane"
        channel.abort()
        other.abort()
        server.listener.close()

    case4.run(scenario())


def test_info_names_both_ends(case: Case) -> None:
    async def scenario() -> None:
        server, channel, _, peer, _ = await case.pair()
        assert channel.info.transport == case.name
        assert channel.info.family is peer.info.family is case.family
        assert channel.info.local == peer.info.remote
        assert channel.info.remote == peer.info.local
        host = f"[{LOOPBACK[case.family]}]" if case.family is Family.IPV6 else LOOPBACK[case.family]
        assert channel.info.remote == f"{host}:{server.listener.address[1]}"
        assert channel.info.lanes == peer.info.lanes
        assert 0 < channel.info.rtt < 1
        channel.abort()
        server.listener.close()

    case.run(scenario())


def test_channel_can_be_handed_to_another_sink_between_two_batches(case4: Case) -> None:
    async def scenario() -> None:
        server, channel, _sink, peer, peer_sink = await case4.pair()
        second = Recorder()

        def hand_over(data: bytes, lane: int) -> None:
            peer_sink.on_data = None
            second.attach(peer)

        peer_sink.on_data = hand_over
        data = pattern(1_000_000)
        channel.write([data], 0)
        channel.close()
        assert await second.until_lost() is None
        assert peer_sink.received[0] + second.received[0] == data
        assert second.batches > 0
        assert peer_sink.lost == []
        server.listener.close()

    case4.run(scenario())


def test_data_flows_both_ways_at_once(case4: Case) -> None:
    async def scenario() -> None:
        server, channel, sink, peer, peer_sink = await case4.pair()
        size = 2_000_000
        up, down = pattern(size, 1), pattern(size, 2)
        lane = channel.info.lanes - 1
        write_all(channel, sink, up, lane, 16384)
        write_all(peer, peer_sink, down, lane, 4096)
        assert await sink.until_received(size, lane) == down
        assert await peer_sink.until_received(size, lane) == up
        channel.abort()
        server.listener.close()

    case4.run(scenario())


def test_large_write_beyond_credit_arrives_whole(case4: Case) -> None:
    async def scenario() -> None:
        server, channel, _sink, _peer, peer_sink = await case4.pair()
        data = more_than_credit(case4)
        view = memoryview(data)
        lane = channel.info.lanes - 1
        buffers = [view[at : at + 999_983] for at in range(0, len(view), 999_983)]
        channel.write(buffers, lane)
        channel.flush()
        assert channel.credit() == 0
        assert await peer_sink.until_received(len(data), lane) == data
        channel.abort()
        server.listener.close()

    case4.run(scenario())


def test_thousands_of_small_buffers_in_one_write_arrive_in_order(case4: Case) -> None:
    async def scenario() -> None:
        server, channel, _sink, _peer, peer_sink = await case4.pair()
        pieces = [number.to_bytes(4, "big") for number in range(5000)]
        channel.write(pieces, 0)
        channel.flush()
        assert await peer_sink.until_received(20_000) == b"".join(pieces)
        channel.abort()
        server.listener.close()

    case4.run(scenario())


def test_credit_returns_with_exactly_one_writable(case4: Case) -> None:
    async def scenario() -> None:
        server, channel, sink, _peer, peer_sink = await case4.pair()
        lane = channel.info.lanes - 1
        assert channel.credit() > 0
        data = more_than_credit(case4)
        channel.write([data], lane)
        channel.flush()
        assert channel.credit() == 0
        assert sink.writable_calls == 0
        await sink.until(lambda: sink.writable_calls > 0)
        # Nobody asks again: credit that falls by itself, as when packets are lost, is nobody's concern.
        assert await peer_sink.until_received(len(data), lane) == data
        assert sink.writable_calls == 1
        channel.abort()
        server.listener.close()

    case4.run(scenario())


def test_sample_shows_progress(case4: Case) -> None:
    async def scenario() -> None:
        server, channel, _sink, _peer, peer_sink = await case4.pair()
        lane = channel.info.lanes - 1
        before = channel.sample()
        data = pattern(400_000)
        channel.write([data], lane)
        channel.flush()
        assert 0 < channel.sample().unacked <= len(data) + 5_000, "records of TLS are a little longer"
        await peer_sink.until_received(len(data), lane)
        # The acknowledgement may still be on its way; a second exchange lets it arrive.
        server.channels[0].write([b"!"], 0)
        server.channels[0].flush()
        await until(lambda: channel.sample().bytes_acked - before.bytes_acked >= len(data))
        after = channel.sample()
        assert after.unacked == after.not_sent == 0
        assert 0 < after.rtt < 1
        assert after.congestion_window > 0
        channel.abort()
        server.listener.close()

    case4.run(scenario())


def test_close_delivers_everything_then_reports_an_orderly_end(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for family in ("tcp", "quic"):  # however busy the machine is
        monkeypatch.setattr(f"multi.transports.{family}.channel.LINGER_TIME", 30.0)
        monkeypatch.setattr(f"multi.transports.{family}.channel.MAX_LINGER", 60.0)

    async def scenario() -> None:
        server, channel, sink, peer, peer_sink = await case.pair()
        data = pattern(3_000_000)
        lane = channel.info.lanes - 1
        channel.write([data], lane)
        channel.close()
        assert await peer_sink.until_received(len(data), lane) == data
        assert await peer_sink.until_lost() is None
        peer.abort()
        assert await sink.until_lost() is None
        assert len(sink.lost) == len(peer_sink.lost) == 1
        server.listener.close()

    case.run(scenario())


def test_close_makes_no_callback_at_once_and_may_be_repeated(case4: Case) -> None:
    async def scenario() -> None:
        server, channel, sink, _peer, peer_sink = await case4.pair()
        channel.close()
        channel.close()
        channel.write([b"too late"], 0)
        channel.flush()
        assert sink.lost == []
        assert channel.credit() == 0
        assert await peer_sink.until_lost() is None
        assert peer_sink.received == {}
        assert await sink.until_lost() is None
        channel.abort()
        server.listener.close()

    case4.run(scenario())


def test_peer_abort_is_reported_once(case4: Case) -> None:
    async def scenario() -> None:
        server, channel, sink, peer, peer_sink = await case4.pair()
        channel.abort()
        channel.abort()
        channel.close()
        await peer_sink.until_lost()
        peer.write([b"into the void"], 0)
        peer.flush()
        peer.abort()
        await settle()
        assert len(peer_sink.lost) == 1
        assert sink.lost == []
        server.listener.close()

    case4.run(scenario())


def test_abort_from_inside_a_callback_ends_the_callbacks(case4: Case) -> None:
    async def scenario() -> None:
        server, channel, _sink, peer, peer_sink = await case4.pair()
        seen: list[int] = []

        def abort(data: bytes, lane: int) -> None:
            seen.append(len(data))
            peer.abort()

        peer_sink.on_data = abort
        batches = peer_sink.batches
        channel.write([pattern(5_000_000)], channel.info.lanes - 1)
        channel.flush()
        await until(lambda: bool(seen))
        await settle()
        assert len(seen) == 1
        assert peer_sink.lost == []
        assert peer_sink.batches == batches
        channel.abort()
        server.listener.close()

    case4.run(scenario())


def test_dial_to_a_closed_port_is_refused_quickly_in_words(case: Case) -> None:
    async def scenario() -> None:
        server = await case.listen()
        port = server.listener.address[1]
        server.listener.close()
        started = asyncio.get_running_loop().time()
        with pytest.raises(TransportError, match="connection refused"):
            await transport(case.name).dial(case.candidate(port), case.settings)
        assert asyncio.get_running_loop().time() - started < 1.0

    case.run(scenario())


@linux_only
def test_local_address_is_seen_by_the_server(case4: Case) -> None:
    async def scenario() -> None:
        server = await case4.listen()
        channel, _ = await case4.dial(server, local_address="127.0.0.2")
        channel.write([b"."], 0)
        channel.flush()
        await server.sink()
        assert channel.info.local.startswith("127.0.0.2:")
        assert server.channels[0].info.remote == channel.info.local
        channel.abort()
        server.listener.close()

    case4.run(scenario())


@linux_only
def test_binding_to_a_device_works_without_an_address(case: Case) -> None:
    async def scenario() -> None:
        server = await case.listen()
        channel, _ = await case.dial(server, interface="lo")
        channel.write([b"."], 0)
        channel.flush()
        assert await (await server.sink()).until_received(1) == b"."
        assert channel.info.interface == "lo"
        channel.abort()
        server.listener.close()

    case.run(scenario())


def test_unknown_interface_and_foreign_address_are_clear_errors(case4: Case) -> None:
    async def scenario() -> None:
        dial = transport(case4.name).dial
        with pytest.raises(TransportError, match="cannot bind to interface nosuch0: no such interface"):
            await dial(case4.candidate(1, interface="nosuch0"), case4.settings)
        with pytest.raises(TransportError, match=r"cannot bind to 192\.0\.2\.1: address is not available"):
            await dial(case4.candidate(1, local_address="192.0.2.1"), case4.settings)

    case4.run(scenario())


@linux_only
def test_cancelled_dial_leaves_no_socket(case4: Case) -> None:
    async def scenario() -> None:
        # Nobody answers: a bound UDP socket that is not read, or a TCP listener whose queue is full.
        silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        silent.bind(("127.0.0.1", 0))
        candidate = case4.candidate(silent.getsockname()[1])
        full = None
        if not transport_type(case4.name).over_udp:
            full = full_listener()
            candidate = case4.candidate(full[0].getsockname()[1])
        gc.collect()
        before = open_descriptors()
        dials = [asyncio.ensure_future(transport(case4.name).dial(candidate, case4.settings)) for _ in range(20)]
        await until(lambda: open_descriptors() == before + 20)
        for task in dials:
            task.cancel()
        results = await asyncio.gather(*dials, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        await settle()
        assert open_descriptors() == before
        silent.close()
        for sock in full or []:
            sock.close()

    case4.run(scenario())


def full_listener() -> list[socket.socket]:
    """A TCP listener whose queue is full: further SYNs are dropped and connecting hangs."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    held = [listener]
    for _ in range(3):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(listener.getsockname())
        held.append(sock)
    return held


def test_twenty_concurrent_dials_all_carry_data(case4: Case) -> None:
    async def scenario() -> None:
        server = await case4.listen()
        pairs = await asyncio.gather(*(case4.dial(server) for _ in range(20)))
        for number, (channel, _) in enumerate(pairs):
            channel.write([b"%04d" % number], 0)
            channel.flush()
        received = set()
        for index in range(20):
            received.add(await (await server.sink(index)).until_received(4))
        assert received == {b"%04d" % number for number in range(20)}
        for channel, _ in pairs:
            channel.abort()
        server.listener.close()

    case4.run(scenario())


def test_listening_on_a_used_port_is_a_clear_error(case: Case) -> None:
    async def scenario() -> None:
        server = await case.listen()
        port = server.listener.address[1]
        with pytest.raises(TransportError, match=f"cannot listen on .*:{port}: address already in use"):
            await case.listen(port=port)
        server.listener.close()

    case.run(scenario())


def test_dual_stack_listener_serves_both_families(name: str, request: pytest.FixtureRequest) -> None:
    if not ipv6_works():
        pytest.skip("no IPv6 loopback here")
    client, server_settings = settings_of(name, request)
    case6 = Case(name.partition("+")[0], Family.IPV6, "asyncio", client, server_settings)
    case4 = replace(case6, family=Family.IPV4)

    async def scenario() -> None:
        server = await case6.listen("::")
        for index, case in enumerate([case4, case6]):
            channel, _ = await case.dial(server)
            channel.write([b"hello"], 0)
            channel.flush()
            assert await (await server.sink(index)).until_received(5) == b"hello"
            assert server.channels[index].info.family is case.family
            assert server.channels[index].info.remote == channel.info.local
            assert server.channels[index].info.local == channel.info.remote
            channel.abort()
        server.listener.close()

    case6.run(scenario())


def test_closing_the_listener_leaves_accepted_channels_alone(case4: Case) -> None:
    async def scenario() -> None:
        server, channel, sink, peer, peer_sink = await case4.pair()
        server.listener.close()
        server.listener.close()
        channel.write([b"still here"], 0)
        channel.flush()
        assert await peer_sink.until_received(10) == b"still here"
        peer.write([b"me too"], 0)
        peer.flush()
        assert await sink.until_received(6) == b"me too"
        channel.abort()
        await peer_sink.until_lost()

    case4.run(scenario())


@linux_only
def test_no_descriptor_is_left_after_many_channels(case4: Case) -> None:
    async def scenario() -> None:
        gc.collect()
        before = open_descriptors()
        server = await case4.listen()
        for index in range(10):
            channel, sink = await case4.dial(server)
            channel.write([b"."], 0)
            channel.flush()
            peer_sink = await server.sink(index)
            await peer_sink.until_received(1)
            if index % 2:
                channel.close()
                await sink.until_lost()
            else:
                channel.abort()
            await peer_sink.until_lost()
        server.listener.close()
        await until(lambda: open_descriptors() == before)

    case4.run(scenario())


@linux_only
def test_running_out_of_descriptors_is_an_error_and_the_server_survives(case4: Case) -> None:
    async def scenario() -> None:
        server = await case4.listen()
        with no_descriptors(), pytest.raises(TransportError, match="too many open files"):
            await transport(case4.name).dial(case4.candidate(server.listener.address[1]), case4.settings)
        if not transport_type(case4.name).over_udp:
            # One descriptor: the client gets it, and the listener turns it away with the one it spares for that.
            with one_descriptor():
                with suppress(TransportError):  # where the server has to say something before a connection is open
                    _, sink = await case4.dial(server)
                    await sink.until_lost()
                assert server.channels == []
        index = len(server.sinks)
        channel, _ = await case4.dial(server)
        channel.write([b"alive"], 0)
        channel.flush()
        assert await (await server.sink(index)).until_received(5) == b"alive"
        channel.abort()
        server.listener.close()

    case4.run(scenario())


def test_unknown_congestion_control_is_an_error(case4: Case) -> None:
    if transport_type(case4.name).over_udp:
        pytest.skip("its settings take those of the engine only")
    given = case4.settings.sections.get(case4.name, transport_type(case4.name).settings())
    if "congestion" not in type(given).model_fields:
        pytest.skip("nothing can be chosen")
    sections = {case4.name: given.model_copy(update={"congestion": "nosuch"})}
    settings = replace(case4.settings, sections=sections)

    async def scenario() -> None:
        server = await case4.listen()
        candidate = case4.candidate(server.listener.address[1])
        with pytest.raises(
            TransportError, match=r"congestion control 'nosuch' is not available; available: .*(reno|cubic)"
        ):
            await transport(case4.name).dial(candidate, settings)
        server.listener.close()

    case4.run(scenario())


async def settle() -> None:
    """Let everything that is ready happen, several turns deep: there is no event for "nothing"."""
    for _ in range(20):
        await asyncio.sleep(0.001)
