"""Which connections carry data, and which of them acknowledgements and control."""

from __future__ import annotations

import pytest

from multi.protocol.segment import SegmentType
from multi.reasons import Cause, Reason
from multi.types import Role, TransportSample

from .test_hostile_peer import two_lines
from .wiring import CLEAR, Ends, Line, Node

T = SegmentType
GONE = Reason(Cause.NETWORK_GONE, "carrier lost")


def usable(node: Node) -> list[int]:
    return [connection.id for connection in node.session.connections.for_data()]


def sample(ends: Ends, node: Node, line: Line, rtt: float, rate: float = 1e6) -> None:
    figures = TransportSample(rtt=rtt, rtt_variation=rtt / 8, min_rtt=rtt, rate=rate)
    node.session.sample(line.id, figures, now=ends.now)


def carried(line: Line, type_: SegmentType, *, down: bool) -> int:
    return len([s for s in (line.sent_down if down else line.sent_up) if s[1] == type_])


def test_backups_carry_data_only_when_no_active_connection_can() -> None:
    ends, line, backup = two_lines()
    ends.client.session.set_role(backup.id, Role.BACKUP, now=0.0)
    assert usable(ends.client) == [line.id]
    ends.client.session.suspect(line.id, GONE, now=0.0)
    assert usable(ends.client) == [backup.id]


def test_a_drained_connection_is_better_than_none_and_a_suspect_one_too() -> None:
    ends, draining, suspect = two_lines()
    ends.client.session.suspect(suspect.id, GONE, now=0.0)
    assert usable(ends.client) == [draining.id]
    ends.client.session.drain(draining.id, now=0.0)
    assert usable(ends.client) == [draining.id]
    ends.client.session.give_up(draining.id, GONE, now=0.0)
    assert usable(ends.client) == [suspect.id]


def test_nothing_is_usable_before_the_handshake_allows_it() -> None:
    ends = Ends()  # sealed: the client sends nothing before ACCEPT
    line = ends.connect()
    assert usable(ends.client) == []
    line.hold_down = True
    ends.pump()
    assert usable(ends.client) == []
    line.hold_down = False
    ends.pump()
    assert usable(ends.client) == [line.id]


@pytest.mark.parametrize("role", [Role.ACTIVE, Role.BACKUP])
def test_acknowledgements_take_the_connection_that_delivers_them_first_whatever_its_role(role: Role) -> None:
    ends, slow, fast = two_lines()
    ends.client.session.set_role(fast.id, role, now=0.0)
    ends.pump()
    sample(ends, ends.server, slow, rtt=0.200)
    sample(ends, ends.server, fast, rtt=0.010)
    ends.client.session.set_role(fast.id, Role.BACKUP, now=0.0)
    ends.pump()
    slow.sent_down.clear()
    fast.sent_down.clear()
    ends.write(ends.client, bytes(200_000))
    ends.advance(0.02)
    assert carried(fast, T.ACK, down=True) > 0
    assert carried(slow, T.ACK, down=True) == 0


def test_a_connection_that_only_receives_says_so_before_it_is_suspected() -> None:
    """Acknowledgements take another way, and its peer would hear nothing on it."""
    ends, slow, fast = two_lines()
    sample(ends, ends.server, slow, rtt=0.200)
    sample(ends, ends.server, fast, rtt=0.010)
    ends.client.session.set_role(fast.id, Role.BACKUP, now=0.0)
    ends.pump()
    slow.sent_down.clear()
    ends.write(ends.client, bytes(1000))
    ends.advance(0.2, step=0.01)
    assert carried(slow, T.ACK, down=True) == 1


def test_control_takes_the_connection_that_delivers_it_first() -> None:
    ends, slow, fast = two_lines()
    sample(ends, ends.client, slow, rtt=0.200)
    sample(ends, ends.client, fast, rtt=0.010)
    ends.client.session.set_role(slow.id, Role.BACKUP, now=0.0)
    ends.pump()
    assert (carried(slow, T.ROLE, down=False), carried(fast, T.ROLE, down=False)) == (0, 1)


def test_with_one_connection_nothing_waits_for_a_better_one() -> None:
    ends = Ends(CLEAR, CLEAR)
    line = ends.connect()
    ends.advance(0.1)
    line.hold_down = True
    ends.write(ends.client, bytes(10_000))
    due = ends.client.session.next_timer()
    assert due is not None
    assert due > ends.now + 0.1, "no timer for copies that have nowhere to go"
