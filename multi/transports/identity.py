"""A key and a certificate that a server makes for itself, kept for its next start: clients know it by its pin.

Only servers write them, and only when asked to.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from multi.discovery.resources import NO_STATE_DIRECTORY, state_directory
from multi.errors import TransportError

LIFETIME = timedelta(days=3650)  # clients that check a pin look at no date
BACKDATED = timedelta(hours=1)  # for clocks that are behind


def server_identity() -> tuple[Path, Path]:
    """The files of this user's certificate and key, made the first time. Raises TransportError where they cannot be."""
    if (directory := state_directory()) is None:
        raise TransportError(f"no identity can be kept: {NO_STATE_DIRECTORY}")
    cert, key = directory / "server-cert.pem", directory / "server-key.pem"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = ec.generate_private_key(ec.SECP256R1())
        _write(key, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        if not cert.exists():  # signed with the key that is kept, whoever has written it first
            _write(cert, _self_signed(key.read_bytes()))
    except (OSError, ValueError) as error:
        raise TransportError(f"no identity can be kept in {directory}: {error}") from error
    return cert, key


def _write(path: Path, content: bytes) -> None:
    """Write a file whole, readable by its owner alone, unless it is there."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb", opener=partial(os.open, mode=0o600)) as file:
            file.write(content)
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _self_signed(key: bytes) -> bytes:
    private = load_pem_private_key(key, None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError("the key that is kept there is of another kind")
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "multi server")])
    start = datetime.now(UTC) - BACKDATED
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
    )
    return builder.sign(private, hashes.SHA256()).public_bytes(Encoding.PEM)
