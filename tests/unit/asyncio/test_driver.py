"""The driver: who waits, who is woken, and that a bug ends its session instead of hanging it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from unittest.mock import Mock

import pytest

import multi
from multi.asyncio.driver import LOOK, SAMPLE_ALONE, SessionDriver, _Link
from multi.asyncio.settings import local_scheduler
from multi.asyncio.watch import ANSWER_TURNS
from multi.events import Effect, Warned
from multi.protocol.connection import SAMPLE_REFRESH
from multi.protocol.segment import VERSION
from multi.protocol.session import SessionCore
from multi.protocol.settings import SessionSettings
from multi.protocol.state import SessionState
from multi.reasons import Cause
from multi.types import STREAM_ZERO, ConnectionId, SessionId, Side


def new_driver() -> SessionDriver:
    core = SessionCore(
        Side.SERVER,
        SessionId(bytes(16)),
        SessionSettings(),
        entropy=os.urandom,
        make_scheduler=local_scheduler,
        now=asyncio.get_running_loop().time(),
    )
    return SessionDriver(core, multi.TransportSettings(), send_buffer=1024)


async def begun(awaitable: Awaitable[None]) -> asyncio.Future[None]:
    task = asyncio.ensure_future(awaitable)
    await asyncio.sleep(0)
    return task


async def test_all_who_wait_are_woken_when_the_session_ends() -> None:
    driver = new_driver()
    ended: list[SessionDriver] = []
    driver.on_closed = ended.append
    readers: list[str] = []
    driver.on_readable[STREAM_ZERO] = lambda: readers.append("woken")
    waiting = [
        await begun(driver.wait_writable(STREAM_ZERO)),
        await begun(driver.wait_writable(STREAM_ZERO)),
    ]
    next_stream = asyncio.ensure_future(driver.next_peer_stream())
    await asyncio.sleep(0)
    driver.core.abort(now=driver.now())
    driver.pump()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)
        assert await next_stream is None
        await driver.settle()
    assert ended == [driver]
    assert "woken" in readers
    assert await driver.opened is False
    assert await driver.confirmed is False
    assert isinstance(driver.failure(), multi.SessionLost)


async def test_a_bug_ends_the_session_once_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = new_driver()
    times: list[SessionDriver] = []
    driver.on_closed = times.append

    def broken(_: SessionCore, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(SessionCore, "effects", broken)
    with caplog.at_level(logging.ERROR, "multi.session"):
        driver.pump()
        driver.pump()
    assert isinstance(driver.closed_error, multi.SessionLost)
    assert driver.closed_error.reason.cause is Cause.INTERNAL
    assert times == [driver]
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_what_ends_in_a_thread_is_waited_for() -> None:
    driver = new_driver()
    work = driver.loop.create_future()
    driver.settle_after(work)
    settled = await begun(driver.settle())
    assert not settled.done()
    work.set_result(None)
    async with asyncio.timeout(5):
        await settled


def armed(driver: SessionDriver) -> float:
    """When the timer of the session fires."""
    assert driver._timer is not None
    return driver._timer.when()


async def test_deadlines_that_came_with_bytes_are_armed_when_nothing_is_under_way_any_more() -> None:
    driver = new_driver()
    driver.pump()
    before = armed(driver)
    driver.core.lingering_since = driver.now()  # as when the last acknowledgement has come: CLOSE is all that leaves
    driver.core.unsettled = True
    driver.pump()
    assert not driver.look(driver.now() + LOOK, 1)
    deadline = driver.core.next_timer()
    assert deadline is not None
    assert armed(driver) == pytest.approx(deadline, abs=1e-3)
    assert deadline < before
    driver.core.abort(now=driver.now())
    driver.pump()


async def test_an_acknowledgement_that_makes_no_work_is_no_reason_to_pump(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = new_driver()
    driver.pump()
    pumped: list[bool] = []
    monkeypatch.setattr(SessionDriver, "pump", lambda _: pumped.append(True))
    link = _Link(driver, ConnectionId(0), Mock())
    assert driver.core.quiet()
    link.batch_finished()
    assert pumped == []
    driver.until_writable(STREAM_ZERO)
    link.batch_finished()
    assert pumped == [True], "a writer may go on"
    monkeypatch.undo()
    driver.core.abort(now=driver.now())
    assert not driver.core.quiet()
    driver.pump()


async def test_bytes_that_wait_for_their_rate_are_sent_when_it_allows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = new_driver()
    driver.pump()
    soon = driver.now() + 0.005
    monkeypatch.setattr(SessionCore, "near_timer", lambda _: soon)
    monkeypatch.setattr(SessionCore, "far_timer", lambda _: soon + 60.0)
    driver.pump()
    assert armed(driver) > soon, "bytes alone move no timer"
    monkeypatch.setattr(type(driver.core.connections), "capped", lambda _: [Mock()])
    driver.core.write(STREAM_ZERO, b"waits", now=driver.now())
    driver.pump()
    assert armed(driver) == soon
    monkeypatch.undo()
    driver.core.abort(now=driver.now())
    driver.pump()


async def test_a_session_that_has_ended_is_let_go_when_its_last_goodbyes_are_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, released = new_driver(), list[bool]()
    monkeypatch.setattr(driver._shutdown_hook, "release", lambda: released.append(True))
    driver._leaving[ConnectionId(0)] = Mock(id=0)
    driver.core.abort(now=driver.now())
    driver.pump()
    assert released == []
    driver.abort_channels()
    assert released == [True]


def answering(driver: SessionDriver, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], _Link]:
    """What the driver does about bytes that have come for stream 0 and call for an acknowledgement at once."""
    done: list[str] = []
    driver.core.state, driver.core.confirmed = SessionState.OPEN, True
    driver.core.effects(now=driver.now())
    driver.core.pending.append(driver.core.receiver.streams[STREAM_ZERO].news)
    driver.core.receiver.ack_now = True
    driver.on_readable[STREAM_ZERO] = lambda: done.append("read")
    effects = SessionCore.effects

    def pumped(core: SessionCore, *, now: float) -> list[Effect]:
        done.append("pumped")
        return effects(core, now=now)

    monkeypatch.setattr(SessionCore, "effects", pumped)
    return done, _Link(driver, ConnectionId(0), Mock())


async def test_who_waits_for_bytes_is_woken_first_and_has_some_turns_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = new_driver()
    done, link = answering(driver, monkeypatch)
    link.batch_finished()
    assert done == ["read"]
    for _ in range(ANSWER_TURNS):
        assert done == ["read"], "the acknowledgement waits for an answer"
        await asyncio.sleep(0)
    assert done == ["read", "pumped"]
    driver.core.abort(now=driver.now())
    driver.pump()


async def test_an_answer_takes_the_acknowledgement_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = new_driver()
    done, link = answering(driver, monkeypatch)
    link.batch_finished()
    driver.pump_soon()
    await asyncio.sleep(0)
    assert done == ["read", "pumped"]
    for _ in range(ANSWER_TURNS):
        await asyncio.sleep(0)
    assert done == ["read", "pumped"], "nothing is left for later"
    driver.core.abort(now=driver.now())
    driver.pump()


async def test_to_take_a_stream_of_the_peer_is_no_answer_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = new_driver()
    done, link = answering(driver, monkeypatch)
    link.batch_finished()
    driver.taken(STREAM_ZERO)
    await asyncio.sleep(0)
    assert done == ["read"], "the acknowledgement waits for who took it"
    for _ in range(ANSWER_TURNS - 1):
        await asyncio.sleep(0)
    assert done == ["read", "pumped"]
    driver.core.abort(now=driver.now())
    driver.pump()


async def test_what_is_no_news_of_a_stream_is_seen_to_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = new_driver()
    done, link = answering(driver, monkeypatch)
    driver.core.notify(Warned("something else has happened as well"))
    link.batch_finished()
    assert done == ["pumped", "read"]
    driver.core.abort(now=driver.now())
    driver.pump()


def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on 20 ms of the event loop take 400: on a busy machine it would look at what is late before it comes."""
    loop = asyncio.get_running_loop()
    real, began = loop.time, loop.time()
    monkeypatch.setattr(loop, "time", lambda: began + (real() - began) / 20)


async def turns_while(condition: Callable[[], object]) -> None:
    while condition():  # noqa: ASYNC110 - nothing announces these
        await asyncio.sleep(0)


async def test_nobody_looks_after_a_session_once_everything_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    listen = {"listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}}
    accepted: list[multi.SessionReader] = []
    async with await multi.start_server(lambda reader, _: accepted.append(reader), listen) as server:
        config = {"connection_priority": [["tcp", "ipv4", "lo"]], "remote_host": "127.0.0.1"}
        async with asyncio.timeout(30), multi.connect({**config, "remote_port": server.port}) as session:
            driver = session._driver
            await session.confirmed()
            await turns_while(lambda: not accepted or driver._watched or accepted[0]._driver._watched)
            slow_clock(monkeypatch)
            session.writer.write(b"a line\n")
            await turns_while(lambda: not driver.core.sender.used)
            assert driver._watched
            await turns_while(lambda: driver.core.sender.unacked)
            assert not driver._watched


async def test_a_session_whose_peer_owes_the_rest_of_a_segment_is_looked_after() -> None:
    """Also when all else is at rest and what has come makes no work."""
    listen = {"listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}}
    async with await multi.start_server(lambda reader, writer: None, listen) as server:
        config = {"connection_priority": [["tcp", "ipv4", "lo"]], "remote_host": "127.0.0.1"}
        async with asyncio.timeout(30), multi.connect({**config, "remote_port": server.port}) as session:
            driver = session._driver
            await turns_while(lambda: driver._watched)
            (link,) = driver.links.values()
            link.data_received(memoryview(bytes([VERSION])), 0)
            link.batch_finished()
            assert driver._watched
            session.abort()


async def test_a_server_with_one_connection_rests_as_soon_as_it_has_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listen = {"listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}}
    read = asyncio.Event()
    accepted: list[multi.SessionReader] = []

    async def on_client(reader: multi.SessionReader, _: multi.SessionWriter) -> None:
        accepted.append(reader)
        await reader.read(100)
        read.set()

    async with await multi.start_server(on_client, listen) as server:
        config = {"connection_priority": [["tcp", "ipv4", "lo"]], "remote_host": "127.0.0.1"}
        async with asyncio.timeout(30), multi.connect({**config, "remote_port": server.port}) as session:
            await session.confirmed()
            await asyncio.sleep(0.2)
            slow_clock(monkeypatch)
            session.writer.write(b"a line\n")
            await read.wait()
            driver = accepted[0]._driver
            (connection,) = driver.core.connections.values()
            sampled = connection.sampled_at
            await turns_while(lambda: driver._watched)
            assert driver.core.receiver.ack_due is None
            assert connection.sampled_at == sampled, "nothing was asked of the transport"
            assert connection.unsampled_at is not None


@pytest.mark.parametrize(
    ("connections", "age", "asked"),
    [(1, SAMPLE_ALONE, 1), (1, SAMPLE_REFRESH, 0), (2, SAMPLE_REFRESH, 1), (2, SAMPLE_REFRESH / 2, 0)],
)
async def test_transports_are_asked_now_and_then_however_soon_all_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch, connections: int, age: float, asked: int
) -> None:
    driver = new_driver()
    driver.pump()
    sampled: list[bool] = []
    monkeypatch.setattr(SessionCore, "at_rest", lambda _: True)
    monkeypatch.setattr(SessionDriver, "_take_samples", lambda _: sampled.append(True))
    driver.links = {ConnectionId(number): Mock() for number in range(connections)}
    driver._watched, driver._sampled_at = True, driver.core.now - age
    _Link(driver, ConnectionId(0), Mock()).batch_finished()
    assert len(sampled) == asked
    assert not driver._watched
    driver.links.clear()
    driver.core.abort(now=driver.now())
    driver.pump()
