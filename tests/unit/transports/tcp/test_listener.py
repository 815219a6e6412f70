"""What becomes of those who connect: first bytes, handshakes that do not end, and a shortage of descriptors."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Hashable
from pathlib import Path

import pytest

from multi.discovery.resources import SpareDescriptor
from multi.errors import TransportError
from multi.lab.cert import write_development_certificates
from multi.transports.base import AdmissionControl, Channel, TlsSettings, TransportSettings
from multi.transports.tcp.channel import StreamChannel
from multi.transports.tcp.listener import StreamListener
from tests.integration.support import until


class Counting(AdmissionControl):
    """Remembers who is half open, and what was reported."""

    def __init__(self, handshake_timeout: float = 10.0) -> None:
        super().__init__(handshake_timeout)
        self.drops: dict[Hashable, Callable[[str], None]] = {}
        self.reported: list[tuple[str, str]] = []

    def admit(
        self, connection: Hashable, host: str, drop: Callable[[str], None], *, has_descriptor: bool = True
    ) -> None:
        self.drops[connection] = drop

    def settled(self, connection: Hashable) -> None:
        self.drops.pop(connection, None)

    def report(self, limit: str, host: str = "") -> None:
        self.reported.append((limit, host))


class Server:
    """A listener on loopback that keeps what it accepts."""

    def __init__(self, tls: TlsSettings | None, admission: AdmissionControl) -> None:
        self.channels: list[Channel] = []
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        settings = TransportSettings(tls=tls, admission=admission)
        self.listener = StreamListener(sock, settings, self.channels.append, lambda _sock: ("tcp", StreamChannel))

    async def client(self) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self.listener.address)
        return sock


@pytest.fixture
def tls(tmp_path: Path) -> TlsSettings:
    write_development_certificates(tmp_path, [])
    return TlsSettings(cert=tmp_path / "server-cert.pem", key=tmp_path / "server-key.pem")


async def dropped(client: socket.socket) -> None:
    async with asyncio.timeout(5):
        assert await asyncio.get_running_loop().sock_recv(client, 100) == b""
    client.close()


async def test_who_says_nothing_is_dropped_in_time(tls: TlsSettings, caplog: pytest.LogCaptureFixture) -> None:
    admission = Counting(handshake_timeout=0.05)
    server = Server(tls, admission)
    with caplog.at_level(logging.INFO, "multi.transports"):
        await dropped(await server.client())
    assert "refused: timed out in the handshake" in caplog.text
    assert admission.reported == [("handshake_timeout", "127.0.0.1")]
    assert not admission.drops
    assert server.channels == []
    server.listener.close()


async def test_who_has_to_make_room_is_told_in_the_log(tls: TlsSettings, caplog: pytest.LogCaptureFixture) -> None:
    admission = Counting()
    server = Server(tls, admission)
    client = await server.client()
    await until(lambda: admission.drops)
    with caplog.at_level(logging.INFO, "multi.transports"):
        for drop in list(admission.drops.values()):
            drop("too many connections")
        await dropped(client)
    assert "refused: too many connections" in caplog.text
    assert not admission.drops
    server.listener.close()


async def test_closing_drops_unfinished_handshakes_before_and_after_their_first_step(tls: TlsSettings) -> None:
    admission = Counting()
    server = Server(tls, admission)
    waiting = await server.client()
    await until(lambda: admission.drops)
    server.listener.close()
    server.listener.close()
    await dropped(waiting)
    assert not admission.drops
    late = Server(tls, admission)
    clients = [await late.client() for _ in range(3)]
    await until(lambda: len(admission.drops) == 3)
    late.listener.close()
    for client in clients:
        await dropped(client)
    assert late.channels == []


async def test_a_plain_client_of_a_tls_server_is_handed_on_as_not_secure(tls: TlsSettings) -> None:
    admission = Counting()
    server = Server(tls, admission)
    client = await server.client()
    client.send(b"\x01")
    await until(lambda: server.channels)
    assert not server.channels[0].info.secure
    assert not admission.drops
    server.channels[0].abort()
    server.listener.close()
    client.close()


async def test_who_leaves_without_a_word_is_forgotten_silently(
    tls: TlsSettings, caplog: pytest.LogCaptureFixture
) -> None:
    admission = Counting()
    server = Server(tls, admission)
    with caplog.at_level(logging.INFO, "multi.transports"):
        client = await server.client()
        await until(lambda: admission.drops)
        client.close()
        await until(lambda: not admission.drops)
    assert caplog.text == ""
    assert server.channels == []
    server.listener.close()


async def test_without_tls_there_is_nobody_to_wait_for() -> None:
    admission = Counting()
    server = Server(None, admission)
    client = await server.client()
    await until(lambda: server.channels)
    assert not admission.drops
    server.channels[0].abort()
    server.listener.close()
    client.close()


async def at_the_limit(
    server: Server, monkeypatch: pytest.MonkeyPatch, *, spare: bool, count: int = 2
) -> list[socket.socket]:
    """Clients that have come where no descriptor is left, but perhaps a spare one."""
    accept, give, left = socket.socket.accept, SpareDescriptor.give, [0]

    def scarce(sock: socket.socket) -> object:
        if not left[0]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        left[0] -= 1
        return accept(sock)

    def given(self: SpareDescriptor) -> bool:
        left[0] += spare
        return give(self) and spare

    monkeypatch.setattr(socket.socket, "accept", scarce)
    monkeypatch.setattr(SpareDescriptor, "give", given)
    clients = [await server.client() for _ in range(count)]
    if not spare:
        await asyncio.sleep(0.05)
        assert server.channels == []
        monkeypatch.setattr(socket.socket, "accept", accept)
    return clients


async def test_without_descriptors_a_newcomer_is_turned_away_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Counting()
    server = Server(None, admission)
    for client in await at_the_limit(server, monkeypatch, spare=True):
        await dropped(client)
    assert admission.reported == [("file_descriptors", "127.0.0.1")] * 2
    assert server.channels == []
    server.listener.close()


async def test_without_descriptors_a_newcomer_is_taken_when_another_connection_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admission = Counting()
    monkeypatch.setattr(admission, "free_descriptor", lambda host: True)
    server = Server(None, admission)
    clients = await at_the_limit(server, monkeypatch, spare=True)
    await until(lambda: len(server.channels) == 2)
    for channel in server.channels:
        channel.abort()
    server.listener.close()
    for client in clients:
        client.close()


async def test_without_any_descriptor_it_reports_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Counting()
    server = Server(None, admission)
    clients = await at_the_limit(server, monkeypatch, spare=False)
    await until(lambda: len(server.channels) == 2)
    assert admission.reported == [("file_descriptors", "")]
    for channel in server.channels:
        channel.abort()
    server.listener.close()
    for client in clients:
        client.close()


async def test_a_certificate_that_cannot_be_used_leaves_no_socket() -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(TransportError, match="TLS needs"):
        StreamListener(sock, TransportSettings(tls=TlsSettings()), lambda _c: None, lambda _s: ("tcp", StreamChannel))
    assert sock.fileno() == -1


@pytest.mark.parametrize("room", [True, False])
async def test_a_listener_that_is_closed_while_room_is_made_takes_nothing_more(
    room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    class Last(Counting):
        def free_descriptor(self, host: str) -> bool:
            server.listener.close()  # a server that is closed stops with its last session
            closed.append(host)
            return room

    server = Server(None, Last())
    (client,) = await at_the_limit(server, monkeypatch, spare=True, count=1)
    await until(lambda: closed)
    assert server.channels == []
    assert server.listener._spare._number is None, "a descriptor is left behind"
    client.close()
