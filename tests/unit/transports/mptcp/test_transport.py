"""What stands in the way of MPTCP, before anything is dialled."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest

from multi.errors import TransportError
from multi.linux import mptcp_pm
from multi.linux.mptcp_pm import NO_MPTCP
from multi.transports.base import Channel, TransportSettings
from multi.transports.mptcp import transport as module
from multi.transports.mptcp.settings import MptcpSettings
from multi.transports.mptcp.transport import Mptcp, MptcpChannel, host_scheduler
from multi.transports.tcp.info import TcpInfo
from multi.types import Candidate, Family, Source

NO_SUCH_PROTOCOL = 261


async def test_a_kernel_without_mptcp_is_an_obstacle_and_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mptcp_pm, "IPPROTO_MPTCP", NO_SUCH_PROTOCOL)
    assert Mptcp().obstacle(TransportSettings(), listening=False) == NO_MPTCP
    with pytest.raises(TransportError, match="this kernel has no MPTCP"):
        await Mptcp().dial(Candidate("mptcp", Family.IPV4, "localhost", "127.0.0.1", 9), TransportSettings())


async def test_a_silent_network_keeps_no_connection_from_beginning_on_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_up: list[str] = []
    channel = cast("Channel", object())

    async def dial(_self: Mptcp, candidate: Candidate, _settings: TransportSettings) -> Channel:
        if candidate.interface == "wlan0":
            try:
                await asyncio.Event().wait()
            finally:
                given_up.append(candidate.interface)
        assert candidate.sources == (Source("wwan0", "192.0.2.2"), Source("wlan0", "192.0.2.1"))
        return channel

    monkeypatch.setattr(module, "mptcp_available", lambda: True)
    monkeypatch.setattr(Mptcp, "_dial", dial)
    both = Candidate("mptcp", Family.IPV4, "localhost", "127.0.0.1", 9, interface="wlan0", local_address="192.0.2.1")
    both = replace(both, more_sources=(Source("wwan0", "192.0.2.2"),))
    assert await Mptcp().dial(both, TransportSettings()) is channel
    assert given_up == ["wlan0"]


def test_a_scheduler_that_is_not_in_force_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCHEDULER", tmp_path / "scheduler")
    assert host_scheduler() == ""
    (tmp_path / "scheduler").write_text("default\n")
    wanted = {
        name: TransportSettings({"mptcp": MptcpSettings(scheduler=name)}) for name in ("", "default", "redundant")
    }
    assert Mptcp().warnings(wanted[""]) == Mptcp().warnings(wanted["default"]) == []
    (warning,) = Mptcp().warnings(wanted["redundant"])
    assert warning.startswith("mptcp_config.scheduler 'redundant' is not in force")


def test_what_comes_over_any_subflow_is_heard() -> None:
    flows = TcpInfo(rtt=0.01, received_ago=3.0), TcpInfo(rtt=0.05, received_ago=0.1)
    sample = MptcpChannel._sample_of(Mock(_queued=0), Mock(unacked=0), flows)
    assert sample.received_ago == 0.1
