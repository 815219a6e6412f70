"""Certificates that are wrong, pinned or not usable, on every transport that has them: what is said about it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from multi.errors import TransportError
from multi.linux.mptcp_pm import mptcp_available
from multi.transports import transport
from multi.transports.base import Channel, Listener, TlsSettings, TransportSettings
from multi.transports.certificates import first_certificate, pin_of
from multi.types import Candidate, Family
from tests.integration.certificates import Certificates, certificates_in
from tests.integration.transports.test_contract import Recorder

needs_mptcp = pytest.mark.skipif(not mptcp_available(), reason="this kernel has no MPTCP")
every_transport = pytest.mark.parametrize("name", ["tcp", pytest.param("mptcp", marks=needs_mptcp), "quic"])
OTHER_PIN = "sha256/" + "A" * 43 + "="


@pytest.fixture
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates_in(tmp_path_factory.getbasetemp() / "certificates")


@dataclass
class Server:
    """A listener that keeps what it accepts."""

    name: str
    listener: Listener = field(init=False)
    channels: asyncio.Queue[Channel] = field(default_factory=asyncio.Queue)

    async def listen(self, tls: TlsSettings) -> int:
        settings = TransportSettings(tls=tls)
        self.listener = await transport(self.name).listen("127.0.0.1", 0, settings, self.channels.put_nowait)
        return self.listener.address[1]

    async def refuses(self, sink: Recorder) -> str:
        """What a client reads that finished its own handshake before the server judged its certificate."""
        error = await asyncio.wait_for(sink.until_lost(), 5)
        assert self.channels.empty()
        return str(error)


async def dial(name: str, port: int, tls: TlsSettings, host: str = "localhost") -> Channel:
    candidate = Candidate(name, Family.IPV4, host, "127.0.0.1", port)
    return await asyncio.wait_for(transport(name).dial(candidate, TransportSettings(tls=tls)), 10)


def own(files: Certificates, name: str = "server", **more: Any) -> TlsSettings:
    return replace(TlsSettings(cert=files.cert(name), key=files.key(name)), **more)


@every_transport
@pytest.mark.parametrize(
    ("certificate", "authority", "host", "cause"),
    [
        ("server", "other-ca.pem", "localhost", "the certificate of localhost has an unknown issuer"),
        ("expired", "ca.pem", "localhost", "the certificate of localhost has expired"),
        ("early", "ca.pem", "localhost", "the certificate of localhost is not valid yet"),
        ("server", "ca.pem", "elsewhere.example", "the certificate of elsewhere.example is not for that name"),
        ("server", "ca.pem", "192.0.2.1", "the certificate of 192.0.2.1 is not for that name"),
    ],
)
async def test_a_server_that_cannot_be_verified_is_named_with_the_cause(
    name: str,
    certificate: str,
    authority: str,
    host: str,
    cause: str,
    files: Certificates,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(name)
    with caplog.at_level(logging.INFO, "multi.transports"):
        port = await server.listen(own(files, certificate))
        assert ("expired-cert.pem has expired" in caplog.text) is (certificate == "expired")
        assert ("early-cert.pem is not valid yet" in caplog.text) is (certificate == "early")
        with pytest.raises(TransportError) as caught:
            await dial(name, port, TlsSettings(ca=files.directory / authority), host)
        assert str(caught.value).startswith(f"certificate verify failed: {cause}")
        assert "\n" not in str(caught.value)
        for _ in range(100):
            if "refused: the peer did not accept our certificate" in caplog.text:
                break
            await asyncio.sleep(0.01)
    assert f"{name} connection from 127.0.0.1" in caplog.text
    assert "refused: the peer did not accept our certificate" in caplog.text
    assert server.channels.empty()
    server.listener.close()


@every_transport
@pytest.mark.parametrize(
    ("certificate", "cause"),
    [
        (None, "certificate"),
        ("stranger", "certificate verify failed: the certificate of the client has an unknown issuer"),
        ("expired-client", "certificate verify failed: the certificate of the client has expired"),
        ("early-client", "certificate verify failed: the certificate of the client is not valid yet"),
    ],
)
async def test_a_client_that_cannot_be_verified_is_refused_and_both_sides_say_why(
    name: str, certificate: str | None, cause: str, files: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(name)
    port = await server.listen(own(files, client_ca=files.ca))
    tls = TlsSettings(ca=files.ca) if certificate is None else own(files, certificate, ca=files.ca)
    with caplog.at_level(logging.INFO, "multi.transports"):
        channel = await dial(name, port, tls)  # TLS 1.3: the client's handshake is done before the server judges
        sink = Recorder()
        sink.attach(channel)
        said = await server.refuses(sink)
    assert "certificate" in said
    assert re.search(f"connection from 127.0.0.1:[0-9]+ refused: .*{cause}", caplog.text)
    server.listener.close()


@every_transport
async def test_files_that_cannot_be_used_are_named_with_the_cause(
    name: str, files: Certificates, tmp_path: Path
) -> None:
    garbage, missing, encrypted, closed = (
        tmp_path / f"{what}.pem" for what in ("garbage", "no", "encrypted", "closed")
    )
    garbage.write_bytes(b"-----BEGIN CERTIFICATE-----\nnot base64 at all\n-----END CERTIFICATE-----\n" + os.urandom(99))
    key = serialization.load_pem_private_key(files.key("server").read_bytes(), None)
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    closed.write_bytes(files.key("server").read_bytes())
    closed.chmod(0)
    cert, good = files.cert("server"), files.key("server")
    cases = {
        (cert, missing): "cannot read .*no.pem: no such file or directory",
        (missing, good): "cannot read .*no.pem: no such file or directory",
        (cert, files.key("client")): "client-key.pem is not the private key of the certificate in .*server-cert.pem",
        (cert, garbage): "garbage.pem holds no usable PEM private key",
        (garbage, good): "garbage.pem holds no usable PEM certificate",
        (good, good): "server-key.pem holds no usable PEM certificate",
        (cert, cert): "server-cert.pem holds no usable PEM private key",
        (cert, encrypted): "cannot use .*encrypted.pem: the private key is encrypted",
        (cert, tmp_path): "cannot read .*: is a directory",
    }
    for (wrong_cert, wrong_key), cause in cases.items():
        tls = TlsSettings(cert=wrong_cert, key=wrong_key, ca=files.ca)
        with pytest.raises(TransportError, match=cause) as server_error:
            await Server(name).listen(tls)
        with pytest.raises(TransportError, match=cause) as client_error:
            await dial(name, 1, tls)
        assert "\n" not in str(server_error.value) + str(client_error.value)
    for ca, cause in (
        (garbage, "garbage.pem holds no usable PEM cert"),
        (missing, "cannot read .*no.pem: no such file"),
    ):
        with pytest.raises(TransportError, match=cause):
            await Server(name).listen(own(files, client_ca=ca))
        with pytest.raises(TransportError, match=cause):
            await dial(name, 1, TlsSettings(ca=ca))
    with _without_privileges(), pytest.raises(TransportError, match=r"cannot read .*closed\.pem: permission denied"):
        await Server(name).listen(TlsSettings(cert=cert, key=closed))


@contextmanager
def _without_privileges() -> Iterator[None]:
    """Root may read everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture(autouse=True)
def _traversable(files: Certificates, tmp_path: Path) -> None:
    """pytest's directories are closed to others, which would hide what the tests want to see refused."""
    for directory in (tmp_path, files.directory):
        for part in (directory, *directory.parents):
            if part.owner() == directory.owner() and "pytest" in str(part):
                part.chmod(0o755)


@every_transport
async def test_a_pin_is_checked_besides_verification(name: str, files: Certificates) -> None:
    server = Server(name)
    port = await server.listen(own(files))
    right = pin_of(first_certificate(files.cert("server")))
    channel = await dial(name, port, TlsSettings(ca=files.ca, pins=(OTHER_PIN, right)))
    assert channel.info.peer_verified
    channel.abort()
    with pytest.raises(TransportError, match=f"the certificate of localhost has the pin {re.escape(right)}, which"):
        await dial(name, port, TlsSettings(ca=files.ca, pins=(OTHER_PIN,)))
    with pytest.raises(TransportError, match="unknown issuer"):
        await dial(name, port, TlsSettings(ca=files.other_ca, pins=(right,)))
    server.listener.close()


@every_transport
async def test_a_pin_replaces_verification_that_is_switched_off(name: str, files: Certificates) -> None:
    server = Server(name)
    port = await server.listen(own(files, "expired"))
    right = pin_of(first_certificate(files.cert("expired")))
    channel = await dial(name, port, TlsSettings(verify=False, pins=(right,)), "elsewhere.example")
    assert channel.info.peer_verified
    channel.abort()
    channel = await dial(name, port, TlsSettings(verify=False))
    assert not channel.info.peer_verified
    channel.abort()
    with pytest.raises(TransportError, match=f"has the pin {re.escape(right)}"):
        await dial(name, port, TlsSettings(verify=False, pins=(OTHER_PIN,)))
    server.listener.close()


@every_transport
async def test_a_server_pins_its_clients(name: str, files: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    right = pin_of(first_certificate(files.cert("client")))
    server = Server(name)
    port = await server.listen(own(files, client_ca=files.ca, pins=(right,)))
    channel = await dial(name, port, own(files, "client", ca=files.ca))
    accepted = await asyncio.wait_for(server.channels.get(), 5)
    assert accepted.info.peer_verified
    for each in (channel, accepted):
        each.abort()
    with caplog.at_level(logging.INFO, "multi.transports"):
        channel = await dial(name, port, own(files, "second-client", ca=files.ca))
        sink = Recorder()
        sink.attach(channel)
        await server.refuses(sink)
    seen = pin_of(first_certificate(files.cert("second-client")))
    assert (
        f"refused: the certificate of the client has the pin {seen}, which ssl_config.pin does not list" in caplog.text
    )
    server.listener.close()


async def test_a_silent_tcp_server_does_not_hold_a_tls_client_for_ever_when_cancelled(files: Certificates) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await dial("tcp", silent.getsockname()[1], TlsSettings(ca=files.ca))
    silent.close()
