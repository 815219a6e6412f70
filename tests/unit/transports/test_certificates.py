"""Certificates as files, their pins and their faults."""

from __future__ import annotations

import base64
import hashlib
import logging
import ssl
import subprocess
from pathlib import Path

import pytest

from multi.errors import TransportError
from multi.lab.cert import write_development_certificates
from multi.transports.base import TlsSettings
from multi.transports.certificates import (
    check_pin,
    fault_of,
    first_certificate,
    pin_of,
    read_certificates,
    stamp,
    system_authorities,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_development_certificates(tmp_path, [])
    return tmp_path


def test_a_pin_is_the_hash_of_the_public_key_as_openssl_computes_it(directory: Path) -> None:
    certificate = directory / "server-cert.pem"
    try:
        command = ["openssl", "x509", "-in", str(certificate), "-pubkey", "-noout"]
        pem = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    except FileNotFoundError:
        pytest.skip("no openssl command")
    der = base64.b64decode("".join(pem.splitlines()[1:-1]))
    expected = "sha256/" + base64.b64encode(hashlib.sha256(der).digest()).decode()
    assert pin_of(first_certificate(certificate)) == expected


def test_a_pin_is_checked_only_where_pins_are_set(directory: Path) -> None:
    certificate = first_certificate(directory / "server-cert.pem")
    pin, other = pin_of(certificate), "sha256/" + "A" * 43 + "="
    assert not check_pin(TlsSettings(), b"", "the peer")
    assert check_pin(TlsSettings(pins=(other, pin)), certificate, "the peer")
    with pytest.raises(TransportError, match="the peer has the pin sha256/"):
        check_pin(TlsSettings(pins=(other,)), certificate, "the peer")
    with pytest.raises(TransportError, match="the peer showed no certificate"):
        check_pin(TlsSettings(pins=(pin,)), b"", "the peer")
    with pytest.raises(TransportError, match="a certificate that cannot be read"):
        pin_of(b"garbage")


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("certificate has expired", "has expired"),  # OpenSSL
        ("certificate is not yet valid", "is not valid yet"),
        ("self-signed certificate in certificate chain", "has an unknown issuer"),
        ("unable to get local issuer certificate", "has an unknown issuer"),
        ("unable to verify the first certificate", "has an unknown issuer"),
        ("Hostname mismatch, certificate is not valid for 'x.example'.", "is not for that name"),
        ("IP address mismatch, certificate is not valid for '192.0.2.1'.", "is not for that name"),
        ("unsuitable certificate purpose", "is not made for this purpose"),
        ("Certificate is no longer valid", "has expired"),  # aioquic
        ("Certificate is not valid yet", "is not valid yet"),
        ("hostname 'x.example' doesn't match 'localhost'", "is not for that name"),
        ("EE certificate key too weak.", "was not accepted: ee certificate key too weak"),
        ("", "was not accepted"),
    ],
)
def test_both_libraries_faults_read_the_same(said: str, fault: str) -> None:
    assert fault_of(said).startswith(fault)


def test_a_file_of_several_certificates_is_read_whole(directory: Path) -> None:
    both = directory / "both.pem"
    both.write_bytes(b"words before\n" + b"".join((directory / f"{n}.pem").read_bytes() for n in ("ca", "client-cert")))
    assert read_certificates(both).count(b"BEGIN CERTIFICATE") == 2
    assert ssl.DER_cert_to_PEM_cert(first_certificate(both)) == (directory / "ca.pem").read_text()


def test_of_a_file_without_an_end_only_so_much_is_read(tmp_path: Path) -> None:
    endless = tmp_path / "endless"  # what the system fills in, as of /dev/zero
    with endless.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TransportError, match=r"endless: more than 16777216 bytes"):
        read_certificates(endless)


def test_a_stamp_tells_that_a_file_was_written_to(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert stamp(None) is stamp(file) is None
    file.write_text("one")
    before = stamp(file)
    assert stamp(file) == before
    file.write_text("other")
    assert stamp(file) != before


def test_authorities_in_a_directory_are_found_by_hash_and_garbage_among_them_is_left_out(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hashed = tmp_path / "hashed"
    (hashed / "dead0001.0").mkdir(parents=True)  # cannot be read
    (hashed / "feed0001.0").write_bytes((directory / "ca.pem").read_bytes())
    (hashed / "feed0002.0").write_text("-----BEGIN CERTIFICATE-----\ngarbage\n-----END CERTIFICATE-----\n")
    (hashed / "notes.txt").write_bytes((directory / "client-cert.pem").read_bytes())
    paths = ssl.get_default_verify_paths()._replace(cafile="", capath=str(hashed))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    with caplog.at_level(logging.INFO, "multi.transports"):
        found = system_authorities()
    ca = (directory / "ca.pem").read_bytes()
    assert ca in found
    assert (directory / "client-cert.pem").read_bytes() not in found
    assert "cannot read the authority" in caplog.text
    (hashed / "feed0001.0").unlink()
    assert ca not in system_authorities(), "read again when the directory has changed"
