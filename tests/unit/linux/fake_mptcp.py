"""A path manager for tests as the kernel would be, in place of `MptcpPathManager` and `MptcpSockets`."""

from __future__ import annotations

import errno

import pytest

from multi.linux import mptcp_endpoints, mptcp_pm
from multi.linux.mptcp_pm import FLAG_SUBFLOW, Endpoint, MptcpAddress
from multi.types import Candidate, Family, Source

CANDIDATE = Candidate(
    "mptcp",
    Family.IPV4,
    "server",
    "10.0.0.1",
    7788,
    interface="eth0",
    local_address="10.0.1.2",
    more_sources=(Source("wlan0", "10.0.2.2", "wifi"),),
    kind="eth",
)
"""Over two interfaces."""
ETH, WLAN = MptcpAddress(2, "10.0.1.2"), MptcpAddress(3, "10.0.2.2")


class Kernel:
    """Knows endpoints and a limit."""

    def __init__(self, *endpoints: Endpoint, limit: int = 2, privileged: bool = True) -> None:
        self.present = list(endpoints)
        self.limit = limit
        self.privileged = privileged
        self.removed: list[str] = []
        self.begun: set[str] = set()
        """Where connections of other programs began."""

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def permitted(self) -> bool:
        return self.privileged

    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(self.present)

    def add_endpoint(self, address: str, index: int, flags: int = FLAG_SUBFLOW) -> None:
        self._check()
        if any(endpoint.address == address for endpoint in self.present):
            raise FileExistsError(errno.EEXIST, "file exists")
        self.present.append(Endpoint(address, index, len(self.present) + 1, flags))

    def remove_endpoint(self, endpoint: Endpoint) -> None:
        self._check()
        if endpoint not in self.present:
            raise OSError(errno.EINVAL, "invalid argument")
        self.present.remove(endpoint)
        self.removed.append(endpoint.address)

    def begun_at(self, address: str) -> bool:
        return address in self.begun

    def subflow_limit(self) -> int:
        return self.limit

    def set_subflow_limit(self, subflows: int) -> None:
        self._check()
        self.limit = subflows

    def _check(self) -> None:
        if not self.privileged:
            raise PermissionError(errno.EPERM, "operation not permitted")

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Kernel:
        for module in (mptcp_pm, mptcp_endpoints):
            monkeypatch.setattr(module, "MptcpPathManager", lambda: self)
        monkeypatch.setattr(mptcp_endpoints, "MptcpSockets", lambda: self)
        return self
