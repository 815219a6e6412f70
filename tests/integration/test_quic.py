"""QUIC: certificates, lanes, retry, loss, slow networks and what strangers can do to a server."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aioquic._buffer import Buffer
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType, pull_quic_header

from multi.config import load_config
from multi.errors import TransportError
from multi.transports import transport
from multi.transports.base import Channel, Listener, TlsSettings, TransportSettings
from multi.transports.quic import transport as quic_transport
from multi.transports.quic.settings import QuicSettings
from multi.transports.tls import ALPN
from multi.types import Candidate, Family
from tests.engines import engine_or_skip
from tests.integration.certificates import Certificates, bad_certificates, certificates_in
from tests.integration.test_transport_contract import Recorder, pattern, until, write_all


class Engines:
    """Which engine the client and the server of a test use."""

    client = "aioquic"
    server = "aioquic"


ENGINES = {
    "aioquic": ("aioquic", "aioquic"),
    "qh3": ("qh3", "qh3"),
    "aioquic to qh3": ("aioquic", "qh3"),
    "qh3 to aioquic": ("qh3", "aioquic"),
    "noq": ("noq", "noq"),
    "aioquic to noq": ("aioquic", "noq"),
    "noq to aioquic": ("noq", "aioquic"),
}


@pytest.fixture(params=ENGINES, autouse=True)
def engines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engines:
    client, server = ENGINES[request.param]
    for engine in (client, server):
        engine_or_skip(engine)
    monkeypatch.setattr(Engines, "client", client)
    monkeypatch.setattr(Engines, "server", server)
    return Engines()


def using(settings: TransportSettings, engine: str) -> TransportSettings:
    quic = settings.section("quic", QuicSettings).model_copy(update={"engine": engine})
    return replace(settings, sections={"quic": quic})


@pytest.fixture
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates_in(tmp_path_factory.getbasetemp() / "certificates")


def candidate(port: int, host: str = "127.0.0.1", name: str = "localhost") -> Candidate:
    return Candidate("quic", Family.IPV4, name, host, port)


class QuicServer:
    """A listener whose channels get recorders."""

    def __init__(self) -> None:
        self.channels: asyncio.Queue[tuple[Channel, Recorder]] = asyncio.Queue()
        self.listener: Listener

    async def listen(self, settings: TransportSettings, host: str = "127.0.0.1") -> int:
        self.listener = await transport("quic").listen(host, 0, using(settings, Engines.server), self.accept)
        return self.listener.address[1]

    def accept(self, channel: Channel) -> None:
        sink = Recorder()
        sink.attach(channel)
        self.channels.put_nowait((channel, sink))


async def dial(
    settings: TransportSettings, port: int, host: str = "127.0.0.1", name: str = "localhost"
) -> tuple[Channel, Recorder]:
    channel = await transport("quic").dial(candidate(port, host, name), using(settings, Engines.client))
    sink = Recorder()
    sink.attach(channel)
    return channel, sink


class Relay:
    """A UDP relay in front of a server: loses packets by seed, holds them back to a rate."""

    def __init__(self, server_port: int, loss: float = 0.0, rate: float = 0.0, queue: int = 100_000) -> None:
        self._server = ("127.0.0.1", server_port)
        self._loss, self._rate, self._queue = loss, rate, queue
        self._random = random.Random(1)
        self._client: tuple[str, int] | None = None
        self._free_at = {True: 0.0, False: 0.0}
        self.dropped = 0

    async def open(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._front, _ = await self._loop.create_datagram_endpoint(
            lambda: _RelayEnd(self._from_client), local_addr=("127.0.0.1", 0)
        )
        self._back, _ = await self._loop.create_datagram_endpoint(
            lambda: _RelayEnd(self._from_server), remote_addr=self._server
        )
        return int(self._front.get_extra_info("sockname")[1])

    def close(self) -> None:
        self._front.close()
        self._back.close()

    def _from_client(self, data: bytes, address: tuple[str, int]) -> None:
        self._client = address
        self._pass(data, True, lambda: self._back.sendto(data))

    def _from_server(self, data: bytes, address: tuple[str, int]) -> None:
        self._pass(data, False, lambda: self._front.sendto(data, self._client))

    def _pass(self, data: bytes, up: bool, send: Callable[[], None]) -> None:
        now = self._loop.time()
        waiting = max(0.0, self._free_at[up] - now)
        if self._random.random() < self._loss or waiting * self._rate > self._queue:
            self.dropped += 1
        elif self._rate:
            self._free_at[up] = now + waiting + len(data) / self._rate
            self._loop.call_at(self._free_at[up], send)
        else:
            send()


class _RelayEnd(asyncio.DatagramProtocol):
    def __init__(self, received: Callable[[bytes, tuple[str, int]], None]) -> None:
        self._received = received

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._received(data, addr)


async def test_certificate_facts_are_the_same_on_both_sides(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    channel, _ = await dial(files.client_settings(), port)
    peer, _ = await server.channels.get()
    assert channel.info.secure
    assert peer.info.secure
    assert channel.info.peer_verified
    assert not peer.info.peer_verified
    assert len(channel.info.channel_binding) == 32
    assert channel.info.channel_binding == peer.info.channel_binding
    assert channel.info.peer_certificate
    assert not peer.info.peer_certificate
    channel.abort()
    server.listener.close()


async def test_two_connections_with_one_certificate_are_told_apart(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    channels = [(await dial(files.client_settings(), port))[0] for _ in range(2)]
    peers = [(await server.channels.get())[0] for _ in range(2)]
    assert len({channel.info.channel_binding for channel in channels}) == 2
    assert {c.info.channel_binding for c in channels} == {p.info.channel_binding for p in peers}
    for channel in channels:
        channel.abort()
    server.listener.close()


async def test_verification_can_be_switched_off_and_is_then_not_claimed(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings("expired"))
    channel, _ = await dial(TransportSettings(tls=TlsSettings(verify=False)), port, name="elsewhere.example")
    assert not channel.info.peer_verified
    assert channel.info.channel_binding
    channel.abort()
    server.listener.close()


@bad_certificates
async def test_bad_certificates_are_refused_in_words(
    files: Certificates, server_certificate: str, authority: str, name: str, reason: str
) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings(server_certificate))
    settings = TransportSettings(tls=TlsSettings(ca=files.directory / authority))
    with pytest.raises(TransportError, match=reason):
        await dial(settings, port, name=name)
    assert server.channels.empty()
    server.listener.close()


async def test_missing_settings_are_named(files: Certificates, tmp_path: Path) -> None:
    server = QuicServer()
    for tls in (None, TlsSettings(), TlsSettings(cert=files.cert("server"))):
        with pytest.raises(TransportError, match=r"QUIC needs ssl_config\.cert and ssl_config\.key"):
            await server.listen(TransportSettings(tls=tls))
    with pytest.raises(TransportError, match=r"cannot read .*nothing\.pem: no such file"):
        await dial(TransportSettings(tls=TlsSettings(ca=tmp_path / "nothing.pem")), 1)
    with pytest.raises(TransportError, match="holds no usable PEM certificate"):
        await dial(TransportSettings(tls=TlsSettings(ca=files.key("server"))), 1)


@pytest.mark.parametrize("tls", [None, TlsSettings()], ids=["without ssl_config", "without ca"])
async def test_the_systems_authorities_are_trusted_where_none_is_named(
    tls: TlsSettings | None, files: Certificates, engines: Engines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    settings = replace(files.client_settings(), tls=tls)
    with monkeypatch.context() as patched:
        patched.setenv("SSL_CERT_FILE", str(files.directory / "other-ca.pem"))
        patched.setenv("SSL_CERT_DIR", str(files.directory / "none"))
        with pytest.raises(TransportError, match="has an unknown issuer"):
            await dial(settings, port)
        patched.setenv("SSL_CERT_FILE", str(files.directory / "none"))
        with pytest.raises(TransportError, match=r"this system trusts no authority: QUIC needs ssl_config\.ca"):
            await dial(settings, port)
        patched.setenv("SSL_CERT_FILE", str(files.ca))
        channel, _ = await dial(settings, port)
        channel.abort()
        # A directory counts as well as a file, and what cannot be read there hides nothing.
        hashed = tmp_path / "hashed"
        hashed.mkdir()
        (hashed / "00000000.0").symlink_to(tmp_path / "nowhere")
        (hashed / "11111111.0").write_bytes(files.ca.read_bytes())
        (hashed / "22222222.0").mkdir()
        patched.setenv("SSL_CERT_FILE", str(files.directory / "other-ca.pem"))
        patched.setenv("SSL_CERT_DIR", str(hashed))
        channel, _ = await dial(settings, port)
    channel.abort()
    server.listener.close()


async def test_client_certificate_is_required_and_verified(files: Certificates, engines: Engines) -> None:
    if engines.server == "qh3":
        with pytest.raises(TransportError, match="the QUIC engine 'qh3' cannot ask clients for certificates"):
            await QuicServer().listen(files.server_settings(client_ca=files.ca))
        return
    server = QuicServer()
    port = await server.listen(files.server_settings(client_ca=files.ca))
    tls = TlsSettings(ca=files.ca, cert=files.cert("client"), key=files.key("client"))
    channel, _ = await dial(TransportSettings(tls=tls), port)
    peer, _ = await server.channels.get()
    assert peer.info.peer_verified
    assert peer.info.peer_certificate
    channel.abort()
    nobody, sink = await dial(files.client_settings(), port)
    error = await sink.until_lost()
    assert error is not None
    assert str(error).endswith("the server did not accept the client's certificate, or there was none")
    assert server.channels.empty()
    nobody.abort()
    server.listener.close()


async def test_silent_server_times_out_in_words(files: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quic_transport, "HANDSHAKE_TIMEOUT", 0.1)
    loop = asyncio.get_running_loop()
    silent, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
    with pytest.raises(TransportError, match="timed out: no answer to the QUIC handshake"):
        await dial(files.client_settings(), silent.get_extra_info("sockname")[1])
    silent.close()


async def test_retry_validates_the_address_first(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(replace(files.server_settings(), sections={"quic": QuicSettings(retry=True)}))
    channel, sink = await dial(files.client_settings(), port)
    peer, peer_sink = await server.channels.get()
    write_all(channel, sink, pattern(100_000), 1, 5000)
    assert await peer_sink.until_received(100_000, 1) == pattern(100_000)
    channel.abort()
    peer.abort()
    server.listener.close()


@pytest.mark.parametrize(("configured", "answer"), [({"retry": True}, "RETRY"), ({}, "INITIAL")])
async def test_a_client_is_asked_for_its_address_first_where_the_configuration_says_so(
    configured: dict[str, bool], answer: str, files: Certificates
) -> None:
    certificate = {"cert": str(files.cert("server")), "key": str(files.key("server"))}
    config = load_config({"listen": {"transports": ["quic"]}, "ssl_config": certificate, "quic_config": configured})
    server = QuicServer()
    port = await server.listen(config.transport_settings())
    engine = QuicConnection(configuration=QuicConfiguration(alpn_protocols=[ALPN]))
    engine.connect(("127.0.0.1", port), now=0.0)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(("127.0.0.1", port))
        await loop.sock_sendall(sock, engine.datagrams_to_send(now=0.0)[0][0])
        received = await asyncio.wait_for(loop.sock_recv(sock, 2048), 5)
    assert pull_quic_header(Buffer(data=received), host_cid_length=8).packet_type is QuicPacketType[answer]
    server.listener.close()


async def test_server_may_speak_first_on_either_lane(files: Certificates, engines: Engines) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    channel, sink = await dial(files.client_settings(), port)
    peer, peer_sink = await server.channels.get()
    peer.write([b"data first"], 1)
    peer.write([b"then control"], 0)
    peer.flush()
    assert await sink.until_received(10, 1) == b"data first"
    if engines.server == "qh3":  # it waits until the client has written there
        channel.write([b"hello"], 0)
        channel.flush()
    assert await sink.until_received(12, 0) == b"then control"
    channel.write([b"answer"], 1)
    channel.flush()
    assert await peer_sink.until_received(6, 1) == b"answer"
    channel.abort()
    server.listener.close()


async def test_wildcard_server_answers_from_the_address_it_was_reached_at(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings(), "0.0.0.0")
    # The client's socket is connected: an answer from any other address would not reach it.
    channel, _ = await dial(files.client_settings(), port, "127.0.0.3")
    peer, _ = await server.channels.get()
    assert peer.info.local == channel.info.remote == f"127.0.0.3:{port}"
    channel.abort()
    server.listener.close()


async def test_data_survives_loss(files: Certificates) -> None:
    server = QuicServer()
    relay = Relay(await server.listen(files.server_settings()), loss=0.03)
    channel, sink = await dial(files.client_settings(), await relay.open())
    peer, peer_sink = await server.channels.get()
    up, down = pattern(1_500_000, 1), pattern(1_500_000, 2)
    write_all(channel, sink, up, 1, 16384)
    write_all(peer, peer_sink, down, 1, 16384)
    assert await peer_sink.until_received(len(up), 1) == up
    assert await sink.until_received(len(down), 1) == down
    assert relay.dropped > 10
    await until(lambda: channel.sample().bytes_acked >= len(up))
    channel.close()
    assert await peer_sink.until_lost() is None
    assert await sink.until_lost() is None
    server.listener.close()
    relay.close()


async def test_backlog_stays_small_on_a_slow_network(files: Certificates) -> None:
    server = QuicServer()
    rate = 2_000_000.0
    relay = Relay(await server.listen(files.server_settings()), rate=rate, queue=60_000)
    channel, sink = await dial(files.client_settings(), await relay.open())
    _, peer_sink = await server.channels.get()
    backlog = [0]
    size = 3_000_000
    data = pattern(size)

    def watch(chunk: bytes, lane: int) -> None:
        backlog.append(channel.sample().not_sent)

    peer_sink.on_data = watch
    write_all(channel, sink, data, 1, 16384)
    assert await peer_sink.until_received(size, 1) == data
    # What is lost waits unsent again, so the bound holds beyond what was granted.
    assert max(backlog) < 300_000
    assert sink.writable_calls > 10
    sample = channel.sample()
    assert rate / 3 < sample.rate < rate * 2
    channel.abort()
    server.listener.close()
    relay.close()


async def test_datagrams_may_be_as_large_as_the_path_allows(files: Certificates) -> None:
    large = {"quic": QuicSettings(max_datagram_size=65_527)}
    server = QuicServer()
    port = await server.listen(replace(files.server_settings(), sections=large))
    channel, sink = await dial(replace(files.client_settings(), sections=large), port)
    peer, peer_sink = await server.channels.get()
    data = pattern(1_000_000)
    write_all(channel, sink, data, 1, 50_000)
    write_all(peer, peer_sink, data, 1, 50_000)
    assert await peer_sink.until_received(len(data), 1) == data
    assert await sink.until_received(len(data), 1) == data
    channel.abort()
    server.listener.close()


async def test_idle_connection_ends_in_words(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    channel, sink = await dial(
        replace(files.client_settings(), sections={"quic": QuicSettings(idle_timeout=0.3)}), port
    )
    error = await sink.until_lost()
    assert "idle timeout" in str(error)
    assert channel.credit() == 0
    assert len(sink.lost) == 1
    server.listener.close()


async def test_abort_reads_as_abort_on_the_other_side(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    channel, _ = await dial(files.client_settings(), port)
    _, peer_sink = await server.channels.get()
    channel.abort()
    assert "aborted by peer" in str(await peer_sink.until_lost())
    channel, sink = await dial(files.client_settings(), port)
    peer, _ = await server.channels.get()
    peer.abort()
    assert "aborted by peer" in str(await sink.until_lost())
    server.listener.close()


async def test_an_ending_is_no_warning(files: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    _, sink = await dial(files.client_settings(), port)
    peer, _ = await server.channels.get()
    peer.abort()
    await sink.until_lost()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []
    server.listener.close()


async def test_closed_listener_refuses_new_connections_and_keeps_old_ones(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    channel, _ = await dial(files.client_settings(), port)
    _, peer_sink = await server.channels.get()
    server.listener.close()
    with pytest.raises(TransportError, match="connection refused"):
        await dial(files.client_settings(), port)
    channel.write([b"still"], 1)
    channel.flush()
    assert await peer_sink.until_received(5, 1) == b"still"
    channel.abort()
    await peer_sink.until_lost()


DYING_SERVER = """
import asyncio, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.integration.certificates import Certificates
from tests.integration.test_quic import QuicServer
async def main():
    print(await QuicServer().listen(Certificates(Path({directory!r})).server_settings()), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_killed_server_is_noticed_at_once(files: Certificates) -> None:
    root = str(Path(__file__).parents[2])
    code = DYING_SERVER.format(root=root, directory=str(files.directory))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        channel, sink = await dial(files.client_settings(), port)
        process.kill()
        await process.wait()
        channel.write([b"anybody there?"], 0)
        channel.flush()
        error = await asyncio.wait_for(sink.until_lost(), 5)
        assert str(error) == "connection refused"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def stranger(alpn: str = "multi/1") -> QuicConfiguration:
    return QuicConfiguration(is_client=True, alpn_protocols=[alpn], verify_mode=ssl.CERT_NONE)


@pytest.mark.parametrize("unidirectional", [True, False])
async def test_stream_that_is_no_lane_closes_the_connection(files: Certificates, unidirectional: bool) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    async with connect("127.0.0.1", port, configuration=stranger()) as client:
        _, sink = await server.channels.get()
        client._quic._remote_max_streams_bidi = client._quic._remote_max_streams_uni = 128  # whatever the server says
        count = 1 if unidirectional else 3
        for number in range(count):
            _, writer = await client.create_stream(is_unidirectional=unidirectional)
            writer.write(b"\x01" if number else b"first")
        reason = str(await sink.until_lost())
        assert "no lane" in reason or "too many streams" in reason.lower() or "stream limit" in reason
        assert len(sink.lost) == 1
        await client.wait_closed()
    server.listener.close()


class ResettingClient(QuicConnectionProtocol):
    def say(self, stream_id: int, data: bytes) -> None:
        self._quic.send_stream_data(stream_id, data)
        self.transmit()

    def reset(self, stream_id: int) -> None:
        self._quic.reset_stream(stream_id, 7)
        self.transmit()


async def test_stream_reset_by_a_stranger_closes_the_connection(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    async with connect("127.0.0.1", port, configuration=stranger(), create_protocol=ResettingClient) as client:
        assert isinstance(client, ResettingClient)
        _, sink = await server.channels.get()
        client.say(0, b"hello")
        assert await sink.until_received(5) == b"hello"
        client.reset(0)
        assert "gave up a QUIC stream" in str(await sink.until_lost())
        await client.wait_closed()
    server.listener.close()


async def test_other_application_protocol_is_not_accepted(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    with pytest.raises(ConnectionError):
        async with connect("127.0.0.1", port, configuration=stranger("h3")):
            pass
    assert server.channels.empty()
    channel, _ = await dial(files.client_settings(), port)
    channel.abort()
    server.listener.close()


async def test_unknown_version_is_negotiated(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    configuration = stranger()
    configuration.supported_versions = [0x1A2A3A4A, 1]
    configuration.original_version = 0x1A2A3A4A
    async with connect("127.0.0.1", port, configuration=configuration) as client:
        await server.channels.get()
        client.close()
    server.listener.close()


async def test_garbage_does_not_disturb_the_server(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings())
    loop = asyncio.get_running_loop()
    noise = random.Random(5)
    sender, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=("127.0.0.1", port))
    for first in [*range(0, 256, 16), 0xC3, 0xFF, 0x40]:
        sender.sendto(bytes([first]) + noise.randbytes(noise.choice([0, 1, 20, 300, 1199, 1300])))
        sender.sendto(bytes([first, 0, 0, 0, 1, 8]) + noise.randbytes(1250))
    channel, sink = await dial(files.client_settings(), port)
    peer, peer_sink = await server.channels.get()
    write_all(channel, sink, pattern(10_000), 0, 1000)
    assert await peer_sink.until_received(10_000) == pattern(10_000)
    channel.abort()
    peer.abort()
    sender.close()
    server.listener.close()


@pytest.mark.parametrize("length", [0, 7])
async def test_first_packet_without_a_proper_id_leaves_no_trace(files: Certificates, length: int) -> None:
    """Packets of everybody's handshake would be taken for that connection's if it had an id that is empty."""
    server = QuicServer()
    port = await server.listen(files.server_settings())
    loop = asyncio.get_running_loop()
    sender, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=("127.0.0.1", port))
    initial = bytes([0xC0, 0, 0, 0, 1, length, *range(length), 8, *range(8), 0, 0x44, 0x80])
    sender.sendto(initial.ljust(1200, b"\0"))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(3):
        channel, _ = await dial(files.client_settings(), port)
    peer, _ = await server.channels.get()
    channel.abort()
    peer.abort()
    sender.close()
    server.listener.close()


async def test_small_datagram_of_an_unknown_version_gets_no_answer(files: Certificates) -> None:
    """RFC 9000 section 6.1: an answer could be larger than what it answers."""
    server = QuicServer()
    port = await server.listen(files.server_settings())
    answers: list[int] = []

    class Asking(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: object) -> None:
            answers.append(len(data))

    loop = asyncio.get_running_loop()
    sender, _ = await loop.create_datagram_endpoint(Asking, remote_addr=("127.0.0.1", port))
    unknown = bytes([0xC0, 0x1A, 0x2A, 0x3A, 0x4A, 8, *range(8), 8, *range(8), 0, 0x44, 0x80])
    sender.sendto(unknown.ljust(100, b"\0"))
    await asyncio.sleep(0.05)
    assert not answers
    sender.sendto(unknown.ljust(1200, b"\0"))
    await until(lambda: len(answers) == 1)
    sender.close()
    server.listener.close()
