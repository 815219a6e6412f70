"""The control socket of a client's session: what it tells, what it refuses, and how long it is there."""

from __future__ import annotations

import json
from pathlib import Path

import multi
from tests.integration.asyncio.test_control import ask
from tests.integration.support import Way, event_of, multi_pair, run, until

SEALED = Way(Path())


def test_it_tells_of_its_session_and_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "client.sock"

    async def scenario() -> None:
        async with multi_pair(SEALED, control={"socket": str(path)}) as pair:
            pair.writer.write(bytes(1000))
            await pair.server_reader.readexactly(1000)
            found = json.loads((await ask(path, "GET /stats"))[1])
            assert found["sessions"] == {"open": 1}
            assert found["transports"]["tcp"]["bytes_sent"] == pair.session.stats().bytes_sent == 1000
            (told,) = json.loads((await ask(path, "GET /sessions"))[1])
            assert told["id"] == pair.session.id.hex()
            status, text = await ask(path, "POST /command", {"command": "drain"})
            assert (status, "only servers are drained" in text) == (400, True)
            assert pair.session.error is None
        await until(lambda: not path.exists())

    run(scenario())


def test_a_second_session_with_the_same_socket_is_warned_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "client.sock"

    async def scenario() -> None:
        control = {"socket": str(path)}
        async with multi_pair(SEALED, control=control) as one, multi_pair(SEALED, control=control) as other:
            warning = await event_of(other.session, lambda event: isinstance(event, multi.Warned))
            assert "another process answers on it" in str(warning)
            other.writer.write(b"x")
            assert await other.server_reader.readexactly(1) == b"x"
            (told,) = json.loads((await ask(path, "GET /sessions"))[1])
            assert told["id"] == one.session.id.hex()

    run(scenario())
