"""Sessions where tasks begin at once (`asyncio.eager_task_factory`, Python 3.12): nothing is left over."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.integration.support import Way, multi_pair, run

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks begin at once from Python 3.12 on")


@pytest.mark.parametrize("name", ["tcp-sealed", "tcp-tls", "quic"])
def test_a_session_of_eager_tasks_leaves_nothing(name: str, development_certificates: Path) -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
        before = asyncio.all_tasks()
        async with multi_pair(Way(development_certificates, name)) as both:
            both.writer.write(bytes(300_000))
            both.writer.write_eof()
            assert len(await both.server_reader.read()) == 300_000
            both.server_writer.write(b"all")
            both.server_writer.close()
            assert await both.reader.read() == b"all"
            await both.server_writer.wait_closed()
            assert not both.writer.get_extra_info("session")._driver._dials
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before

    run(scenario())
