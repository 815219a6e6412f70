"""A throw-away certificate authority for the tests."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from multi.transports.base import TlsSettings, TransportSettings

DAY = datetime.timedelta(days=1)

bad_certificates = pytest.mark.parametrize(
    ("server_certificate", "authority", "name", "reason"),
    [
        ("server", "other-ca.pem", "localhost", "failed: the certificate of localhost has an unknown issuer"),
        ("expired", "ca.pem", "localhost", "failed: the certificate of localhost has expired"),
        ("server", "ca.pem", "elsewhere.example", "failed: the certificate of elsewhere.example is not for that name"),
    ],
)
"""What a client that verifies refuses, and with which words."""


@dataclass(frozen=True)
class Certificates:
    """Files in one directory: an authority, a server for localhost, a client, and things gone wrong.

    "posing" bears the server's names and is for clients, "misnamed" has an address where a DNS name belongs.
    """

    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def other_ca(self) -> Path:
        return self.directory / "other-ca.pem"

    def cert(self, name: str) -> Path:
        return self.directory / f"{name}-cert.pem"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}-key.pem"

    def server_settings(self, name: str = "server", client_ca: Path | None = None) -> TransportSettings:
        return TransportSettings(tls=TlsSettings(cert=self.cert(name), key=self.key(name), client_ca=client_ca))

    def client_settings(self, server_name: str = "", verify: bool = True) -> TransportSettings:
        return TransportSettings(tls=TlsSettings(ca=self.ca, server_name=server_name, verify=verify))


def certificates_in(directory: Path) -> Certificates:
    """Make the files once; later calls find them."""
    files = Certificates(directory)
    if not directory.exists():
        directory.mkdir(parents=True)
        key, authority = _authority("multi test authority")
        other_key, other = _authority("somebody else's authority")
        files.ca.write_bytes(_pem(authority))
        files.other_ca.write_bytes(_pem(other))
        for name, server, since, until in [
            ("server", True, -5, 10),
            ("expired", True, -5, -1),
            ("early", True, 1, 10),
            ("client", False, -5, 10),
            ("second-client", False, -5, 10),
            ("expired-client", False, -5, -1),
            ("early-client", False, 1, 10),
        ]:
            _issue(files, name, authority, key, server, since, until)
        _issue(files, "posing", authority, key, True, -5, 10, purpose=ExtendedKeyUsageOID.CLIENT_AUTH)
        _issue(files, "misnamed", authority, key, True, -5, 10, names=[x509.DNSName("127.0.0.1")])
        _issue(files, "stranger", other, other_key, False, -5, 10)
    return files


def _authority(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    builder = (
        _builder(name, name, key.public_key(), -5, 10)
        .add_extension(x509.BasicConstraints(True, None), critical=True)
        .add_extension(usage, critical=True)
    )
    return key, builder.sign(key, hashes.SHA256())


def _issue(
    files: Certificates,
    name: str,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    server: bool,
    since: int,
    until: int,
    purpose: x509.ObjectIdentifier | None = None,
    names: Sequence[x509.GeneralName] = (
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ),
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    purpose = purpose or (ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH)
    builder = _builder(name, str(issuer), key.public_key(), since, until)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
    )
    if server:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    files.cert(name).write_bytes(_pem(builder.sign(authority_key, hashes.SHA256())))
    files.key(name).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _builder(
    subject: str, issuer: str, public_key: ec.EllipticCurvePublicKey, since: int, until: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + since * DAY)
        .not_valid_after(now + until * DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
