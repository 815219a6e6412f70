"""A bug behind the driver ends its session with a message; nothing hangs, nothing goes on half-way."""

from __future__ import annotations

import asyncio

import pytest

import multi
from multi.schedulers import create_scheduler


async def test_a_scheduler_that_cannot_be_made_for_the_client_ends_the_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = []

    @multi.register_scheduler("second_time_unlucky")
    def make() -> multi.Scheduler:
        made.append(True)
        if len(made) > 1:
            raise RuntimeError("no more of these")
        return create_scheduler("RR", {})

    served: asyncio.Future[multi.Session] = asyncio.get_running_loop().create_future()

    async def on_client(reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        served.set_result(writer.get_extra_info("session"))
        await reader.read()

    server = await multi.start_server(on_client, {"listen": {"host": "127.0.0.1", "port": 0, "transports": ["tcp"]}})
    config = {
        "connection_priority": [["tcp", "ipv4", "any"]],
        "remote_host": "127.0.0.1",
        "remote_port": server.port,
        "multi_config": {"resume_timeout": 1},
    }
    session = await multi.connect(config)
    await session.confirmed()
    session.set_scheduler("second_time_unlucky")
    with pytest.raises(multi.SessionLost, match="internal error"):
        await (await served).wait_closed()
    assert "no more of these" in caplog.text
    with pytest.raises(multi.MultiError):
        await session.wait_closed()
    server.close()
    await server.wait_closed()
