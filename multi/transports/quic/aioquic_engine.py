"""aioquic behind a QuicEngine: the only module that knows its private attributes.

aioquic's public interface says nothing of what is unsent, in flight or acknowledged, and reports the end of a
connection only after its draining period. Those facts are read here.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from typing import Any

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.quic.recovery import QuicPacketPacer, QuicPacketRecovery
from aioquic.quic.stream import QuicStreamSender
from aioquic.tls import Alert, Direction, Epoch, Group
from cryptography.hazmat.primitives.serialization import Encoding

from multi.errors import TransportError
from multi.transports.certificates import fault_of, refused
from multi.transports.quic.engine import QuicEngine, RoundTrips, third_party
from multi.transports.quic.settings import QuicSettings
from multi.transports.quic.udp_port import PeerAddress
from multi.transports.quic.verification import verify

MAX_DATAGRAM = 16_383  # bytes; aioquic writes the length of a frame in 14 bits and does not look whether it fits
OFFERED_GROUPS = (Group.X25519, Group.SECP256R1)  # what RFC 8446 section 9.1 has everybody or nearly so support
PACING_BUCKET = 0.002  # seconds of sending in one burst: the tick of a timer and as much again


_SILENT = logging.Logger("aioquic", logging.CRITICAL + 1)
"""Takes what aioquic logs, with the words of strangers in it: why a connection ends is told to who holds it."""


class _Connection(QuicConnection):
    """QuicConnection that judges certificates as TLS does, and can ask clients for one as only aioquic's tests do.

    A client makes a key for each group it offers, used or not: those of P-384 and X448 take a millisecond, longer than
    the rest of its first flight.
    """

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        if self._is_client:
            self.tls.update_traffic_key_cb = self._install
            known = self.tls._supported_groups
            self.tls._supported_groups = [group for group in OFFERED_GROUPS if group in known]
        elif self._configuration.cadata:
            self.tls._request_client_certificate = True

    def _install(self, direction: Direction, epoch: Epoch, cipher_suite: Any, secret: bytes) -> None:
        # The first secret of the application's keys: the server has proved that it holds the key of its certificate,
        # and our Finished is not made yet.
        issuers, tls = self._configuration.cadata, self.tls
        if epoch is Epoch.ONE_RTT and direction is Direction.DECRYPT and issuers:
            assert tls._peer_certificate is not None  # a server without one does not come so far
            verify(tls._peer_certificate, tls._peer_certificate_chain, issuers, self._configuration.server_name)
        self._update_traffic_key(direction, epoch, cipher_suite, secret)


class _Pacer(QuicPacketPacer):
    """A pacer for a driver whose timers have a resolution of a millisecond.

    aioquic allows bursts of 16 packets, then wants to be called again microseconds later: on a fast path, one
    burst per timer tick would be the speed limit.
    """

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        super().update_rate(congestion_window=congestion_window, smoothed_rtt=smoothed_rtt)
        self.bucket_max = max(self.bucket_max, PACING_BUCKET)


class Engine(QuicEngine):
    """See `QuicEngine`."""

    VERSIONS = (QuicProtocolVersion.VERSION_1, QuicProtocolVersion.VERSION_2)
    CONNECTION = _Connection

    def __init__(
        self, configuration: Any, datagram_size: int, original_id: bytes | None = None, retry_id: bytes | None = None
    ) -> None:
        size = min(datagram_size, MAX_DATAGRAM)
        super().__init__(configuration, size, original_id, retry_id)
        self._connection._logger = _SILENT
        self._loss: QuicPacketRecovery = self._connection._loss
        self._loss._pacer = _Pacer(max_datagram_size=size)

    @staticmethod
    def _configuration(quic: QuicSettings, **common: Any) -> QuicConfiguration:
        # `_Connection` verifies
        return QuicConfiguration(congestion_control_algorithm=quic.congestion, verify_mode=ssl.CERT_NONE, **common)

    def receive(self, data: bytes, segment: int, address: PeerAddress, now: float) -> None:
        take = self._connection.receive_datagram
        with third_party():
            for start in range(0, len(data), segment):
                take(data[start : start + segment], address, now)

    @property
    def peer_certificate(self) -> bytes:
        certificate = self._connection.tls._peer_certificate
        return certificate.public_bytes(Encoding.DER) if certificate is not None else b""

    def verify_client_certificate(self) -> None:
        tls = self._connection.tls
        if tls._peer_certificate is None:
            raise TransportError("the client showed no certificate")
        try:
            verify(tls._peer_certificate, tls._peer_certificate_chain, tls._cadata)
        except Alert as error:
            raise refused("the client", fault_of(str(error))) from error

    def has_stream(self, stream_id: int) -> bool:
        return stream_id in self._connection._streams

    def _senders(self) -> Iterator[QuicStreamSender]:
        return (stream.sender for stream in self._connection._streams.values())

    def unsent(self) -> int:
        return sum(part.stop - part.start for sender in self._senders() for part in sender._pending)

    def unacknowledged(self) -> int:
        return sum(
            sender._buffer_stop - sender._buffer_start - sum(part.stop - part.start for part in sender._acked)
            for sender in self._senders()
        )

    def all_acknowledged(self) -> bool:
        return all(
            sender.is_finished or (sender._buffer_stop == 0 and sender._buffer_fin is None)
            for sender in self._senders()
        )

    @property
    def congestion_window(self) -> int:
        return self._loss.congestion_window

    @property
    def bytes_in_flight(self) -> int:
        return self._loss.bytes_in_flight

    @property
    def round_trips(self) -> RoundTrips:
        loss = self._loss
        if not loss._rtt_initialized:
            return RoundTrips()
        return RoundTrips(loss._rtt_smoothed, loss._rtt_variance, loss._rtt_min)
