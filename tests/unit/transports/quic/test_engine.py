"""QUIC engines: one that is not there, and two that are joined without sockets."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import Epoch
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from multi.errors import TransportError
from multi.lab.cert import write_development_certificates
from multi.transports import transport
from multi.transports.base import TlsSettings, TransportSettings
from multi.transports.quic.aioquic_engine import Pacer
from multi.transports.quic.connection_ids import PLAIN_IDS, ConnectionIds
from multi.transports.quic.engine import Ending, EngineSettings, QuicEngine
from multi.transports.quic.packets import header_of, stateless_reset
from multi.transports.quic.settings import QuicSettings
from multi.transports.quic.udp_port import PeerAddress
from multi.types import Candidate, Family
from tests.engines import engine_or_skip

ENGINES = ("aioquic", "qh3", "noq")
CLIENT, SERVER = PeerAddress(("127.0.0.2", 1)), PeerAddress(("127.0.0.1", 2))
SIZE = 50_000


async def test_engine_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qh3", None)
    monkeypatch.delitem(sys.modules, "multi.transports.quic.qh3_engine", raising=False)
    tls = TlsSettings(cert=Path("cert.pem"), key=Path("key.pem"), verify=False)
    settings = TransportSettings({"quic": QuicSettings(engine="qh3")}, tls)
    reason = r"the QUIC engine 'qh3' is not installed: pip install 'multi-session\[qh3\]'"
    with pytest.raises(TransportError, match=reason):
        await transport("quic").dial(Candidate("quic", Family.IPV4, "localhost", "127.0.0.1", 1), settings)
    with pytest.raises(TransportError, match=reason):
        await transport("quic").listen("127.0.0.1", 0, settings, print)


def exchange(client: QuicEngine, server: QuicEngine, clock: Any) -> None:
    """Pass datagrams until neither has more to say; what happens waits as events."""
    quiet = 0
    while quiet < 2:
        quiet += 1
        for sender, receiver, origin in ((client, server, CLIENT), (server, client, SERVER)):
            for burst in sender.bursts(next(clock)):
                quiet = 0
                receiver.receive(bytes(burst.data), burst.segment, origin, next(clock))


def events(engine: QuicEngine) -> list[Any]:
    return list(iter(engine.next_event, None))


def answering(client: QuicEngine, listening: type[QuicEngine], settings: EngineSettings, clock: Any) -> QuicEngine:
    """A server that has got what a client begins with."""
    client.connect(SERVER, next(clock))
    flight = [bytes(burst.data) for burst in client.bursts(next(clock))]
    header = header_of(flight[0])
    assert header is not None
    server = listening(listening.configure(settings), 1350, header.destination_cid)
    for data in flight:
        server.receive(data, len(data), CLIENT, next(clock))
    return server


def joined(
    directory: Path,
    dialling: type[QuicEngine],
    listening: type[QuicEngine],
    clock: Any,
    ids: ConnectionIds = PLAIN_IDS,
) -> tuple[QuicEngine, QuicEngine]:
    """A client and a server that have shaken hands."""
    write_development_certificates(directory, [])
    tls = TlsSettings(cert=directory / "server-cert.pem", key=directory / "server-key.pem")
    issuers = (directory / "ca.pem").read_bytes()
    client = dialling(dialling.configure(EngineSettings(QuicSettings(), TlsSettings(), issuers, "localhost")), 1350)
    server = answering(client, listening, EngineSettings(QuicSettings(), tls, ids=ids), clock)
    exchange(client, server, clock)
    return client, server


@pytest.mark.parametrize("name", ENGINES)
def test_ids_of_connections_are_made_by_one_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made: list[bytes] = []

    def urandom(count: int) -> bytes:
        made.append(len(made).to_bytes(count, "big"))
        return made[-1]

    monkeypatch.setattr("multi.transports.quic.connection_ids.os", SimpleNamespace(urandom=urandom))
    kind = engine_or_skip(name)
    ends = joined(tmp_path, kind, kind, itertools.count(100.0, 0.001))
    for end in ends:
        assert end.connection_id in made
        issued = [event.connection_id for event in events(end) if type(event).__name__ == "ConnectionIdIssued"]
        assert issued
        if name != "qh3":  # its core makes them
            assert set(issued) <= set(made)


@pytest.mark.parametrize("name", ENGINES)
def test_a_server_that_was_given_no_packet_has_nobody_to_say_goodbye_to(tmp_path: Path, name: str) -> None:
    """As where the handshake times out while its first packet waits for its turn."""
    write_development_certificates(tmp_path, [])
    tls, kind = TlsSettings(cert=tmp_path / "server-cert.pem", key=tmp_path / "server-key.pem"), engine_or_skip(name)
    server = kind(kind.configure(EngineSettings(QuicSettings(), tls)), 1350, os.urandom(8))
    assert server.bursts(100.0) == []
    server.close(1)
    assert server.bursts(100.0) == []


def test_a_client_s_certificate_of_an_unknown_version_is_refused_and_does_nothing_else(tmp_path: Path) -> None:
    """With the engine whose servers parse certificates after the handshake, where what raises hurts others."""
    clock, strange, kind = itertools.count(100.0, 0.001), engine_or_skip("aioquic"), engine_or_skip("noq")
    write_development_certificates(tmp_path, [])
    ours = TlsSettings(tmp_path / "server-cert.pem", tmp_path / "server-key.pem")
    theirs = TlsSettings(tmp_path / "client-cert.pem", tmp_path / "client-key.pem")
    issuers = (tmp_path / "ca.pem").read_bytes()
    configuration = strange.configure(EngineSettings(QuicSettings(), theirs, issuers, "localhost"))
    der = x509.load_pem_x509_certificate(issuers).public_bytes(Encoding.DER)
    fourth = der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020103"), 1)
    configuration.certificate_chain = [SimpleNamespace(public_bytes=lambda encoding: fourth)]
    client = strange(configuration, 1350)
    server = answering(client, kind, EngineSettings(QuicSettings(), ours, issuers), clock)
    exchange(client, server, clock)
    with pytest.raises(TransportError, match="not a valid x509 version"):
        server.verify_client_certificate()


@pytest.mark.parametrize("client_engine", ENGINES)
@pytest.mark.parametrize("server_engine", ENGINES)
def test_a_client_believes_that_its_connection_is_gone_if_the_server_said_how_that_would_be_proved(
    tmp_path: Path, client_engine: str, server_engine: str
) -> None:
    clock, ids = itertools.count(100.0, 0.001), ConnectionIds(reset_key=os.urandom(32))
    client, server = joined(tmp_path, engine_or_skip(client_engine), engine_or_skip(server_engine), clock, ids)
    for token in (ids.reset_token(os.urandom(8)), ids.reset_token(server.connection_id)):
        assert client.closing is None
        made = stateless_reset(1200, token)
        client.receive(made, len(made), SERVER, next(clock))
    assert client.closing is not None
    assert client.ending is Ending.GONE
    assert client.closing.frame_type is not None  # no application has said it


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("side", ["client", "server"])
def test_who_acknowledges_what_was_never_sent_has_no_connection_any_more(tmp_path: Path, name: str, side: str) -> None:
    clock, lies, believes = itertools.count(100.0, 0.001), engine_or_skip("aioquic"), engine_or_skip(name)
    if side == "client":
        liar, other = ends = joined(tmp_path, lies, believes, clock)
    else:
        other, liar = ends = joined(tmp_path, believes, lies, clock)
    ends[0].write(0, b"a stream for both")
    exchange(*ends, clock)
    space = liar._connection._spaces[Epoch.ONE_RTT]  # type: ignore[attr-defined]
    space.ack_queue.add(100_000)
    other.write(0, b"to be acknowledged")
    exchange(*ends, clock)
    while other.closing is None:  # until the acknowledgement is due
        liar.handle_timer(next(clock))
        exchange(*ends, clock)
    assert other.closing.error_code == QuicErrorCode.PROTOCOL_VIOLATION


@pytest.mark.parametrize("client_engine", ENGINES)
@pytest.mark.parametrize("server_engine", ENGINES)
def test_two_ends_agree_whatever_their_engines(tmp_path: Path, client_engine: str, server_engine: str) -> None:
    clock = itertools.count(100.0, 0.001)
    client, server = joined(tmp_path, engine_or_skip(client_engine), engine_or_skip(server_engine), clock)
    for engine in (client, server):
        assert "HandshakeCompleted" in [type(event).__name__ for event in events(engine)]
        assert engine.closing is None
    assert client.peer_certificate
    assert client.channel_binding(b"certificate") == server.channel_binding(b"certificate")

    client.write(0, bytes(SIZE), end=True)
    assert client.acknowledged() == 0
    assert client.unacknowledged() == SIZE
    for _ in range(20):
        exchange(client, server, clock)
        client.handle_timer(next(clock))
    assert client.acknowledged() == SIZE
    assert client.all_acknowledged()
    assert client.round_trips.smallest > 0
    arrived = [event for event in events(server) if type(event).__name__ == "StreamDataReceived"]
    assert sum(len(event.data) for event in arrived) == SIZE
    assert arrived[-1].end_stream

    client.close(1, "enough")
    exchange(client, server, clock)
    assert server.closing is not None
    assert (server.closing.error_code, server.closing.frame_type) == (1, None)
    server.write(0, b"too late")  # refused by one of them, taken by the other: neither raises


@pytest.mark.parametrize("peer", ENGINES)
@pytest.mark.parametrize("side", ["client", "server"])
def test_keys_protect_no_more_packets_than_they_may(
    tmp_path: Path, side: str, peer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aioquic has the same keys for ever, unless it is asked for others; the other engines see to that themselves."""
    monkeypatch.setattr("multi.transports.quic.aioquic_engine.MAX_UNDER_KEYS", 40)
    clock = itertools.count(100.0, 0.001)
    dialling, listening = map(engine_or_skip, ("aioquic", peer) if side == "client" else (peer, "aioquic"))
    ends = joined(tmp_path, dialling, listening, clock)
    ours, other = ends if side == "client" else ends[::-1]
    if side == "server":
        other.write(0, b"?")
        exchange(*ends, clock)
    phases = []
    for _ in range(10):
        ours.write(0, bytes(SIZE // 2))
        for _ in range(5):
            exchange(*ends, clock)
            other.handle_timer(next(clock))
            ours.handle_timer(next(clock))
        phases.append(ours._connection._cryptos[Epoch.ONE_RTT].key_phase)  # type: ignore[attr-defined]
    assert ours.closing is other.closing is None
    arrived = [event for event in events(other) if type(event).__name__ == "StreamDataReceived"]
    assert sum(len(event.data) for event in arrived) == 10 * (SIZE // 2)
    assert ours.acknowledged() == 10 * (SIZE // 2)
    assert sum(first != second for first, second in itertools.pairwise(phases)) >= 2, phases


# --- pacing  ---


@pytest.mark.parametrize(("mbps", "waited"), [(10, 0.002), (50, 8 * 1350 * 8 / 50e6), (1000, 8 * 1350 * 8 / 1e9)])
def test_a_pacer_that_waits_lets_several_packets_leave_at_once(mbps: float, waited: float) -> None:
    pacer, now = Pacer(max_datagram_size=1350), 10.0
    pacer.update_rate(congestion_window=int(mbps * 125_000 * 0.05), smoothed_rtt=0.05)
    while (at := pacer.next_send_time(now=now)) is None:
        pacer.update_after_send(now=now)
    assert at - now == pytest.approx(waited, rel=0.01)
    sent = 0
    while pacer.next_send_time(now=at) is None:
        pacer.update_after_send(now=at)
        sent += 1
    assert sent * 1350 * 8 == pytest.approx(mbps * 1e6 * waited, rel=0.5), "no time is lost by waiting"
