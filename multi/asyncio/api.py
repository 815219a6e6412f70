"""What an application calls first. Light to import: the first call loads the rest.

That is done in a thread, for the event loop may have other work, and takes a few tenths of a second of processor time
once in a process: what reads configurations, what encrypts, and the transports that are used. A package that is missing
or broken is named by whatever needs it; everything else works.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Generator, Sequence
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from multi.errors import ConfigError, DependencyError
from multi.types import DEFAULT_LIMIT, LISTEN_BACKLOG

if TYPE_CHECKING:
    from multi.asyncio.server import ClientCallback, Server
    from multi.asyncio.session import Session
    from multi.asyncio.streams import SessionReader, SessionWriter
    from multi.asyncio.transport import SessionTransport
    from multi.config import ConfigLike

P = TypeVar("P", bound=asyncio.BaseProtocol)
_loaded: set[str] = set()


async def _load(module: str) -> None:
    """Import a module of this package in a thread, the first time. Raises DependencyError."""
    if module not in _loaded:
        try:
            await asyncio.to_thread(import_module, module)
        except ImportError as error:
            raise DependencyError.of("a session", error) from error
        _loaded.add(module)


async def open_connection(
    host: ConfigLike, port: int | None = None, *, limit: int = DEFAULT_LIMIT, **options: Any
) -> tuple[SessionReader, SessionWriter]:
    """Open a session and return the reader and writer of stream 0, as `asyncio.open_connection` does.

    `host` and `port` with options by name (docs/configuration.md, "Without a file"), or in place of them all a
    configuration: a file, a mapping, a `multi://` URL.

    Returns when data may be sent. Closing the writer closes the session. Raises ConfigError, NoUsableConnection
    (every attempt listed), SessionRefused; never TimeoutError, for `open_timeout` ends in NoUsableConnection.
    """
    session = await _open((host, port, options), limit, owns_close=True)
    return session.reader, session.writer


async def create_connection(
    protocol_factory: Callable[[], P], host: ConfigLike, port: int | None = None, **options: Any
) -> tuple[SessionTransport, P]:
    """Open a session and give its first stream to a protocol, as `loop.create_connection` does.

    Returns transport and protocol; `connection_made` was called. `transport.get_extra_info("session")` is the session,
    closing the transport closes it. Raises what `open_connection` raises.
    """
    session = await _open((host, port, options), DEFAULT_LIMIT, owns_close=True)
    return session.transport, session.transport.run(protocol_factory)


class connect:
    """`async with multi.connect(config) as session`: close in order at the end, abort on an exception."""

    def __init__(
        self, host: ConfigLike, port: int | None = None, *, limit: int = DEFAULT_LIMIT, **options: Any
    ) -> None:
        self._config = (host, port, options)
        self._limit = limit
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, None, Session]:
        return _open(self._config, self._limit, owns_close=False).__await__()

    async def __aenter__(self) -> Session:
        self._session = await self
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session = self._session
        assert session is not None
        if error is not None:
            session.abort("the application failed")
            await session.settle()
            return
        if session.aborted:
            await session.wait_closed()
            return
        try:
            await session.close()
        except asyncio.CancelledError:
            session.abort("cancelled")
            await session.settle()
            raise


async def _open(config: tuple[ConfigLike, int | None, dict[str, Any]], limit: int, *, owns_close: bool) -> Session:
    await _load("multi.asyncio.client")
    from multi.asyncio.client import open_session
    from multi.config import config_of

    return await open_session(config_of(*config), limit, owns_close=owns_close)


async def start_server(
    on_client: ClientCallback,
    host: ConfigLike | None = None,
    port: int | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    backlog: int = LISTEN_BACKLOG,
    start_serving: bool = True,
    sockets: Sequence[socket.socket] = (),
    **options: Any,
) -> Server:
    """Serve sessions; `on_client(reader, writer)`, plain or async, is called for each, as with asyncio.

    `host` (None = all addresses) and `port` with options by name, or in place of them all a configuration: a file or a
    mapping. With `identity=True` the server makes a key and a certificate for itself, keeps them in the user's state
    directory, and says by which URL its clients know it (`Server.url`, once it is bound).

    `limit` is that of the readers, in bytes; `backlog` how many connections may wait to be accepted. Without
    `start_serving` nothing is bound before `Server.start_serving` or `serve_forever`. Of `sockets`, which are bound
    already (by systemd: `multi.linux.systemd.inherited_sockets`), those that fit the configuration are listened on in
    the place of its own, by port, or where there is one alone of TCP or UDP; the server closes them all in the end.

    Raises ConfigError, and TransportError when the port is in use or a certificate cannot be used.
    """
    await _load("multi.asyncio.server")
    from multi.asyncio.server import Server
    from multi.asyncio.settings import load_transports
    from multi.config import config_of
    from multi.config.keys import check_certificate_files

    loaded = config_of(host, port, options, server=True)
    if not loaded.is_server:
        raise ConfigError("this is a client's configuration: a server needs listen", "listen")
    if loaded.worker_count is not None:
        raise ConfigError("several processes are started by multi.run_server and multi serve", "workers")
    if limit <= 0:
        raise ValueError(f"found {limit} as the limit of readers; allowed: more than 0")
    check_certificate_files(loaded)
    await load_transports(loaded)
    server = Server(on_client, loaded, limit, backlog, sockets=sockets)
    if start_serving:
        await server.start_serving()
    if options.get("identity") and start_serving:
        print(f"clients reach this server by {server.url}", flush=True)
    return server


async def create_server(
    protocol_factory: Callable[[], asyncio.BaseProtocol],
    host: ConfigLike | None = None,
    port: int | None = None,
    *,
    backlog: int = LISTEN_BACKLOG,
    start_serving: bool = True,
    **options: Any,
) -> Server:
    """Serve sessions whose first stream each gets a new protocol, as with `loop.create_server`.

    Further streams of a client are in `transport.get_extra_info("session").streams()`. See `start_server` for the rest.
    """

    def on_client(_: SessionReader, writer: SessionWriter) -> None:
        session: Session = writer.get_extra_info("session")
        session.transport.run(protocol_factory)

    return await start_server(on_client, host, port, backlog=backlog, start_serving=start_serving, **options)
