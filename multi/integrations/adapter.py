"""For programs that call the event loop: its `create_connection`, `create_server` and `start_tls` for sessions."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Mapping
from typing import Any

import multi
from multi import ConfigLike

Mapped = Callable[[Any, int], ConfigLike | None]  # options or a configuration; None = an ordinary connection
CALLS = ("create_connection", "create_server", "start_tls")


class SessionLoop:
    """The running event loop, for what takes a `loop`; everything but these calls is the loop's own."""

    def __init__(self, mapped: Mapped = lambda host, port: {}) -> None:
        self._loop, self._mapped = (loop := asyncio.get_running_loop()), mapped
        self._connect, self._serve, self._tls_of_loop = (getattr(loop, name) for name in CALLS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def _target(
        self, host: Any, port: int | None, sock: Any = None, local_addr: Any = None, **_: Any
    ) -> dict[str, Any] | None:
        found = self._mapped(host, port) if port is not None and sock is None else None
        if found is None:
            return None
        if not isinstance(found, Mapping) or found.keys() & {"connection_priority", "listen"}:
            return {"host": found}
        bound = {"interfaces": [local_addr[0]]} if local_addr is not None else {}
        return {"host": host, "port": port, **bound, **found}

    def _tls(self, protocol: Any, context: Any, ready: Any, more: Any, name: Any = None, server: bool = False) -> Any:
        times = {key: more.get(key) for key in ("ssl_handshake_timeout", "ssl_shutdown_timeout")}
        return SSLProtocol(self._loop, protocol, context, ready, server, name, **times)

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        if (target := self._target(host, port, **more)) is None:
            return await self._connect(factory, host, port, **more)
        if not (context := more.get("ssl")):
            return await multi.create_connection(factory, **target)
        context = ssl.create_default_context() if context is True else context
        ready, protocol = self._loop.create_future(), factory()
        tls = self._tls(protocol, context, ready, more, name=more.get("server_hostname") or host)
        transport, _ = await multi.create_connection(lambda: tls, **target)
        ready.add_done_callback(lambda done: transport.close() if done.cancelled() else None)
        await ready  # what fails here has closed the connection
        return tls._app_transport, protocol

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        hosts = list(host) if isinstance(host, list | tuple) else [host]
        if (target := self._target(hosts[0] if hosts else None, port, **more)) is None:
            return await self._serve(factory, host, port, **more)
        if len(hosts) != 1 and "port" in target:
            raise ValueError(f"found {hosts}; allowed: one host, or None for all addresses")
        context = more.get("ssl")  # nobody waits for its handshake
        made = (lambda: self._tls(factory(), context, None, more, server=True)) if context else factory
        return await multi.create_server(made, **target, start_serving=more.get("start_serving", True))

    async def start_tls(self, transport: Any, protocol: Any, sslcontext: Any, **more: Any) -> Any:
        ours = isinstance(transport, multi.SessionTransport)  # uvloop's own refuses them
        return await (multi.start_tls if ours else self._tls_of_loop)(transport, protocol, sslcontext, **more)
