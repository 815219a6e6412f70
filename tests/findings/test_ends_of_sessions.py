"""The end of a session: lost CLOSEs, sleeping handlers, waiting readers, dropped sessions."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

import multi
from multi.events import SessionDetached
from multi.lab.sim.pair import CLEAR
from tests.integration.cli_runner import Forked, started, wait_for_line
from tests.integration.support import HOST, Inbox, Relay, Way, multi_pair, run, serving, until
from tests.sim.worlds import FAST, data, opened, quiet

WAY = Way(Path())  # sealed TCP: needs no certificates
PATIENCE = 1.5  # seconds; what is waited for takes milliseconds


# --- outages around the end  ---


def ends_after_lost_close(closer_is_client: bool, outage: float) -> list[str]:
    """Errors of client and server when the network goes away as one of them closes, everything acknowledged before."""
    pair = opened(FAST)
    closer, other = (pair.client, pair.peer) if closer_is_client else (pair.peer, pair.client)
    for end in pair.ends:
        end.write(data(pair, 50_000))
    assert pair.until(lambda: quiet(pair) and closer.got() == other.got() == 50_000, 5.0)
    closer.close()
    assert pair.until(lambda: closer.session.lingering_since is not None, 5.0)
    pair.cut(0, 0.05, down=True)
    pair.run(0.2)
    other.close()
    pair.run(outage - 0.2)
    pair.restore(0)
    pair.client.change_network("if0", True)
    assert pair.until(lambda: pair.client.closed is not None and pair.peer.closed is not None, 200.0)
    return ["" if end.closed.reason.orderly else end.closed.reason for end in pair.ends if end.closed is not None]


@pytest.mark.parametrize("outage", [0.5, 2.0, 8.0, 100.0])
@pytest.mark.parametrize("closer_is_client", [True, False], ids=["client closes", "server closes"])
def test_both_ends_end_in_order_when_everything_was_acknowledged_before_an_outage(
    closer_is_client: bool, outage: float
) -> None:
    assert ends_after_lost_close(closer_is_client, outage) == ["", ""]


@pytest.mark.parametrize(
    "outage",
    [40.0, 100.0, 290.0],
)
def test_a_session_survives_an_outage_as_long_as_both_sides_want_it(outage: float) -> None:
    wanted = replace(CLEAR, resume_timeout=300.0)
    pair = opened(FAST, client=wanted, server=wanted)
    pair.cut(0, 0.05, down=True)
    pair.run(outage)
    pair.client.write(b"after the tunnel")
    pair.restore(0)
    pair.client.change_network("if0", True)
    pair.run(5.0)
    assert [end.closed for end in pair.ends] == [None, None]
    assert pair.peer.got() == len(b"after the tunnel")


def test_of_two_patiences_the_smaller_one_holds_on_both_sides_and_is_told() -> None:
    pair = opened(FAST, client=replace(CLEAR, resume_timeout=300.0), server=replace(CLEAR, resume_timeout=60.0))
    pair.cut(0, 0.05, down=True)
    pair.run(50.0)
    assert [end.closed for end in pair.ends] == [None, None]
    for end in pair.ends:
        assert [e.resume_timeout for e in end.events if isinstance(e, SessionDetached)] == [60.0]
    pair.run(50.0)
    assert all(end.closed is not None for end in pair.ends)


# --- a server that is killed  ---


@pytest.mark.parametrize(
    ("name", "options"), [("tcp-sealed", ()), ("tcp-tls", ()), ("quic", ()), ("tcp-sealed", ("--workers", "2"))]
)
def test_clients_believe_the_first_word_of_a_server_that_was_killed_and_started_again(
    name: str,
    options: tuple[str, ...],
    tmp_path: Path,
    development_certificates: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "multi.session")
    way, config = Way(development_certificates, name), tmp_path / "server.json"
    with socket.create_server((HOST, 0)) as sock:
        port = sock.getsockname()[1]
    config.write_text(json.dumps(way.server(listen={"host": HOST, "port": port})))

    @contextmanager
    def server() -> Iterator[Forked]:
        with started("serve", config, "--dir", tmp_path, *options) as process:
            wait_for_line(process, "^serving ")
            yield process

    async def scenario(process: Forked) -> None:
        session = await multi.connect(way.client(port))
        await session.confirmed()
        process.kill()
        process.wait()
        with server(), pytest.raises(multi.SessionLost, match="session gone"):
            await asyncio.wait_for(session.wait_closed(), 30.0)  # half of what it waits for a network
        # Without a proof it takes three over every network that there is, and one that swallows all never says so.
        assert caplog.text.count("the server says that it does not know this session") == 1

    with server() as first:
        run(scenario(first))


# --- a server that stops  ---


async def stopped_server(handler_sleeps: bool, leave_by_exception: bool) -> bool:
    """Whether a server's end comes, with a client whose handler has returned or sleeps."""
    woken = asyncio.Event()
    called = asyncio.Event()

    async def handler(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        called.set()
        if handler_sleeps:
            await woken.wait()

    server = await multi.start_server(handler, WAY.server())
    _, writer = await multi.open_connection(WAY.client(server.port))

    async def stop() -> None:
        await called.wait()
        if leave_by_exception:
            with suppress(LookupError):
                async with server:
                    raise LookupError
        else:
            server.abort()
            await server.wait_closed()

    stopping = asyncio.create_task(stop())
    await asyncio.wait([stopping], timeout=PATIENCE)
    stopped = stopping.done()
    woken.set()
    await stopping
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return stopped


@pytest.mark.parametrize("handler_sleeps", [False, True])
@pytest.mark.parametrize("leave_by_exception", [False, True], ids=["abort", "left by an exception"])
def test_an_aborted_server_is_closed_whatever_its_handlers_wait_for(
    handler_sleeps: bool, leave_by_exception: bool
) -> None:
    assert run(stopped_server(handler_sleeps, leave_by_exception))


# --- a stream that is given up  ---


async def closes_after_reset(code: int) -> bool:
    """Whether `close` of the session returns after a stream was reset with this code, taken or refused."""
    async with multi_pair(WAY) as pair:
        _, writer = await pair.session.open_stream()
        writer.write(b"ten bytes!")
        await until(lambda: pair.server_session.memory >= 10, "they have come")
        with suppress(ValueError, OverflowError, TypeError, multi.LocalProtocolError):
            writer.reset(code)
        closing = asyncio.create_task(pair.session.close())
        await asyncio.wait([closing], timeout=PATIENCE)
        closed = closing.done()
        pair.session.abort()
        await asyncio.gather(closing, return_exceptions=True)
        return closed


@pytest.mark.parametrize(
    "code",
    [0, 2**32 - 1, -1, 2**32],
)
def test_a_session_closes_after_a_reset_with_any_code(code: int) -> None:
    assert run(closes_after_reset(code))


def test_a_priority_that_is_no_integer_is_refused_in_words() -> None:
    async def scenario() -> None:
        async with multi_pair(WAY) as pair:
            with pytest.raises((TypeError, ValueError, multi.LocalProtocolError)):
                await pair.session.open_stream(1.5)  # type: ignore[arg-type]

    run(scenario())


# --- a reader that waits  ---


async def reads_after_own_close(second_stream: bool, peer_is_silent: bool) -> object:
    """What a waiting `read` comes to when its own side closes; the peer answers, or the network swallows all."""
    async with serving(WAY) as (server, inbox), Relay(server.port) as relay:
        reader, first = await multi.open_connection(WAY.client(relay.port))
        session = first.get_extra_info("session")
        try:
            await session.confirmed()
            _, there = await inbox.next()
            accepting = asyncio.create_task(anext(there.get_extra_info("session").streams()))
            writer = first
            if second_stream:
                reader, writer = await session.open_stream()
                writer.write(b"?")
                await accepting
            reading = asyncio.create_task(reader.read(10))
            await asyncio.sleep(0.05)
            assert not reading.done()
            if peer_is_silent:
                relay.flowing.clear()
            writer.close()
            await asyncio.wait([reading], timeout=PATIENCE)
            result = reading.result() if reading.done() else "still waiting"
            accepting.cancel()
            reading.cancel()
            await asyncio.gather(accepting, reading, return_exceptions=True)
            return result
        finally:
            relay.flowing.set()
            session.abort()
            await session.settle()


@pytest.mark.parametrize("peer_is_silent", [False, True])
@pytest.mark.parametrize("second_stream", [False, True], ids=["stream 0", "another stream"])
def test_a_waiting_reader_ends_when_its_own_side_closes(second_stream: bool, peer_is_silent: bool) -> None:
    assert run(reads_after_own_close(second_stream, peer_is_silent)) == b""


# --- what is left over  ---


def futures() -> int:
    gc.collect()
    return sum(isinstance(found, asyncio.Future) for found in gc.get_objects())


def test_cancelled_waits_for_streams_of_the_peer_leave_nothing_behind() -> None:
    async def scenario() -> None:
        async with multi_pair(WAY) as pair:
            before = futures()
            for _ in range(300):
                waiting = asyncio.ensure_future(anext(pair.session.streams()))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            del waiting
            assert futures() - before < 100

    run(scenario())


async def sessions_left(dropped: bool) -> tuple[int, int]:
    """Sessions a server still has when its clients have let go of theirs, and warnings of dropped ones."""
    inbox = Inbox()
    server = await multi.start_server(inbox.on_client, WAY.server())
    held = []
    try:
        for _ in range(3):
            pair = await multi.open_connection(WAY.client(server.port))
            await inbox.next()  # nobody holds the server's side either
            if not dropped:
                pair[1].close()
                held.append(pair)
        del pair
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", ResourceWarning)
            deadline = asyncio.get_running_loop().time() + PATIENCE
            while server.sessions and asyncio.get_running_loop().time() < deadline:
                gc.collect()
                await asyncio.sleep(0.02)
        return len(server.sessions), sum("unclosed <Session" in str(warning.message) for warning in heard)
    finally:
        server.abort()
        await server.wait_closed()
        await asyncio.sleep(0.1)  # the clients hear of it


@pytest.mark.parametrize("dropped", [False, True])
def test_a_session_that_nobody_holds_any_more_ends(dropped: bool) -> None:
    assert run(sessions_left(dropped)) == (0, 3 if dropped else 0)


@pytest.mark.parametrize("by", ["session", "transport"])
def test_who_has_ended_a_session_at_once_is_not_told_that_it_failed(by: str) -> None:
    async def scenario() -> None:
        async with serving(WAY) as (server, _):
            _, writer = await multi.open_connection(WAY.client(server.port))
            session: multi.Session = writer.get_extra_info("session")
            _, stream = await session.open_stream()
            stream.write(b"never acknowledged")
            (session if by == "session" else writer.transport).abort()
            assert session.aborted
            await writer.wait_closed()
            await session.wait_closed()
            with pytest.raises(multi.SessionLost):  # its own writer has ended nothing
                await stream.wait_closed()

    run(scenario())
