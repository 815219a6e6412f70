"""Which certificates are accepted over QUIC, whatever the engine: those that TLS on a stream would accept."""

from __future__ import annotations

from aioquic.tls import AlertBadCertificate, verify_certificate
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from service_identity import CertificateError


def verify(
    certificate: x509.Certificate, chain: list[x509.Certificate], issuers: bytes | None, server_name: str | None = None
) -> None:
    """Raise Alert unless one of `issuers` (PEM) has issued it: for a server of this name, or for a client."""
    try:
        verify_certificate(certificate, chain, server_name=server_name, cadata=issuers)
        _check_purpose(certificate, chain, client=server_name is None)
    except CertificateError as error:  # a name in it is none, such as an IP address as a DNS name
        raise AlertBadCertificate(f"subjectAltName: {error}") from error
    except ValueError as error:  # extensions are parsed when they are asked for
        raise AlertBadCertificate(str(error)) from error


def _check_purpose(certificate: x509.Certificate, chain: list[x509.Certificate], *, client: bool) -> None:
    """As OpenSSL does for TLS, which aioquic does not ask it for."""
    wanted = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
    fits = True
    for one in (certificate, *chain):
        for extension in one.extensions:
            match extension.value:
                case x509.ExtendedKeyUsage() as purposes:
                    fits = fits and wanted in purposes
                case x509.KeyUsage() as use if one is certificate:
                    signs = use.digital_signature or use.key_agreement
                    fits = fits and (signs or (use.key_encipherment and not client))
    if not fits:
        raise AlertBadCertificate("unsuitable certificate purpose")
