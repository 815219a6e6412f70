"""What a copy says about itself while it runs and at its end."""

from __future__ import annotations

import io
from typing import cast

import pytest
from rich.console import Console

import multi
from multi.events import ConnectionChanged, Event, SessionDetached, SessionEnded, SessionResumed, Warned
from multi.lab.files.client import ConnectionShare, Copied, Transfer
from multi.lab.files.progress import LiveView, in_words, summary
from multi.reasons import IN_ORDER, Cause, Reason
from multi.types import ConnectionFacts, ConnectionId, ConnectionState


class Session:
    connections = ()


async def shown(view: LiveView) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(view.render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_bytes_of_an_earlier_try_do_not_count_as_rate() -> None:
    transfer = Transfer("get", "f[1]", cast(multi.Session, Session()))
    view = LiveView(transfer)
    assert "f[1]" in await shown(view)
    transfer.size, transfer.resumed_from, transfer.done = 9_000_000, 4_000_000, 4_000_000
    await shown(view)
    transfer.done = 5_000_000
    text = await shown(view)
    assert "5.0 MB of 9.0 MB" in text
    assert "0.0 Mbit/s" in text


@pytest.mark.parametrize(
    ("state", "cause", "words"),
    [
        (ConnectionState.AUTHENTICATING, Cause.CONNECTED, ""),
        (ConnectionState.ACTIVE, Cause.AUTHENTICATED, "connection 1 (tcp over wlan0) is open"),
        (ConnectionState.SUSPECT, Cause.NO_PROGRESS, "connection 1 (tcp over wlan0) is suspect: why"),
        (ConnectionState.ACTIVE, Cause.RECOVERED, "connection 1 (tcp over wlan0) is back"),
        (ConnectionState.LOST, Cause.NETWORK_GONE, "connection 1 (tcp over wlan0) was lost: why"),
    ],
)
def test_changes_of_connections_in_words(state: ConnectionState, cause: Cause, words: str) -> None:
    facts = ConnectionFacts("tcp", interface="wlan0")
    assert in_words(ConnectionChanged(ConnectionId(1), state, Reason(cause, "why"), facts)) == words


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (SessionDetached(60), "no connection is left; waiting up to 60 s for a network"),
        (SessionResumed(2.5), "back after 2.5 s without a connection"),
        (Warned("a \x1b[2J"), "warning: a \\x1b[2J"),
        (SessionEnded(IN_ORDER), ""),
    ],
)
def test_session_events_in_words(event: Event, words: str) -> None:
    assert in_words(event) == words


def test_summary_tells_bytes_rate_hash_and_shares() -> None:
    shares = (ConnectionShare(0, "tcp", "eth0", 750, 0.01), ConnectionShare(2, "quic", "wlan0", 250, 0.02))
    assert summary(Copied("f", 1_500_000, 1_000_000, 2.0, "ab", shares)) == [
        "f: 1500000 bytes (500000 were there already) in 2.00 s, 4.0 Mbit/s, SHA-256 ab",
        "  connection 0: tcp over eth0, 750 bytes (75 %)",
        "  connection 2: quic over wlan0, 250 bytes (25 %)",
    ]
