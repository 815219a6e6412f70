"""Two ends of `mpquic` connections over real sockets."""

from __future__ import annotations

import asyncio
from typing import cast

from multi.transports import transport
from multi.transports.base import Channel, TransportSettings
from multi.transports.mpquic.channel import MpquicChannel
from multi.types import Candidate, Family, Source
from tests.integration.transports.test_contract import Recorder, Server

SOURCES = tuple(Source("", f"127.0.0.{at}") for at in (1, 2, 3))


SIZE = 3_000_000


async def dialled(server: Server, settings: TransportSettings) -> tuple[MpquicChannel, Recorder]:
    candidate = Candidate(
        "mpquic",
        Family.IPV4,
        "localhost",
        "127.0.0.1",
        server.listener.address[1],
        local_address=SOURCES[0].address,
        more_sources=SOURCES[1:],
    )
    channel = await transport("mpquic").dial(candidate, settings)
    sink = Recorder()
    sink.attach(channel)
    return cast(MpquicChannel, channel), sink


def feed(channel: Channel, size: int) -> None:
    """Write as much as it gives credit for, and again."""
    left = size

    def more() -> None:
        nonlocal left
        while left and (credit := channel.credit()) > 0:
            count = min(credit, left)
            channel.write([bytes(count)], 2)
            channel.flush()
            left -= count
        if left:
            asyncio.get_running_loop().call_later(0.002, more)

    more()
