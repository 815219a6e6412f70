"""A bug behind the driver ends its session with a message; nothing hangs, nothing goes on half-way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import multi
from multi.protocol.authenticator import ClientAuthenticator
from multi.protocol.payloads import Policy
from multi.protocol.scheduling import Scheduling
from multi.protocol.session import SessionCore
from multi.schedulers import create_scheduler
from multi.types import Side
from tests.integration.hostile import HandMade

LISTEN = {"listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}}


def client(port: int) -> dict[str, object]:
    return {
        "connection_priority": [["tcp", "ipv4", "any"]],
        "remote_host": "127.0.0.1",
        "remote_port": port,
        "multi_config": {"resume_timeout": 1},
    }


def break_when_asked(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Have a server's session fail at the `at`-th wish of its client; the first comes with the first segment."""
    asked = []
    follow = Scheduling.peer_wants

    def peer_wants(self: Scheduling, policy: Policy) -> None:
        asked.append(policy)
        if len(asked) >= at:
            raise RuntimeError("no more of these")
        follow(self, policy)

    monkeypatch.setattr(Scheduling, "peer_wants", peer_wants)


async def test_a_bug_at_the_clients_wish_ends_the_session(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: asyncio.Future[multi.Session] = asyncio.get_running_loop().create_future()

    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        served.set_result(writer.get_extra_info("session"))
        await reader.read()

    server = await multi.start_server(on_client, LISTEN)
    break_when_asked(monkeypatch, 2)
    session = await multi.connect(client(server.port))
    await session.confirmed()
    session.set_scheduler("RR")
    async with asyncio.timeout(10):
        with pytest.raises(multi.SessionLost, match="internal error"):
            await (await served).wait_closed()
    assert "no more of these" in caplog.text
    with pytest.raises(multi.MultiError):
        await session.wait_closed()
    server.close()
    await server.wait_closed()


async def test_a_bug_at_the_first_segment_leaves_nothing_behind(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        raise AssertionError("nobody is there")

    server = await multi.start_server(on_client, LISTEN)
    break_when_asked(monkeypatch, 1)
    client = await HandMade.at(server.port)
    client.flush()
    async with asyncio.timeout(2):  # less than any deadline of a handshake
        await client.gone()
    assert "no more of these" in caplog.text
    server.close()
    async with asyncio.timeout(2):
        await server.wait_closed()


@pytest.mark.parametrize("step", ["opened", "handle"])
async def test_a_bug_while_a_session_opens_is_named(
    step: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: ClientAuthenticator, *_: object) -> None:
        raise RuntimeError("no hello for you")

    monkeypatch.setattr(ClientAuthenticator, step, fail)
    soon = LISTEN | {"limits": {"handshake_timeout": 0.5}}  # what the client has begun, the server waits for so long
    async with await multi.start_server(lambda *_: None, soon) as server:
        with pytest.raises(multi.NoUsableConnection, match=r"internal error: RuntimeError\('no hello for you'\)"):
            async with asyncio.timeout(2):  # less than an opening may take
                await multi.connect(client(server.port) | {"protect": "always"})
    assert "no hello for you" in caplog.text


async def keep_writing(writer: multi.SessionWriter) -> None:
    while True:
        writer.write(b"something is on its way")
        await asyncio.sleep(0.01)


async def test_a_bug_in_a_look_at_the_transports_ends_the_session(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        await reader.read()

    look = SessionCore.sample

    def sample(self: SessionCore, *arguments: Any, **options: Any) -> None:
        if self.side is Side.CLIENT:
            raise RuntimeError("nothing to see")
        look(self, *arguments, **options)

    async with await multi.start_server(on_client, LISTEN) as server:
        session = await multi.connect(client(server.port))
        await session.confirmed()
        monkeypatch.setattr(SessionCore, "sample", sample)
        writing = asyncio.create_task(keep_writing(session.writer))  # what has arrived is not looked after
        async with asyncio.timeout(2):
            with pytest.raises(multi.SessionLost, match="internal error"):
                await session.wait_closed()
        writing.cancel()
        server.abort_clients()  # or it would wait for this one to come back
    assert "nothing to see" in caplog.text


async def test_a_scheduler_that_only_the_server_cannot_make_is_replaced_there() -> None:
    made = []

    @multi.register_scheduler("second_time_unlucky")
    def make() -> multi.Scheduler:
        made.append(True)
        if len(made) > 1:
            raise KeyError("no more of these")
        return create_scheduler("RR", {})

    served: asyncio.Future[multi.Session] = asyncio.get_running_loop().create_future()

    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        served.set_result(writer.get_extra_info("session"))
        writer.write(await reader.read())
        writer.close()

    async with await multi.start_server(on_client, LISTEN) as server:
        config = client(server.port) | {"multi_config": {"scheduler": "second_time_unlucky"}}
        async with multi.connect(config) as session:
            session.writer.write(b"all the same")
            session.writer.write_eof()
            assert await session.reader.read() == b"all the same"
            assert (session.scheduler, (await served).scheduler) == ("second_time_unlucky", "adaptive")


async def test_a_servers_own_scheduler_may_be_imported_and_is_looked_at_when_it_starts() -> None:
    with pytest.raises(multi.ConfigError, match="cannot import scheduler 'no_such_package:X'"):
        await multi.start_server(lambda *_: None, LISTEN | {"multi_config": {"scheduler": "no_such_package:X"}})
    own = "multi.schedulers.rr:RoundRobin"

    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        writer.write(writer.get_extra_info("session").scheduler.encode())
        writer.close()

    async with (
        await multi.start_server(on_client, LISTEN | {"multi_config": {"scheduler": own}}) as server,
        multi.connect(client(server.port)) as session,
    ):
        assert await session.reader.read() == own.encode()


async def test_who_reads_right_after_a_write_that_fails_hears_why(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written leaves while `read` begins to wait, and so the end comes before it does."""
    server = await multi.start_server(lambda reader, writer: None, LISTEN)
    session = await multi.connect(client(server.port))
    await session.confirmed()

    def effects(self: SessionCore, *, now: float) -> None:
        raise RuntimeError("nothing leaves")

    monkeypatch.setattr(SessionCore, "effects", effects)
    session.writer.write(b"a question")
    with pytest.raises(multi.SessionLost) as lost:
        await session.reader.read()
    assert lost.value.reason.cause is multi.Cause.INTERNAL
    assert "nothing leaves" in caplog.text
    monkeypatch.undo()
    server.close()
    await server.wait_closed()
