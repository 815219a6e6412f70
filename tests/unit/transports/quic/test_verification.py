"""Which certificates are accepted over QUIC: issuer, name, dates and purpose."""

from __future__ import annotations

from pathlib import Path

import pytest
from aioquic.tls import Alert, AlertBadCertificate
from cryptography import x509

from multi.transports.quic.verification import verify
from tests.integration.certificates import Certificates, certificates_in


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates_in(tmp_path_factory.getbasetemp() / "certificates")


def judge(files: Certificates, shown: str, name: str | None, authority: Path | None = None) -> None:
    certificate = x509.load_pem_x509_certificate(files.cert(shown).read_bytes())
    verify(certificate, [], (authority or files.ca).read_bytes(), name)


def test_a_server_s_certificate_is_taken_for_its_names_alone(files: Certificates) -> None:
    for name in ("localhost", "127.0.0.1", "::1"):
        judge(files, "server", name)
    with pytest.raises(Alert):
        judge(files, "server", "elsewhere.example")


def test_a_client_has_no_name_to_be_checked(files: Certificates) -> None:
    judge(files, "client", None)


@pytest.mark.parametrize(
    ("shown", "name"), [("expired", "localhost"), ("early", "localhost"), ("expired-client", None)]
)
def test_dates_count_on_both_sides(files: Certificates, shown: str, name: str | None) -> None:
    with pytest.raises(Alert):
        judge(files, shown, name)


def test_a_certificate_can_be_trusted_itself_whoever_issued_it(files: Certificates) -> None:
    judge(files, "server", "localhost", files.cert("server"))
    with pytest.raises(Alert):
        judge(files, "server", "elsewhere.example", files.cert("server"))
    with pytest.raises(Alert):
        judge(files, "expired", "localhost", files.cert("expired"))
    with pytest.raises(Alert):
        judge(files, "server", "localhost", files.cert("expired"))


def test_another_authority_s_word_counts_nothing(files: Certificates) -> None:
    with pytest.raises(Alert):
        judge(files, "server", "localhost", files.other_ca)


@pytest.mark.parametrize(("shown", "name"), [("posing", "localhost"), ("server", None), ("client", "localhost")])
def test_a_certificate_for_one_purpose_is_not_taken_for_the_other(
    files: Certificates, shown: str, name: str | None
) -> None:
    with pytest.raises(AlertBadCertificate if shown != "client" else Alert):
        judge(files, shown, name)
