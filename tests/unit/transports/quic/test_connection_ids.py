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


def test_whose_an_id_is_can_be_told_from_its_route_alone() -> None:
    ours, other = ConnectionIds(b"\x0a\x01"), ConnectionIds(b"\x0a\x02")
    assert ours.are_of(ours.new())
    assert not ours.are_of(other.new())
    assert ours.route_in(other.new()) == b"\x0a\x02".ljust(8, b"\0")
    assert ours.route_in(PLAIN_IDS.new()) == ours.route_in(b"") == PLAIN_IDS.route_in(ours.new()) == b""
    assert PLAIN_IDS.are_of(PLAIN_IDS.new())


def test_who_has_the_key_knows_the_reset_tokens_and_nobody_else() -> None:
    ids = ConnectionIds(b"\x0a", b"key")
    one, another = ids.new(), ids.new()
    assert ids.reset_token(one) == ConnectionIds(b"\x0b", b"key").reset_token(one)
    assert len({ids.reset_token(one), ids.reset_token(another), ConnectionIds(b"\x0a", b"other").reset_token(one)}) == 3
    # A server has the connection at one of its ports: whoever asks at another one learns nothing that ends it.
    at_ports = {ConnectionIds(b"\x0a", b"key", port).reset_token(one) for port in (7788, 7801, 65535)}
    assert len(at_ports) == 3
    assert PLAIN_IDS.reset_token(one) != PLAIN_IDS.reset_token(one)  # a client's, which nobody uses
    assert "key" not in repr(ids)
