"""An engine over a QUIC library whose connections look like aioquic's: what aioquic and qh3 have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, cast

from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicErrorCode

from multi.errors import TransportError
from multi.transports.certificates import check_own
from multi.transports.quic.connection_ids import TOKEN_LENGTH
from multi.transports.quic.engine import Ending, EngineSettings, QuicEngine, Secrets, third_party
from multi.transports.quic.packets import LONG_HEADER
from multi.transports.quic.settings import USUAL_DATAGRAM, QuicSettings
from multi.transports.quic.udp_port import Burst, PeerAddress
from multi.transports.sockets import transport_error
from multi.transports.tls import ALPN
from multi.types import Buffer

MAX_FRAME = 65_535  # bytes of a DATAGRAM frame that a peer may send; packets bound it anyway
PACKET_OVERHEAD = 1 + 20 + 4 + 16  # bytes: first byte, connection id, packet number and tag at their longest
FRAME_OVERHEAD = 1 + 4  # bytes: type and length of a DATAGRAM frame


def largest_message(datagram_size: int) -> int:
    """Bytes of the largest message that fits a datagram."""
    return datagram_size - PACKET_OVERHEAD - FRAME_OVERHEAD


def promised_message(datagram_size: int) -> int:
    """Bytes of the largest message that is taken; what fits no datagram goes in a stream.

    Where a network carries only small ones it is as large: programs whose datagrams are forwarded cannot be told, and
    QUIC is one that sends 1,200 bytes at least.
    """
    return largest_message(max(datagram_size, USUAL_DATAGRAM))


class LibraryEngine(QuicEngine):
    """See `QuicEngine`. What it holds is the library's connection, whose events and methods are named alike."""

    CONNECTION: ClassVar[Any]
    """Its class, which also has `_close_event`, and the public methods that `aioquic_engine.BoundedConnection` adds."""

    def __init__(
        self, configuration: Any, datagram_size: int, original_id: bytes | None = None, retry_id: bytes | None = None
    ) -> None:
        self._written = 0
        self._is_client: bool = configuration.is_client
        self._secrets = Secrets()
        self._connection = self.CONNECTION(
            configuration=replace(configuration, max_datagram_size=datagram_size, secrets_log_file=self._secrets),
            original_destination_connection_id=None if configuration.is_client else original_id,
            retry_source_connection_id=retry_id,
        )
        if configuration.is_client and original_id is not None:
            self._connection.begin_with(original_id)

    def __del__(self) -> None:
        # Its parts hold the connection, and it holds them: only the garbage collector would find them.
        vars(self._connection).clear()

    @classmethod
    def configure(cls, settings: EngineSettings) -> Any:
        tls = settings.tls
        configuration = cls._configuration(
            settings.quic,
            alpn_protocols=[ALPN],
            cadata=settings.issuers,
            connection_id_length=settings.ids.length,
            ids=settings.ids,
            idle_timeout=settings.quic.idle_timeout,
            is_client=settings.server_name is not None,
            max_datagram_frame_size=MAX_FRAME,
            server_name=settings.server_name,
            supported_versions=list(cls.VERSIONS),
        )
        if tls.cert is not None and tls.key is not None:
            check_own(tls.cert, tls.key)
            try:
                configuration.load_cert_chain(tls.cert, tls.key)
            except OSError as error:
                raise transport_error(error, f"cannot read {tls.key}") from error
            except (ValueError, TypeError) as error:
                raise TransportError(f"cannot use {tls.key} as a private key: {error}") from error
        return configuration

    @staticmethod
    @abstractmethod
    def _configuration(quic: QuicSettings, **common: Any) -> Any:
        """The library's own, with `common` and what only it has."""

    def channel_binding(self, certificate: bytes) -> bytes:
        return self._secrets.channel_binding(certificate)

    def connect(self, address: PeerAddress, now: float) -> None:
        with third_party:
            self._connection.connect(address, now=now)

    def receive(self, data: bytes, segment: int, address: PeerAddress, now: float) -> None:
        last = (len(data) - 1) // segment * segment
        gone = self._is_client and self._is_reset(data[last:])
        with third_party:
            self._take(data[:last] if gone else data, segment, address, now)
            if gone and self.closing is None:
                self._connection.end(now)
                self.ending = Ending.GONE

    def _is_reset(self, datagram: bytes) -> bool:
        """Whether the server says that the connection is gone, as RFC 9000 section 10.3.1 has it."""
        connection = self._connection
        if datagram[0] >= LONG_HEADER or connection.is_ours(datagram[1 : 1 + len(connection.host_cid)]):
            return False
        return datagram[-TOKEN_LENGTH:] in connection.reset_tokens()

    @abstractmethod
    def _take(self, data: bytes, segment: int, address: PeerAddress, now: float) -> None:
        """`receive` of the library."""

    def handle_timer(self, now: float) -> None:
        had_ended = self.closing is not None
        with third_party:
            self._connection.handle_timer(now=now)
        if not had_ended and (closing := self.closing) and closing.error_code == QuicErrorCode.INTERNAL_ERROR:
            self.ending = Ending.SILENT  # nothing else is the libraries' own fault at the moment of a timer

    def write(self, stream_id: int, data: Buffer, end: bool = False) -> None:
        if self.closing is None:
            self._written += len(data)
            with third_party:
                self._connection.send_stream_data(stream_id, data, end)

    @property
    def message_size(self) -> int:
        peer: int = self._connection._remote_max_datagram_frame_size or 0
        return max(0, min(peer - FRAME_OVERHEAD, promised_message(self._connection.datagram_size)))

    def send_message(self, data: bytes) -> bool:
        if len(data) > largest_message(self._connection.present_datagram_size):
            return False
        if self.closing is None:
            with third_party:
                self._connection.send_datagram_frame(data)
        return True

    def close(self, error_code: int, reason: str = "") -> None:
        if self.closing is None:
            with third_party:
                self._connection.close(error_code=error_code, reason_phrase=reason)

    def next_event(self) -> Any:
        return self._connection.next_event()

    def bursts(self, now: float) -> list[Burst]:
        with third_party:
            made = self._connection.datagrams_to_send(now=now)
        return [Burst(data, len(data), address) for data, address in made]

    def next_timer(self) -> float | None:
        return cast(float | None, self._connection.get_timer())

    @property
    def connection_id(self) -> bytes:
        return cast(bytes, self._connection.host_cid)

    @property
    def closing(self) -> ConnectionTerminated | None:
        return cast(ConnectionTerminated | None, self._connection._close_event)

    def acknowledged(self) -> int:
        return self._written - self.unacknowledged()
