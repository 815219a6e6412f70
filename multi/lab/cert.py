"""Certificates to try things out with.

Makes a certificate authority of its own and one certificate each for a server and a client. The authority's
key is never written: nobody can sign anything else with it later, so trusting `ca.pem` trusts exactly these
two certificates. To change or renew one, make a new set.

The certificates keep to RFC 5280 closely enough for OpenSSL's X509_V_FLAG_X509_STRICT, which Python turns on
by default since 3.13.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from multi.errors import MultiError

LIFETIME = datetime.timedelta(days=825)  # the longest Apple's systems accept, whoever signed
BACKDATED = datetime.timedelta(hours=1)  # for clocks that are behind
ALWAYS_VALID_FOR = ("localhost", "127.0.0.1", "::1")
MAX_HOST_NAME = 253  # RFC 1035 section 2.3.4, without the final dot
MAX_LABEL = 63

PrivateKey = ec.EllipticCurvePrivateKey


class CertificateError(MultiError):
    """The certificates could not be made or written; the message says why."""


def write_development_certificates(directory: Path, names: Sequence[str]) -> list[Path]:
    """Write `ca.pem` and `server-` and `client-` `cert.pem` and `key.pem`; return the five paths.

    The server's certificate is valid for `localhost`, `127.0.0.1`, `::1` and `names`, host names or IP
    addresses. Keys are ECDSA P-256 and readable by the owner alone. The directory is made if need be. All
    files are written or none. Raises CertificateError when a file exists and for a name that is neither a host
    name nor an address, OSError when the system does not let us write.
    """
    contents = _certificates(names)
    written: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            mode = 0o600 if name.endswith("-key.pem") else 0o644
            # With its mode from the first moment; "x" neither follows nor reuses what is there.
            with open(directory / name, "xb", opener=partial(os.open, mode=mode)) as file:
                written.append(directory / name)
                file.write(content)
    except BaseException as error:
        for path in written:
            path.unlink()
        if isinstance(error, FileExistsError):
            advice = "remove it or choose another directory"
            raise CertificateError(f"{error.filename} exists already; {advice}") from None
        raise
    return written


def _certificates(names: Sequence[str]) -> dict[str, bytes]:
    """File name -> PEM."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own for each authority: two of one name in a trust store are told apart badly.
    number = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()).digest.hex()[:8]
    ca_name = f"multi development CA {number}"
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    contents = {"ca.pem": _signed(ca_name, ca_key, ca_name, ca_key, constraints, _key_usage(signs_certificates=True))}
    for side, purpose, valid_for in (
        ("server", ExtendedKeyUsageOID.SERVER_AUTH, dict.fromkeys([*ALWAYS_VALID_FOR, *names])),
        ("client", ExtendedKeyUsageOID.CLIENT_AUTH, ["multi-client"]),  # RFC 5280 allows none, strict verifiers do not
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        contents[f"{side}-cert.pem"] = _signed(
            f"multi development {side}",
            key,
            ca_name,
            ca_key,
            x509.BasicConstraints(ca=False, path_length=None),
            _key_usage(signs_certificates=False),
            x509.ExtendedKeyUsage([purpose]),
            x509.SubjectAlternativeName([_subject_name(name) for name in valid_for]),
        )
        contents[f"{side}-key.pem"] = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return contents


def _signed(name: str, key: PrivateKey, issuer: str, issuer_key: PrivateKey, *extensions: x509.ExtensionType) -> bytes:
    """A certificate as PEM."""
    start = datetime.datetime.now(datetime.UTC) - BACKDATED
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, isinstance(extension, x509.BasicConstraints | x509.KeyUsage))
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(Encoding.PEM)


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
    return 0 < len(label) <= MAX_LABEL and label.replace("-", "").replace("_", "").isalnum()
