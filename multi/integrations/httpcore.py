"""httpcore and httpx over sessions: `httpx.AsyncClient(transport=multi.integrations.httpcore.transport())`."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import httpcore
import httpx

import multi


async def _told(call: Any, timeout: float | None, what: str) -> Any:
    """Await it; what goes wrong is one of httpcore's own errors."""
    try:
        async with asyncio.timeout(timeout):
            return await call
    except OSError as error:
        late = isinstance(error, TimeoutError)
        raise getattr(httpcore, f"{what}Timeout" if late else f"{what}Error")(str(error)) from error


class SessionNetworkStream(httpcore.AsyncNetworkStream):
    def __init__(self, reader: multi.SessionReader, writer: multi.SessionWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> Any:
        return await _told(self._reader.read(max_bytes), timeout, "Read")

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._writer.write(buffer)
        await _told(self._writer.drain(), timeout, "Write")

    async def aclose(self) -> None:
        self._writer.close()

    async def start_tls(self, ssl_context: ssl.SSLContext, server_hostname: Any = None, timeout: Any = None) -> Any:
        await _told(self._writer.start_tls(ssl_context, server_hostname=server_hostname), timeout, "Connect")
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # an idle connection that was closed, or has what belongs to no request
            return self._reader.at_eof() or self._writer.is_closing() or bool(self._reader._buffer)
        return self._writer.get_extra_info({"client_addr": "sockname", "server_addr": "peername"}.get(info, info))


class SessionBackend(httpcore.AsyncNetworkBackend):
    """Sessions to host and port of each URL, with options of `multi.open_connection`, or all by one `config`."""

    def __init__(self, config: Any = None, **options: Any) -> None:
        self._config, self._options = config, options

    async def connect_tcp(self, host: str, port: int, timeout: Any = None, *_: Any, **__: Any) -> SessionNetworkStream:
        where: Any = (host, port) if self._config is None else (self._config,)
        return SessionNetworkStream(*await _told(multi.open_connection(*where, **self._options), timeout, "Connect"))


def transport(config: Any = None, *, verify: ssl.SSLContext | bool = True, **options: Any) -> httpx.AsyncHTTPTransport:
    """For `httpx.AsyncClient`. `verify` is about TLS inside the session, for https URLs."""
    made = httpx.AsyncHTTPTransport(verify=verify)
    made._pool._network_backend = SessionBackend(config, **options)
    return made
