"""What is accepted as a certificate does not depend on the transport: one table, judged as TLS and as QUIC do it."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aioquic.tls import Alert
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from multi.transports.base import TlsSettings
from multi.transports.certificates import fault_of
from multi.transports.quic.verification import verify
from multi.transports.tls import ALPN, client_context, server_context

CLIENTS, SERVERS = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
DNS = x509.DNSName
LOCALHOST = DNS("localhost")
DAY = datetime.timedelta(days=1)
SHA256_WITH_RSA = bytes.fromhex("2a864886f70d01010b")  # 1.2.840.113549.1.1.11, and .5 is that with SHA-1


class Made(NamedTuple):
    certificate: x509.Certificate
    key: Any


@dataclass
class Shown:
    """What a peer shows, and whom we trust; `server` None = the peer is a client."""

    leaf: Made
    chain: Sequence[Made] = ()
    trusted: Made | None = None
    server: str | None = "localhost"


def make(
    name: str,
    issuer: Made | None = None,
    names: Sequence[x509.GeneralName] = (),
    *,
    key: Any = None,
    authority: bool | None = None,
    depth: int | None = None,
    purpose: x509.ObjectIdentifier | None = None,
    usage: str = "",
    days: tuple[int, int] = (-2, 2),
    others: Sequence[tuple[x509.ExtensionType, bool]] = (),
) -> Made:
    """A certificate for some days from now, without any extension that is not asked for."""
    key, now = key or ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + days[0] * DAY)
        .not_valid_after(now + days[1] * DAY)
    )
    extensions = list(others)
    if authority is not None:
        extensions.append((x509.BasicConstraints(authority, depth), True))
    if names:
        extensions.append((x509.SubjectAlternativeName(names), False))
    if purpose is not None:
        extensions.append((x509.ExtendedKeyUsage([purpose]), False))
    if usage:
        uses = "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign"
        flags = {one: one == usage for one in f"{uses} crl_sign encipher_only decipher_only".split()}
        extensions.append((x509.KeyUsage(**flags), True))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    signer = issuer.key if issuer else key
    return Made(builder.sign(signer, None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256()), key)


@lru_cache
def rsa_key(bits: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


def by_sha1(made: Made, signer: rsa.RSAPrivateKey) -> Made:
    """The same, signed in a way that the library makes no more."""
    der = made.certificate.public_bytes(Encoding.DER).replace(SHA256_WITH_RSA, SHA256_WITH_RSA[:-1] + b"\x05")
    signed = x509.load_der_x509_certificate(der).tbs_certificate_bytes
    signature = signer.sign(signed, padding.PKCS1v15(), hashes.SHA1())
    return Made(x509.load_der_x509_certificate(der[: -len(signature)] + signature), made.key)


ROOT = make("root", authority=True, usage="key_cert_sign")
RSA_ROOT = make("RSA root", authority=True, key=rsa_key(2048))


def named(name: x509.GeneralName, asked: str) -> Shown:
    return Shown(make("leaf", ROOT, [name]), server=asked)


def below(middle: Made) -> Shown:
    return Shown(make("leaf", middle, [LOCALHOST]), [middle])


def trusting(root: Made) -> Shown:
    return Shown(make("leaf", root, [LOCALHOST]), trusted=root)


def leaf(**wanted: Any) -> Shown:
    return Shown(make("leaf", ROOT, [LOCALHOST], **wanted))


def client(**wanted: Any) -> Shown:
    return Shown(make("client", ROOT, **wanted), server=None)


def middle(**wanted: Any) -> Made:
    return make("middle", ROOT, **({"authority": True} | wanted))


def names_limited() -> Shown:
    limits = x509.NameConstraints([DNS("example.org")], None)
    return below(middle(others=[(limits, True)]))


def too_deep() -> Shown:
    upper = middle(depth=0)
    lower = make("lower", upper, authority=True)
    return Shown(make("leaf", lower, [LOCALHOST]), [lower, upper])


def sha1_leaf() -> Shown:
    return Shown(by_sha1(make("leaf", RSA_ROOT, [LOCALHOST]), RSA_ROOT.key), trusted=RSA_ROOT)


def sha1_middle() -> Shown:
    weak = by_sha1(make("middle", RSA_ROOT, authority=True), RSA_ROOT.key)
    return Shown(make("leaf", weak, [LOCALHOST]), [weak], RSA_ROOT)


UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), b"\x05\0")
IPV4 = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))

ACCEPTED: dict[str, Callable[[], Shown]] = {
    "issued by the root": leaf,
    "by an intermediate": lambda: below(middle()),
    "an authority itself": lambda: leaf(authority=True),
    "trusted itself": lambda: Shown(own := make("leaf", names=[LOCALHOST]), trusted=own),
    "trusted itself, issued by another": lambda: Shown(own := make("leaf", ROOT, [LOCALHOST]), trusted=own),
    "an intermediate as the only authority": lambda: trusting(middle()),
    "a name in capitals": lambda: named(DNS("LOCALHOST"), "localhost"),
    "a wildcard": lambda: named(DNS("*.example.com"), "a.example.com"),
    "an address": lambda: named(IPV4, "127.0.0.1"),
    "IPv6": lambda: named(x509.IPAddress(ipaddress.ip_address("::1")), "::1"),
    "RSA of 2048 bits": lambda: leaf(key=rsa_key(2048)),
    "Ed25519": lambda: leaf(key=ed25519.Ed25519PrivateKey.generate()),
    "an intermediate on P-224": lambda: below(middle(key=ec.generate_private_key(ec.SECP224R1()))),
    "a trusted root signed by SHA-1": lambda: trusting(
        by_sha1(make("old", authority=True, key=rsa_key(2048)), rsa_key(2048))
    ),
    "an unknown extension": lambda: leaf(others=[(UNKNOWN, False)]),
    "for servers": lambda: leaf(purpose=SERVERS),
    "an intermediate for servers": lambda: below(middle(purpose=SERVERS)),
    "for key encipherment": lambda: leaf(usage="key_encipherment"),
    "a stranger's certificate besides": lambda: Shown(
        make("leaf", ROOT, [LOCALHOST]), [make("stranger", purpose=CLIENTS, key=rsa_key(1024))]
    ),
    "a client": client,
    "a client for clients": lambda: client(purpose=CLIENTS),
}
REFUSED: dict[str, Callable[[], Shown]] = {
    "a missing intermediate": lambda: Shown(make("leaf", middle(), [LOCALHOST])),
    "by a leaf": lambda: below(middle(authority=False)),
    "by what says nothing of authority": lambda: below(middle(authority=None)),
    "below too many": too_deep,
    "outside of the names its authority has": names_limited,
    "a common name alone": lambda: Shown(make("localhost", ROOT)),
    "a common name and another name": lambda: Shown(make("localhost", ROOT, [DNS("other")])),
    "an address as common name": lambda: Shown(make("127.0.0.1", ROOT), server="127.0.0.1"),
    "a wildcard for two labels": lambda: named(DNS("*.example.com"), "a.b.example.com"),
    "a wildcard for none": lambda: named(DNS("*.example.com"), "example.com"),
    "a wildcard alone": lambda: named(DNS("*"), "localhost"),
    "a wildcard in a label": lambda: named(DNS("a*.example.com"), "ab.example.com"),
    "a wildcard for an address": lambda: named(DNS("*.0.0.1"), "127.0.0.1"),
    "an address as DNS name": lambda: named(DNS("127.0.0.1"), "127.0.0.1"),
    "a mail address": lambda: named(x509.RFC822Name("localhost"), "localhost"),
    "RSA of 1024 bits": lambda: leaf(key=rsa_key(1024)),
    "an intermediate with RSA of 1024 bits": lambda: below(middle(key=rsa_key(1024))),
    "a root with RSA of 1024 bits": lambda: trusting(make("weak", authority=True, key=rsa_key(1024))),
    "an intermediate with DSA of 1024 bits": lambda: below(middle(key=dsa.generate_private_key(1024))),
    "an intermediate on P-192": lambda: below(middle(key=ec.generate_private_key(ec.SECP192R1()))),
    "signed by SHA-1": sha1_leaf,
    "an intermediate signed by SHA-1": sha1_middle,
    "an unknown critical extension": lambda: leaf(others=[(UNKNOWN, True)]),
    "for clients": lambda: leaf(purpose=CLIENTS),
    "for any purpose": lambda: leaf(purpose=ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE),
    "an intermediate for clients": lambda: below(middle(purpose=CLIENTS)),
    "a root for clients": lambda: trusting(make("limited", authority=True, purpose=CLIENTS)),
    "a root that may not sign": lambda: trusting(make("mute", authority=True, usage="digital_signature")),
    "a root that is none": lambda: trusting(make("none", authority=False)),
    "a root that does not say so": lambda: trusting(make("old")),
    "for signing certificates": lambda: leaf(usage="key_cert_sign"),
    "expired": lambda: leaf(days=(-2, -1)),
    "not yet valid": lambda: leaf(days=(1, 2)),
    "an expired intermediate": lambda: below(middle(days=(-2, -1))),
    "an expired root": lambda: trusting(make("old", authority=True, days=(-2, -1))),
    "a client for servers": lambda: client(purpose=SERVERS),
    "a client for key encipherment": lambda: client(usage="key_encipherment"),
    "a client with RSA of 1024 bits": lambda: client(key=rsa_key(1024)),
}


def pem(*certificates: Made) -> bytes:
    return b"".join(one.certificate.public_bytes(Encoding.PEM) for one in certificates)


def files(directory: Path, name: str, *chain: Made) -> tuple[Path, Path]:
    cert, key = directory / f"{name}.pem", directory / f"{name}-key.pem"
    cert.write_bytes(pem(*chain))
    key.write_bytes(chain[0].key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert, key


def judged_by_tls(shown: Shown, trusted: Made, directory: Path) -> str:
    """What is wrong, from a handshake with a peer that itself cares for nothing."""
    peer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if shown.server else ssl.PROTOCOL_TLS_CLIENT)
    peer.set_ciphers("DEFAULT@SECLEVEL=0")
    peer.set_alpn_protocols([ALPN])
    peer.check_hostname, peer.verify_mode = False, ssl.CERT_NONE
    peer.load_cert_chain(*files(directory, "peer", shown.leaf, *shown.chain))
    ca = directory / "ca.pem"
    ca.write_bytes(pem(trusted))
    if shown.server:
        ours = client_context(TlsSettings(ca=ca))
    else:
        cert, key = files(directory, "own", make("server", ROOT, [LOCALHOST]))
        ours = server_context(TlsSettings(cert=cert, key=key, client_ca=ca))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    judge = ours.wrap_bio(there, back, not shown.server, shown.server)
    judged = peer.wrap_bio(back, there, bool(shown.server))
    try:
        for _ in range(3):
            for end in (judge, judged):
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return fault_of(error.verify_message)
    assert judge.version() == "TLSv1.3"
    return ""


def judged_by_quic(shown: Shown, trusted: Made) -> str:
    try:
        verify(shown.leaf.certificate, [one.certificate for one in shown.chain], pem(trusted), shown.server)
    except Alert as error:
        return fault_of(str(error))
    return ""


def both(shown: Shown, directory: Path) -> tuple[str, str]:
    trusted = shown.trusted or ROOT
    return judged_by_tls(shown, trusted, directory), judged_by_quic(shown, trusted)


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_tls_accepts_is_accepted_by_quic(case: str, tmp_path: Path) -> None:
    assert both(ACCEPTED[case](), tmp_path) == ("", "")


@pytest.mark.parametrize("case", REFUSED)
def test_what_tls_refuses_is_refused_by_quic_in_the_same_words(case: str, tmp_path: Path) -> None:
    by_tls, by_quic = both(REFUSED[case](), tmp_path)
    assert by_tls
    assert by_quic == by_tls


def test_names_of_a_kind_that_quic_cannot_read_are_refused_in_words() -> None:
    kind = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, bytes.fromhex("3004a3020500"))  # an x400Address
    shown = Shown(make("leaf", ROOT, others=[(kind, False)]))
    assert "not supported" in judged_by_quic(shown, ROOT)
