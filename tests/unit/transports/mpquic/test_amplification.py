"""No address that has not answered is sent more than three times what came from it, by either engine."""

from __future__ import annotations

from typing import Any

import pytest
from aioquic.quic.packet import QuicFrameType

from multi.lab.engines.links import DatagramLinkSpec
from multi.lab.engines.pair import EnginePair
from multi.transports.quic.udp_port import PeerAddress
from tests.unit.transports.mpquic.ends import TEN, connected_engines, engines_by_name
from tests.unit.transports.mpquic.test_paths import Raw, said

SERVERS = ["aioquic", "noq"]
BOTH = [(client, server) for client in SERVERS for server in SERVERS]


class Ledger:
    """Bytes that the server gets from addresses and sends there, from now on."""

    def __init__(self, made: EnginePair) -> None:
        assert made.server is not None
        self.made, self.server = made, made.server
        self.came: dict[PeerAddress, int] = {}
        self.went: dict[PeerAddress, int] = {}
        self.worst = 0.0
        self._take, self.server.take = self.server.take, self._taken  # type: ignore[method-assign]

    def watch(self, index: int, swallow: bool = False) -> PeerAddress:
        """Count what is sent to the address that a path has now; `swallow`: nothing of it arrives."""
        address = self.made.seen(index)
        self.came.setdefault(address, 0)
        self.went.setdefault(address, 0)
        self.server.links[address] = _Counted(self, address, None if swallow else self.made.downs[index])  # type: ignore[assignment]
        return address

    def _taken(self, data: bytes, address: PeerAddress) -> None:
        self.came[address] = self.came.get(address, 0) + len(data)
        self._take(data, address)


class _Counted:
    def __init__(self, ledger: Ledger, address: PeerAddress, link: Any) -> None:
        self._ledger, self._address, self._link = ledger, address, link

    def send(self, data: bytes) -> None:
        ledger, address = self._ledger, self._address
        ledger.went[address] += len(data)
        ledger.worst = max(ledger.worst, ledger.went[address] / max(ledger.came[address], 1))
        if self._link is not None:
            self._link.send(data)


def small_packet(made: EnginePair) -> None:
    """One that says no more than that the client is there."""
    made.client.write(b"x", stream=0)


def at_rest(client: str, server: str, *specs: tuple[DatagramLinkSpec, DatagramLinkSpec]) -> EnginePair:
    """Two ends with all paths open, that have nothing more to say."""
    made = connected_engines(client, server, *specs)
    small_packet(made)
    made.run(lambda: False, 1.0)
    return made


@pytest.mark.parametrize(("client", "server"), BOTH)
@pytest.mark.parametrize("paths", [1, 2])
def test_a_forged_address_gets_at_most_three_times_what_came_from_it(client: str, server: str, paths: int) -> None:
    made = at_rest(client, server, *[TEN] * paths)
    ledger = Ledger(made)
    made.move(paths - 1)
    address = ledger.watch(paths - 1, swallow=True)
    small_packet(made)
    made.server.write(bytes(300_000), end=True)  # type: ignore[union-attr]
    for _ in range(30):
        made.run(lambda: False, 0.1)
        if ledger.came[address]:  # one packet of the client was enough, the next come the way they always came
            made.moved[paths - 1] = 0
    assert 0 < ledger.went[address] <= 3 * ledger.came[address]
    assert ledger.worst <= 3


@pytest.mark.parametrize("server", SERVERS)
def test_a_storm_of_forged_addresses_gets_no_more_each(server: str) -> None:
    made = at_rest("aioquic", server, TEN, TEN)
    made.server.write(bytes(2_000_000), end=True)  # type: ignore[union-attr]
    ledger = Ledger(made)
    for place in range(1, 31):
        made.moved[0] = place
        address = ledger.watch(0, swallow=True)
        made.run(lambda: ledger.came[address] > 0, 0.2)  # noqa: B023
        made.moved[0] = 0
        made.run(lambda: False, 0.03)
    assert sum(came > 0 for address, came in ledger.came.items() if address in ledger.went) >= 20
    assert ledger.worst <= 3
    assert made.run(lambda: made.client.ended, 10.0)


@pytest.mark.parametrize(("client", "server"), BOTH)
@pytest.mark.parametrize("paths", [1, 2])
def test_a_real_rebinding_is_followed_though_only_small_packets_come(client: str, server: str, paths: int) -> None:
    made = at_rest(client, server, *[TEN] * paths)
    ledger = Ledger(made)
    made.move(paths - 1)
    address = ledger.watch(paths - 1)
    small_packet(made)
    made.run(lambda: False, 0.5)
    if not ledger.came[address]:  # another path carried it
        made.downs[0].silent = made.ups[0].silent = True
        small_packet(made)
        made.run(lambda: False, 1.0)
    assert ledger.came[address]
    made.server.write(bytes(200_000), end=True)  # type: ignore[union-attr]
    assert made.run(lambda: made.client.ended, 10.0)
    assert ledger.went[address] > 100_000


@pytest.mark.parametrize("server", SERVERS)
def test_a_question_from_beside_the_path_gets_no_more_than_three_times_its_size(server: str) -> None:
    """A PATH_CHALLENGE in a packet that is not padded, from an address that somebody has forged."""
    made = at_rest("aioquic", server, TEN)
    ledger = Ledger(made)
    made.move(0)
    address = ledger.watch(0, swallow=True)
    said(made, Raw(QuicFrameType.PADDING, bytes((QuicFrameType.PATH_CHALLENGE, *range(8)))), seconds=0.03)
    made.moved[0] = 0
    made.run(lambda: False, 1.0)
    assert 0 < ledger.came[address] < 400
    assert ledger.went[address] <= 3 * ledger.came[address]


@pytest.mark.parametrize("server", SERVERS)
def test_a_client_that_never_answers_the_handshake_gets_at_most_three_times_its_packets(server: str) -> None:
    made = engines_by_name("aioquic", server, TEN)
    made.run(lambda: made.ups[0].carried > 0, 1.0)
    came = made.ups[0].carried
    made.ups[0].silent = True
    made.run(lambda: False, 10.0)
    assert came
    assert made.downs[0].sent
    assert made.downs[0].carried <= 3 * came
