"""qh3 behind a QuicEngine: packets, recovery and streams in Rust, TLS in Python (optional, `multi-session[qh3]`).

The only module that imports qh3, and the only one that knows its private attributes. What qh3 does not tell is worked
out here: the smallest round trip and its variation from the samples, acknowledged bytes from what is unsent and in
flight. Certificates are judged by the same code as with aioquic, so that both engines accept the same ones.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aioquic.tls import Alert as AioquicAlert
from cryptography import x509
from qh3 import tls as qh3_tls
from qh3._hazmat import Buffer, QuicConnectionCore, X25519KeyExchange, pull_quic_header
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection
from qh3.quic.events import ConnectionTerminated
from qh3.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    pull_quic_transport_parameters,
    push_quic_transport_parameters,
)

from multi.errors import TransportError
from multi.transports.quic.connection_ids import PLAIN_IDS, ConnectionIds
from multi.transports.quic.engine import RECEIVE_WINDOW, RoundTrips, third_party
from multi.transports.quic.library_engine import LibraryEngine
from multi.transports.quic.settings import QuicSettings
from multi.transports.quic.udp_port import Burst, PeerAddress
from multi.transports.quic.verification import UNREADABLE, verify

INITIAL_RTT = 0.1  # seconds; what aioquic assumes, a lost first flight is repeated after three times as much
TOO_LITTLE_ROOM = "packet builder capacity exhausted"
"""What `poll_transmit` raises where it may not send more to an address yet; it goes on when more came from there."""
TRANSPORT_PARAMETERS = 1024  # bytes of all of them, more than ever
ADDRESSES_KEPT = 8  # addresses of a peer that moves; more are those of somebody who forges them

X25519KeyExchange()  # the first key of a process takes 21 ms: here no session waits for it, this is loaded in a thread

# qh3 logs every ending of a connection as a warning; here it is told to whoever holds the connection.
logging.getLogger("quic").addFilter(lambda record: not str(record.msg).startswith("Native "))


@dataclass
class _Configuration(QuicConfiguration):
    """qh3's, and what makes the ids of its connections."""

    ids: ConnectionIds = PLAIN_IDS


class _Connection(QuicConnection):
    """QuicConnection that judges certificates as aioquic does, and counts what a client sends as it should."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._ids: ConnectionIds = settings["configuration"].ids
        self.host_cid = self._ids.new()

    def begin_with(self, first_id: bytes) -> None:
        """The destination id of a client's first packet."""
        self._original_destination_connection_id = first_id

    def reset_tokens(self) -> set[bytes]:
        """Of the id by which the peer is addressed; qh3 keeps those of spare ones to itself."""
        known = self._applied_transport_parameters
        return {known.stateless_reset_token} if known is not None and known.stateless_reset_token else set()

    def is_ours(self, connection_id: bytes) -> bool:
        """Whether the peer addresses us by the first one."""
        return connection_id == self.host_cid

    def end(self, now: float) -> None:
        """The peer has nothing any more."""
        self._close_event = ConnectionTerminated(int(QuicErrorCode.NO_ERROR), int(QuicFrameType.PADDING), "")

    @property
    def datagram_size(self) -> int:
        """Bytes of the largest that is sent: known with the peer's first flight."""
        known, size = self._applied_transport_parameters, self.configuration.max_datagram_size
        return min(size, known.max_udp_payload_size or size) if known is not None else size

    present_datagram_size = datagram_size

    def _create_tls(self, remote_source_cid: bytes | None) -> Any:
        bridge = super()._create_tls(remote_source_cid)
        if not self._is_client:
            bridge.stateless_reset_token = self._ids.reset_token(self.host_cid)
        parameters = pull_quic_transport_parameters(Buffer(data=bridge.serialize_transport_parameters()))
        parameters.max_udp_payload_size = self.configuration.max_datagram_size  # qh3 says 1472, or nothing
        told = Buffer(capacity=TRANSPORT_PARAMETERS)
        push_quic_transport_parameters(told, parameters)
        (kind, _), *more = bridge.tls.handshake_extensions
        bridge.tls.handshake_extensions = [(kind, told.data), *more]
        if self.configuration.cadata:
            install = bridge.tls.update_traffic_key_cb

            def verified(direction: Any, epoch: Any, cipher_suite: Any, secret: bytes) -> None:
                # The first secret of the application's keys: the server has proved that it holds the key of its
                # certificate, and our Finished is not made yet.
                if epoch is qh3_tls.Epoch.ONE_RTT and direction is qh3_tls.Direction.DECRYPT:
                    self._verify_server(bridge.tls)
                install(direction, epoch, cipher_suite, secret)

            bridge.tls.update_traffic_key_cb = verified
        return bridge

    def _verify_server(self, tls: Any) -> None:
        name, issuers = self.configuration.server_name, self.configuration.cadata
        try:
            if tls.peer_certificate is None:
                raise ValueError("the server showed no certificate")
            shown = (tls.peer_certificate, *tls.peer_certificate_chain)
            certificate, *chain = (x509.load_der_x509_certificate(one.public_bytes()) for one in shown)
            verify(certificate, chain, issuers, name)
        except (AioquicAlert, *UNREADABLE) as error:
            refusal = qh3_tls.AlertBadCertificate(str(error))  # ends the handshake, as qh3's own verification would
            if isinstance(error, AioquicAlert):
                refusal.description = qh3_tls.AlertDescription(int(error.description))
            raise refusal from error

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        """In place of qh3's on a server, which does not count what pads a client's first datagram behind its packet.

        Three times what has come may be sent to an address that is not validated (RFC 9000 section 8.1): too little
        for a certificate if most of it is not counted.
        """
        if self._is_client:
            super().receive_datagram(data, addr, now)
            return
        if self._core is None:
            header = pull_quic_header(data, 0, len(self.host_cid))
            self._remote_addr, self._version = addr, header[0]
            self._create_core(addr, header[3], now)
            self._create_tls(remote_source_cid=None)
        for packet in _packets(data, len(self.host_cid)):
            core = self._require_core()
            report = self._call_core(core.receive_datagram, packet, addr, now, len(data))
            if report[2]:
                self._learn_remote_source_cid(packet)
            self._drain_core()  # before the next packet: its keys may have come with this one


def _packets(data: bytes, id_length: int) -> Iterator[bytes]:
    """The QUIC packets of a datagram; what follows the last one and is none stays with it."""
    start = 0
    while start < len(data):
        try:
            end = pull_quic_header(data, start, id_length)[9]
        except ValueError:
            end = len(data)
        if not (start < end < len(data) and data[end]):  # padding: no packet begins with a zero
            end = len(data)
        yield data[start:end]
        start = end


class Qh3Engine(LibraryEngine):
    """See `QuicEngine`."""

    VERSIONS = (1,)
    FINDS_SIZE = False
    CONNECTION = _Connection

    def __init__(
        self, configuration: Any, datagram_size: int, original_id: bytes | None = None, retry_id: bytes | None = None
    ) -> None:
        super().__init__(configuration, datagram_size, original_id, retry_id)
        self._addresses: dict[Any, PeerAddress] = {}
        self._now = 0.0
        self._lost = 0
        """Packets whose loss was known when something was sent last: they have been sent again."""
        self._latest_rtt = self._min_rtt = self._rtt_variation = 0.0

    def __del__(self) -> None:
        if (bridge := self._connection._tls) is not None:
            vars(bridge).clear()  # it holds what calls it
        super().__del__()

    @staticmethod
    def _configuration(quic: QuicSettings, **common: Any) -> _Configuration:
        if common["cadata"] and not common["is_client"]:
            raise TransportError(
                "the QUIC engine 'qh3' cannot ask clients for certificates (ssl_config.client_ca); "
                "use 'aioquic' or 'noq' on this server"
            )
        return _Configuration(
            initial_rtt=INITIAL_RTT,
            max_data=RECEIVE_WINDOW,
            max_stream_data=RECEIVE_WINDOW,
            probe_datagram_size=False,
            verify_mode=ssl.CERT_NONE,  # `_Connection` does it
            **common,
        )

    def connect(self, address: PeerAddress, now: float) -> None:
        with third_party:
            self._connection.connect(self._plain(address), now=self._onward(now))

    def _take(self, data: bytes, segment: int, address: PeerAddress, now: float) -> None:
        self._connection.receive_gro_buffer(data, segment, self._plain(address), self._onward(now))
        self._measure()

    def handle_timer(self, now: float) -> None:
        super().handle_timer(self._onward(now))

    def bursts(self, now: float) -> list[Burst]:
        if self._connection._core is None:
            return []
        poll, addresses, now = self._core.poll_transmit, self._addresses, self._onward(now)
        made: list[Burst] = []
        with third_party:
            try:
                while (transmit := poll(now)) is not None:
                    address = addresses.get(transmit[1])
                    if address is not None:
                        made.append(Burst(transmit[0], len(transmit[0]), address))
            except RuntimeError as error:
                if str(error) != TOO_LITTLE_ROOM:
                    raise
            self._lost = self._core.loss_total
        return made

    @property
    def peer_certificate(self) -> bytes:
        certificate = self._connection.get_peercert()
        return certificate.public_bytes() if certificate is not None else b""

    def verify_client_certificate(self) -> None:
        raise NotImplementedError("`_configuration` does not let it come to this")

    def has_stream(self, stream_id: int) -> bool:
        # Unlike aioquic, qh3 lets a server write only on streams of which it has seen something itself.
        core = self._connection._core
        return core is not None and core.can_send_stream(stream_id)

    def unsent(self) -> int:
        return self._core.get_send_buffer_size()

    def unacknowledged(self) -> int:
        # What is in flight counts with its headers; what is known to be lost is not in flight, and not yet queued.
        core = self._core
        again: int = (core.loss_total - self._lost) * self._connection.datagram_size
        return min(self._written, core.get_send_buffer_size() + core.bytes_in_flight + again)

    def all_acknowledged(self) -> bool:
        core = self._core
        timer = core.get_timer()
        waiting = timer is not None and timer[0] == "pacing"  # lost bytes wait for the pacer, if for anything
        return not (core.bytes_in_flight or core.get_send_buffer_size() or waiting)

    @property
    def congestion_window(self) -> int:
        return self._core.congestion_window

    @property
    def bytes_in_flight(self) -> int:
        return self._core.bytes_in_flight

    @property
    def round_trips(self) -> RoundTrips:
        core = self._connection._core
        if core is None or not core.smoothed_rtt:
            return RoundTrips()
        return RoundTrips(core.smoothed_rtt, self._rtt_variation, self._min_rtt)

    # Inside

    @property
    def _core(self) -> QuicConnectionCore:
        """There is none before a server's first datagram, and another after a Retry."""
        core: QuicConnectionCore = self._connection._require_core()
        return core

    def _onward(self, now: float) -> float:
        """Never back: an acknowledgement that came before its packet was sent, by a hair, ends a connection of qh3."""
        self._now = max(self._now, now)
        return self._now

    def _plain(self, address: PeerAddress) -> tuple[Any, ...]:
        """The address as qh3 takes it: no more than a number and a port; remembered for the way back."""
        host, *rest = address.peer
        plain = (host.partition("%")[0], *rest)
        if self._addresses.get(plain) is not address:
            self._addresses.pop(plain, None)
            self._addresses[plain] = address
            if len(self._addresses) > ADDRESSES_KEPT:
                del self._addresses[next(iter(self._addresses))]
        return plain

    def _measure(self) -> None:
        """What RFC 9002 section 5 keeps of round trips, from the samples that qh3 shows."""
        core = self._connection._core
        latest = None if core is None else core.latest_rtt
        if core is None or not latest or latest == self._latest_rtt:
            return
        self._latest_rtt = latest
        if self._min_rtt:
            self._min_rtt = min(self._min_rtt, latest)
            self._rtt_variation += (abs((core.smoothed_rtt or 0.0) - latest) - self._rtt_variation) / 4
        else:
            self._min_rtt, self._rtt_variation = latest, latest / 2
