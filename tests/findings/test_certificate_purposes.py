"""A certificate made for one purpose is not taken for the other, whatever the transport."""

from __future__ import annotations

from typing import Any

import pytest

import multi
from tests.engines import engine_or_skip
from tests.findings.attacks import aborted_at_end, echoing, exchanged
from tests.integration.certificates import Certificates, certificates_in
from tests.integration.support import Way, run


@pytest.fixture
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates_in(tmp_path_factory.getbasetemp() / "certificates")


async def talks(files: Certificates, way: str, engine: str, server: str, client: str | None) -> None:
    """Exchange words with a server that shows one certificate, by a client that shows another or none."""
    config: dict[str, Any] = {"cert": str(files.cert(server)), "key": str(files.key(server))}
    mine: dict[str, Any] = {"ca": str(files.ca)}
    if client is not None:
        config["client_ca"] = str(files.ca)
        mine |= {"cert": str(files.cert(client)), "key": str(files.key(client))}
    described = Way(files.directory, way)
    async with echoing(described, ssl_config=config) as listening:
        opening = multi.connect(
            described.client(
                listening.port,
                ssl_config=mine,
                quic_config={"engine": engine},
                multi_config={"open_timeout": 2.0},
            )
        )
        async with aborted_at_end(await opening) as session:
            await exchanged(session)


WAYS = {"tls": ("tcp-tls", "aioquic"), "aioquic": ("quic", "aioquic"), "qh3": ("quic", "qh3"), "noq": ("quic", "noq")}
ASKING = [way for way in WAYS if way != "qh3"]
"""Those whose servers can ask for certificates."""


def talk(files: Certificates, way: str, server: str, client: str | None = None) -> None:
    name, engine = WAYS[way]
    engine_or_skip(engine)
    run(talks(files, name, engine, server, client))


@pytest.mark.parametrize("way", WAYS)
def test_a_certificate_for_clients_is_not_taken_as_the_server_s(way: str, certificates: Certificates) -> None:
    with pytest.raises(multi.MultiError, match=r"the certificate of .* is not made for this purpose"):
        talk(certificates, way, "posing")


@pytest.mark.parametrize("way", ASKING)
def test_a_certificate_for_servers_is_not_taken_as_a_client_s(way: str, certificates: Certificates) -> None:
    with pytest.raises(multi.MultiError):
        talk(certificates, way, "server", "server")


@pytest.mark.parametrize("way", ASKING)
def test_certificates_made_for_both_ends_are_taken(way: str, certificates: Certificates) -> None:
    talk(certificates, way, "server", "client")


def test_a_certificate_made_for_the_server_is_taken_by_either_engine(certificates: Certificates) -> None:
    talk(certificates, "qh3", "server")


@pytest.mark.parametrize("way", WAYS)
def test_an_ip_address_among_the_dns_names_is_refused_in_words(way: str, certificates: Certificates) -> None:
    with pytest.raises(multi.MultiError, match=r"the certificate of .* is not for that name"):
        talk(certificates, way, "misnamed")
