"""Whoever has read a Session ID off the wire can neither end, nor occupy, nor hold up the session it belongs to."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.core.handshake import ConnectionTerms, Hello, KeyPair
from multi.core.ids import SessionId
from multi.core.payloads import Policy
from multi.core.segment import SegmentType, encode
from tests.findings.attacks import Strangers, aborted_at_end, echoing, exchanged, unverified
from tests.integration.aio_support import Relay, Way, run
from tests.integration.hostile import join_segment

BURST = 3
LIMITS = {"max_join_burst": BURST, "max_joins_per_second": 0.1}
ATTACKED_FOR = 4.0  # seconds; an attack may delay the client, but what it has must outlive it

HOME = "127.5.5.5"
ELSEWHERE = "127.6.6.6"
NEIGHBOUR = "127.5.5.66"


async def roams(way: Way, source: str, attackers: list[str], **client: Any) -> bool:
    """The client's connection breaks and it comes from `source`, after `attackers` have said JOIN with its Session ID.

    Returns whether it was back in time. Raises SessionLost.
    """
    async with echoing(way, limits=LIMITS) as server, Relay(server.port) as relay:
        relay.source = HOME
        session = await multi.connect(way.client(relay.port, **client))
        async with aborted_at_end(session), Strangers(server.port, unverified() if way.has_tls else None) as strangers:
            await exchanged(session)
            join = join_segment(SessionId(session.id), sealed=not way.has_tls)
            for attacker in attackers:
                await strangers.say(join, attacker)
            relay.source = source
            relay.cut()
            with suppress(TimeoutError):
                await asyncio.wait_for(exchanged(session, b"back again"), ATTACKED_FOR)
                return True
            return False


ATTACKS = {
    "from another network": ("tcp-sealed", ELSEWHERE, "127.66.6.6", {}),
    "from the client's own network": ("tcp-sealed", HOME, NEIGHBOUR, {}),
    "with TLS and a configured ID": ("tcp-tls", ELSEWHERE, "127.66.6.6", {"session_id": "device 42"}),
}


@pytest.mark.xfail(
    strict=True,
    raises=multi.SessionLost,
    reason="JOINs of strangers use up the session's share, and the refusal its client then gets ends the session",
)
@pytest.mark.parametrize("attack", ATTACKS)
def test_joins_of_a_stranger_do_not_end_a_session_whose_client_roams(
    attack: str, development_certificates: Path
) -> None:
    way, source, attacker, client = ATTACKS[attack]
    run(roams(Way(development_certificates, way), source, [attacker] * (2 * BURST), **client))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_session_survives_that_its_client_roams(attack: str, development_certificates: Path) -> None:
    way, source, _, client = ATTACKS[attack]
    assert run(roams(Way(development_certificates, way), source, [], **client))
