"""The client: `open_connection` and `connect`."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any

from multi.asyncio.driver import SessionDriver
from multi.asyncio.resolution import Found, Resolver, outcomes
from multi.asyncio.roaming import Networks
from multi.asyncio.session import Session
from multi.asyncio.settings import local_scheduler, session_settings
from multi.asyncio.streams import DEFAULT_LIMIT, SessionReader, SessionWriter
from multi.config import Config, load_config
from multi.config.keys import check_certificate_files
from multi.errors import ConfigError, MultiError, NoUsableConnection, SessionLost, SessionRefused
from multi.paths.manager import Mode
from multi.paths.racing import Connect
from multi.protocol.session import SessionCore
from multi.types import Side

ConfigLike = str | os.PathLike[str] | Mapping[str, Any] | Config


async def open_connection(config: ConfigLike, *, limit: int = DEFAULT_LIMIT) -> tuple[SessionReader, SessionWriter]:
    """Open a session and return the reader and writer of stream 0, as `asyncio.open_connection` does.

    Returns when data may be sent. Closing the writer closes the session. Raises ConfigError, NoUsableConnection
    (every attempt listed), SessionRefused, SessionLost, TimeoutError never: `open_timeout` ends in
    NoUsableConnection.
    """
    session = await _open(load_config(config), limit, owns_close=True)
    return session.reader, session.writer


class connect:
    """`async with multi.connect(config) as session`: close in order at the end, abort on an exception."""

    def __init__(self, config: ConfigLike, *, limit: int = DEFAULT_LIMIT) -> None:
        self._config = config
        self._limit = limit
        self._session: Session | None = None

    async def _connect(self) -> Session:
        return await _open(load_config(self._config), self._limit, owns_close=False)

    def __await__(self) -> Generator[Any, None, Session]:
        return self._connect().__await__()

    async def __aenter__(self) -> Session:
        self._session = await self._connect()
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
    if not config.is_client:
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
    resolver = Resolver(config, lambda: networks.look())
    networks = Networks(driver, resolver, config)
    driver.on_closed = lambda _: networks.close()
    session = Session(driver, resolver, limit=limit, owns_close=owns_close)
    try:
        found = await _find(resolver, networks, timeout)
        driver.attempts = list(found.rejected)
        networks.started(found)
        core.open(
            found.candidates,
            connect=Connect(config.multi_config.connect),
            mode=Mode(config.multi_config.mode),
            open_timeout=max(0.001, timeout - (loop.time() - started)),
            jitter=random.random,
            memory=outcomes,
            race_order=outcomes.order(found.candidates, lambda c: c.network, loop.time(), random.random()),
            expecting=found.expecting,
            now=loop.time(),
        )
        driver.pump()
        await asyncio.shield(driver.opened)
        if config.multi_config.wait == "all":
            try:
                async with asyncio.timeout_at(started + timeout):
                    await asyncio.shield(driver.attempted_all)
            except TimeoutError:
                pass  # a session is there; what is missing comes later or is reported
            except SessionLost:
                if driver.closed_error is not None:
                    raise
                # The server has closed it in order meanwhile: what it has sent is there to be read.
    except SessionRefused:
        await driver.settle()
        raise
    except SessionLost:
        await driver.settle()
        kind = _ConnectionRefused if driver.dial_errors == {errno.ECONNREFUSED} else NoUsableConnection
        raise kind(str(core.reason), driver.failures) from None
    except BaseException:
        # Cancelled, or a bug: no socket and no task may stay behind.
        session.abort("opening was given up")
        await driver.settle()
        raise
    return session


async def _find(resolver: Resolver, networks: Networks, timeout: float) -> Found:
    """What can be dialled; raises NoUsableConnection when there is nothing, or names are not resolved in time."""
    try:
        async with asyncio.timeout(timeout):
            found = await resolver.find(anew=False)
            while found.expecting and not found.candidates:
                await networks.change()
                found = await resolver.find()
    except TimeoutError:
        rejected = resolver.last.rejected if resolver.last is not None else []
        raise NoUsableConnection(f"names were not resolved within {timeout:g} s", rejected) from None
    except OSError as error:
        if isinstance(error, MultiError):
            raise
        raise NoUsableConnection(f"cannot look at the networks: {error.strerror or error}", []) from error
    if not found.candidates:
        kind = _UnknownName if found.errors else NoUsableConnection
        raise kind("no candidate is usable on this machine", found.rejected)
    return found


class _ConnectionRefused(NoUsableConnection, ConnectionRefusedError):
    """What is caught as `ConnectionRefusedError` with asyncio."""

    errno = errno.ECONNREFUSED


class _UnknownName(NoUsableConnection, socket.gaierror):
    """What is caught as `socket.gaierror` with asyncio."""


__all__ = ["ConfigLike", "connect", "open_connection"]
