"""What messages about links, addresses and routes mean, from bytes; and that no bytes do harm."""

from __future__ import annotations

import socket
import struct
from dataclasses import replace

import pytest
from hypothesis import given, strategies

from multi.discovery.link_state import (
    IFA_ADDRESS,
    IFA_CACHEINFO,
    IFA_F_DADFAILED,
    IFA_F_DEPRECATED,
    IFA_F_OPTIMISTIC,
    IFA_F_TENTATIVE,
    IFA_FLAGS,
    IFA_LOCAL,
    IFF_UP,
    IFLA_CARRIER,
    IFLA_CARRIER_DOWN_COUNT,
    IFLA_IFNAME,
    IFLA_OPERSTATE,
    LinkEvents,
    LinkState,
    Loss,
    compare,
)
from multi.discovery.netlink import (
    ADDRESS,
    ATTRIBUTE,
    HEADER,
    LINK,
    ROUTE,
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_DELROUTE,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWROUTE,
)
from multi.types import Family, Interface, InterfaceAddress, Kind

INDEX = 7
FOUR, SIX, LINK_LOCAL = "10.0.0.2", "fd00::2", "fe80::2"
OPER_UP, OPER_DOWN, OPER_DORMANT = 6, 2, 5
AF_BRIDGE = 7
CARRIER_LOST = Loss("wlan0", "", "carrier lost")
WENT_DOWN = Loss("wlan0", "", "the interface went down")
REMOVED = Loss("wlan0", "", "the interface was removed")


def attribute(kind: int, value: bytes) -> bytes:
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind: int, body: bytes) -> bytes:
    return HEADER.pack(HEADER.size + len(body), kind, 0, 0, 0) + body


def link(
    kind: int = RTM_NEWLINK,
    *,
    up: bool = True,
    carrier: bool = True,
    operstate: int = OPER_UP,
    downs: int = 0,
    name: str = "wlan0",
    family: int = socket.AF_UNSPEC,
    extra: bytes = b"",
) -> bytes:
    body = LINK.pack(family, 1, INDEX, IFF_UP if up else 0, 0) + attribute(IFLA_IFNAME, name.encode() + b"\0")
    body += attribute(IFLA_OPERSTATE, bytes([operstate])) + attribute(IFLA_CARRIER, bytes([carrier]))
    return message(kind, body + attribute(IFLA_CARRIER_DOWN_COUNT, struct.pack("=I", downs)) + extra)


def address(literal: str, kind: int = RTM_NEWADDR, *, flags: int = 0, created: int = 1, prefix: int = 64) -> bytes:
    family = socket.AF_INET6 if ":" in literal else socket.AF_INET
    body = ADDRESS.pack(family, prefix, flags & 0xFF, 0, INDEX)
    body += attribute(IFA_ADDRESS, socket.inet_pton(family, literal))
    body += attribute(IFA_CACHEINFO, struct.pack("=4I", 100, 100, created, created))
    return message(kind, body + attribute(IFA_FLAGS, struct.pack("=I", flags)))


def route(kind: int = RTM_NEWROUTE, *, table: int = 254, route_type: int = 1, flags: int = 0) -> bytes:
    return message(kind, ROUTE.pack(socket.AF_INET, 0, 0, 0, table, 3, 0, route_type, flags))


def hear(known: LinkState, *messages: bytes) -> LinkEvents:
    heard = LinkEvents()
    for one in messages:
        known.hear(one, heard)
    return heard


@pytest.fixture
def known() -> LinkState:
    """A connected interface with addresses."""
    made = LinkState()
    heard = hear(made, link(), address(FOUR, prefix=24), address(SIX), address(LINK_LOCAL))
    assert heard.changed
    assert heard.losses == []
    return made


@pytest.mark.parametrize(
    ("told", "losses"),
    [
        (link(carrier=False, operstate=OPER_DOWN, downs=1), [CARRIER_LOST]),
        (link(operstate=OPER_DORMANT), [CARRIER_LOST]),
        (link(downs=1), [CARRIER_LOST]),  # lost and back before the kernel could tell
        (link(up=False, operstate=OPER_DOWN), [WENT_DOWN]),
        (link(RTM_DELLINK), [REMOVED]),
        (address(FOUR, RTM_DELADDR, prefix=24), [Loss("wlan0", FOUR, f"the address {FOUR} was removed")]),
        (address(SIX, RTM_DELADDR), [Loss("wlan0", SIX, f"the address {SIX} was removed")]),
        (address(SIX, created=2), [Loss("wlan0", SIX, f"the address {SIX} was removed")]),  # and added again, unheard
        (address(SIX, flags=IFA_F_DADFAILED), [Loss("wlan0", SIX, f"the address {SIX} is a duplicate")]),
        (address(LINK_LOCAL, RTM_DELADDR), []),
        (address(SIX, flags=IFA_F_DEPRECATED), []),
        (address(SIX, flags=IFA_F_TENTATIVE), []),
        (link(RTM_DELLINK, family=AF_BRIDGE), []),
        (link(name="wlan1"), []),
        (route(), []),
        (route(RTM_DELROUTE), []),
    ],
)
def test_what_is_lost_for_certain(known: LinkState, told: bytes, losses: list[Loss]) -> None:
    assert hear(known, told).losses == losses


@pytest.mark.parametrize(
    ("told", "changed"),
    [
        (link(), False),  # statistics and the like
        (link(extra=attribute(23, bytes(192))), False),
        (link(RTM_DELLINK, family=AF_BRIDGE), False),
        (link(name="wlan1"), True),
        (address(SIX), False),  # a router's advertisement has come again
        (address(SIX, flags=IFA_F_DEPRECATED), True),
        (address("fd00::3", flags=IFA_F_TENTATIVE), True),
        (address(LINK_LOCAL, RTM_DELADDR), True),
        (address("fd00::99", RTM_DELADDR), False),
        (route(), True),
        (route(table=42), True),
        (route(RTM_DELROUTE), True),
        (route(route_type=7), True),
        (route(table=255, route_type=2), False),
        (route(route_type=5), False),
        (route(flags=0x200), False),
        (message(28, bytes(12)), False),
    ],
)
def test_what_is_worth_a_look(known: LinkState, told: bytes, changed: bool) -> None:
    heard = hear(known, told)
    assert heard.changed is changed
    assert heard.losses == []


def test_an_address_becomes_usable(known: LinkState) -> None:
    assert hear(known, address("fd00::3", flags=IFA_F_TENTATIVE)).changed
    assert hear(known, address("fd00::3")).changed


def test_a_duplicate_is_a_loss_only_if_it_was_usable(known: LinkState) -> None:
    tentative, duplicate = IFA_F_TENTATIVE, IFA_F_TENTATIVE | IFA_F_DADFAILED
    heard = hear(known, address("fd00::3", flags=tentative), address("fd00::3", flags=duplicate))
    assert heard.losses == []
    optimistic = IFA_F_TENTATIVE | IFA_F_OPTIMISTIC
    heard = hear(known, address("fd00::4", flags=optimistic), address("fd00::4", flags=duplicate))
    assert heard.losses == [Loss("wlan0", "fd00::4", "the address fd00::4 is a duplicate")]


def test_a_flap_within_one_burst_is_a_loss(known: LinkState) -> None:
    heard = hear(known, link(carrier=False, operstate=OPER_DOWN, downs=1) + link(downs=1))
    assert heard.collapsed() == (CARRIER_LOST,)
    assert heard.changed
    assert hear(known, link(downs=1)).losses == []


def test_an_interface_that_comes_up_is_no_loss() -> None:
    known = LinkState()
    steps = [
        link(up=False, carrier=False, operstate=OPER_DOWN, downs=1),
        link(carrier=False, operstate=OPER_DOWN, downs=1),
        link(operstate=OPER_DOWN, downs=1),
        link(downs=1),
    ]
    for step in steps:
        heard = hear(known, step)
        assert heard.losses == []
        assert heard.changed


def test_a_carrier_that_came_and_went_unheard_is_a_loss(known: LinkState) -> None:
    hear(known, link(carrier=False, operstate=OPER_DOWN, downs=1))
    assert hear(known, link(carrier=False, operstate=OPER_DOWN, downs=2)).losses == [CARRIER_LOST]


def test_a_message_that_leaves_out_the_state_changes_nothing(known: LinkState) -> None:
    wireless = message(RTM_NEWLINK, LINK.pack(0, 1, INDEX, IFF_UP, 0) + attribute(IFLA_IFNAME, b"wlan0\0"))
    heard = hear(known, wireless)
    assert heard.losses == []
    assert not heard.changed


def test_addresses_of_an_interface_that_is_lost_are_not_told_again(known: LinkState) -> None:
    heard = hear(known, link(up=False, operstate=OPER_DOWN), address(SIX, RTM_DELADDR), link(RTM_DELLINK))
    assert heard.collapsed() == (REMOVED,)


def test_an_address_with_two_prefixes_is_lost_with_the_last(known: LinkState) -> None:
    hear(known, address(SIX, prefix=128))
    assert hear(known, address(SIX, RTM_DELADDR, prefix=64)).losses == []
    assert len(hear(known, address(SIX, RTM_DELADDR, prefix=128)).losses) == 1


def test_the_far_end_of_a_point_to_point_link_is_not_ours() -> None:
    known = LinkState()
    body = ADDRESS.pack(socket.AF_INET, 32, 0, 0, INDEX)
    body += attribute(IFA_ADDRESS, socket.inet_aton("10.9.9.9")) + attribute(IFA_LOCAL, socket.inet_aton(FOUR))
    hear(known, link(), message(RTM_NEWADDR, body))
    heard = hear(known, message(RTM_DELADDR, body))
    assert heard.losses == [Loss("wlan0", FOUR, f"the address {FOUR} was removed")]


def test_what_a_dump_does_not_mention_is_gone(known: LinkState) -> None:
    known.begin_dump()
    heard = hear(known, link(), address(SIX), address("fd00::5"))
    known.end_dump(heard)
    assert heard.losses == [Loss("wlan0", FOUR, f"the address {FOUR} was removed")]
    known.begin_dump()
    heard = LinkEvents()
    known.end_dump(heard)
    assert heard.collapsed() == (REMOVED,)


@pytest.mark.parametrize("kind", [RTM_NEWLINK, RTM_NEWADDR, RTM_NEWROUTE])
def test_a_message_that_is_cut_off_makes_everybody_look(known: LinkState, kind: int) -> None:
    heard = hear(known, message(kind, b"\x02"))
    assert heard.changed
    assert heard.losses == []


REAL = [link(), link(carrier=False), address(FOUR), address(SIX, RTM_DELADDR), route(), message(3, bytes(4))]


@given(strategies.lists(strategies.one_of(strategies.binary(max_size=200), strategies.sampled_from(REAL)), max_size=8))
def test_no_bytes_do_harm(pieces: list[bytes]) -> None:
    known = LinkState()
    hear(known, link(), address(FOUR))
    hear(known, *pieces)
    hear(known, b"".join(pieces))


@given(strategies.sampled_from(REAL), strategies.data())
def test_no_damage_to_a_message_does_harm(whole: bytes, data: strategies.DataObject) -> None:
    damaged = bytearray(whole)
    for _ in range(data.draw(strategies.integers(1, 4))):
        damaged[data.draw(strategies.integers(0, len(damaged) - 1))] = data.draw(strategies.integers(0, 255))
    hear(LinkState(), link(), address(FOUR), bytes(damaged[: data.draw(strategies.integers(0, len(damaged)))]))


# Two readings of the interfaces

USABLE = InterfaceAddress(FOUR, Family.IPV4, 24)
WLAN = Interface("wlan0", INDEX, Kind.WIFI, addresses=(USABLE,))


@pytest.mark.parametrize(
    ("after", "losses"),
    [
        ([WLAN], ()),
        ([], (REMOVED,)),
        ([replace(WLAN, index=8)], (REMOVED,)),
        ([replace(WLAN, up=False)], (WENT_DOWN,)),
        ([replace(WLAN, carrier=False)], (CARRIER_LOST,)),
        ([replace(WLAN, addresses=())], (Loss("wlan0", FOUR, f"the address {FOUR} was removed"),)),
        (
            [replace(WLAN, addresses=(replace(USABLE, usable=False, reason="duplicate"),))],
            (Loss("wlan0", FOUR, f"the address {FOUR} is a duplicate"),),
        ),
        ([replace(WLAN, addresses=(replace(USABLE, usable=False, reason="deprecated"),))], ()),
        ([replace(WLAN, gateways=((Family.IPV4, "10.0.0.1"),)), replace(WLAN, name="new", index=9)], ()),
    ],
)
def test_what_was_lost_between_two_readings(after: list[Interface], losses: tuple[Loss, ...]) -> None:
    assert compare([WLAN], after) == losses


def test_what_was_lost_already_is_not_lost_again() -> None:
    lost = replace(WLAN, carrier=False)
    assert compare([lost], [replace(lost, addresses=())]) == ()
    assert compare([lost], [replace(lost, up=False)]) == ()
