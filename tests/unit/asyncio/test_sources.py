"""Which source is the busiest, and whose turn it is."""

from __future__ import annotations

import random

from multi.asyncio.sources import BySource, place_of, source_of


def test_a_source_is_a_customers_network() -> None:
    assert source_of("192.0.2.1") == source_of("192.0.2.77") == source_of("::ffff:192.0.2.9")
    assert source_of("192.0.2.1") != source_of("192.0.3.1")
    assert source_of("2001:db8:0:100::1") == source_of("2001:db8:0:1ff::2")
    assert source_of("2001:db8:0:100::1") != source_of("2001:db8:0:200::1")
    assert source_of("fe80::1%eth0") == source_of("fe80::2%eth1")


def test_an_address_is_what_one_device_has() -> None:
    assert place_of("192.0.2.7") == ("192.0.2.0/24", "192.0.2.7")
    assert place_of("::ffff:192.0.2.7") == place_of("192.0.2.7")
    assert place_of("2001:db8:0:1::5%eth0") == ("2001:db8::/56", "2001:db8:0:1::/64")


def test_the_busiest_source_gives_way_and_in_it_the_busiest_address() -> None:
    crowd: BySource[str] = BySource()
    for member, host in (
        ("a1", "192.0.2.1"),
        ("b1", "198.51.100.1"),
        ("b2", "198.51.100.2"),
        ("b3", "198.51.100.2"),
        ("c1", "203.0.113.1"),
    ):
        crowd.add(member, host)
    assert crowd.oldest() == "b2"
    assert crowd.oldest("192.0.2.0/24") == "a1"
    assert crowd.oldest("233.252.0.0/24") is None
    crowd.discard("b2")
    assert crowd.oldest() == "b1"  # both addresses have one: the one that has had it for longer
    assert crowd.count("198.51.100.0/24") == 2


def test_the_busiest_is_known_whatever_comes_and_goes() -> None:
    chance = random.Random(7)
    crowd: BySource[int] = BySource()
    hosts: dict[int, str] = {}
    for step in range(5000):
        if hosts and chance.random() < 0.5:
            leaving = chance.choice(list(hosts))
            crowd.discard(leaving)
            del hosts[leaving]
        else:
            hosts[step] = f"192.0.{chance.randrange(6)}.{chance.randrange(4)}"
            crowd.add(step, hosts[step])
        assert len(crowd) == len(hosts)
        found = crowd.oldest()
        assert (found is None) == (not hosts)
        if found is not None:
            places = [place_of(host) for host in hosts.values()]
            sources = [source for source, _ in places]
            source, address = place_of(hosts[found])
            assert sources.count(source) == max(map(sources.count, sources)) == crowd.count(source)
            within = [place for place in places if place[0] == source]
            assert within.count((source, address)) == max(map(within.count, within))
            assert found == min(number for number, host in hosts.items() if place_of(host) == (source, address))


def test_who_comes_alone_waits_for_one_of_each_other_source() -> None:
    turns: BySource[str] = BySource()
    for number in range(50):
        turns.add(f"x{number}", "192.0.2.1")
        turns.add(f"y{number}", "198.51.100.1")
    turns.add("alone", "203.0.113.1")
    assert [turns.next() for _ in range(5)] == ["x0", "y0", "alone", "x1", "y1"]
    assert len(turns) == 96


def test_addresses_of_a_source_take_turns_too() -> None:
    turns: BySource[str] = BySource()
    for number in range(50):
        turns.add(f"x{number}", "192.0.2.1")
    turns.add("neighbour", "192.0.2.2")
    assert [turns.next() for _ in range(3)] == ["x0", "neighbour", "x1"]


def test_who_has_left_has_no_turn_and_nobody_has_two() -> None:
    turns: BySource[str] = BySource()
    for member in ("a", "b", "b", "c"):
        turns.add(member, "192.0.2.1")
    turns.discard("a")
    turns.discard("a")
    assert [turns.next() for _ in range(2)] == ["b", "c"]
    assert len(turns) == 0


def test_who_comes_from_where_few_are_may_displace_who_comes_from_where_many_are() -> None:
    crowd: BySource[int] = BySource()
    for number in range(8):
        crowd.add(number, "192.0.2.1")
    assert not crowd.crowds_out(0, "192.0.2.1"), "one of the same crowd"
    assert crowd.crowds_out(0, "192.0.2.2"), "a neighbour"
    assert crowd.crowds_out(0, "198.51.100.1"), "somebody from elsewhere"
    for number in range(8, 12):
        crowd.add(number, "198.51.100.1")
    assert not crowd.crowds_out(0, "198.51.100.1"), "of a crowd half as large"
