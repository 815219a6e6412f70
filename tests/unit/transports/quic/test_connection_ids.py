"""What ids tell, and to whom."""

from __future__ import annotations

import pytest

from multi.transports.quic.connection_ids import PLAIN_IDS, ConnectionIds


def test_ids_without_a_route_are_random() -> None:
    made = {PLAIN_IDS.new() for _ in range(100)}
    assert len(made) == 100
    assert {len(one) for one in made} == {PLAIN_IDS.length} == {8}


@pytest.mark.parametrize("route", [b"\x0a", b"\x0a" * 7, b"\x0a" * 8])
def test_a_route_stands_where_balancers_for_quic_read_it(route: bytes) -> None:
    ids = ConnectionIds(route)
    made = {ids.new() for _ in range(100)}
    assert len({one[9:] for one in made}) == 100
    assert {one[:9] for one in made} == {b"\x10" + route.ljust(8, b"\0")}, "16 bytes follow the first, in the clear"
    assert {len(one) for one in made} == {ids.length} == {17}
