"""aiohttp over sessions: `aiohttp.ClientSession(connector=multi.integrations.aiohttp.SessionConnector())`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from multi.integrations.loop import SessionLoop


class SessionConnector(aiohttp.BaseConnector):
    """`config`, or host and port of each URL with these options of `multi.open_connection`."""

    allowed_protocol_schema_set = aiohttp.connector.HTTP_AND_EMPTY_SCHEMA_SET | {"https", "ws", "wss"}

    def __init__(self, config: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(force_close=False)
        self._sessions = SessionLoop(lambda host, port: options if config is None else config)

    async def _create_connection(self, req: Any, traces: Any, timeout: aiohttp.ClientTimeout) -> ResponseHandler:
        context: Any = None
        if req.is_ssl():
            context = req.ssl if isinstance(req.ssl, ssl.SSLContext) else ssl.create_default_context()
            if req.ssl is False:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            _, protocol = await self._sessions.create_connection(
                self._factory, req.url.raw_host, req.url.port, ssl=context, server_hostname=req.url.raw_host
            )
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        return protocol  # type: ignore[no-any-return]
