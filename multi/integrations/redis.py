"""redis-py over sessions: `redis.asyncio.ConnectionPool(connection_class=SessionConnection, host=..., port=...)`."""

from __future__ import annotations

import asyncio
from typing import Any

import redis.asyncio

import multi


class SessionConnection(redis.asyncio.Connection):
    """`session_config` is used in place of host and port, `session_options` with them; see `multi.open_connection`."""

    def __init__(self, *, session_config: Any = None, session_options: Any = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._session_config, self._session_options = session_config, session_options or {}

    async def _connect(self) -> None:
        where = (self._session_config,) if self._session_config is not None else (self.host, self.port)
        async with asyncio.timeout(self.socket_connect_timeout):
            self._reader, self._writer = await multi.open_connection(*where, **self._session_options)
