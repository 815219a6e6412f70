"""aiohttp over sessions: `aiohttp.ClientSession(connector=multi.integrations.aiohttp.SessionConnector())`."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from multi import ConfigLike
from multi.integrations.loop import SessionLoop


class SessionConnector(aiohttp.BaseConnector):
    """`config`, or host and port of each URL with these options of `multi.open_connection`."""

    allowed_protocol_schema_set = aiohttp.connector.HTTP_AND_EMPTY_SCHEMA_SET | {"https", "ws", "wss"}

    def __init__(self, config: ConfigLike | None = None, **options: Any) -> None:
        super().__init__(force_close=False)
        self._sessions = SessionLoop(lambda host, port: options if config is None else config)

    async def _create_connection(self, req: Any, traces: Any, timeout: aiohttp.ClientTimeout) -> ResponseHandler:
        if req.proxy is not None:
            raise ValueError("a session leads to its server itself, so there is no proxy on its way")
        pinned = req.ssl if isinstance(req.ssl, aiohttp.Fingerprint) else None
        context: Any = None
        if req.is_ssl():
            context = req.ssl if isinstance(req.ssl, ssl.SSLContext) else ssl.create_default_context()
            if req.ssl is False or pinned is not None:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        name = req.server_hostname or req.url.raw_host
        async with asyncio.timeout(timeout.sock_connect or None):
            transport, protocol = await self._connected(req, ssl=context, server_hostname=name)
        if pinned is not None and context is not None:
            try:
                pinned.check(transport)
            except aiohttp.ServerFingerprintMismatch:
                transport.abort()
                raise
        return protocol

    async def _connected(self, req: Any, **tls: Any) -> tuple[asyncio.Transport, ResponseHandler]:
        try:
            return await self._sessions.create_connection(self._factory, req.url.raw_host, req.url.port, **tls)  # type: ignore[no-any-return]
        except ssl.CertificateError as error:
            raise aiohttp.ClientConnectorCertificateError(req.connection_key, error) from error
        except ssl.SSLError as error:
            raise aiohttp.ClientConnectorSSLError(req.connection_key, error) from error
        except OSError as error:
            said = error if error.strerror else OSError(error.errno, str(error))
            raise aiohttp.ClientConnectorError(req.connection_key, said) from error
