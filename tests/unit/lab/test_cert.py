"""Development certificates: what is in them, who accepts them, and how they are written."""

from __future__ import annotations

import datetime
import errno
import json
import os
import ssl
import stat
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from multi.cli.cert import run_cert
from multi.errors import MultiError
from multi.lab.cert import CertificateError, write_development_certificates

NAMES = ["ca.pem", "server-cert.pem", "server-key.pem", "client-cert.pem", "client-key.pem"]
posix_only = pytest.mark.skipif(os.name != "posix", reason="file modes are a thing of POSIX")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates") / "new" / "here"
    write_development_certificates(
        directory, ["mcserver", "*.example.org", "192.0.2.7", "2001:db8::7", "bücher.example", "localhost"]
    )
    return directory


def contexts(directory: Path, *, mutual: bool = False) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(client, server), checking as strictly as any supported Python does by default."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "server-cert.pem", directory / "server-key.pem")
    client = ssl.create_default_context(cafile=str(directory / "ca.pem"))
    if mutual:
        server.verify_mode = ssl.CERT_REQUIRED
        server.load_verify_locations(directory / "ca.pem")
        client.load_cert_chain(directory / "client-cert.pem", directory / "client-key.pem")
    for context in (client, server):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    return client, server


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """Run a handshake in memory and exchange a byte each way; returns the server's end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [one, other]
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert waiting == []
    one.write(b"?")
    assert other.read(1) == b"?"
    return other


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


# What is in them


def test_the_five_files_of_the_contract_are_written_and_no_more(directory: Path) -> None:
    assert sorted(path.name for path in directory.iterdir()) == sorted(NAMES)


def test_the_paths_come_back_in_a_fixed_order(tmp_path: Path) -> None:
    assert write_development_certificates(tmp_path, []) == [tmp_path / name for name in NAMES]


@pytest.mark.parametrize(
    "name",
    [
        "localhost",
        "127.0.0.1",
        "::1",
        "mcserver",
        "a.example.org",
        "192.0.2.7",
        "2001:db8::7",
        "bücher.example",
    ],
)
def test_the_server_is_accepted_under_each_of_its_names(directory: Path, name: str) -> None:
    other = handshake(*contexts(directory), name)
    assert other.version() == "TLSv1.3"


@pytest.mark.parametrize("name", ["example.org", "other", "127.0.0.2", "::2"])
def test_the_server_is_refused_under_any_other_name(directory: Path, name: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(*contexts(directory), name)


def test_the_client_is_accepted_by_a_server_that_asks(directory: Path) -> None:
    other = handshake(*contexts(directory, mutual=True), "localhost")
    peer = other.getpeercert()
    assert peer is not None
    assert (("commonName", "multi development client"),) in peer["subject"]


def test_another_set_is_refused(directory: Path, tmp_path: Path) -> None:
    write_development_certificates(tmp_path, [])
    client, _ = contexts(tmp_path)
    _, server = contexts(directory)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client, server, "localhost")


def test_a_client_certificate_does_not_make_a_server(directory: Path) -> None:
    client, server = contexts(directory)
    server.load_cert_chain(directory / "client-cert.pem", directory / "client-key.pem")
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(client, server, "multi-client")


def test_ip_addresses_are_address_names_and_nothing_is_named_twice(directory: Path) -> None:
    names = certificate(directory / "server-cert.pem").extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.IPAddress) == [
        ip_address(a) for a in ("127.0.0.1", "::1", "192.0.2.7", "2001:db8::7")
    ]
    assert names.value.get_values_for_type(x509.DNSName) == [
        "localhost",
        "mcserver",
        "*.example.org",
        "xn--bcher-kva.example",
    ]


def test_each_leaf_has_one_purpose_and_cannot_sign(directory: Path) -> None:
    for file, purpose in (
        ("server-cert.pem", ExtendedKeyUsageOID.SERVER_AUTH),
        ("client-cert.pem", ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        extensions = certificate(directory / file).extensions
        assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]
        assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_the_authority_signs_and_is_linked_by_key_identifiers(directory: Path) -> None:
    ca = certificate(directory / "ca.pem")
    basic = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical
    assert (basic.value.ca, basic.value.path_length) == (True, 0)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    identifier = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    for file in ("server-cert.pem", "client-cert.pem"):
        leaf = certificate(directory / file)
        issuer = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
        assert issuer.key_identifier == identifier
        leaf.verify_directly_issued_by(ca)


def test_the_keys_are_p256_and_belong_to_their_certificates(directory: Path) -> None:
    for end in ("server", "client"):
        key = load_pem_private_key((directory / f"{end}-key.pem").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp256r1"
        assert key.public_key() == certificate(directory / f"{end}-cert.pem").public_key()


def test_they_are_valid_from_an_hour_ago_for_825_days(directory: Path) -> None:
    for file in ("ca.pem", "server-cert.pem", "client-cert.pem"):
        one = certificate(directory / file)
        age = datetime.datetime.now(datetime.UTC) - one.not_valid_before_utc
        assert datetime.timedelta(hours=1) <= age < datetime.timedelta(hours=1, minutes=5)
        assert one.not_valid_after_utc - one.not_valid_before_utc == datetime.timedelta(days=825)


def test_the_certificate_files_hold_one_certificate_each(directory: Path) -> None:
    for file in ("ca.pem", "server-cert.pem", "client-cert.pem"):
        assert (directory / file).read_text().count("BEGIN CERTIFICATE") == 1


def test_no_file_holds_the_authoritys_key(directory: Path) -> None:
    holders = [path.name for path in directory.iterdir() if "PRIVATE KEY" in path.read_text()]
    assert sorted(holders) == ["client-key.pem", "server-key.pem"]
    authority = certificate(directory / "ca.pem").public_key()
    for name in holders:
        key = load_pem_private_key((directory / name).read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.public_key() != authority


@pytest.mark.parametrize(
    "name", ["", "two words", "a..b", "-*-.x!", "x" * 64, "https://x", "192.0.2.7/24", "fe80::1%2"]
)
def test_what_is_no_name_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(CertificateError, match="is neither a host name nor an IP address"):
        write_development_certificates(tmp_path / "new", [name])
    assert not (tmp_path / "new").exists()


# How they are written


@pytest.fixture
def open_mask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@posix_only
@pytest.mark.usefixtures("open_mask")
def test_keys_are_readable_by_the_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    write_development_certificates(tmp_path, [])
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {name: 0o600 if "key" in name else 0o644 for name in NAMES}


@pytest.mark.parametrize("existing", NAMES)
def test_an_existing_file_is_kept_and_nothing_else_is_written(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_text("mine")
    with pytest.raises(CertificateError, match=f"{existing} exists already"):
        write_development_certificates(tmp_path, [])
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "mine"


@posix_only
def test_a_link_in_the_place_of_a_key_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "server-key.pem").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CertificateError, match="exists already"):
        write_development_certificates(tmp_path, [])
    assert [path.name for path in tmp_path.iterdir()] == ["server-key.pem"]


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, system_open = 0, os.open

    def full(path: str, flags: int, mode: int) -> int:
        nonlocal opened
        opened += 1
        if opened == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return system_open(path, flags, mode)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space left on device"):
        write_development_certificates(tmp_path, [])
    assert opened == 4
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(CertificateError, match="file exists already"):
        write_development_certificates(file, [])
    with pytest.raises(NotADirectoryError):
        write_development_certificates(file / "below", [])


# The command


def test_the_command_prints_files_and_settings_that_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cert(Path("certificates"), ["mcserver"]) == 0
    out = capsys.readouterr().out
    assert "valid 825 days; the server's for localhost, 127.0.0.1, ::1, mcserver:" in out
    assert all(str(Path("certificates", name)) in out for name in NAMES)
    settings = [json.loads(f"{{{line}}}")["ssl_config"] for line in out.splitlines() if "ssl_config" in line]
    assert [sorted(one) for one in settings] == [
        ["cert", "key"],
        ["ca"],
        ["cert", "client_ca", "key"],
        ["ca", "cert", "key"],
    ]
    assert all(Path(path).is_absolute() and Path(path).is_file() for one in settings for path in one.values())


def test_the_command_prints_nothing_when_it_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca.pem").write_text("mine")
    with pytest.raises(MultiError):
        run_cert(tmp_path, [])
    assert capsys.readouterr().out == ""
    assert sys.exc_info() == (None, None, None)
