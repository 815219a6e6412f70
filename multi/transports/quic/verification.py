"""Which certificates are accepted over QUIC, whatever the engine: those that TLS on a stream would accept."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address

from aioquic.tls import AlertBadCertificate, AlertCertificateExpired
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.dsa import DSAPublicKey
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA224
from cryptography.x509.oid import ExtendedKeyUsageOID
from OpenSSL import crypto
from service_identity import CertificateError, VerificationError
from service_identity.cryptography import verify_certificate_hostname, verify_certificate_ip_address

STORES_KEPT = 8  # filling one with the authorities of a system takes longer than a handshake

# 112 bits of security, as level 2 of OpenSSL, which Python asks of TLS (SSL_CTX_set_security_level(3)).
RSA_BITS = 2048
CURVE_BITS = 224

UNREADABLE = (
    ValueError,
    UnsupportedAlgorithm,
    crypto.Error,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What a certificate of a stranger may raise where it is parsed."""

_NOT_YET_VALID, _EXPIRED = 9, 10  # X509_V_ERR_* (X509_STORE_CTX_get_error(3))


def verify(
    certificate: x509.Certificate, chain: list[x509.Certificate], issuers: bytes | None, server_name: str | None = None
) -> None:
    """Raise Alert unless one of `issuers` (PEM) has issued it: for a server of this name, or for a client."""
    try:
        path = _path(certificate, chain, issuers or b"")
        _check_purpose(path, client=server_name is None)
        _check_strength(path)
        if server_name is not None:
            _check_name(certificate, server_name)
    except crypto.X509StoreContextError as error:
        dated = error.errors[0] in (_NOT_YET_VALID, _EXPIRED)
        raise (AlertCertificateExpired if dated else AlertBadCertificate)(str(error)) from error
    except VerificationError as error:
        raise AlertBadCertificate(f"hostname mismatch: it is not for {server_name}") from error
    except CertificateError as error:  # a name in it is none, such as an IP address as a DNS name
        raise AlertBadCertificate(f"subjectAltName: {error}") from error
    except UNREADABLE as error:  # extensions and keys are parsed when they are asked for
        raise AlertBadCertificate(str(error)) from error


def _check_name(certificate: x509.Certificate, name: str) -> None:
    try:
        ip_address(name)
    except ValueError:
        verify_certificate_hostname(certificate, name)
    else:
        verify_certificate_ip_address(certificate, name)


def _path(certificate: x509.Certificate, chain: list[x509.Certificate], issuers: bytes) -> list[x509.Certificate]:
    """From the certificate to the authority that is trusted; what else the peer has sent is not in it."""
    shown, *others = map(crypto.X509.from_cryptography, (certificate, *chain))
    found = crypto.X509StoreContext(_store(issuers), shown, others).get_verified_chain()
    return [one.to_cryptography() for one in found]


@lru_cache(maxsize=STORES_KEPT)
def _store(issuers: bytes) -> crypto.X509Store:
    store = crypto.X509Store()
    store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)  # what is trusted is, whoever issued it
    for authority in x509.load_pem_x509_certificates(issuers):
        store.add_cert(crypto.X509.from_cryptography(authority))
    return store


# What OpenSSL does for TLS, but here only if it is asked to in ways that pyOpenSSL does not offer. In its words.


def _check_purpose(path: list[x509.Certificate], *, client: bool) -> None:
    wanted = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
    fits = True
    for one in path:
        for extension in one.extensions:
            match extension.value:
                case x509.ExtendedKeyUsage() as purposes:
                    fits = fits and wanted in purposes
                case x509.KeyUsage() as use if one is path[0]:
                    signs = use.digital_signature or use.key_agreement
                    fits = fits and (signs or (use.key_encipherment and not client))
    if not fits:
        raise AlertBadCertificate("unsuitable certificate purpose")


def _check_strength(path: list[x509.Certificate]) -> None:
    for one in path:
        match one.public_key():
            case RSAPublicKey() | DSAPublicKey() as key:
                weak = key.key_size < RSA_BITS
            case EllipticCurvePublicKey() as key:
                weak = key.key_size < CURVE_BITS
            case _:
                weak = False
        if weak:
            raise AlertBadCertificate(f"{'EE' if one is path[0] else 'CA'} certificate key too weak")
    for one in path[:-1]:  # what is trusted needs no signature
        made_of = one.signature_hash_algorithm
        if made_of is not None and made_of.digest_size < SHA224.digest_size:  # MD5, SHA-1
            raise AlertBadCertificate("CA signature digest algorithm too weak")
