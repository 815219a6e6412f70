"""`multi cert`: certificates to try things out with.

Makes a certificate authority of its own and one certificate each for a server and a client. The authority's
key is never written: nobody can sign anything else with it later, so trusting `ca.pem` trusts exactly these
two certificates. To change or renew one, make a new set.

The certificates keep to RFC 5280 closely enough for OpenSSL's X509_V_FLAG_X509_STRICT, which Python turns on
by default since 3.13.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from multi.errors import MultiError
from multi.transports.certificates import first_certificate, pin_of

__all__ = ["CertificateError", "run_cert", "write_development_certificates"]

LIFETIME = datetime.timedelta(days=825)  # the longest Apple's systems accept, whoever signed
BACKDATED = datetime.timedelta(hours=1)  # for clocks that are behind
ALWAYS_VALID_FOR = ("localhost", "127.0.0.1", "::1")
PRIVATE = 0o600
PUBLIC = 0o644
MAX_HOST_NAME = 253  # RFC 1035 section 2.3.4, without the final dot


class CertificateError(MultiError):
    """The certificates could not be made or written; the message says why."""


def run_cert(directory: Path, names: Sequence[str], *, force: bool = False) -> int:
    """Write the certificates, then print the files and what to put into the configurations. Returns 0.

    Raises CertificateError as `write_development_certificates` does.
    """
    written = write_development_certificates(directory, names, force=force)
    ca, server_cert, server_key, client_cert, client_key = (str(path.resolve()) for path in written)
    valid_for = ", ".join(dict.fromkeys([*ALWAYS_VALID_FOR, *names]))
    settings = {
        "Server configuration": {"cert": server_cert, "key": server_key},
        "Client configuration": {"ca": ca},
        "Server that asks clients for a certificate": {
            "cert": server_cert,
            "key": server_key,
            "client_ca": ca,
        },
        "Client of such a server": {"ca": ca, "cert": client_cert, "key": client_key},
    }
    print(f"Certificates for development, valid {LIFETIME.days} days; the server's for {valid_for}:")
    for path in written:
        print(f"  {path}")
    pin = pin_of(first_certificate(written[1]))
    print(f"\nPin of the server's certificate, for the `pin` of clients:\n  {pin}")
    for title, ssl_config in settings.items():
        print(f'\n{title}:\n  "ssl_config": {json.dumps(ssl_config, ensure_ascii=False)}')
    return 0


def write_development_certificates(directory: Path, names: Sequence[str], *, force: bool = False) -> list[Path]:
    """Write `ca.pem` and `server-` and `client-` `cert.pem` and `key.pem`; return the five paths.

    The server's certificate is valid for `localhost`, `127.0.0.1`, `::1` and `names`, host names or IP
    addresses. Keys are ECDSA P-256 and readable by the owner alone. The directory is made if need be. All
    files are written or none. Raises CertificateError when a file exists and `force` is not given, for a name
    that is neither a host name nor an address, and when the system does not let us write.
    """
    contents = _certificates(names)
    paths = {directory / name: content for name, content in contents.items()}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_all(paths, force)
    except FileExistsError as error:
        if error.filename is None or Path(error.filename) not in paths:
            raise CertificateError(f"{error.filename or directory} is not a directory") from None
        advice = "remove it or choose another directory"
        raise CertificateError(f"{error.filename} exists already; {advice}") from None
    except NotADirectoryError:
        raise CertificateError(f"{directory} cannot be made: a part of it is a file") from None
    except OSError as error:
        where = error.filename or directory
        raise CertificateError(f"cannot write {where}: {error.strerror or error}") from error
    return list(paths)


def _certificates(names: Sequence[str]) -> dict[str, bytes]:
    """File name -> PEM."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    client_key = ec.generate_private_key(ec.SECP256R1())
    authority = _authority(authority_key)
    server_names = [_subject_name(name) for name in dict.fromkeys([*ALWAYS_VALID_FOR, *names])]
    server = _leaf(
        "multi development server",
        server_key.public_key(),
        server_names,
        ExtendedKeyUsageOID.SERVER_AUTH,
        authority,
        authority_key,
    )
    client = _leaf(
        "multi development client",
        client_key.public_key(),
        [x509.DNSName("multi-client")],  # RFC 5280 allows none, strict verifiers do not
        ExtendedKeyUsageOID.CLIENT_AUTH,
        authority,
        authority_key,
    )
    return {
        "ca.pem": authority.public_bytes(serialization.Encoding.PEM),
        "server-cert.pem": server.public_bytes(serialization.Encoding.PEM),
        "server-key.pem": _private_pem(server_key),
        "client-cert.pem": client.public_bytes(serialization.Encoding.PEM),
        "client-key.pem": _private_pem(client_key),
    }


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # A name of its own for each authority: two of one name in a trust store are told apart badly.
    name = _name(f"multi development CA {identifier.digest.hex()[:8]}")
    return (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )


def _leaf(
    name: str,
    key: ec.EllipticCurvePublicKey,
    valid_for: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    issuer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _builder(_name(name), authority.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(valid_for), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    start = datetime.datetime.now(datetime.UTC) - BACKDATED
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + LIFETIME)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _subject_name(name: str) -> x509.GeneralName:
    if "%" not in name:  # a scope means something on one machine only and has no place in a certificate
        try:
            return x509.IPAddress(ip_address(name))
        except ValueError:
            pass
    try:
        ascii_name = name.removesuffix(".").encode("idna").decode("ascii")
    except UnicodeError:
        ascii_name = ""
    labels = ascii_name.removeprefix("*.").split(".")
    if len(ascii_name) > MAX_HOST_NAME or not all(_is_label(label) for label in labels):
        raise CertificateError(f"{name!r} is neither a host name nor an IP address")
    return x509.DNSName(ascii_name)


def _is_label(label: str) -> bool:
    return 0 < len(label) <= 63 and label.replace("-", "").replace("_", "").isalnum()


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_all(contents: Mapping[Path, bytes], force: bool) -> None:
    """Create all files or none; `force` writes beside them first, so that a full disk leaves the old set."""
    made: list[Path] = []
    suffix = secrets.token_hex(8)
    try:
        for path, content in contents.items():
            target = path.with_name(f".{path.name}.{suffix}") if force else path
            _create(target, content, PRIVATE if path.stem.endswith("-key") else PUBLIC, made)
        if force:
            for path, temporary in zip(contents, list(made), strict=True):
                os.replace(temporary, path)
                made.remove(temporary)
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise


def _create(path: Path, content: bytes, mode: int, made: list[Path]) -> None:
    """Make a new file with its final mode from the first moment; never follow or reuse what is there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    made.append(path)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
