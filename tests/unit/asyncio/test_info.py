"""What an application sees of a connection comes from the core, and from the channel while there is one."""

from __future__ import annotations

from multi import ChannelInfo
from multi.asyncio.info import connection_info
from multi.types import ConnectionState
from tests.unit.protocol.wiring import Ends


def test_a_connection_shows_what_it_carried() -> None:
    ends = Ends()
    line = ends.connect()
    ends.pump()
    ends.write(ends.client, bytes(1000))
    ends.pump()
    (sent,) = (connection_info(c, None) for c in ends.client.session.connections.values())
    (received,) = (connection_info(c, None) for c in ends.server.session.connections.values())
    assert (sent.transport, sent.state, sent.bytes_sent) == ("tcp", ConnectionState.ACTIVE, 1000)
    assert (received.payload_received, received.bytes_sent) == (1000, 0)
    assert sent.number == received.number >= 0
    assert (sent.subflows, sent.fell_back, sent.detail) == (0, False, line.client_facts.detail)


def test_what_the_channel_says_now_wins_over_what_it_said_first() -> None:
    ends = Ends()
    ends.connect()
    (connection,) = ends.client.session.connections.values()
    channel = ChannelInfo("mptcp", detail="2 subflows", subflows=2, fell_back=True)
    info = connection_info(connection, channel)
    assert (info.transport, info.detail, info.subflows, info.fell_back) == ("tcp", "2 subflows", 2, True)
