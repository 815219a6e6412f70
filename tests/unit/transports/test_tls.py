"""TLS: the client's context is made again when a file it was made of has changed, and how records are cut."""

from __future__ import annotations

import ssl
from collections import deque
from pathlib import Path
from typing import cast

import pytest

from multi.errors import TransportError
from multi.lab.cert import write_development_certificates
from multi.transports.base import TlsSettings
from multi.transports.tls import (
    CONTEXTS_KEPT,
    RECORD_SIZE,
    WRITE_SIZE,
    TlsStream,
    application_protocols,
    client_context,
    handshake_error,
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


class Socket:
    """Takes what is to be encrypted, and says how OpenSSL cuts that into records."""

    def __init__(self) -> None:
        self.taken = bytearray()
        self.ends: list[int] = []
        """Where records end."""

    def send(self, data: Buffer) -> int:
        for start in range(0, len(data), RECORD_SIZE):
            self.taken += data[start : start + RECORD_SIZE]
            self.ends.append(len(self.taken))
        return len(data)


def written(*buffers: bytes) -> Socket:
    sock, left = Socket(), deque(memoryview(buffer) for buffer in buffers)
    stream = TlsStream(cast(ssl.SSLSocket, sock))
    while left:
        sent = stream.sendmsg(list(left))
        while left and sent >= len(left[0]):
            sent -= len(left.popleft())
        if sent:
            left[0] = left[0][sent:]
    assert bytes(sock.taken) == b"".join(buffers)
    return sock


@pytest.mark.parametrize("payload", [RECORD_SIZE, 4 * RECORD_SIZE, 20_000])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 12])
def test_no_record_but_the_last_ends_where_a_segment_does(count: int, payload: int) -> None:
    """So whoever has read a record and not the next knows that there is more."""
    header = bytes(32)
    sock = written(*[header, bytes(payload)] * count)
    size = len(header) + payload
    assert [end for end in sock.ends if end % size == 0] == [count * size]
    assert len(sock.ends) <= -(-count * size // RECORD_SIZE) + 1


def test_what_fits_a_record_is_one_and_a_long_buffer_is_not_copied() -> None:
    assert written(bytes(32), bytes(1000), bytes(32), bytes(5000)).ends == [6064]
    assert written(bytes(WRITE_SIZE)).ends == [RECORD_SIZE * n for n in range(1, 5)]
    assert written(bytes(32), bytes(RECORD_SIZE)).ends == [32, 32 + RECORD_SIZE]


def test_an_end_in_the_handshake_is_told_as_one_by_each_python() -> None:
    """Before 3.11.4 it has no class of its own, and is an orderly end unless OpenSSL is told not to take it for one."""
    older = ssl.SSLError(ssl.SSL_ERROR_SSL, "unexpected eof while reading")
    older.reason = "UNEXPECTED_EOF_WHILE_READING"
    for error in (older, ssl.SSLEOFError(), ConnectionResetError()):
        assert "it may not speak TLS" in str(handshake_error(error, "the server"))
    ignored = getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    assert not client_context(TlsSettings()).options & ignored
