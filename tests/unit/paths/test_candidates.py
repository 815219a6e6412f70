"""Candidates: what an entry of `connection_priority` becomes on a given machine."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import multi.paths.candidates as module
from multi.paths.candidates import EntrySpec, Rejection, candidates, one_per_interface
from multi.types import AddressReason, Candidate, Family, Interface, InterfaceAddress, Kind, Role, Source
from tests.unit.linux.fake_mptcp import CANDIDATE

HOST, PORT = "mcserver", 7788
FOUR, SIX = "203.0.113.7", "2001:db8:7::7"


def address(text: str, usable: bool = True, reason: AddressReason = "") -> InterfaceAddress:
    literal, _, prefix = text.partition("/")
    family = Family.IPV6 if ":" in literal else Family.IPV4
    return InterfaceAddress(literal, family, int(prefix), usable, reason)


def interface(
    name: str,
    kind: Kind,
    *addresses: str,
    gateways: Sequence[tuple[Family, str]] = ((Family.IPV4, "gw"), (Family.IPV6, "gw")),
    up: bool = True,
    carrier: bool = True,
    more: Sequence[InterfaceAddress] = (),
) -> Interface:
    own = (*map(address, addresses), *more)
    return Interface(name, 1, kind, up=up, carrier=carrier, addresses=own, gateways=tuple(gateways))


LO = interface("lo", Kind.LOOPBACK, "127.0.0.1/8", "::1/128", gateways=())
ETH0 = interface("eth0", Kind.ETH, "192.0.2.2/24", "2001:db8:2::2/64")
WLAN0 = interface("wlan0", Kind.WIFI, "198.51.100.2/24", "2001:db8:3::2/64")
WWAN0 = interface("wwan0", Kind.CELLULAR, "100.64.0.2/30", gateways=((Family.IPV4, ""),))
BRIDGE = interface("docker0", Kind.VIRTUAL, "172.17.0.1/16", gateways=(), carrier=False)
MACHINE = (LO, ETH0, WLAN0, WWAN0, BRIDGE)


def spec(
    transport: str = "tcp", ip: str = "ipv4", interfaces: tuple[str, ...] = ("any",), group: str = ""
) -> EntrySpec:
    spans = transport == "mptcp"
    return EntrySpec(transport, ip, interfaces, spans, group, HOST, PORT)


def expand(
    *entries: EntrySpec,
    machine: Sequence[Interface] = MACHINE,
    remotes: Sequence[str] = (FOUR, SIX),
    routed: Sequence[tuple[str, str]] = (),
) -> tuple[list[Candidate], list[Rejection]]:
    return candidates(entries, machine, {(HOST, PORT): remotes}, routed)


def paths(found: Sequence[Candidate]) -> list[tuple[str, str, str]]:
    return [(c.interface, c.local_address, c.remote_address) for c in found]


def reasons(rejected: Sequence[Rejection]) -> list[str]:
    return [r.reason for r in rejected]


# What an element of the interface list stands for


def test_a_candidate_may_begin_from_another_of_its_sources() -> None:
    one, two, three = (Source(f"if{n}", f"10.0.{n}.2", "wifi" if n == 1 else "cellular") for n in (1, 2, 3))
    made = Candidate("mpquic", Family.IPV4, "h", "192.0.2.1", 1, "if1", "10.0.1.2", (two, three), "wifi")
    assert made.begun_from(one) == made
    other = made.begun_from(two)
    assert other.sources == (two, one, three)
    assert (other.interface, other.local_address, other.kind) == ("if2", "10.0.2.2", "cellular")
    assert other.begun_from(one) == made


def test_tcp_and_quic_make_one_candidate_per_listed_interface_in_that_order() -> None:
    for transport in ("tcp", "quic", "registered"):
        found, rejected = expand(spec(transport, interfaces=("wifi", "eth")))
        assert paths(found) == [("wlan0", "198.51.100.2", FOUR), ("eth0", "192.0.2.2", FOUR)]
        assert [c.transport for c in found] == [transport] * 2
        assert rejected == []


def test_any_is_every_usable_interface_but_loopback() -> None:
    found, rejected = expand(spec())
    assert [c.interface for c in found] == ["eth0", "wlan0", "wwan0"]
    assert rejected == []


def test_an_empty_interface_list_is_any() -> None:
    assert expand(spec(interfaces=())) == expand(spec(interfaces=("any",)))


def test_any_after_a_kind_adds_the_remaining_interfaces() -> None:
    found, _ = expand(spec(interfaces=("wifi", "any")))
    assert [c.interface for c in found] == ["wlan0", "eth0", "wwan0"]


def test_a_kind_is_every_usable_interface_of_that_kind() -> None:
    second = interface("wlan1", Kind.WIFI, "198.51.101.2/24")
    found, _ = expand(spec(interfaces=("wifi",)), machine=(*MACHINE, second))
    assert [(c.interface, c.kind) for c in found] == [("wlan0", "wifi"), ("wlan1", "wifi")]


def test_an_interface_name_is_that_interface() -> None:
    found, _ = expand(spec(interfaces=("wwan0",)))
    assert [(c.interface, c.kind) for c in found] == [("wwan0", "cellular")]


def test_a_local_address_binds_to_it_and_to_its_interface() -> None:
    multihomed = interface("eth0", Kind.ETH, "192.0.2.2/24", "192.0.2.3/24")
    found, _ = expand(spec(interfaces=("192.0.2.3",)), machine=(LO, multihomed))
    assert paths(found) == [("eth0", "192.0.2.3", FOUR)]
    assert found[0].kind == "eth"


def test_a_local_ipv6_address_may_be_written_in_any_form() -> None:
    found, _ = expand(spec(ip="ipv6", interfaces=("2001:DB8:2:0:0::2",)))
    assert paths(found) == [("eth0", "2001:db8:2::2", SIX)]


def test_a_local_address_on_two_interfaces_takes_the_one_that_works() -> None:
    dead = interface("eth1", Kind.ETH, "192.0.2.2/24", carrier=False)
    found, _ = expand(spec(interfaces=("192.0.2.2",)), machine=(dead, ETH0))
    assert [c.interface for c in found] == ["eth0"]


def test_the_same_interface_listed_twice_counts_once() -> None:
    found, rejected = expand(spec(interfaces=("wifi", "wlan0", "198.51.100.2")))
    assert [c.interface for c in found] == ["wlan0"]
    assert rejected == []


def test_an_interface_called_like_a_kind_is_not_what_the_kind_means() -> None:
    odd = interface("wifi", Kind.ETH, "192.0.2.9/24")
    found, _ = expand(spec(interfaces=("wifi",)), machine=(odd, WLAN0))
    assert [c.interface for c in found] == ["wlan0"]


def test_entry_fields_travel_into_the_candidate() -> None:
    entry = EntrySpec(
        "quic", "ipv4", ("eth0",), False, "home", HOST, PORT, role=Role.BACKUP, weight=2.0, cost=0.5, max_rate=125e3
    )
    found, _ = expand(spec(interfaces=("wlan0",)), entry)
    assert found[1] == Candidate(
        transport="quic",
        family=Family.IPV4,
        remote_host=HOST,
        remote_address=FOUR,
        remote_port=PORT,
        interface="eth0",
        local_address="192.0.2.2",
        kind="eth",
        entry=1,
        role=Role.BACKUP,
        weight=2.0,
        cost=0.5,
        max_rate=125e3,
        group="group home",
    )


# MPTCP


def test_mptcp_makes_one_candidate_over_all_listed_interfaces() -> None:
    found, _ = expand(spec("mptcp", interfaces=("wifi", "eth", "cellular")))
    assert paths(found) == [("wlan0", "198.51.100.2", FOUR)]
    assert found[0].more_interfaces == ("eth0", "wwan0")
    assert found[0].kind == "wifi"


def test_mptcp_starts_on_the_first_interface_that_works_and_says_why_not_the_others() -> None:
    dead = interface("wlan0", Kind.WIFI, "198.51.100.2/24", carrier=False)
    found, rejected = expand(spec("mptcp", interfaces=("wifi", "eth", "wwan0")), machine=(dead, ETH0, WWAN0))
    assert (found[0].interface, found[0].more_interfaces) == ("eth0", ("wwan0",))
    assert reasons(rejected) == ["wlan0: no carrier"]


def test_mptcp_over_any_counts_no_interface_twice() -> None:
    found, _ = expand(spec("mptcp", interfaces=("wwan0", "any", "eth")))
    assert (found[0].interface, found[0].more_interfaces) == ("wwan0", ("eth0", "wlan0"))


def test_mptcp_of_both_families_has_alternatives_with_the_interfaces_of_each_that_of_most_first() -> None:
    found, rejected = expand(spec("mptcp", "any", ("wwan0", "eth0", "wlan0")))
    assert [(c.remote_address, c.interface, c.more_interfaces) for c in found] == [
        (FOUR, "wwan0", ("eth0", "wlan0")),
        (SIX, "eth0", ("wlan0",)),
    ]
    equal, _ = expand(spec("mptcp", "any", ("eth0", "wlan0")))
    assert [c.remote_address for c in equal] == [SIX, FOUR]
    assert found[0].group == found[1].group != ""
    assert rejected == []


def test_mptcp_to_this_machine_is_bound_to_no_device_and_wants_no_subflows() -> None:
    found, _ = expand(spec("mptcp", interfaces=("eth", "wifi")), remotes=("127.0.0.1",))
    assert paths(found) == [("", "192.0.2.2", "127.0.0.1")]
    assert found[0].more_interfaces == ()


FOUR_ALONE = interface("wlan0", Kind.WIFI, "198.51.100.2/24", gateways=((Family.IPV4, "gw"),))
SIX_ALONE = interface("wwan0", Kind.CELLULAR, "2001:db8:4::2/64", gateways=((Family.IPV6, ""),))
SIX_WLAN0 = interface("wlan0", Kind.WIFI, "2001:db8:3::2/64", gateways=((Family.IPV6, ""),))
OVER_BOTH = spec("mptcp", "any", ("wlan0", "wwan0"))


def shared(
    machine: Sequence[Interface], *going: Candidate, remotes: Sequence[str] = (FOUR, SIX)
) -> dict[str, list[tuple[str, str, tuple[str, ...]]]]:
    """(remote, interface, further interfaces) of what a connection over both stands for, by groups."""
    found, _ = module.candidates([OVER_BOTH], machine, {(HOST, PORT): remotes}, going=going)
    groups: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {}
    for each in found:
        groups.setdefault(each.group, []).append((each.remote_address, each.interface, each.more_interfaces))
    return groups


def test_networks_of_which_one_has_ipv4_alone_and_one_ipv6_get_a_connection_each() -> None:
    assert shared((LO, FOUR_ALONE, SIX_ALONE)) == {
        "entry 0, mptcp": [(SIX, "wwan0", ())],
        "entry 0, mptcp, 1": [(FOUR, "wlan0", ())],
    }


def test_a_connection_that_is_going_goes_on_and_what_its_address_lacks_gets_one_more() -> None:
    (alone, *_), _ = expand(OVER_BOTH, machine=(LO, WLAN0))
    assert (alone.remote_address, alone.interface) == (SIX, "wlan0"), "WWAN0 comes later"
    assert shared((LO, WLAN0, WWAN0)) == {
        "entry 0, mptcp": [(FOUR, "wlan0", ("wwan0",)), (SIX, "wlan0", ())],
    }
    assert shared((LO, WLAN0, WWAN0), alone) == {
        "entry 0, mptcp": [(SIX, "wlan0", ()), (FOUR, "wlan0", ())],
        "entry 0, mptcp, 1": [(FOUR, "wwan0", ())],
    }


def test_the_connection_that_is_left_takes_up_what_comes_back_if_its_address_is_reached_from_there() -> None:
    (*_, further), _ = expand(OVER_BOTH, machine=(LO, SIX_WLAN0, WWAN0))
    assert (further.group, further.interface) == ("entry 0, mptcp, 1", "wwan0")
    assert shared((LO, WWAN0), further) == {further.group: [(FOUR, "wwan0", ())]}
    assert shared((LO, WLAN0, WWAN0), further) == {
        further.group: [(FOUR, "wlan0", ("wwan0",)), (SIX, "wlan0", ())],
    }
    assert shared((LO, SIX_WLAN0, WWAN0), further) == {
        "entry 0, mptcp": [(SIX, "wlan0", ())],
        further.group: [(FOUR, "wwan0", ())],
    }


def test_a_connection_to_an_address_that_the_name_has_no_more_holds_nothing_up() -> None:
    (alone, *_), _ = expand(OVER_BOTH, machine=(LO, WLAN0))
    assert shared((LO, WLAN0, WWAN0), alone, remotes=(FOUR,)) == {
        "entry 0, mptcp": [(FOUR, "wlan0", ("wwan0",))],
    }


def test_towards_this_machine_no_network_gets_a_further_connection() -> None:
    assert list(shared((LO, FOUR_ALONE, SIX_ALONE), remotes=("127.0.0.1", FOUR))) == ["entry 0, mptcp"]


# IP versions and several remote addresses


def test_ip_any_makes_alternatives_ipv6_first() -> None:
    found, rejected = expand(spec(ip="any", interfaces=("eth0",)))
    assert paths(found) == [("eth0", "2001:db8:2::2", SIX), ("eth0", "192.0.2.2", FOUR)]
    assert found[0].group == found[1].group != ""
    assert rejected == []


def test_remote_addresses_of_both_families_take_turns_in_resolver_order() -> None:
    remotes = ("203.0.113.1", "203.0.113.2", "2001:db8::1", "203.0.113.3", "2001:db8::2")
    found, _ = expand(spec(ip="any", interfaces=("eth0",)), remotes=remotes)
    assert [c.remote_address for c in found] == [
        "2001:db8::1",
        "203.0.113.1",
        "2001:db8::2",
        "203.0.113.2",
        "203.0.113.3",
    ]


def test_several_remote_addresses_of_one_family_are_alternatives() -> None:
    found, _ = expand(spec(interfaces=("eth0",)), remotes=("203.0.113.1", "203.0.113.2", "203.0.113.1"))
    assert [c.remote_address for c in found] == ["203.0.113.1", "203.0.113.2"]
    assert len({c.group for c in found}) == 1
    assert found[0].group


def test_each_interface_has_its_own_alternatives() -> None:
    found, _ = expand(spec(ip="any", interfaces=("eth0", "wlan0")))
    assert [c.interface for c in found] == ["eth0", "eth0", "wlan0", "wlan0"]
    assert found[0].group == found[1].group
    assert found[2].group == found[3].group
    assert found[0].group != found[2].group


def test_two_entries_over_one_interface_have_different_alternatives() -> None:
    found, _ = expand(spec("quic", "any", ("eth0",)), spec("tcp", "any", ("eth0",)))
    assert len({c.group for c in found}) == 2


def test_the_group_of_a_single_address_stays_when_there_are_more() -> None:
    found, _ = expand(spec(ip="any", interfaces=("eth0",)), remotes=(SIX,))
    assert [c.group for c in found] == ["entry 0, eth0"]


def test_the_group_of_the_entry_is_kept() -> None:
    found, _ = expand(spec(ip="any", interfaces=("eth0", "wlan0"), group="home"))
    assert {c.group for c in found} == {"group home"}


def test_a_generated_group_never_meets_one_of_the_user() -> None:
    generated = expand(spec(ip="any", interfaces=("eth0",)))[0][0].group
    found, _ = expand(spec(ip="any", interfaces=("eth0",)), spec(interfaces=("wlan0",), group=generated))
    assert found[0].group == generated
    assert found[2].group not in ("", generated)


def test_ip_any_over_an_interface_with_one_family_is_no_rejection() -> None:
    found, rejected = expand(spec(ip="any", interfaces=("cellular",)))
    assert [(c.remote_address, c.group) for c in found] == [(FOUR, "entry 0, wwan0")]
    assert rejected == []


def test_ipv6_of_an_interface_without_is_rejected() -> None:
    found, rejected = expand(spec(ip="ipv6", interfaces=("eth0", "wwan0")))
    assert [c.interface for c in found] == ["eth0"]
    assert rejected == [Rejection(0, "wwan0", "wwan0: no ipv6 address", "wwan0")]


def test_a_remote_without_an_address_of_the_version_is_rejected() -> None:
    assert expand(spec(ip="ipv6"), remotes=(FOUR,)) == ([], [Rejection(0, HOST, "mcserver: no ipv6 address")])
    assert reasons(expand(spec(ip="any"), remotes=())[1]) == ["mcserver: no address"]
    assert reasons(candidates([spec()], MACHINE, {})[1]) == ["mcserver: no ipv4 address"]


def test_a_link_local_remote_is_rejected_unless_there_is_another() -> None:
    found, rejected = expand(spec(ip="ipv6"), remotes=("fe80::7",))
    assert (found, reasons(rejected)) == ([], ["mcserver: only link-local addresses (fe80::7)"])
    found, _ = expand(spec(ip="ipv6", interfaces=("eth0",)), remotes=("fe80::7", SIX))
    assert [c.remote_address for c in found] == [SIX]


def test_each_entry_has_the_addresses_of_its_own_remote() -> None:
    first = EntrySpec("tcp", "ipv4", ("eth0",), remote_host="a", remote_port=1)
    second = EntrySpec("tcp", "ipv4", ("eth0",), remote_host="b", remote_port=2)
    found, _ = candidates([first, second], MACHINE, {("a", 1): ["203.0.113.1"], ("b", 2): ["203.0.113.2"]})
    assert [(c.remote_host, c.remote_address, c.remote_port) for c in found] == [
        ("a", "203.0.113.1", 1),
        ("b", "203.0.113.2", 2),
    ]


# Source addresses


def test_the_source_address_is_the_one_in_the_subnet_of_the_remote() -> None:
    two = interface("eth0", Kind.ETH, "192.0.2.2/24", "203.0.113.2/24")
    found, _ = expand(spec(), machine=(two,))
    assert paths(found) == [("eth0", "203.0.113.2", FOUR)]


def test_a_unique_local_address_is_not_the_source_towards_the_internet() -> None:
    two = interface("eth0", Kind.ETH, "fd00::2/64", "2001:db8:2::2/64")
    assert expand(spec(ip="ipv6"), machine=(two,))[0][0].local_address == "2001:db8:2::2"
    assert expand(spec(ip="ipv6"), machine=(two,), remotes=("fd01::7",))[0][0].local_address == "fd00::2"


def test_an_address_that_is_not_usable_is_not_the_source() -> None:
    old = address("2001:db8:1::1/64", usable=False, reason="deprecated")
    two = interface("eth0", Kind.ETH, more=(old, address("2001:db8:2::2/64")))
    assert expand(spec(ip="ipv6"), machine=(two,))[0][0].local_address == "2001:db8:2::2"


# This machine as the remote


def test_any_towards_loopback_is_one_unbound_candidate() -> None:
    for remote, ip in (("127.0.0.1", "ipv4"), ("127.8.8.8", "ipv4"), ("::1", "ipv6")):
        found, rejected = expand(spec(ip=ip), remotes=(remote,))
        assert paths(found) == [("", "", remote)]
        assert found[0].kind == ""
        assert rejected == []


def test_any_towards_an_own_address_is_one_unbound_candidate() -> None:
    found, _ = expand(spec(), remotes=("192.0.2.2",))
    assert paths(found) == [("", "", "192.0.2.2")]


def test_localhost_with_both_families_gives_alternatives() -> None:
    found, _ = expand(spec(ip="any"), remotes=("127.0.0.1", "::1"))
    assert [c.remote_address for c in found] == ["::1", "127.0.0.1"]
    assert found[0].group == found[1].group != ""


def test_a_named_interface_towards_loopback_binds_its_address_but_no_device() -> None:
    found, _ = expand(spec(interfaces=("eth0", "wifi", "lo")), remotes=("127.0.0.1",))
    assert paths(found) == [
        ("", "192.0.2.2", "127.0.0.1"),
        ("", "198.51.100.2", "127.0.0.1"),
        ("", "127.0.0.1", "127.0.0.1"),
    ]
    assert [c.kind for c in found] == ["eth", "wifi", "loopback"]


def test_a_loopback_address_needs_no_interface() -> None:
    found, _ = expand(spec(interfaces=("127.0.0.2", "127.0.0.3")), remotes=("127.0.0.1",))
    assert paths(found) == [("", "127.0.0.2", "127.0.0.1"), ("", "127.0.0.3", "127.0.0.1")]
    found, _ = expand(spec(ip="ipv6", interfaces=("::1",)), remotes=("::1",), machine=())
    assert paths(found) == [("", "::1", "::1")]


def test_a_loopback_source_reaches_nothing_else() -> None:
    found, rejected = expand(spec(interfaces=("127.0.0.2", "lo")))
    assert found == []
    assert reasons(rejected) == ["127.0.0.2 reaches this machine only", "lo reaches this machine only"]


def test_a_loopback_source_of_the_other_family_is_rejected() -> None:
    _, rejected = expand(spec(ip="ipv6", interfaces=("127.0.0.2",)), remotes=("::1",))
    assert reasons(rejected) == ["127.0.0.2 is no ipv6 address"]


def test_a_name_for_this_machine_and_another_uses_both_ways() -> None:
    found, _ = expand(spec(), machine=(LO, ETH0), remotes=("127.0.1.1", FOUR))
    assert paths(found) == [("", "", "127.0.1.1"), ("eth0", "192.0.2.2", FOUR)]


def test_without_any_known_interface_any_leaves_the_choice_to_the_system() -> None:
    found, rejected = expand(spec(), machine=())
    assert paths(found) == [("", "", FOUR)]
    assert rejected == []


# Rejections


def test_a_missing_kind_is_rejected() -> None:
    assert expand(spec(interfaces=("wifi",)), machine=(LO, ETH0)) == (
        [],
        [Rejection(0, "wifi", "no interface of kind wifi")],
    )


def test_a_missing_interface_is_rejected_with_those_there_are() -> None:
    _, rejected = expand(spec(interfaces=("wlan9",)), machine=(LO, ETH0))
    assert reasons(rejected) == ["no such interface 'wlan9'; have: eth0, lo"]
    _, rejected = expand(spec(interfaces=("wlan9",)), machine=())
    assert reasons(rejected) == ["no such interface 'wlan9'; have: none"]


def test_a_foreign_address_is_rejected() -> None:
    _, rejected = expand(spec(interfaces=("192.0.2.9",)))
    assert reasons(rejected) == ["192.0.2.9 is no address of this machine"]


def test_a_local_address_of_the_other_family_is_rejected() -> None:
    _, rejected = expand(spec(ip="ipv6", interfaces=("192.0.2.2",)))
    assert reasons(rejected) == ["192.0.2.2 is no ipv6 address"]


def test_a_local_address_that_is_not_usable_is_rejected_with_its_reason() -> None:
    fresh = address("2001:db8:2::9/64", usable=False, reason="tentative")
    eth0 = interface("eth0", Kind.ETH, "2001:db8:2::2/64", more=(fresh,))
    _, rejected = expand(spec(ip="ipv6", interfaces=("2001:db8:2::9",)), machine=(eth0,))
    assert reasons(rejected) == ["2001:db8:2::9: tentative"]


def test_interfaces_that_are_down_or_without_carrier_or_address_are_rejected() -> None:
    machine = (
        interface("wlan0", Kind.WIFI, "198.51.100.2/24", carrier=False),
        interface("wlan1", Kind.WIFI, "198.51.100.3/24", up=False),
        interface("wlan2", Kind.WIFI),
        interface("wlan3", Kind.WIFI, more=(address("192.0.2.2/24", usable=False, reason="duplicate"),)),
    )
    found, rejected = expand(spec(interfaces=("wifi",)), machine=machine)
    assert found == []
    assert reasons(rejected) == [
        "wlan0: no carrier",
        "wlan1: the interface is down",
        "wlan2: no ipv4 address",
        "wlan3: no usable ipv4 address (duplicate)",
    ]
    assert {r.what for r in rejected} == {"wifi"}


def test_an_interface_that_cannot_be_used_towards_this_machine_is_rejected_too() -> None:
    dead = interface("eth0", Kind.ETH, "192.0.2.2/24", carrier=False)
    _, rejected = expand(spec(interfaces=("eth0",)), machine=(LO, dead), remotes=("127.0.0.1",))
    assert reasons(rejected) == ["eth0: no carrier"]


def test_any_tells_of_unusable_hardware_but_not_of_unusable_bridges() -> None:
    dead = interface("eth1", Kind.ETH, carrier=False)
    _, rejected = expand(spec(), machine=(LO, ETH0, dead, BRIDGE))
    assert reasons(rejected) == ["eth1: no carrier"]


def test_any_tells_of_bridges_when_nothing_else_is_there() -> None:
    _, rejected = expand(spec(), machine=(LO, BRIDGE))
    assert reasons(rejected) == ["docker0: no carrier"]
    _, rejected = expand(spec(), machine=(LO,))
    assert reasons(rejected) == ["no interface but loopback"]


def test_no_route_through_an_interface_is_a_rejection() -> None:
    wlan0 = interface("wlan0", Kind.WIFI, "198.51.100.2/24", "2001:db8:3::2/64", gateways=())
    for ip, families in (("ipv4", ["ipv4"]), ("ipv6", ["ipv6"]), ("any", ["ipv6", "ipv4"])):
        found, rejected = expand(spec(ip=ip, interfaces=("wlan0",)), machine=(LO, wlan0))
        assert found == []
        assert reasons(rejected) == [f"no {family} route through wlan0" for family in families]


def test_a_default_route_of_the_other_family_does_not_help() -> None:
    eth0 = interface("eth0", Kind.ETH, "192.0.2.2/24", "2001:db8:2::2/64", gateways=((Family.IPV6, "fe80::1"),))
    found, rejected = expand(spec(), spec(ip="ipv6"), machine=(eth0,))
    assert [c.family for c in found] == [Family.IPV6]
    assert rejected == [Rejection(0, "any", "no ipv4 route through eth0", "eth0")]


def test_a_neighbour_needs_no_default_route() -> None:
    eth0 = interface("eth0", Kind.ETH, "203.0.113.2/24", "2001:db8:7::2/64", gateways=())
    found, _ = expand(spec(ip="any"), machine=(eth0,))
    assert [c.remote_address for c in found] == [SIX, FOUR]


def test_a_neighbour_through_an_address_that_is_not_usable_is_none() -> None:
    old = address("203.0.113.2/24", usable=False, reason="deprecated")
    eth0 = interface("eth0", Kind.ETH, "192.0.2.2/24", gateways=(), more=(old,))
    assert reasons(expand(spec(), machine=(eth0,))[1]) == ["no ipv4 route through eth0"]


def test_a_route_known_to_the_system_counts() -> None:
    tun0 = interface("tun0", Kind.VIRTUAL, "10.8.0.2/32", gateways=())
    found, _ = expand(spec(), machine=(tun0,), routed=[("tun0", FOUR)])
    assert paths(found) == [("tun0", "10.8.0.2", FOUR)]
    found, _ = expand(spec(), machine=(tun0,), routed=[("tun1", FOUR), ("tun0", "203.0.113.8")])
    assert found == []


def test_a_reason_is_given_once_per_entry() -> None:
    wlan0 = interface("wlan0", Kind.WIFI, "198.51.100.2/24", gateways=())
    _, rejected = expand(spec(interfaces=("wlan0", "wlan0")), machine=(wlan0,), remotes=("203.0.113.1", "203.0.113.2"))
    assert reasons(rejected) == ["no ipv4 route through wlan0"]


# Duplicates across entries


def test_a_connection_two_entries_ask_for_is_made_once_and_the_first_wins() -> None:
    first = EntrySpec("tcp", "ipv4", ("eth0",), weight=3.0, remote_host=HOST, remote_port=PORT)
    found, rejected = expand(first, spec(interfaces=("any",)))
    assert [(c.interface, c.entry, c.weight) for c in found] == [
        ("eth0", 0, 3.0),
        ("wlan0", 1, 1.0),
        ("wwan0", 1, 1.0),
    ]
    assert rejected == []


def test_an_entry_that_adds_nothing_is_named() -> None:
    found, rejected = expand(spec(), spec("quic"), spec(interfaces=("eth",)))
    assert {c.entry for c in found} == {0, 1}
    assert rejected == [Rejection(2, "tcp", "the same as entry 0")]


def test_other_transports_remotes_and_sources_are_no_duplicates() -> None:
    found, _ = expand(
        spec("tcp", interfaces=("127.0.0.2",)),
        spec("tcp", interfaces=("127.0.0.3",)),
        spec("quic", interfaces=("127.0.0.2",)),
        remotes=("127.0.0.1",),
    )
    assert len(found) == 3


# In general

words = st.sampled_from(
    ["any", "eth", "wifi", "cellular", "lo", "eth0", "wlan0", "wwan0", "docker0", "192.0.2.2", "127.0.0.9"]
)
remote = st.sampled_from([FOUR, SIX, "127.0.0.1", "::1", "192.0.2.2", "172.17.0.9", "fe80::1"])
entries = st.builds(
    spec,
    st.sampled_from(["tcp", "quic", "mptcp"]),
    st.sampled_from(["ipv4", "ipv6", "any"]),
    st.lists(words, max_size=4).map(tuple),
    st.sampled_from(["", "a", "entry 0, eth0"]),
)


@given(
    st.lists(entries, max_size=4),
    st.lists(st.sampled_from(MACHINE), unique=True),
    st.lists(remote, max_size=5),
)
def test_every_entry_gives_candidates_or_a_reason_and_every_candidate_can_be_bound(
    asked: list[EntrySpec], machine: list[Interface], remotes: list[str]
) -> None:
    found, rejected = expand(*asked, machine=machine, remotes=remotes)
    by_name = {i.name: i for i in machine}
    assert {c.entry for c in found} | {r.entry for r in rejected} == set(range(len(asked)))
    assert [c.entry for c in found] == sorted(c.entry for c in found)
    slots = [(c.transport, c.interface, c.local_address, c.remote_address, c.remote_port, c.remote_host) for c in found]
    assert len(slots) == len(set(slots))
    assert all(r.reason for r in rejected)
    for c in found:
        assert asked[c.entry].ip in ("any", c.family.value)
        assert not c.interface or not by_name[c.interface].unusable_reason(c.family)
        assert c.interface not in c.more_interfaces
        assert not c.more_interfaces or c.transport == "mptcp"
        assert not c.interface or not c.remote_address.startswith(("127.", "::1"))
    for index in {c.entry for c in found if c.transport == "mptcp" and not asked[c.entry].group}:
        firsts = {c.group: c for c in reversed(found) if c.entry == index}.values()
        used = [source.interface for first in firsts for source in first.sources]
        assert len(used) == len(set(used)), "no network is in two connections"
        possible = {source.interface for c in found if c.entry == index for source in c.sources}
        assert "" in used or set(used) == possible - {""}, "and each in one"


def test_the_module_does_no_input_or_output() -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node.module or "" for node in statements if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names]
    imported = {name.split(".")[0] for name in names}
    assert "multi" in imported
    assert imported.isdisjoint({"asyncio", "socket", "time", "os", "random", "secrets"})


# Instead of an MPTCP connection over several interfaces


def test_one_connection_for_each_interface_has_its_address_and_kind() -> None:
    first, second = one_per_interface(replace(CANDIDATE, group="fast"))
    assert (first.interface, first.local_address, first.kind, first.group) == ("eth0", "10.0.1.2", "eth", "fast")
    assert (second.interface, second.local_address, second.kind) == ("wlan0", "10.0.2.2", "wifi")
    assert second.group == "fast, wlan0"
    assert not first.more_interfaces
    assert not second.more_interfaces
    assert not second.more_sources


def test_one_connection_for_each_interface_works_from_names_alone() -> None:
    found = one_per_interface(replace(CANDIDATE, more_sources=(Source("wlan0"), Source("wwan0"))))
    assert [(c.interface, c.local_address) for c in found] == [("eth0", "10.0.1.2"), ("wlan0", ""), ("wwan0", "")]
    assert [c.group for c in found] == ["", "", ""]


def test_a_candidate_of_one_interface_stays_what_it_is() -> None:
    alone = replace(CANDIDATE, more_sources=())
    assert one_per_interface(alone) == [alone]
