"""What stands in the way of MPTCP, before anything is dialled."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
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
from multi.transports.mptcp.info import MptcpInfo
from multi.transports.mptcp.settings import MptcpSettings
from multi.transports.mptcp.transport import Mptcp, MptcpChannel, host_scheduler
from multi.transports.tcp.channel import channel_info
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
    sample = MptcpChannel._sample_of(Mock(_waiting=lambda: 0), Mock(unacked=0), flows)
    assert sample.received_ago == 0.1


# --- what a subflow holds unsent  ---

HOLDS_MUCH = TcpInfo(not_sent=1_000_000, rate=1e6)
OPENING, DEAD, IDLE = replace(HOLDS_MUCH, state=2), replace(HOLDS_MUCH, retransmits=3), TcpInfo()


@pytest.fixture
async def channel() -> AsyncIterator[MptcpChannel]:
    """One whose kernel says what `subflows` says."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener, socket.socket() as sock:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sock.connect(listener.getsockname())
        made = MptcpChannel(sock, channel_info(sock, "mptcp"))
        made._info = replace(made._info, fell_back=False)  # it is not one of MPTCP
        yield made
        made.abort()


def says(channel: MptcpChannel, monkeypatch: pytest.MonkeyPatch, *subflows: TcpInfo) -> None:
    kernel = MptcpInfo(bytes_acked=0, unacked=1_000_000, subflow_count=len(subflows), subflows=subflows)
    monkeypatch.setattr(channel, "_read", lambda: kernel)
    channel.sample()


@pytest.mark.parametrize(
    ("subflows", "bounded"),
    [
        ((HOLDS_MUCH,), True),
        ((HOLDS_MUCH, OPENING), True),
        ((HOLDS_MUCH, DEAD), True),
        ((HOLDS_MUCH, HOLDS_MUCH), False),  # the kernel gives the slower one something when the other holds much
        ((), False),  # an older kernel does not tell
    ],
    ids=["alone", "beside one that opens", "beside one that is dead", "beside another", "unknown"],
)
async def test_a_subflow_that_holds_much_gets_no_more(
    channel: MptcpChannel, monkeypatch: pytest.MonkeyPatch, subflows: tuple[TcpInfo, ...], bounded: bool
) -> None:
    says(channel, monkeypatch, *subflows)
    assert (channel.credit() == 0) is bounded


async def test_who_waits_for_a_subflow_that_holds_much_is_told_once(
    channel: MptcpChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = asyncio.Event()
    sink = Mock(behind=False, writable=Mock(side_effect=told.set))
    channel.start(sink)
    says(channel, monkeypatch, HOLDS_MUCH)
    assert channel.credit() == 0
    await asyncio.sleep(0.05)
    assert not told.is_set()
    kernel = MptcpInfo(bytes_acked=0, unacked=0, subflow_count=1, subflows=(IDLE,))
    monkeypatch.setattr(channel, "_read", lambda: kernel)
    await asyncio.wait_for(told.wait(), 5)
    assert channel.credit() > 0
    await asyncio.sleep(0.05)
    sink.writable.assert_called_once_with()


async def test_who_asks_again_is_not_told_besides(channel: MptcpChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Mock(behind=False)
    channel.start(sink)
    says(channel, monkeypatch, HOLDS_MUCH)
    assert channel.credit() == 0
    says(channel, monkeypatch, IDLE)
    assert channel.credit() > 0
    await asyncio.sleep(0.05)
    sink.writable.assert_not_called()


async def test_small_messages_do_not_count_when_they_have_left(
    channel: MptcpChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel.start(Mock(behind=False))
    says(channel, monkeypatch, IDLE)
    for _ in range(40):
        channel.write([bytes(1024)], 0)
        channel.flush()
        await asyncio.sleep(0.003)
        assert channel.credit() > 0


async def test_a_busy_event_loop_may_leave_more_with_the_kernel(
    channel: MptcpChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = replace(IDLE, rate=25e6)
    for pause, expected in ((0.001, 250_000), (0.1, 1_000_000)):
        for _ in range(60):
            says(channel, monkeypatch, fast)
            monkeypatch.setattr(channel, "_sampled_at", channel._sampled_at - pause)
        assert channel._lowat == pytest.approx(expected, rel=0.5)
