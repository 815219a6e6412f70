"""TLS 1.3 over a non-blocking stream socket, and the errors of TLS in words.

Decides what is verified and how application bytes become records. Events are the channel's business: `TlsStream` looks
to it like a socket.
"""

from __future__ import annotations

import errno
import hashlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from multi.errors import TransportError
from multi.transports.base import ChannelInfo, TlsSettings
from multi.transports.certificates import check_own, check_pin, fault_of, read_certificates, refused, stamp
from multi.transports.sockets import ready, transport_error
from multi.types import Buffer

ALPN = "multi/1"
FIRST_BYTE = 0x16  # content type of a TLS handshake record (RFC 8446 section 5.1); MULTI's version is never this
CONTEXTS_KEPT = 8  # a process talks to few servers that want different certificates
RECORDS_PER_READ = 128  # twice as many full ones as fit the buffer; a peer may send records of one byte
RECORD_SIZE = 16 * 1024  # bytes of a full record (RFC 8446 section 5.1)
WRITE_SIZE = 8 * RECORD_SIZE  # bytes encrypted at a time; small buffers are gathered up to it
TAKE_SIZE = 8 * RECORD_SIZE  # bytes taken from the socket at a time
HEADER = 5  # bytes of a record, the last two of which are the size of the rest
BYTES_FOR_ONE = 32  # of records for each byte they carry: those of one have 23
MAX_EMPTY = 64 * 1024  # bytes beyond that; tickets of a session, the only honest ones, have a hundredth

_NO_TLS = "the peer does not speak TLS"
_NOT_OURS = "the peer did not accept our certificate"
_WORDS = {  # where OpenSSL's own word says too little
    "HTTP_REQUEST": _NO_TLS,
    "NO_APPLICATION_PROTOCOL": f"the peer does not speak {ALPN}",
    "PACKET_LENGTH_TOO_LONG": _NO_TLS,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has no certificate",
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_OURS,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"{_NOT_OURS}: it has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": f"{_NOT_OURS}: it was revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _NOT_OURS,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": f"{_NOT_OURS}: it is not made for this purpose",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer requires a certificate",
    "TLSV1_ALERT_NO_APPLICATION_PROTOCOL": f"the peer does not speak {ALPN}",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer does not support TLS 1.3",
    "TLSV1_ALERT_UNKNOWN_CA": f"{_NOT_OURS}: unknown issuer",
    "UNEXPECTED_MESSAGE": _NO_TLS,
    "UNSUPPORTED_PROTOCOL": "the peer does not support TLS 1.3",
    "WRONG_VERSION_NUMBER": _NO_TLS,
}


def client_context(tls: TlsSettings, route: bytes = b"") -> ssl.SSLContext:
    """Raises TransportError if a file cannot be used.

    It offers what `application_protocols` makes of `route`. Reading certificates takes longer than a handshake, so the
    context is used again until one of the files changes.
    """
    system = ssl.get_default_verify_paths()
    return _client_context(tls, tuple(map(stamp, (tls.cert, tls.key, tls.ca, system.cafile, system.capath))), route)


@lru_cache(maxsize=CONTEXTS_KEPT)
def _client_context(tls: TlsSettings, files: tuple[object, ...], route: bytes) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False  # as on QUIC: names are in subjectAltName (RFC 9525 section 2)
    context.set_alpn_protocols(application_protocols(route))
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca is not None:
        context.load_verify_locations(cadata=read_certificates(tls.ca).decode())
    else:
        context.load_default_certs()
    if tls.cert is not None and tls.key is not None:
        _load_own(context, tls.cert, tls.key)
    return context


def application_protocols(route: bytes) -> list[str]:
    """What a client offers (RFC 7301). The first is for who stands between; the server takes the other."""
    return [f"{ALPN};r={route.hex()}", ALPN] if route else [ALPN]


def server_context(tls: TlsSettings) -> ssl.SSLContext:
    """Raises TransportError without certificate and key, or if a file cannot be used."""
    if tls.cert is None or tls.key is None:
        raise TransportError("TLS needs ssl_config.cert and ssl_config.key")
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # sessions are resumed by MULTI; an unread ticket would turn a close into a reset
    _load_own(context, tls.cert, tls.key)
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=read_certificates(tls.client_ca).decode())
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    # Python before 3.11.4 took an end without a goodbye for an orderly one.
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # what is trusted is, whoever issued it
    context.set_alpn_protocols([ALPN])
    return context


def _load_own(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    check_own(cert, key)  # OpenSSL says neither which of the two files it means nor what is wrong with it
    try:
        # An encrypted key is an error: OpenSSL would ask for the password on the terminal.
        context.load_cert_chain(cert, key, password=lambda: "")
    except ssl.SSLError as error:
        raise TransportError(f"cannot use {cert} with {key}: {_reason(error)}") from error


def secured_info(info: ChannelInfo, stream: TlsStream, tls: TlsSettings, peer: str, own: bytes = b"") -> ChannelInfo:
    """What TLS adds to the facts of a channel; `own` is the server's certificate on the server itself.

    Raises TransportError, in which `peer` names the other side, when its certificate is not pinned.
    """
    session = stream.session
    certificate = session.getpeercert(binary_form=True) or b""
    cipher = session.cipher()
    verified = tls.client_ca is not None if own else tls.verify
    return replace(
        info,
        secure=True,
        peer_verified=check_pin(tls, certificate, peer) or verified,
        peer_certificate=certificate,
        channel_binding=hashlib.sha256(own or certificate).digest(),
        detail=f"{session.version()}, {cipher[0] if cipher else 'no cipher'}",
    )


async def at_once(step: Callable[[], None]) -> None:
    """Nobody else waits."""
    step()


async def handshake(
    stream: TlsStream, peer: str, take: Callable[[Callable[[], None]], Awaitable[None]] = at_once
) -> None:
    """Raises TransportError in words, in which `peer` names the other side; cancelling is safe.

    `take` takes a step, which may cost a millisecond, when it may.
    """
    while True:
        try:
            await take(stream.do_handshake)
            break
        except ssl.SSLWantReadError:
            writing = False
        except BlockingIOError:
            writing = True
        except OSError as error:
            raise handshake_error(error, peer) from error
        await ready(stream.sock, writing=writing)
    if stream.session.selected_alpn_protocol() != ALPN:
        raise TransportError(f"the peer does not speak {ALPN}")


def handshake_error(error: OSError, peer: str) -> TransportError:
    """What ended a TLS handshake with `peer`, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return refused(peer, fault_of(error.verify_message))
    if isinstance(error, ConnectionResetError | BrokenPipeError) or _cut_off(error):
        text = "the peer closed the connection in the TLS handshake; it may not speak TLS"
        return TransportError(errno.ECONNRESET, text)
    if isinstance(error, ssl.SSLError):
        return TransportError(_reason(error))
    return transport_error(error)


def _cut_off(error: OSError) -> bool:
    """It ended without a goodbye of TLS, for which Python before 3.11.4 has a reason, but no class."""
    return isinstance(error, ssl.SSLEOFError) or getattr(error, "reason", None) == "UNEXPECTED_EOF_WHILE_READING"


def _reason(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    return _WORDS.get(reason) or reason.lower().replace("_", " ") or str(error)


_taken = memoryview(bytearray(TAKE_SIZE))
"""For all: nothing stays in it."""


class TlsStream:
    """Reads and writes of a non-blocking socket, with TLS between.

    OpenSSL is given the records that have come a few at a time. From a socket it would read on until there is something
    to deliver: a stranger who had saved up changes of his key, 27 bytes each, stopped a server for seconds by one read.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str | None) -> None:
        """Without a handshake; `server_name` None = we are the server. Raises TransportError."""
        self.sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self.session = context.wrap_bio(
                self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
            )
        except (OSError, ValueError) as error:
            raise TransportError(f"TLS cannot start: {error}") from error
        self._ahead = memoryview(b"")
        """Taken from the socket already."""
        self._rest = 0
        """Bytes that are still to come of the record that OpenSSL has begun."""
        self._unsent: list[Buffer] = []
        """Records, and what is left of one."""
        self._writing = 0
        """Application bytes of the write that they are of, as long as not all have left."""
        self._records = 0
        """That OpenSSL has been given in this turn."""
        self._empty = 0
        """Bytes that have come beyond what those that were delivered need."""
        self._ended = False
        self._finished = False

    def do_handshake(self) -> None:
        """As far as it gets. Raises SSLWantReadError or BlockingIOError where the socket must be read or written."""
        self._push()
        self._records, done = 0, False
        while not done:
            try:
                self.session.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                with suppress(OSError):
                    self._push()  # what the peer is told of it
                raise
            self._push()
            if not done and not self._fed():
                raise ssl.SSLWantReadError  # not while another is handled: it would hold that, and its frames

    def _fed(self) -> bool:
        try:
            self._feed()
        except BlockingIOError:
            return False
        self._keep()
        return True

    def recv_into(self, buffer: memoryview, /) -> int:
        """Fill the buffer with as many records as there are."""
        if self._ended:
            return 0
        if self._finished:
            return self.sock.recv_into(buffer)  # TLS is over: the rest is only thrown away, still encrypted
        total = self._records = 0
        try:
            for _ in range(RECORDS_PER_READ):
                if len(self._ahead) >= HEADER and not self._incoming.pending:
                    self._feed()
                try:
                    size: Any = self.session.read(len(buffer) - total, buffer[total:])  # an int
                except ssl.SSLWantReadError:
                    self._feed()
                    continue
                if not size:
                    self._ended = True
                    break
                self._empty = max(0, self._empty - size * BYTES_FOR_ONE)
                total += size
                if total == len(buffer):
                    break
            else:
                if not total:  # a record comes in very small pieces
                    raise BlockingIOError
        except OSError as error:
            if not total:
                raise (_stream_error(error) if isinstance(error, ssl.SSLError) else error) from None
            # Deliver what came before; the next read meets the same error.
        finally:
            self._keep()
            if self._outgoing.pending:  # the peer wants our key changed, too
                with suppress(OSError):
                    self._push()
        return total

    def _feed(self) -> None:
        """Give OpenSSL a full record or several short ones.

        Raises BlockingIOError where nothing has come, or so many that others shall have their turn; OSError.
        """
        if self._records >= RECORDS_PER_READ:
            raise BlockingIOError
        if self._empty > MAX_EMPTY:
            raise TransportError("the peer sends TLS records with nothing in them")
        came = self._ahead
        if len(came) < HEADER:
            begun = bytes(came)
            size = self.sock.recv_into(_taken)
            if not size:
                self._incoming.write_eof()
                return
            came = memoryview(begun + _taken[:size]) if begun else _taken[:size]
        end = self._rest
        while end + HEADER <= len(came) and self._records < RECORDS_PER_READ:
            size = HEADER + int.from_bytes(came[end + 3 : end + HEADER])
            if end and end + size > RECORD_SIZE:  # what it has held once stays allocated
                break
            end += size
            self._records += 1
        given = min(end, len(came))
        self._rest = end - given
        self._empty += given
        self._incoming.write(came[:given])
        self._ahead = came[given:]

    def _keep(self) -> None:
        """What is left in the memory for all."""
        if self._ahead.obj is _taken.obj:
            self._ahead = memoryview(bytes(self._ahead))

    def _push(self) -> None:
        """Send what OpenSSL has made. Raises BlockingIOError while there is some left, OSError."""
        if self._outgoing.pending:
            self._unsent.append(self._outgoing.read())
        while self._unsent:
            sent = self.sock.sendmsg(self._unsent)
            while sent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.pop(0))
            if sent:
                self._unsent[0] = memoryview(self._unsent[0])[sent:]

    def sendmsg(self, buffers: Sequence[Buffer], /) -> int:
        # A write that was refused must be repeated with the same bytes: they are encrypted already.
        if not self._writing:
            data = memoryview(_gather(buffers))
            try:
                for start in range(0, len(data), RECORD_SIZE):
                    self.session.write(data[start : start + RECORD_SIZE])
                    self._unsent.append(self._outgoing.read())
            except ssl.SSLError as error:
                raise _stream_error(error) from error
            self._writing = len(data)
        self._push()
        written, self._writing = self._writing, 0
        return written

    def taken(self) -> int:
        """Bytes that are in the socket, of a write that has not returned."""
        return max(0, self._writing - sum(map(len, self._unsent)))

    def pending(self) -> int:
        return self._incoming.pending or self.session.pending() or len(self._ahead) >= HEADER

    def finish(self) -> None:
        self._finished = True
        with suppress(OSError, ValueError):  # usually "want read": our goodbye is made, the peer's may follow
            self.session.unwrap()
        with suppress(OSError):
            self._push()


def _gather(buffers: Sequence[Buffer]) -> Buffer:
    """The first bytes, in one piece; those of one long buffer are not copied.

    Of more than a record the short one comes first, for it arrives where large packets vanish: who has read a part of a
    segment knows that there is more. Behind the others it would often be the end of a segment.
    """
    size = min(sum(map(len, buffers)), WRITE_SIZE)
    room = size % RECORD_SIZE or size if size > RECORD_SIZE else size
    first = memoryview(buffers[0])[:room]
    if len(first) == room:
        return first
    parts = []
    for buffer in buffers:
        parts.append(memoryview(buffer)[:room])
        room -= len(parts[-1])
        if not room:
            break
    return b"".join(parts)


def _stream_error(error: ssl.SSLError) -> TransportError:
    if _cut_off(error):
        return TransportError(errno.ECONNRESET, "connection cut off without a TLS goodbye")
    return TransportError(_reason(error))
