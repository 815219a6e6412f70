"""TLS 1.3 over a non-blocking stream socket, and the errors of TLS in words.

Decides what is verified and how application bytes become records. Sockets and events are the channel's business:
`TlsStream` looks to it like a socket.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from multi.errors import TransportError
from multi.transports.base import Buffer, ChannelInfo, TlsSettings
from multi.transports.certificates import check_own, openssl_cause, refused, stamp
from multi.transports.sockets import transport_error

ALPN = "multi/1"
FIRST_BYTE = 0x16  # content type of a TLS handshake record (RFC 8446 section 5.1); MULTI's version is never this
CONTEXTS_KEPT = 8  # a process talks to few servers that want different certificates
RECORDS_PER_READ = 128  # twice as many full ones as fit the buffer; a peer may send records of one byte
WRITE_SIZE = 64 * 1024  # bytes per SSL_write: four full records; small buffers are gathered up to it

_WORDS = {
    "CERTIFICATE_VERIFY_FAILED": "certificate verify failed",
    "HTTP_REQUEST": "the peer does not speak TLS",
    "NO_APPLICATION_PROTOCOL": f"the peer does not speak {ALPN}",
    "PACKET_LENGTH_TOO_LONG": "the peer does not speak TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has no certificate",
    "RECORD_LAYER_FAILURE": "the peer does not speak TLS",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer did not accept our certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "no certificate found",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the peer did not accept our certificate: it was revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer did not accept our certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the peer did not accept our certificate: it is not made for this purpose",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer did not accept our certificate: it has expired",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer requires a certificate",
    "TLSV1_ALERT_NO_APPLICATION_PROTOCOL": f"the peer does not speak {ALPN}",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer does not support TLS 1.3",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer did not accept our certificate: unknown issuer",
    "UNEXPECTED_MESSAGE": "the peer does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "the peer does not support TLS 1.3",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS",
}


_contexts: dict[TlsSettings, tuple[tuple[object, ...], ssl.SSLContext]] = {}


def client_context(tls: TlsSettings) -> ssl.SSLContext:
    """Raises TransportError if a file cannot be used.

    Reading certificates takes longer than a handshake, so the context is used again until one of the files changes.
    """
    state = _state_of_files(tls)
    known = _contexts.get(tls)
    if known is None or known[0] != state:
        while len(_contexts) >= CONTEXTS_KEPT:
            _contexts.pop(next(iter(_contexts)), None)
        known = _contexts[tls] = (state, _new_client_context(tls))
    return known[1]


def _state_of_files(tls: TlsSettings) -> tuple[object, ...]:
    """What is different once a file that the client's context is made of has been replaced or written to."""
    paths: list[Path | str | None] = [tls.cert, tls.key, tls.ca]
    if tls.verify and tls.ca is None and (tls.cert is None or tls.key is not None):
        system = ssl.get_default_verify_paths()
        paths += [system.cafile, system.capath]
    return tuple(stamp(path) for path in paths if path is not None)


def _new_client_context(tls: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _common(context)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca is not None:
        _load(tls.ca, lambda: context.load_verify_locations(tls.ca))
    elif tls.cert is not None and tls.key is None:
        # A certificate without a key is one to trust, whoever issued it.
        _load(tls.cert, lambda: context.load_verify_locations(tls.cert))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    else:
        context.load_default_certs()
    if tls.cert is not None and tls.key is not None:
        _load_own(context, tls.cert, tls.key)
    return context


def server_context(tls: TlsSettings) -> ssl.SSLContext:
    """Raises TransportError without certificate and key, or if a file cannot be used."""
    if tls.cert is None or tls.key is None:
        raise TransportError("TLS needs ssl_config.cert and ssl_config.key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _common(context)
    context.num_tickets = 0  # sessions are resumed by MULTI; an unread ticket would turn a close into a reset
    _load_own(context, tls.cert, tls.key)
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _load(tls.client_ca, lambda: context.load_verify_locations(tls.client_ca))
    return context


def _common(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])


def _load_own(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    check_own(cert, key)  # OpenSSL says neither which of the two files it means nor what is wrong with it
    # An encrypted key is an error: OpenSSL would ask for the password on the terminal.
    _load(key, lambda: context.load_cert_chain(cert, key, password=lambda: ""))


def _load(path: Path, load: Callable[[], object]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        raise TransportError(f"{path} holds no usable PEM certificate ({_reason(error)})") from error
    except OSError as error:
        raise transport_error(error, f"cannot read {path}") from error


def secured_info(info: ChannelInfo, sock: ssl.SSLSocket, verified: bool, own: bytes = b"") -> ChannelInfo:
    """What TLS adds to the facts of a channel; `own` is the server's certificate on the server itself."""
    peer = sock.getpeercert(binary_form=True) or b""
    cipher = sock.cipher()
    return replace(
        info,
        secure=True,
        peer_verified=verified,
        peer_certificate=peer,
        channel_binding=hashlib.sha256(own or peer).digest(),
        detail=f"{sock.version()}, {cipher[0] if cipher else 'no cipher'}",
    )


def at_once(step: Callable[[], None]) -> None:
    """Nobody else waits."""
    step()


class TlsHandshake:
    """Drives one handshake by callbacks; `finished` hears of the end unless it was cancelled."""

    def __init__(
        self,
        sock: ssl.SSLSocket,
        peer: str,
        finished: Callable[[TransportError | None], None],
        in_turn: Callable[[Callable[[], None]], None] = at_once,
    ) -> None:
        """`peer` names the other side in errors; `in_turn` does a step, which may take a millisecond, when it may."""
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._finished = finished
        self._in_turn = in_turn
        self._watching: Callable[[int], bool] | None = None

    def start(self) -> None:
        self._in_turn(self._step)

    def cancel(self) -> None:
        if self._watching is not None:
            self._watching(self._fd)
            self._watching = None

    def _ready(self) -> None:
        self.cancel()  # a socket that has to wait for its turn would call in each turn of the event loop
        self._in_turn(self._step)

    def _step(self) -> None:
        try:
            self._sock.do_handshake()
            if self._sock.selected_alpn_protocol() != ALPN:
                raise TransportError(f"the peer does not speak {ALPN}")
        except ssl.SSLWantReadError:
            self._watching = self._loop.remove_reader
            self._loop.add_reader(self._fd, self._ready)
        except ssl.SSLWantWriteError:
            self._watching = self._loop.remove_writer
            self._loop.add_writer(self._fd, self._ready)
        except OSError as error:
            self._finished(handshake_error(error, self._peer))
        else:
            self._finished(None)


async def handshake(sock: ssl.SSLSocket, peer: str) -> None:
    """The client's handshake. Raises TransportError in words; cancelling is safe."""
    done: asyncio.Future[TransportError | None] = asyncio.get_running_loop().create_future()
    driver = TlsHandshake(sock, peer, lambda error: None if done.done() else done.set_result(error))
    driver.start()
    try:
        error = await done
    finally:
        driver.cancel()
    if error is not None:
        raise error


def wrap(sock: socket.socket, context: ssl.SSLContext, server_name: str | None) -> ssl.SSLSocket:
    """Put TLS on a connected socket without a handshake; `server_name` None = we are the server.

    The new object owns the file descriptor. Raises TransportError.
    """
    try:
        return context.wrap_socket(
            sock,
            server_side=server_name is None,
            do_handshake_on_connect=False,
            suppress_ragged_eofs=False,
            server_hostname=server_name,
        )
    except (OSError, ValueError) as error:
        raise TransportError(f"TLS cannot start: {error}") from error


def handshake_error(error: OSError, peer: str) -> TransportError:
    """What ended a TLS handshake with `peer`, in words."""
    if isinstance(error, TransportError):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return refused(peer, openssl_cause(error))
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError | BrokenPipeError):
        return TransportError("the peer closed the connection in the TLS handshake; it may not speak TLS")
    if isinstance(error, ssl.SSLError):
        return TransportError(_reason(error))
    return transport_error(error)


def _reason(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    return _WORDS.get(reason) or reason.lower().replace("_", " ") or str(error)


class TlsStream:
    """Reads and writes of an `SSLSocket` as a non-blocking socket would do them."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._unfinished: Buffer | None = None
        self._ended = False
        self._finished = False

    def recv_into(self, buffer: memoryview, /) -> int:
        """Fill the buffer with as many records as there are."""
        if self._ended:
            return 0
        if self._finished:
            return self._sock.recv_into(buffer)  # TLS is over: the rest is only thrown away, still encrypted
        total = 0
        try:
            for _ in range(RECORDS_PER_READ):
                size: Any = self._sock.read(len(buffer) - total, buffer[total:])  # an int
                if not size:
                    self._ended = True
                    break
                total += size
                if total == len(buffer):
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not total:
                raise BlockingIOError from None
        except ssl.SSLError as error:
            if not total:
                raise _stream_error(error) from error
            # Deliver what came before; the next read meets the same error.
        return total

    def sendmsg(self, buffers: Sequence[Buffer], /) -> int:
        # A write that was refused must be repeated with the same bytes: OpenSSL has encrypted part of them.
        data = self._unfinished
        if data is None:
            data = self._unfinished = _gather(buffers)
        try:
            sent = self._sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise _stream_error(error) from error
        self._unfinished = None
        return sent

    def pending(self) -> int:
        return self._sock.pending()

    def finish(self) -> None:
        self._finished = True
        try:
            self._sock.unwrap()
        except (OSError, ValueError):
            pass  # usually "want read": our goodbye is out, the peer's may follow


def _gather(buffers: Sequence[Buffer]) -> Buffer:
    first = buffers[0]
    if len(first) >= WRITE_SIZE:
        return memoryview(first)[:WRITE_SIZE]
    if len(buffers) == 1:
        return first
    parts: list[Buffer] = []
    room = WRITE_SIZE
    for buffer in buffers:
        parts.append(buffer if len(buffer) <= room else memoryview(buffer)[:room])
        room -= len(parts[-1])
        if not room:
            break
    return b"".join(parts)


def _stream_error(error: ssl.SSLError) -> TransportError:
    if isinstance(error, ssl.SSLEOFError):
        return TransportError("connection cut off without a TLS goodbye")
    return TransportError(_reason(error))
