"""Policy routes where they cannot be made."""

from __future__ import annotations

import sys

import pytest

from multi.discovery.snapshot import KernelRoute
from multi.linux import policy_routes
from multi.linux.policy_routes import PolicyRoutes
from multi.types import Family, Interface, InterfaceAddress, Kind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="rules and routes of Linux")


def test_without_pyroute2_routes_are_left_as_they_are_and_a_warning_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    for name in [name for name in sys.modules if name.startswith("pyroute2.")]:
        monkeypatch.delitem(sys.modules, name)
    elsewhere = frozenset[KernelRoute]()
    monkeypatch.setattr(policy_routes, "lookup", lambda *_: elsewhere)
    wifi = Interface("wlan0", 4242, Kind.WIFI, addresses=(InterfaceAddress("192.0.2.7", Family.IPV4, 24),))
    routes = PolicyRoutes()
    try:
        warnings = routes.install([wifi], ["198.51.100.1"])
    finally:
        routes.remove()
    table = 10_000 + 4242 * 256
    assert warnings == [
        "wlan0: no gateway known for ipv4, only its own subnet is routed",
        f"the route to 192.0.2.0/24 in table {table} is refused: pyroute2 is not installed",
        f"the rule from 192.0.2.7 lookup {table} is refused: pyroute2 is not installed",
    ]
