"""The client: `open_connection` and `connect`."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any

from multi.asyncio.driver import SessionDriver
from multi.asyncio.resolution import Found, outcomes
from multi.asyncio.roaming import Networks
from multi.asyncio.session import Session
from multi.asyncio.settings import local_scheduler, session_settings
from multi.asyncio.streams import DEFAULT_LIMIT, SessionReader, SessionWriter
from multi.asyncio.transport import P, SessionTransport
from multi.config import Config, ConfigLike, config_of
from multi.config.keys import check_certificate_files
from multi.errors import ConfigError, NoUsableConnection, SessionLost, SessionRefused
from multi.paths.manager import Mode, PathManager
from multi.paths.racing import Connect
from multi.protocol.session import SessionCore
from multi.types import Side


async def open_connection(
    host: ConfigLike, port: int | None = None, *, limit: int = DEFAULT_LIMIT, **options: Any
) -> tuple[SessionReader, SessionWriter]:
    """Open a session and return the reader and writer of stream 0, as `asyncio.open_connection` does.

    `host` and `port` with options by name (docs/configuration.md, "Without a file"), or in place of them all a
    configuration: a file, a mapping, a `multi://` URL.

    Returns when data may be sent. Closing the writer closes the session. Raises ConfigError, NoUsableConnection
    (every attempt listed), SessionRefused, SessionLost, TimeoutError never: `open_timeout` ends in
    NoUsableConnection.
    """
    session = await _open(config_of(host, port, options), limit, owns_close=True)
    return session.reader, session.writer


async def create_connection(
    protocol_factory: Callable[[], P], host: ConfigLike, port: int | None = None, **options: Any
) -> tuple[SessionTransport, P]:
    """Open a session and give its first stream to a protocol, as `loop.create_connection` does.

    Returns transport and protocol; `connection_made` was called. `transport.get_extra_info("session")` is the session,
    closing the transport closes it. Raises what `open_connection` raises.
    """
    session = await _open(config_of(host, port, options), DEFAULT_LIMIT, owns_close=True)
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
        return _open(config_of(*self._config), self._limit, owns_close=False).__await__()

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


async def _open(config: Config, limit: int, *, owns_close: bool) -> Session:
    if config.is_server:
        raise ConfigError("this is a server's configuration: a client needs connection_priority", "connection_priority")
    if limit <= 0:
        raise ValueError(f"found {limit} as the limit of the reader; allowed: more than 0")
    check_certificate_files(config)
    loop = asyncio.get_running_loop()
    started = loop.time()
    timeout = config.multi_config.open_timeout
    core = SessionCore(
        Side.CLIENT,
        config.session_id_bytes(os.urandom),
        session_settings(config),
        entropy=os.urandom,
        make_scheduler=local_scheduler,
        now=started,
    )
    driver = SessionDriver(core, config.transport_settings(), send_buffer=config.limits.max_send_buffer)

    def start(found: Found) -> None:
        driver.attempts = found.rejected
        now = loop.time()
        paths = PathManager(
            found.candidates,
            connect=Connect(config.multi_config.connect),
            mode=Mode(config.multi_config.mode),
            session=core,
            jitter=random.random,
            history=outcomes,
            expecting=found.expecting,
            now=now,
        )
        core.open(paths, max(0.001, timeout - (now - started)), now=now)
        driver.pump()

    networks = Networks(driver, config, start)
    session = Session(driver, networks.resolver, limit=limit, owns_close=owns_close)
    try:
        try:
            async with asyncio.timeout(timeout):
                await networks.started()
        except TimeoutError:
            rejected = networks.resolver.last.rejected if networks.resolver.last is not None else []
            raise NoUsableConnection(f"names were not resolved within {timeout:g} s", rejected) from None
        await asyncio.shield(driver.opened)
        if config.multi_config.wait == "all":
            # A session is there: what is missing then comes later or is reported.
            await asyncio.wait([driver.attempted_all], timeout=max(0.0, started + timeout - loop.time()))
            if driver.closed_error is not None:
                raise driver.closed_error
    except SessionRefused:
        await driver.settle()
        raise
    except SessionLost:
        await driver.settle()
        kind = _ConnectionRefused if driver.dial_errors == {errno.ECONNREFUSED} else NoUsableConnection
        failure = kind(str(core.reason), driver.failures)
        if len(driver.dial_errors) == 1:
            failure.errno = driver.dial_errors.pop()
        raise failure from None
    except BaseException:
        # Cancelled, or a bug: no socket and no task may stay behind.
        session.abort("opening was given up")
        await driver.settle()
        raise
    return session


class _ConnectionRefused(NoUsableConnection, ConnectionRefusedError):
    """What is caught as `ConnectionRefusedError` with asyncio."""
