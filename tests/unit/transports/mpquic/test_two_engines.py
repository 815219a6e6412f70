"""aioquic and the native engine with each other, both ways round, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from multi.lab.engines.links import LinkSpec, link_of
from multi.lab.engines.pair import Pair
from multi.multipath.policy import PathPolicy
from multi.transports.base import TlsSettings
from multi.transports.mpquic.aioquic_engine import Engine as AioquicEngine
from multi.transports.quic.engine import PathOpened
from multi.transports.quic.settings import QuicSettings
from tests.engines import engine_or_skip
from tests.unit.transports.mpquic.ends import DATAGRAM, TEN, certificates

MEGABYTE = 1_000_000
BOTH_WAYS = [("aioquic", "noq"), ("noq", "aioquic")]


def connected(client: str, server: str, *specs: tuple[LinkSpec, LinkSpec], policy: PathPolicy | None = None) -> Pair:
    """With all paths open."""
    kinds: dict[str, Any] = {"aioquic": AioquicEngine, "noq": engine_or_skip("noq")}
    files, policy = certificates(), policy or PathPolicy()
    tls = TlsSettings(cert=files / "server-cert.pem", key=files / "server-key.pem")
    issuers = (files / "ca.pem").read_bytes()
    chance = {"aioquic": {}, "noq": {"seed": 1}}
    dialling = kinds[client].configure(QuicSettings(), TlsSettings(), issuers, "localhost", policy, **chance[client])
    listening = kinds[server].configure(QuicSettings(), tls, b"", None, policy, **chance[server])
    made = Pair(
        kinds[client](dialling, DATAGRAM),
        lambda original: kinds[server](listening, DATAGRAM, original),
        specs,
    )
    made.connect()
    made.open_all()
    assert made.run(lambda: sum(isinstance(event, PathOpened) for event in made.client.paths) == len(specs) - 1)
    return made


@pytest.mark.parametrize(("client", "server"), BOTH_WAYS)
def test_two_paths_carry_together_what_both_can(client: str, server: str) -> None:
    two = connected(client, server, TEN, TEN)
    assert two.download(MEGABYTE) < 0.68 * connected(client, server, TEN).download(MEGABYTE)
    assert all(link.carried > 0.35 * MEGABYTE for link in two.downs)


@pytest.mark.parametrize(("client", "server"), BOTH_WAYS)
def test_an_upload_uses_both_paths(client: str, server: str) -> None:
    made = connected(client, server, TEN, TEN)
    made.client.write(bytes(MEGABYTE), end=True)
    assert made.run(lambda: made.server is not None and made.server.ended, 1.0)
    assert all(link.carried > 0.3 * MEGABYTE for link in made.ups)


@pytest.mark.parametrize(("client", "server"), BOTH_WAYS)
def test_silence_of_one_path_stops_no_download(client: str, server: str) -> None:
    slow = (link_of(3, 0.044),) * 2
    made = connected(client, server, slow, slow)
    assert made.server is not None
    made.client.write(b"?")
    made.run(lambda: made.server is not None and made.server.received > 0)
    made.server.write(bytes(MEGABYTE // 2), end=True)
    made.run(lambda: made.client.received > MEGABYTE // 8)
    made.ups[0].silent = made.downs[0].silent = True
    made.client.longest_gap = 0.0
    assert made.run(lambda: made.client.ended, 4.0)
    assert made.client.longest_gap < 0.6
