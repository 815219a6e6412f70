"""Whoever knows a Session ID can neither end, nor occupy, nor hold up the session it belongs to."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.protocol.handshake import ConnectionTerms, Hello, KeyPair
from multi.protocol.payloads import Policy
from multi.protocol.segment import SegmentType, encode
from multi.types import SessionId
from tests.findings.attacks import Strangers, aborted_at_end, echoing, exchanged, first_segment, type_of, unverified
from tests.integration.hostile import HandMade, join_segment, origin_of_session
from tests.integration.support import Relay, Way, collect, run, until

pytestmark = pytest.mark.usefixtures("bounded_callbacks")

JOINS = 100
ATTACKED_FOR = 4.0  # seconds; an attack may delay the client, but what it has must outlive it

HOME = "127.5.5.5"
ELSEWHERE = "127.6.6.6"
NEIGHBOUR = "127.5.5.66"


async def roams(way: Way, source: str, attackers: list[str], **client: Any) -> bool:
    """The client's connection breaks and it comes from `source`, after `attackers` have said JOIN with its Session ID.

    Returns whether it was back in time. Raises SessionLost.
    """
    async with echoing(way) as server, Relay(server.port) as relay:
        relay.source = HOME
        session = await multi.connect(way.client(relay.port, **client))
        async with aborted_at_end(session), Strangers(server.port, unverified() if way.has_tls else None) as strangers:
            await exchanged(session)
            origin = origin_of_session(session)
            join = join_segment(SessionId(session.id), sealed=not way.has_tls, origin=origin)
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


@pytest.mark.parametrize("attack", ATTACKS)
def test_joins_of_a_stranger_do_not_end_a_session_whose_client_roams(
    attack: str, development_certificates: Path
) -> None:
    way, source, attacker, client = ATTACKS[attack]
    assert run(roams(Way(development_certificates, way), source, [attacker] * JOINS, **client))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_session_survives_that_its_client_roams(attack: str, development_certificates: Path) -> None:
    way, source, _, client = ATTACKS[attack]
    assert run(roams(Way(development_certificates, way), source, [], **client))


# --- opening ---


class OverheardRelay(Relay):
    """A slow way to the server, on which somebody listens.

    He says the client's HELLO on `volley` connections of his own before what follows it arrives.
    """

    def __init__(self, port: int, strangers: Strangers, volley: int) -> None:
        super().__init__(port)
        self._strangers = strangers
        self._volley = volley

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bool) -> None:
        if counted and type_of(hello := await reader.read(65536)) is SegmentType.HELLO:
            writer.write(hello)
            rest = await reader.read(65536)
            for number in range(self._volley if rest else 0):
                await self._strangers.say(first_segment(hello), f"127.66.{number}.1")
            writer.write(rest)
        await super()._pump(reader, writer, counted)


async def opens(way: Way, volley: int) -> None:
    """A client opens a session and hears from its server within seconds, while somebody repeats its HELLO."""
    async with (
        echoing(way) as server,
        Strangers(server.port) as strangers,
        OverheardRelay(server.port, strangers, volley) as relay,
        aborted_at_end(await multi.connect(way.client(relay.port))) as session,
    ):
        heard = asyncio.ensure_future(collect(exchanged(session)))
        await asyncio.wait([heard], timeout=3.0)
        session.abort()
        assert await heard is None, "the server has dropped its client"


def test_who_repeats_a_hello_does_not_keep_its_client_from_opening(development_certificates: Path) -> None:
    run(opens(Way(development_certificates), volley=12))


def test_a_session_opens_on_a_slow_way(development_certificates: Path) -> None:
    run(opens(Way(development_certificates), volley=0))


KEY_NAME = "sensors"
DEVICE_ID = b"device-000000042"


def squatting_hello() -> bytes:
    """HELLO of somebody who knows the Session ID and the name of the key, and not the key."""
    public = KeyPair(os.urandom(32)).public
    terms = ConnectionTerms(sealed=True)
    hello = Hello(os.urandom(32), public, 65536, 128, Policy(), terms, psk_id=KEY_NAME.encode())
    return encode(SegmentType.HELLO, SessionId(DEVICE_ID), hello.encode())


@pytest.fixture
def auth(tmp_path: Path) -> dict[str, str]:
    """The configuration of a pre-shared key."""
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY_NAME}:{'ab' * 32}\n")
    keys.chmod(0o600)
    return {"psk_file": str(keys), "psk_id": KEY_NAME}


async def device_opens(way: Way, auth: dict[str, str], squatters: int) -> None:
    async with echoing(way, auth=auth) as server, Strangers(server.port) as strangers:
        for _ in range(squatters):
            await strangers.say(squatting_hello(), ELSEWHERE)
        config = way.client(server.port, auth=auth, session_id=DEVICE_ID.hex(), multi_config={"open_timeout": 3.0})
        async with aborted_at_end(await multi.connect(config)) as session:
            await exchanged(session)


def test_who_has_no_key_does_not_occupy_the_session_id_of_who_has_it(
    auth: dict[str, str], development_certificates: Path
) -> None:
    run(device_opens(Way(development_certificates), auth, squatters=1))


def test_a_device_opens_the_session_of_its_configured_id(auth: dict[str, str], development_certificates: Path) -> None:
    run(device_opens(Way(development_certificates), auth, squatters=0))


# --- waiting for the client ---

PLACES = 8


async def comes_back(way: Way, others: int) -> None:
    """A client is away while `others` open sessions from three busy networks and leave them."""
    patient = {"abandon_timeout": 0.0}  # the relay closes its connections in order, as a client that has ended does
    limits = {"max_detached_sessions": PLACES}
    async with echoing(way, limits=limits, multi_config=patient) as server, Relay(server.port) as relay:
        relay.source = HOME
        async with aborted_at_end(await multi.connect(way.client(relay.port))) as session:
            await exchanged(session)
            await relay.close()
            for number in range(others):
                stranger = await HandMade.at(server.port, f"127.66.{number % 3}.1")
                await stranger.confirm()
                stranger.writer.transport.abort()
            await until(lambda: all(s.state.value == "detached" for s in server.sessions), "nobody is there")
            await relay.open()
            async with asyncio.timeout(6):
                await exchanged(session, b"back again")


def test_sessions_others_open_and_leave_do_not_end_one_that_waits_for_its_client(
    development_certificates: Path,
) -> None:
    run(comes_back(Way(development_certificates), others=3 * PLACES))


def test_a_session_waits_for_its_client_beside_others(development_certificates: Path) -> None:
    run(comes_back(Way(development_certificates), others=PLACES - 1))
