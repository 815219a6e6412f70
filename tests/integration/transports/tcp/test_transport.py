"""TCP and TLS over TCP: what a raw peer can do, options, and certificates."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from multi.errors import TransportError
from multi.transports import transport
from multi.transports.base import Channel, TlsSettings, TransportSettings
from multi.transports.tcp import transport as tcp_transport
from multi.transports.tcp.channel import (
    MAX_LOWAT,
    MAX_QUANTUM,
    SO_MAX_PACING_RATE,
    UNPACED,
    StreamChannel,
)
from multi.transports.tcp.settings import TcpSettings
from multi.transports.tcp.transport import SMALL_SEGMENT
from multi.transports.tcp.tuning import available_congestion_controls
from multi.transports.tls import TlsStream, handshake
from multi.types import Candidate, Family
from tests.integration.certificates import Certificates, bad_certificates, certificates_in
from tests.integration.support import pattern, until
from tests.integration.transports.test_contract import (
    Recorder,
    ipv6_works,
    settle,
    write_all,
)

PLAIN = TransportSettings()


@pytest.fixture
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates_in(tmp_path_factory.getbasetemp() / "certificates")


class RawPeer:
    """A listening socket driven by hand: it reads only when told to."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]

    async def accept(self) -> socket.socket:
        sock, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        sock.setblocking(False)
        return sock

    def close(self) -> None:
        self._listener.close()


def candidate(port: int, host: str = "127.0.0.1", name: str = "localhost") -> Candidate:
    return Candidate("tcp", Family.IPV4, name, host, port)


async def dial(port: int, settings: TransportSettings = PLAIN, name: str = "localhost") -> tuple[Channel, Recorder]:
    channel = await transport("tcp").dial(candidate(port, name=name), settings)
    sink = Recorder()
    sink.attach(channel)
    return channel, sink


@asynccontextmanager
async def raw_pair(settings: TransportSettings = PLAIN) -> AsyncIterator[tuple[Channel, Recorder, socket.socket]]:
    peer = RawPeer()
    channel, sink = await dial(peer.port, settings)
    sock = await peer.accept()
    try:
        yield channel, sink, sock
    finally:
        channel.abort()
        sock.close()
        peer.close()


class TcpServer:
    """A listener whose channels get recorders."""

    def __init__(self) -> None:
        self.channels: asyncio.Queue[tuple[Channel, Recorder]] = asyncio.Queue()

    async def listen(self, settings: TransportSettings, host: str = "127.0.0.1") -> int:
        self.listener = await transport("tcp").listen(host, 0, settings, self.accept)
        return self.listener.address[1]

    def accept(self, channel: Channel) -> None:
        sink = Recorder()
        sink.attach(channel)
        self.channels.put_nowait((channel, sink))


async def test_credit_stays_zero_and_backlog_bounded_while_the_peer_does_not_read() -> None:
    async with raw_pair() as (channel, sink, sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        data = pattern(50_000_000)
        write_all(channel, sink, data, 0, 16384)
        before = -1
        while (now := channel.sample().unacked) != before:
            before = now
            await asyncio.sleep(0.05)
        assert channel.credit() == 0
        assert channel.sample().not_sent < MAX_QUANTUM + MAX_LOWAT + 512 * 1024
        calls = sink.writable_calls
        received = bytearray()
        loop = asyncio.get_running_loop()
        while len(received) < len(data):
            received += await loop.sock_recv(sock, 1_000_000)
        assert received == data
        assert sink.writable_calls > calls


async def test_peer_that_ends_its_direction_is_reported_after_its_last_byte() -> None:
    async with raw_pair() as (channel, sink, sock):
        await asyncio.get_running_loop().sock_sendall(sock, pattern(300_000))
        sock.shutdown(socket.SHUT_WR)
        assert await sink.until_lost() is None
        assert sink.received[0] == pattern(300_000)
        assert channel.credit() == 0


async def test_reset_is_reported_in_words() -> None:
    async with raw_pair() as (_, sink, sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
        assert str(await sink.until_lost()) == "connection reset by peer"


async def test_bytes_sent_before_a_reset_of_our_writes_are_still_delivered() -> None:
    async with raw_pair() as (channel, sink, sock):
        await asyncio.get_running_loop().sock_sendall(sock, b"last words")
        sock.close()
        for _ in range(3):
            channel.write([b"are you there?"], 0)
            channel.flush()
        await sink.until_lost()
        assert sink.received[0] == b"last words"
        assert len(sink.lost) == 1


async def test_close_gives_up_after_a_second_without_the_peers_end() -> None:
    async with raw_pair() as (channel, sink, sock):
        channel.write([b"bye"], 0)
        started = asyncio.get_running_loop().time()
        channel.close()
        assert await sink.until_lost() is None
        assert asyncio.get_running_loop().time() - started > 0.9
        assert sock.recv(10) == b"bye"
        assert sock.recv(10) == b""


async def test_close_reads_and_forgets_so_that_nothing_is_reset() -> None:
    async with raw_pair() as (channel, sink, sock):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, pattern(50_000))
        channel.write([pattern(100_000, 2)], 0)
        channel.close()
        received = b""
        while part := await loop.sock_recv(sock, 65536):
            received += part
        assert received == pattern(100_000, 2)
        sock.shutdown(socket.SHUT_WR)
        assert await sink.until_lost() is None
        assert sink.received == {}


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
async def test_every_option_of_the_configuration_is_taken_by_the_kernel() -> None:
    congestion = available_congestion_controls()[0]
    settings = replace(PLAIN, sections={"tcp": TcpSettings(nagle=True, idle_timeout=20, congestion=congestion)})
    server = TcpServer()
    port = await server.listen(settings)
    channel, _ = await dial(port, settings)
    channel.write([b"hello"], 0)
    channel.flush()
    _, sink = await server.channels.get()
    assert await sink.until_received(5) == b"hello"
    channel.abort()
    server.listener.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
async def test_inside_this_machine_nothing_is_paced(host: str) -> None:
    """Unless the configuration names a congestion control, both ends leave one that paces, as BBR does."""

    def control_of(channel: Channel) -> bytes:
        assert isinstance(channel, StreamChannel)
        return channel._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")

    for configured in ("", "cubic"):
        if configured and configured not in available_congestion_controls():
            continue
        server = TcpServer()
        port = await server.listen(replace(PLAIN, sections={"tcp": TcpSettings(congestion=configured)}), host)
        channel, _ = await dial(port, replace(PLAIN, sections={"tcp": TcpSettings(congestion=configured)}))
        accepted, _ = await server.channels.get()
        expected = (configured or "reno").encode()
        assert (control_of(channel), control_of(accepted)) == (expected, expected)
        channel.abort()
        accepted.abort()
        server.listener.close()


@pytest.mark.skipif(sys.platform != "linux", reason="SO_MAX_PACING_RATE is Linux only")
async def test_the_kernel_paces_as_it_is_told_until_it_is_told_otherwise() -> None:
    def told() -> int:
        assert isinstance(channel, StreamChannel)
        return int.from_bytes(channel._sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8), sys.byteorder)

    async with raw_pair() as (channel, _, _peer):
        assert told() == UNPACED
        assert isinstance(channel, StreamChannel)
        channel.pace(3e6)
        assert told() == 3_000_000
        channel.pace(3.1e6)
        assert told() == 3_000_000, "hardly a change"
        channel.pace(30e9)
        assert told() == 30_000_000_000
        channel.pace(0.0)
        assert told() == UNPACED


@pytest.mark.skipif(not ipv6_works(), reason="no IPv6 loopback here")
async def test_missing_route_names_the_interface() -> None:
    # 2001:db8::/32 is reserved for documentation: nothing on the loopback device leads there.
    nowhere = Candidate("tcp", Family.IPV6, "nowhere", "2001:db8::1", 9, interface="lo")
    with pytest.raises(TransportError, match=r"^network is unreachable through lo$"):
        await transport("tcp").dial(nowhere, PLAIN)


async def test_both_ends_send_small_segments_where_that_is_asked_for() -> None:
    peer = RawPeer()
    channel = await transport("tcp").dial(replace(candidate(peer.port), small=True), PLAIN)
    sock = await peer.accept()
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= SMALL_SEGMENT  # on loopback else: 32 KiB and more
    channel.abort()
    sock.close()
    peer.close()


# TLS


async def test_tls_facts_are_the_same_on_both_sides(files: Certificates) -> None:
    server = TcpServer()
    port = await server.listen(files.server_settings())
    channel, sink = await dial(port, files.client_settings())
    peer, peer_sink = await server.channels.get()
    assert channel.info.secure
    assert peer.info.secure
    assert channel.info.peer_verified
    assert not peer.info.peer_verified
    assert len(channel.info.channel_binding) == 32
    assert channel.info.channel_binding == peer.info.channel_binding
    assert channel.info.peer_certificate
    assert "TLSv1.3" in channel.info.detail
    write_all(channel, sink, pattern(3_000_000), 0, 16429)
    assert await peer_sink.until_received(3_000_000) == pattern(3_000_000)
    channel.abort()
    server.listener.close()


@bad_certificates
async def test_bad_certificates_are_refused_in_words(
    files: Certificates, server_certificate: str, authority: str, name: str, reason: str
) -> None:
    server = TcpServer()
    port = await server.listen(files.server_settings(server_certificate))
    settings = TransportSettings(tls=TlsSettings(ca=files.directory / authority))
    with pytest.raises(TransportError, match=reason):
        await dial(port, settings, name)
    await settle()
    assert server.channels.empty()
    server.listener.close()


async def test_server_certificate_itself_can_be_the_trusted_one(files: Certificates) -> None:
    server = TcpServer()
    port = await server.listen(files.server_settings())
    channel, _ = await dial(port, TransportSettings(tls=TlsSettings(ca=files.cert("server"))))
    assert channel.info.peer_verified
    channel.abort()
    server.listener.close()


async def test_client_certificate_is_required_and_verified(files: Certificates) -> None:
    server = TcpServer()
    port = await server.listen(files.server_settings(client_ca=files.ca))
    tls = TlsSettings(ca=files.ca, cert=files.cert("client"), key=files.key("client"))
    channel, _ = await dial(port, TransportSettings(tls=tls))
    peer, _ = await server.channels.get()
    assert peer.info.peer_verified
    assert peer.info.peer_certificate
    assert peer.info.channel_binding == channel.info.channel_binding
    channel.abort()
    # TLS 1.3 lets the client finish first: it learns of the refusal from its first read.
    _, sink = await dial(port, files.client_settings())
    assert str(await sink.until_lost()) == "the peer requires a certificate"
    assert server.channels.empty()
    server.listener.close()


async def test_tls_that_is_not_answered_is_tried_with_small_segments_too(
    files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_transport, "SMALL_AFTER", 0.02)
    asked: list[bool] = []

    async def swallowed(secure: TlsStream, host: str) -> None:
        small = secure.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= SMALL_SEGMENT
        asked.append(small)
        if not small:
            await asyncio.sleep(60.0)
        await handshake(secure, host)

    monkeypatch.setattr(tcp_transport, "handshake", swallowed)
    accepted: asyncio.Queue[Channel] = asyncio.Queue()
    listener = await transport("tcp").listen("127.0.0.1", 0, files.server_settings(), accepted.put_nowait)
    channel, _ = await dial(listener.address[1], files.client_settings())
    assert asked == [False, True]
    assert channel.info.secure
    channel.abort()
    (await accepted.get()).abort()
    listener.close()


async def test_plain_server_is_recognised_by_a_tls_client(files: Certificates) -> None:
    peer = RawPeer()
    dialling = asyncio.ensure_future(dial(peer.port, files.client_settings()))
    sock = await peer.accept()
    await asyncio.get_running_loop().sock_sendall(sock, b"MULTI here, what do you want?")
    with pytest.raises(TransportError, match="the peer does not speak TLS"):
        await dialling
    dialling = asyncio.ensure_future(dial(peer.port, files.client_settings()))
    (await peer.accept()).close()
    with pytest.raises(TransportError, match="may not speak TLS"):
        await dialling
    sock.close()
    peer.close()


async def test_plain_client_of_a_tls_server_is_handed_on_as_not_secure(files: Certificates) -> None:
    server = TcpServer()
    port = await server.listen(files.server_settings())
    channel, sink = await dial(port)
    channel.write([b"plain"], 0)
    channel.flush()
    peer, peer_sink = await server.channels.get()
    assert await peer_sink.until_received(5) == b"plain"
    assert not peer.info.secure
    assert not peer.info.channel_binding
    peer.write([b"please use TLS"], 0)
    peer.close()
    assert await sink.until_received(14) == b"please use TLS"
    assert await sink.until_lost() is None
    server.listener.close()


async def test_tls_1_2_and_other_protocols_are_refused(files: Certificates) -> None:
    server = TcpServer()
    port = await server.listen(files.server_settings())
    old = ssl.create_default_context(cafile=str(files.ca))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_alpn_protocols(["multi/1"])
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection("127.0.0.1", port, ssl=old, server_hostname="localhost")
    other = ssl.create_default_context(cafile=str(files.ca))
    other.set_alpn_protocols(["http/1.1"])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=other, server_hostname="localhost")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    assert server.channels.empty()
    server.listener.close()


async def test_connection_cut_inside_tls_is_not_taken_for_an_orderly_end(files: Certificates) -> None:
    server = TcpServer()
    port = await server.listen(files.server_settings())
    context = ssl.create_default_context(cafile=str(files.ca))
    context.set_alpn_protocols(["multi/1"])
    raw = socket.create_connection(("127.0.0.1", port))
    raw.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=raw, ssl=context, server_hostname="localhost")
    _, sink = await server.channels.get()
    writer.write(b"half a ")
    await writer.drain()
    await sink.until_received(7)
    raw.shutdown(socket.SHUT_WR)
    error = await sink.until_lost()
    assert error is not None
    assert (str(error), error.errno) == ("connection cut off without a TLS goodbye", errno.ECONNRESET)
    writer.transport.abort()
    assert not reader.at_eof()
    server.listener.close()


async def test_unusable_files_are_named(files: Certificates, tmp_path: Path) -> None:
    server = TcpServer()
    for tls in (TlsSettings(), TlsSettings(cert=files.cert("server"))):
        with pytest.raises(TransportError, match=r"TLS needs ssl_config\.cert and ssl_config\.key"):
            await server.listen(TransportSettings(tls=tls))
    missing = tmp_path / "nothing.pem"
    with pytest.raises(TransportError, match=r"cannot read .*nothing\.pem: no such file"):
        await server.listen(TransportSettings(tls=TlsSettings(cert=files.cert("server"), key=missing)))
    with pytest.raises(TransportError, match=r"client-key\.pem is not the private key of"):
        await server.listen(TransportSettings(tls=TlsSettings(cert=files.cert("server"), key=files.key("client"))))
    with pytest.raises(TransportError, match=r"cannot read .*nothing\.pem: no such file"):
        await dial(1, TransportSettings(tls=TlsSettings(ca=missing)))


async def test_unknown_progress_of_a_closed_channel_is_an_empty_sample() -> None:
    async with raw_pair() as (channel, _, _):
        channel.write([b"x"], 0)
        channel.flush()
        await until(lambda: channel.sample().bytes_acked == 1)
        channel.abort()
        assert channel.sample().unacked == 0
