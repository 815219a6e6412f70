"""Whoever knows a Session ID can neither end, nor occupy, nor hold up the session it belongs to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import multi
from multi.protocol.handshake import ConnectionTerms, Hello, KeyPair
from multi.protocol.payloads import Policy
from multi.protocol.segment import SegmentType, encode
from multi.types import SessionId
from tests.findings.attacks import Strangers, aborted_at_end, echoing, exchanged, first_segment, type_of, unverified
from tests.findings.delays import MORE, delay
from tests.integration.hostile import HandMade, join_segment, origin_of_session
from tests.integration.support import Relay, Way, run, until

pytestmark = pytest.mark.usefixtures("bounded_callbacks")

JOINS = 100
PATIENCE = 20.0  # seconds in which whatever is measured has to happen at all

HOME = "127.5.5.5"
ELSEWHERE = "127.6.6.6"
NEIGHBOUR = "127.5.5.66"


async def roams(way: Way, source: str, attackers: list[str], **client: Any) -> float:
    """The client's connection breaks and it comes from `source`, after `attackers` have said JOIN with its Session ID.

    Returns after how many seconds it was back. Raises SessionLost.
    """
    loop = asyncio.get_running_loop()
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
            began = loop.time()
            relay.cut()
            await asyncio.wait_for(exchanged(session, b"back again"), PATIENCE)
            return loop.time() - began


ATTACKS = {
    "from another network": ("tcp-sealed", ELSEWHERE, "127.66.6.6", {}),
    "from the client's own network": ("tcp-sealed", HOME, NEIGHBOUR, {}),
    "with TLS and a configured ID": ("tcp-tls", ELSEWHERE, "127.66.6.6", {"session_id": "device 42"}),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_joins_of_a_stranger_neither_end_nor_delay_a_session_whose_client_roams(
    attack: str, development_certificates: Path
) -> None:
    name, source, attacker, client = ATTACKS[attack]
    way = Way(development_certificates, name)

    def after(joins: int) -> Callable[[], Awaitable[float]]:
        return lambda: roams(way, source, [attacker] * joins, **client)

    assert run(delay(after(0), after(JOINS))) < MORE


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
            said = (self._strangers.say(first_segment(hello), f"127.66.{number}.1") for number in range(self._volley))
            await asyncio.gather(*(said if rest else ()))
            writer.write(rest)
        await super()._pump(reader, writer, counted)


async def opens(way: Way, volley: int) -> float:
    """Seconds until a client has opened a session and heard from its server, while somebody repeats its HELLO."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with (
        echoing(way) as server,
        Strangers(server.port) as strangers,
        OverheardRelay(server.port, strangers, volley) as relay,
        aborted_at_end(await multi.connect(way.client(relay.port))) as session,
    ):
        await asyncio.wait_for(exchanged(session), PATIENCE)
        return loop.time() - began


def test_who_repeats_a_hello_neither_keeps_its_client_from_opening_nor_delays_it(
    development_certificates: Path,
) -> None:
    way = Way(development_certificates)
    assert run(delay(lambda: opens(way, volley=0), lambda: opens(way, volley=12))) < MORE


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


async def device_opens(way: Way, auth: dict[str, str], squatters: int) -> float:
    """Seconds until a device has opened the session of its configured ID."""
    loop = asyncio.get_running_loop()
    async with echoing(way, auth=auth) as server, Strangers(server.port) as strangers:
        for _ in range(squatters):
            await strangers.say(squatting_hello(), ELSEWHERE)
        config = way.client(server.port, auth=auth, session_id=DEVICE_ID.hex(), multi_config={"open_timeout": PATIENCE})
        began = loop.time()
        async with aborted_at_end(await multi.connect(config)) as session:
            await exchanged(session)
            return loop.time() - began


@pytest.mark.parametrize("squatters", [1, 50])
def test_who_has_no_key_does_not_occupy_the_session_id_of_who_has_it(
    squatters: int, auth: dict[str, str], development_certificates: Path
) -> None:
    way = Way(development_certificates)
    assert run(delay(lambda: device_opens(way, auth, 0), lambda: device_opens(way, auth, squatters))) < MORE


# --- waiting for the client ---

PLACES = 8


async def comes_back(way: Way, others: int) -> float:
    """Seconds until a client is back that was away while `others` opened sessions from three networks and left them."""
    loop = asyncio.get_running_loop()
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
            began = loop.time()
            async with asyncio.timeout(PATIENCE):
                await exchanged(session, b"back again")
            return loop.time() - began


def test_sessions_others_open_and_leave_neither_end_nor_delay_one_that_waits_for_its_client(
    development_certificates: Path,
) -> None:
    way = Way(development_certificates)
    assert run(delay(lambda: comes_back(way, PLACES - 1), lambda: comes_back(way, 3 * PLACES))) < MORE
