"""Certificates and private keys as files, pins, and what is wrong with them in words.

TLS on streams and QUIC share it, so that the same mistake reads the same on every transport: one line that names the
file or the peer, and the cause.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import ssl
import warnings
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from multi.discovery.resources import read_bounded
from multi.errors import TransportError
from multi.transports.base import TlsSettings
from multi.transports.sockets import transport_error

logger = logging.getLogger("multi.transports")

PIN_PREFIX = "sha256/"  # the only hash RFC 7469 defines

EXPIRED = "has expired"
NOT_YET_VALID = "is not valid yet"

MAX_FILE_SIZE = 16 << 20  # bytes; the authorities of a system have a fifth of a MB, a device has no end


def pin_of(certificate: bytes) -> str:
    """`sha256/BASE64` of the SubjectPublicKeyInfo of a DER certificate (RFC 7469 section 2.4).

    Raises TransportError when its key is of a kind we do not know.
    """
    try:
        key = _public_bytes(x509.load_der_x509_certificate(certificate).public_key())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TransportError(f"a certificate that cannot be read: {error}") from error
    return PIN_PREFIX + base64.b64encode(hashlib.sha256(key).digest()).decode()


def check_pin(tls: TlsSettings, certificate: bytes, whose: str) -> bool:
    """Return whether the peer's certificate is pinned; False when no pins are set.

    Raises TransportError naming the pin that was seen when it is none of those set.
    """
    if not tls.pins:
        return False
    if not certificate:
        raise TransportError(f"{whose} showed no certificate, but ssl_config.pin asks for one")
    seen = pin_of(certificate)
    if seen not in tls.pins:
        raise TransportError(f"the certificate of {whose} has the pin {seen}, which ssl_config.pin does not list")
    return True


def refused(whose: str, cause: str) -> TransportError:
    """The error of a peer whose certificate was not accepted here."""
    return TransportError(f"certificate verify failed: the certificate of {whose} {cause}")


def check_own(cert: Path, key: Path) -> None:
    """Raise TransportError unless the files hold a certificate and its private key; warn when it is out of date."""
    public, content = _certificates(cert)[0].public_key(), _read(key)
    try:
        private = load_pem_private_key(content, None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        # In the newer format encrypted keys cannot even be told from damaged ones by the error.
        if isinstance(error, TypeError) or b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in content:
            raise TransportError(
                f"cannot use {key}: the private key is encrypted, and nobody is asked for the password"
            ) from None
        raise TransportError(f"{key} holds no usable PEM private key") from error
    if _public_bytes(private.public_key()) != _public_bytes(public):
        raise TransportError(f"{key} is not the private key of the certificate in {cert}")
    if doubt := out_of_date(cert):
        logger.warning("%s", doubt)


def read_certificates(path: Path) -> bytes:
    """PEM of the certificates in a file, at least one. Raises TransportError."""
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in _certificates(path))


def system_authorities() -> bytes:
    """PEM of the authorities this system trusts; empty when there are none. Read again when they have changed."""
    paths = ssl.get_default_verify_paths()
    return _authorities(paths.capath, (stamp(paths.cafile), stamp(paths.capath)))


@lru_cache(maxsize=1)
def _authorities(directory: str | None, state: object) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    found = [ssl.DER_cert_to_PEM_cert(certificate) for certificate in context.get_ca_certs(binary_form=True)]
    if directory is not None:
        # OpenSSL looks into a directory only when it needs one of its certificates: for files named by hash and number.
        for path in sorted(Path(directory).glob("*.[0-9]")):
            try:
                found.append(path.read_text(errors="replace"))
            except OSError as error:
                logger.info("cannot read the authority %s: %s", path, error)
    return b"".join(dict.fromkeys(pem for text in found for pem in _usable(text)))


def stamp(path: Path | str | None) -> object:
    """What is different once the file or directory has been replaced or written to; None while there is none."""
    try:
        found = os.stat(path or "")
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _usable(text: str) -> list[bytes]:
    """PEM of each certificate; nothing of a text the library refuses: it would keep all others from being used."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return [one.public_bytes(Encoding.PEM) for one in x509.load_pem_x509_certificates(text.encode())]
        except (ValueError, Warning):
            return []


def first_certificate(path: Path) -> bytes:
    """DER of the first certificate in a PEM file. Raises TransportError."""
    return _certificates(path)[0].public_bytes(Encoding.DER)


def out_of_date(cert: Path) -> str:
    """What is wrong with the dates of the first certificate in a file; empty when nothing is."""
    certificate = _certificates(cert)[0]
    now, begin, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        return f"the certificate in {cert} {EXPIRED}: it was valid until {end:%Y-%m-%d}"
    if now < begin:
        return f"the certificate in {cert} {NOT_YET_VALID}: it will be from {begin:%Y-%m-%d}"
    return ""


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_FILE_SIZE)
    except OSError as error:
        raise transport_error(error, f"cannot read {path}") from error


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(_read(path))
        found[0].not_valid_after_utc  # noqa: B018  parsed when asked for, and may be garbage too
        found[0].public_key()
    except (ValueError, IndexError, UnsupportedAlgorithm) as error:
        raise TransportError(f"{path} holds no usable PEM certificate") from error
    return found


def _public_bytes(key: PublicKeyTypes | CertificatePublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


_FAULTS = (  # what OpenSSL and aioquic say, in small letters
    (("not valid yet", "not yet valid"), NOT_YET_VALID),
    (("no longer valid", "expired"), EXPIRED),
    (("hostname", "subjectaltname", "mismatch"), "is not for that name (see ssl_config.server_name)"),
    (("issuer", "self-signed", "self signed", "first certificate"), "has an unknown issuer"),
    (("purpose",), "is not made for this purpose"),
)


def fault_of(said: str) -> str:
    """The fault of a certificate in the words we use for it."""
    text = said.lower().rstrip(".")
    for signs, fault in _FAULTS:
        if any(sign in text for sign in signs):
            return fault
    return f"was not accepted{': ' if text else ''}{text}"
