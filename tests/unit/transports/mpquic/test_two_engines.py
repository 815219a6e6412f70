"""aioquic and the native engine with each other, both ways round, in virtual time."""

from __future__ import annotations

import pytest

from multi.lab.engines.links import link_of
from tests.unit.transports.mpquic.ends import TEN, connected_engines

MEGABYTE = 1_000_000
BOTH_WAYS = [("aioquic", "noq"), ("noq", "aioquic")]


@pytest.mark.parametrize(("client", "server"), BOTH_WAYS)
def test_two_paths_carry_together_what_both_can(client: str, server: str) -> None:
    two = connected_engines(client, server, TEN, TEN)
    assert two.download(MEGABYTE) < 0.68 * connected_engines(client, server, TEN).download(MEGABYTE)
    assert all(link.carried > 0.35 * MEGABYTE for link in two.downs)


@pytest.mark.parametrize(("client", "server"), BOTH_WAYS)
def test_an_upload_uses_both_paths(client: str, server: str) -> None:
    made = connected_engines(client, server, TEN, TEN)
    made.client.write(bytes(MEGABYTE), end=True)
    assert made.run(lambda: made.server is not None and made.server.ended, 1.0)
    assert all(link.carried > 0.3 * MEGABYTE for link in made.ups)


@pytest.mark.parametrize(("client", "server"), BOTH_WAYS)
def test_silence_of_one_path_stops_no_download(client: str, server: str) -> None:
    slow = (link_of(3, 0.044),) * 2
    made = connected_engines(client, server, slow, slow)
    assert made.server is not None
    made.client.write(b"?")
    made.run(lambda: made.server is not None and made.server.received > 0)
    made.server.write(bytes(MEGABYTE // 2), end=True)
    made.run(lambda: made.client.received > MEGABYTE // 8)
    made.ups[0].silent = made.downs[0].silent = True
    made.client.longest_gap = 0.0
    assert made.run(lambda: made.client.ended, 4.0)
    assert made.client.longest_gap < 0.6
