"""What a copy says about itself while it runs and at its end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from multi.events import ConnectionChanged, Event, SessionDetached, SessionResumed, Warned
from multi.lab.files.client import ConnectionShare, Copied
from multi.lab.files.progress import LiveView, Meter, Total, in_words, size_in_words, summary
from multi.reasons import Cause, Reason
from multi.types import ConnectionFacts, ConnectionId, ConnectionState


def test_rate_is_of_the_last_second() -> None:
    meter = Meter()
    assert meter.rate == 0
    for tenth in range(50):
        meter.update(tenth * 100 if tenth < 20 else 2000 + (tenth - 20) * 10, tenth / 10)
    assert meter.rate == pytest.approx(100)


def shown(view: LiveView, total: Total, now: float) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(view.render(total, (), now))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_bytes_of_an_earlier_try_do_not_count_as_rate() -> None:
    view = LiveView(lambda connection: connection.bytes_sent)
    shown(view, Total("f", 0, 9_000_000), 0.0)
    text = shown(view, Total("f", 5_000_000, 9_000_000, before=4_000_000), 1.0)
    assert "5.0 MB of 9.0 MB" in text
    assert "8.0 Mbit/s" in text
    assert "0:04 left" in text


def test_events_are_told_in_words_and_states_before_are_remembered() -> None:
    facts = ConnectionFacts("tcp", interface="wlan0")
    seen: dict[ConnectionId, ConnectionState] = {}

    def change(state: ConnectionState, reason: str = "") -> str:
        return in_words(ConnectionChanged(ConnectionId(1), state, Reason(Cause.NO_PROGRESS, reason), facts), seen)

    assert change(ConnectionState.AUTHENTICATING) == ""
    assert change(ConnectionState.ACTIVE) == "connection 1 (tcp over wlan0) is open"
    assert change(ConnectionState.SUSPECT, "silent") == "connection 1 (tcp over wlan0) is suspect: silent"
    assert change(ConnectionState.ACTIVE) == "connection 1 (tcp over wlan0) is back"
    assert change(ConnectionState.LOST, "no carrier") == "connection 1 (tcp over wlan0) was lost: no carrier"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (SessionDetached(60), "no connection is left; waiting up to 60 s for a network"),
        (SessionResumed(2.5), "back after 2.5 s without a connection"),
        (Warned("a \x1b[2J"), "warning: a \\x1b[2J"),
    ],
)
def test_session_events_in_words(event: Event, words: str) -> None:
    assert in_words(event, {}) == words


def test_summary_tells_bytes_rate_hash_and_shares() -> None:
    shares = (ConnectionShare(0, "tcp", "eth0", 750, 0.01), ConnectionShare(2, "quic", "wlan0", 250, 0.02))
    assert summary(Copied("f", 1_500_000, 1_000_000, 2.0, "ab", shares)) == [
        "f: 1500000 bytes (500000 were there already) in 2.00 s, 4.0 Mbit/s, SHA-256 ab",
        "  connection 0: tcp over eth0, 750 bytes (75 %)",
        "  connection 2: quic over wlan0, 250 bytes (25 %)",
    ]


def test_sizes_in_words() -> None:
    counts = (0, 999, 1500, 2_000_000, 3_100_000_000, 4e12)
    words = ["0 bytes", "999 bytes", "1.5 kB", "2.0 MB", "3.1 GB", "4.00 TB"]
    assert [size_in_words(count) for count in counts] == words
