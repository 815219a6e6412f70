"""Keys that a server makes for itself: kept whole or not at all, and made once."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from multi.errors import TransportError
from multi.transports.identity import server_identity


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "multi"


def test_it_is_made_once_for_its_owner_alone(directory: Path) -> None:
    cert, key = server_identity()
    before = cert.read_bytes(), key.read_bytes()
    assert server_identity() == (cert, key)
    assert (cert.read_bytes(), key.read_bytes()) == before
    assert sorted(directory.iterdir()) == sorted((cert, key))
    assert {stat.S_IMODE(file.stat().st_mode) for file in (cert, key)} == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    private = load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert x509.load_pem_x509_certificate(cert.read_bytes()).public_key() == private.public_key()


def test_a_certificate_that_is_lost_is_made_anew_for_the_key_that_is_kept() -> None:
    cert, key = server_identity()
    kept = key.read_bytes()
    cert.unlink()
    server_identity()
    assert key.read_bytes() == kept
    private = load_pem_private_key(kept, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert x509.load_pem_x509_certificate(cert.read_bytes()).public_key() == private.public_key()


def test_a_key_that_cannot_be_kept_is_not_left_lying_about(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(_source: object, _target: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(TransportError, match="no identity can be kept"):
        server_identity()
    assert list(directory.iterdir()) == []


def test_a_file_that_is_no_key_is_named(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "server-key.pem").write_bytes(b"my notes")
    with pytest.raises(TransportError, match=f"no identity can be kept in {directory}"):
        server_identity()
    assert (directory / "server-key.pem").read_bytes() == b"my notes"
