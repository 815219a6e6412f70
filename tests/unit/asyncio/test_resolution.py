"""What a client can dial: which addresses of a server count, which entries are wanted, and what the system lacks."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest

import multi
from multi.asyncio import resolution as module
from multi.config import load_entry
from multi.transports import base
from multi.types import Family, Interface, InterfaceAddress, Kind

CONFIG = multi.load_config({"connection_priority": [["tcp", "ipv4", "any"]], "remote_host": "198.51.100.1"})


def machine(*names: str) -> tuple[Interface, ...]:
    """Interfaces of a machine, each in a network with a router."""
    return tuple(
        Interface(
            name,
            index,
            Kind.ETH,
            True,
            True,
            (InterfaceAddress(f"192.0.{index}.9", Family.IPV4, 24, True, ""),),
            ((Family.IPV4, f"192.0.{index}.1"),),
        )
        for index, name in enumerate(names, 2)
    )


@pytest.fixture(autouse=True)
def two_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces_are(monkeypatch, machine("eth0", "eth1"))


def interfaces_are(monkeypatch: pytest.MonkeyPatch, found: Sequence[Interface] | OSError) -> None:
    async def read(*_: Any, **__: Any) -> Sequence[Interface]:
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(module, "interfaces_async", read)


async def test_an_entry_that_is_withdrawn_leads_nowhere_any_more() -> None:
    resolver = module.Resolver(CONFIG, lambda: None, print)
    index = resolver.add(load_entry(["tcp", "ipv4", "eth1"]))
    found = await resolver.find(entry=index)
    assert {(c.entry, c.interface) for c in found.candidates} == {(0, "eth0"), (0, "eth1"), (1, "eth1")}
    resolver.withdraw(index)
    assert {c.entry for c in (await resolver.find()).candidates} == {0}
    assert resolver.add(load_entry(["tcp", "ipv4", "eth0"])) != index, "what is left of the other is not taken for it"


async def test_a_connection_over_several_networks_is_wanted_without_the_one_that_is_blocked() -> None:
    resolver = module.Resolver(CONFIG, lambda: None, print)
    index = resolver.add(load_entry({"transport": "mpquic", "ip": "ipv4", "interface": ["eth0", "eth1"]}))
    resolver.block("eth0")
    found = await resolver.find()
    assert [c.interface for c in found.candidates if c.entry == index] == ["eth1"]
    assert (f"entry {index} (eth0)", "it is blocked") in found.rejected


async def test_what_is_blocked_is_no_candidate_until_it_is_unblocked() -> None:
    looks: list[None] = []
    resolver = module.Resolver(CONFIG, lambda: looks.append(None), print)
    before = (await resolver.find()).candidates
    for name in ("eth1", "192.0.3.9"):
        resolver.block(name)
        found = await resolver.find()
        assert [c.interface for c in found.candidates] == ["eth0"]
        assert ("entry 0 (eth1)", "it is blocked") in found.rejected
        assert [resolver.closed(c, without=False) for c in before] == [False, True]
        resolver.unblock(name)
        assert (await resolver.find()).candidates == before
    assert len(looks) == 4
    resolver.block("eth")
    assert (await resolver.find()).candidates == []
    assert resolver.blocked == ("eth",)
    with pytest.raises(
        multi.LocalProtocolError, match=r"no network is called 'eth7'; known: 192.0.2.9, .*, eth0, eth1$"
    ):
        resolver.block("eth7")
    with pytest.raises(multi.LocalProtocolError, match="'eth0' is not blocked; blocked: eth"):
        resolver.unblock("eth0")
    no_name: Any = {"interface": "eth0"}
    for change in (resolver.block, resolver.unblock):
        with pytest.raises(TypeError, match="allowed: a kind, an interface or a local address"):
            change(no_name)


async def test_a_connection_over_several_networks_loses_the_one_that_is_blocked() -> None:
    config = multi.load_config({"connection_priority": [["mpquic", "ipv4", "any"]], "remote_host": "198.51.100.1"})
    resolver = module.Resolver(config, lambda: None, print)
    (whole,) = (await resolver.find()).candidates
    resolver.block("eth0")
    (left,) = (await resolver.find()).candidates
    assert (left.interface, left.more_interfaces) == ("eth1", ())
    assert not resolver.closed(whole, without=True), "its path goes"
    assert resolver.closed(whole, without=False), "it has to be opened anew where that cannot be"
    resolver.block("eth1")
    assert resolver.closed(whole, without=True)


async def test_a_system_that_cannot_be_asked_is_no_system_without_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = module.Resolver(CONFIG, lambda: None, print)
    interfaces_are(monkeypatch, OSError(errno.EMFILE, "Too many open files"))
    with pytest.raises(multi.NoUsableConnection, match="cannot look at the networks: Too many open files"):
        await resolver.find()
    assert resolver.last is None


async def test_multipath_quic_that_fell_back_gets_plain_quic_over_the_further_networks() -> None:
    config = multi.load_config({"connection_priority": [["mpquic", "ipv4", "any"]], "remote_host": "198.51.100.1"})
    said: list[str] = []
    resolver = module.Resolver(config, lambda: None, said.append)
    (one,) = (await resolver.find()).candidates
    assert (one.interface, one.more_interfaces) == ("eth0", ("eth1",))
    resolver.fell_back(0)
    found = (await resolver.find()).candidates
    assert [(c.transport, c.interface, c.more_interfaces) for c in found] == [
        ("mpquic", "eth0", ()),
        ("quic", "eth1", ()),
    ]
    assert said == ["MPQUIC over eth0, eth1: it fell back to QUIC; one connection per interface is opened instead"]


async def test_a_transport_of_somebody_else_that_fell_back_is_opened_over_each_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "_types", dict(base._types))
    base.register_transport("pigeon", spans_interfaces=True)(base.Transport)
    config = multi.load_config({"connection_priority": [["pigeon", "ipv4", "any"]], "remote_host": "198.51.100.1"})
    said: list[str] = []
    resolver = module.Resolver(config, lambda: None, said.append)
    resolver.fell_back(0)
    found = (await resolver.find()).candidates
    assert [(c.transport, c.interface) for c in found] == [("pigeon", "eth0"), ("pigeon", "eth1")]
    assert said == ["PIGEON over eth0, eth1: it fell back; one connection per interface is opened instead"]


async def test_mptcp_without_subflows_becomes_a_connection_for_each_interface_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("multi.linux.mptcp_pm.why_no_subflows", lambda _candidate: "no such thing here")
    config = multi.load_config(
        {"connection_priority": [["mptcp", "ipv4", ["eth0", "eth1"]]], "remote_host": "198.51.100.1"}
    )
    told: list[str] = []
    resolver = module.Resolver(config, lambda: None, told.append)
    for _ in range(2):
        found = await resolver.find()
        assert [(c.interface, c.more_interfaces) for c in found.candidates] == [("eth0", ()), ("eth1", ())]
    assert [text for text in told if "no such thing here" in text] == told != []
    assert len(told) == 1


@pytest.mark.parametrize(
    ("literal", "why"),
    [
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("169.254.1.1", "link-local"),
        ("fe80::1", "link-local"),
        ("::ffff:127.0.0.1", "IPv4-mapped"),
        ("::ffff:192.0.2.1", "IPv4-mapped"),
        ("::127.0.0.1", "IPv4-compatible"),
        ("64:ff9b::7f00:1", "loopback behind NAT64"),
        ("2002:7f00:1::", "loopback behind 6to4"),
        ("255.255.255.255", "broadcast"),
        ("240.0.0.1", "reserved"),
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "this network"),
        ("::", "unspecified"),
        ("192.0.2.99", "the client's own"),
    ],
)
async def test_an_announced_address_that_no_server_elsewhere_can_have_is_not_dialled(literal: str, why: str) -> None:
    config = multi.load_config({"connection_priority": [["tcp", "any", "any"]], "remote_host": "198.51.100.1"})
    found = await announced(config, [(literal, 7788), ("198.51.100.2", 443)])
    assert found == [("198.51.100.2", 443), ("198.51.100.1", 7788)], why


async def test_what_a_server_tells_is_tried_first_at_its_port_and_no_more_than_four() -> None:
    config = multi.load_config({"connection_priority": [["tcp", "any", "any"]], "remote_host": "198.51.100.1"})
    told = [(f"198.51.100.{number}", 7000 + number) for number in range(2, 9)]
    assert await announced(config, told) == [*told[:4], ("198.51.100.1", 7788)]
    assert await announced(config, [("198.51.100.1", 7788), told[0]]) == [("198.51.100.1", 7788), told[0]]


async def test_a_session_over_a_transport_with_other_addresses_follows_nobody() -> None:
    config = multi.load_config({"connection_priority": [["tcp", "any", "any"]], "remote_host": "198.51.100.1"})
    resolver = module.Resolver(config, lambda: None, print)
    assert not resolver.may_go("8.8.8.8"), "nobody has proved anything yet"
    resolver.opened_to = "a pigeon loft"
    assert not resolver.announced([("8.8.8.8", 443)])
    resolver.close()


async def announced(config: multi.Config, addresses: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Where a client with one interface would dial, in order."""
    own = InterfaceAddress("192.0.2.99", Family.IPV4, 24, True, "")
    six = InterfaceAddress("2001:db8::99", Family.IPV6, 64, True, "")
    gateways = ((Family.IPV4, "192.0.2.1"), (Family.IPV6, "2001:db8::1"))
    machine = (Interface("eth9", 9, Kind.ETH, True, True, (own, six), gateways),)
    resolver = module.Resolver(config, lambda: None, print)

    async def read(*_: Any, **__: Any) -> tuple[Interface, ...]:
        return machine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "interfaces_async", read)
        await resolver.find()
        resolver.opened_to = "198.51.100.1"
        resolver.announced(addresses)
        found = await resolver.find()
    resolver.close()
    return [(candidate.remote_address, candidate.remote_port) for candidate in found.candidates]
