"""QUIC: certificates, addresses, retry, and what strangers can do to a server."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aioquic._buffer import Buffer
from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType, pull_quic_header

from multi.config import load_config
from multi.errors import TransportError
from multi.transports.base import TlsSettings, TransportSettings
from multi.transports.quic import transport as quic_transport
from multi.transports.quic.settings import QuicSettings
from multi.transports.tls import ALPN
from multi.types import MESSAGES
from tests.integration.certificates import Certificates, bad_certificates
from tests.integration.support import pattern, until
from tests.integration.transports.quic.ends import Engines, QuicServer, Relay, dial, stranger
from tests.integration.transports.test_contract import write_all

pytestmark = pytest.mark.usefixtures("engines")


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


async def test_a_network_that_swallows_large_packets_is_used_with_small_ones(
    files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Engines.client == Engines.server == "noq":
        pytest.skip("a handshake of noq with noq has no large packets")
    monkeypatch.setattr(quic_transport, "SMALL_AFTER", 0.05)
    server = QuicServer()
    relay = Relay(await server.listen(files.server_settings()), largest=1280 - 28)
    channel, sink = await dial(files.client_settings(), await relay.open())
    assert relay.dropped  # as usual
    peer, peer_sink = await server.channels.get()
    message = pattern(channel.info.message_size)
    assert channel.info.message_size == peer.info.message_size > 1252  # what fits no datagram there takes a lane
    data = pattern(300_000)
    write_all(channel, sink, data, 1, 16384)
    write_all(peer, peer_sink, data, 1, 16384)
    assert await peer_sink.until_received(len(data), 1) == data
    assert await sink.until_received(len(data), 1) == data
    peer.write([message], MESSAGES)
    peer.flush()
    assert await sink.until_received(len(data) + len(message), 1) == data + message
    assert channel.info.local not in relay.dropped
    channel.abort()
    peer.abort()  # it does not hear of that any more
    relay.close()
    server.listener.close()


async def test_a_network_that_begins_to_swallow_large_packets_goes_on_with_small_ones(
    files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inside one machine no packet is too large, and qh3, which would not notice, sends large ones.
    monkeypatch.setattr(quic_transport, "is_loopback", lambda host: False)
    small_at_once = "qh3" in (Engines.client, Engines.server)
    server = QuicServer()
    relay = Relay(await server.listen(files.server_settings()))
    channel, sink = await dial(files.client_settings(), await relay.open())
    peer, peer_sink = await server.channels.get()
    data, message = pattern(300_000), pattern(channel.info.message_size)
    channel.write([message], MESSAGES)
    channel.flush()
    lane, before = (1, message) if small_at_once else (MESSAGES, b"")
    assert await peer_sink.until_received(len(message), lane) == message
    relay.largest = 1280 - 28
    write_all(channel, sink, data, 1, 16384)
    write_all(peer, peer_sink, data, 1, 16384)
    before += data
    assert await peer_sink.until_received(len(before), 1) == before
    assert await sink.until_received(len(data), 1) == data
    assert bool(relay.dropped) is not small_at_once
    assert channel.info.message_size == len(message)  # what was promised, and such messages take a lane now
    channel.write([message], MESSAGES)
    channel.flush()
    before += message
    assert await peer_sink.until_received(len(before), 1) == before
    channel.abort()
    peer.abort()  # it does not hear of that any more
    relay.close()
    server.listener.close()


async def test_a_dial_that_is_answered_with_a_refusal_is_not_repeated(
    files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quic_transport, "SMALL_AFTER", 1.0)
    sizes = []
    real = quic_transport.Quic._dial

    def counted(self: Any, candidate: Any, settings: Any, size: int) -> Any:
        sizes.append(size)
        return real(self, candidate, settings, size)

    monkeypatch.setattr(quic_transport.Quic, "_dial", counted)
    server = QuicServer()
    port = await server.listen(files.server_settings())
    with pytest.raises(TransportError, match="certificate"):
        await dial(files.client_settings(), port, name="another.example")
    assert sizes == [QuicSettings().max_datagram_size]
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


async def test_wildcard_server_answers_from_the_address_it_was_reached_at(files: Certificates) -> None:
    server = QuicServer()
    port = await server.listen(files.server_settings(), "0.0.0.0")
    # The client's socket is connected: an answer from any other address would not reach it.
    channel, _ = await dial(files.client_settings(), port, "127.0.0.3")
    peer, _ = await server.channels.get()
    assert peer.info.local == channel.info.remote == f"127.0.0.3:{port}"
    channel.abort()
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
from tests.integration.transports.quic.test_transport import QuicServer
async def main():
    print(await QuicServer().listen(Certificates(Path({directory!r})).server_settings()), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_killed_server_is_noticed_at_once(files: Certificates) -> None:
    root = str(Path(__file__).parents[4])
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
