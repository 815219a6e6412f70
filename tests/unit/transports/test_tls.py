"""TLS: the client's context is made again when a file it was made of has changed, and how records are cut."""

from __future__ import annotations

import ctypes
import itertools
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from multi.errors import TransportError
from multi.lab.cert import write_development_certificates
from multi.transports.base import TlsSettings
from multi.transports.tls import (
    ALPN,
    CONTEXTS_KEPT,
    MAX_EMPTY,
    RECORD_SIZE,
    RECORDS_PER_READ,
    TAKE_SIZE,
    WRITE_SIZE,
    TlsStream,
    application_protocols,
    client_context,
    handshake_error,
    server_context,
)
from multi.types import Buffer


def test_a_context_is_used_again_until_its_certificate_is_replaced(tmp_path: Path) -> None:
    write_development_certificates(tmp_path, [])
    ca = tmp_path / "ca.pem"
    first = client_context(TlsSettings(ca=ca))
    assert client_context(TlsSettings(ca=ca)) is first
    other = tmp_path / "other"
    other.mkdir()
    write_development_certificates(other, [])
    (other / "ca.pem").replace(ca)
    second = client_context(TlsSettings(ca=ca))
    assert second is not first
    assert second.get_ca_certs(binary_form=True) != first.get_ca_certs(binary_form=True)
    ca.unlink()
    with pytest.raises(TransportError, match=r"ca\.pem"):
        client_context(TlsSettings(ca=ca))


def test_other_settings_have_another_context(tmp_path: Path) -> None:
    write_development_certificates(tmp_path, [])
    ca = tmp_path / "ca.pem"
    verifying = client_context(TlsSettings(ca=ca))
    trusting = client_context(TlsSettings(ca=ca, verify=False))
    assert verifying.check_hostname
    assert not trusting.check_hostname
    for number in range(CONTEXTS_KEPT):
        client_context(TlsSettings(ca=ca, server_name=f"host-{number}.example"))
    assert client_context(TlsSettings(ca=ca)) is not verifying  # only so many are kept


def test_a_route_stands_in_a_name_for_balancers_beside_the_name_of_the_protocol(tmp_path: Path) -> None:
    write_development_certificates(tmp_path, [])
    tls = TlsSettings(ca=tmp_path / "ca.pem")
    assert application_protocols(b"") == ["multi/1"]
    assert application_protocols(b"\x0a\xff") == ["multi/1;r=0aff", "multi/1"]
    assert client_context(tls, b"\x0a") is not client_context(tls)
    assert client_context(tls, b"\x0a") is client_context(tls, b"\x0a")


class Network:
    """A socket that takes all; what is sent to it comes to the other end."""

    def __init__(self) -> None:
        self.came, self.left = bytearray(), bytearray()
        self.most = 1 << 30

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        self.left += b"".join(buffers)
        return sum(map(len, buffers))

    def recv_into(self, buffer: memoryview) -> int:
        if not self.came:
            raise BlockingIOError
        size = min(len(self.came), len(buffer), self.most)
        buffer[:size] = self.came[:size]
        del self.came[:size]
        return size


Ends = tuple[TlsStream, TlsStream]


@pytest.fixture
def ends(tmp_path: Path) -> Ends:
    """A client and a server after their handshake; what one has sent comes to the other with `carry`."""
    write_development_certificates(tmp_path, [])
    own = TlsSettings(cert=tmp_path / "server-cert.pem", key=tmp_path / "server-key.pem")
    client, server = client_context(TlsSettings(ca=tmp_path / "ca.pem")), server_context(own)
    ends = (
        TlsStream(cast(socket.socket, Network()), client, "localhost"),
        TlsStream(cast(socket.socket, Network()), server, None),
    )
    for _ in range(3):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
            carry(*ends)
    assert [end.session.selected_alpn_protocol() for end in ends] == [ALPN, ALPN]
    return ends


def carry(*ends: TlsStream) -> bytes:
    """What the first end has sent."""
    one, other = (cast(Network, end.sock) for end in ends)
    sent = bytes(one.left)
    other.came += one.left
    one.came += other.left
    one.left.clear()
    other.left.clear()
    return sent


def records(data: bytes) -> list[int]:
    """Application bytes of each (RFC 8446 section 5.2): the header, a byte of type and the tag take 22."""
    sizes, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at + 3 : at + 5])
        sizes.append(size - 17)
        at += 5 + size
    return sizes


def written(ends: Ends, *buffers: bytes) -> list[int]:
    """Where the records end in which the bytes of buffers travel, all of which arrive."""
    client, server = ends
    left = deque(memoryview(buffer) for buffer in buffers)
    while left:
        sent = client.sendmsg(list(left))
        while left and sent >= len(left[0]):
            sent -= len(left.popleft())
        if sent:
            left[0] = left[0][sent:]
    sizes = records(carry(client, server))
    got, buffer = bytearray(), memoryview(bytearray(1 << 20))
    while len(got) < sum(map(len, buffers)):
        with suppress(BlockingIOError):
            size = server.recv_into(buffer)
            assert size, "that would be the end"
            got += buffer[:size]
    assert bytes(got) == b"".join(buffers)
    return [*itertools.accumulate(sizes)]


@pytest.mark.parametrize("payload", [RECORD_SIZE, 4 * RECORD_SIZE, 20_000])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 12])
def test_no_record_but_the_last_ends_where_a_segment_does(count: int, payload: int, ends: Ends) -> None:
    """So whoever has read a record and not the next knows that there is more."""
    header = bytes(32)
    stops = written(ends, *[header, bytes(payload)] * count)
    size = len(header) + payload
    assert [stop for stop in stops if stop % size == 0] == [count * size]
    assert len(stops) <= -(-count * size // RECORD_SIZE) + 1


def test_what_fits_a_record_is_one(ends: Ends) -> None:
    assert written(ends, bytes(32), bytes(1000), bytes(32), bytes(5000)) == [6064]
    assert written(ends, bytes(WRITE_SIZE)) == [RECORD_SIZE * n for n in range(1, 9)]
    assert written(ends, bytes(32), bytes(RECORD_SIZE)) == [32, 32 + RECORD_SIZE]


def changes_of_key(end: TlsStream, count: int) -> bytes:
    """Records with nothing but a new key in each (RFC 8446 section 4.6.3), for which Python has no call."""
    with open("/proc/self/maps") as maps:
        library = ctypes.CDLL(next(line.split()[-1] for line in maps if "libssl" in line))
    for name in ("SSL_key_update", "SSL_do_handshake"):
        getattr(library, name).argtypes = [ctypes.c_void_p] + [ctypes.c_int] * (name == "SSL_key_update")
    # In a PyObject the pointer to OpenSSL's comes after the reference count, the type and the socket.
    inner = ctypes.c_void_p.from_address(id(cast(Any, end.session)._sslobj) + 3 * ctypes.sizeof(ctypes.c_void_p)).value
    for _ in range(count):
        assert library.SSL_key_update(inner, 0) == library.SSL_do_handshake(inner) == 1
    return end._outgoing.read()


def test_who_sends_changes_of_the_key_and_nothing_else_is_read_little_by_little_and_not_for_long(ends: Ends) -> None:
    """With one read of OpenSSL's from the socket a stranger stopped the server for as long as he had saved them up."""
    client, server = ends
    network = cast(Network, server.sock)
    network.came += changes_of_key(client, 20_000)
    buffer, reads, error = memoryview(bytearray(1 << 20)), 0, OSError()
    while not isinstance(error, TransportError):
        with pytest.raises((BlockingIOError, TransportError)) as caught:
            server.recv_into(buffer)
        error, reads = caught.value, reads + 1
        assert server.pending(), "it is to be asked again"
    assert str(error) == "the peer sends TLS records with nothing in them"
    assert reads == pytest.approx(MAX_EMPTY / 27 / RECORDS_PER_READ, abs=2)


@pytest.mark.parametrize("most", [1, 3, 7, 1000, TAKE_SIZE])
def test_records_may_come_in_any_pieces(most: int, ends: Ends) -> None:
    cast(Network, ends[1].sock).most = most
    assert written(ends, bytes(100), bytes(20_000), b"x")[-1] == 20_101


def test_changes_of_the_key_among_data_change_nothing_else(ends: Ends) -> None:
    client, server = ends
    buffer = memoryview(bytearray(1 << 20))
    for _ in range(100):
        cast(Network, server.sock).came += changes_of_key(client, 10)
        assert written(ends, b"x" * 1000) == [1000]
    cast(Network, server.sock).came += changes_of_key(client, 1)
    with suppress(BlockingIOError):
        server.recv_into(buffer)
    assert written((server, client), b"y" * 1000) == [1000]


def test_an_end_in_the_handshake_is_told_as_one_by_each_python() -> None:
    """Before 3.11.4 it has no class of its own, and is an orderly end unless OpenSSL is told not to take it for one."""
    older = ssl.SSLError(ssl.SSL_ERROR_SSL, "unexpected eof while reading")
    older.reason = "UNEXPECTED_EOF_WHILE_READING"
    for error in (older, ssl.SSLEOFError(), ConnectionResetError()):
        assert "it may not speak TLS" in str(handshake_error(error, "the server"))
    ignored = getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    assert not client_context(TlsSettings()).options & ignored
