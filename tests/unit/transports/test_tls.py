"""The client's TLS context is made again when a file it was made of has changed, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from multi.errors import TransportError
from multi.lab.cert import write_development_certificates
from multi.transports.base import TlsSettings
from multi.transports.tls import CONTEXTS_KEPT, application_protocols, client_context


def test_a_context_is_used_again_until_its_certificate_is_replaced(tmp_path: Path) -> None:
    write_development_certificates(tmp_path, [])
    ca = tmp_path / "ca.pem"
    first = client_context(TlsSettings(ca=ca))
    assert client_context(TlsSettings(ca=ca)) is first
    other = tmp_path / "other"
    other.mkdir()
    write_development_certificates(other, [])
    (other / "ca.pem").replace(ca)
    second = client_context(TlsSettings(ca=ca))
    assert second is not first
    assert second.get_ca_certs(binary_form=True) != first.get_ca_certs(binary_form=True)
    ca.unlink()
    with pytest.raises(TransportError, match=r"ca\.pem"):
        client_context(TlsSettings(ca=ca))


def test_other_settings_have_another_context(tmp_path: Path) -> None:
    write_development_certificates(tmp_path, [])
    ca = tmp_path / "ca.pem"
    verifying = client_context(TlsSettings(ca=ca))
    trusting = client_context(TlsSettings(ca=ca, verify=False))
    assert verifying.check_hostname
    assert not trusting.check_hostname
    for number in range(CONTEXTS_KEPT):
        client_context(TlsSettings(ca=ca, server_name=f"host-{number}.example"))
    assert client_context(TlsSettings(ca=ca)) is not verifying  # only so many are kept


def test_a_route_stands_in_a_name_for_balancers_beside_the_name_of_the_protocol(tmp_path: Path) -> None:
    write_development_certificates(tmp_path, [])
    tls = TlsSettings(ca=tmp_path / "ca.pem")
    assert application_protocols(b"") == ["multi/1"]
    assert application_protocols(b"\x0a\xff") == ["multi/1;r=0aff", "multi/1"]
    assert client_context(tls, b"\x0a") is not client_context(tls)
    assert client_context(tls, b"\x0a") is client_context(tls, b"\x0a")
