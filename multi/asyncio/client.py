"""The client: opening a session. What applications call is in `multi.asyncio.api`."""

from __future__ import annotations

import asyncio
import errno
import os
import random

from multi.asyncio.client_control import open_control
from multi.asyncio.driver import SessionDriver
from multi.asyncio.resolution import Found, Resolver, outcomes
from multi.asyncio.roaming import Networks
from multi.asyncio.session import Session
from multi.asyncio.settings import load_transports, local_scheduler, session_settings
from multi.asyncio.tracing import trace_session
from multi.config import Config
from multi.config.keys import check_certificate_files
from multi.errors import ConfigError, NoUsableConnection, SessionLost, SessionRefused
from multi.paths.manager import PathManager
from multi.paths.racing import ConnectMode
from multi.paths.roles import Mode
from multi.protocol.session import SessionCore
from multi.reasons import Cause
from multi.types import Side

REPLACED = 0.2  # seconds until a session is tried that another server may get, or the successor of this one
REPLACED_LATER = 1.5  # times as long each time


async def open_session(config: Config, limit: int, *, owns_close: bool) -> Session:
    """See `multi.asyncio.api.open_connection`; `owns_close`: closing the writer closes the session.

    Where all servers that can be reached are being stopped, a session with another ID is tried: a balancer may have
    chosen by the ID, and would go on leading this one there.
    """
    if config.is_server:
        raise ConfigError("this is a server's configuration: a client needs connection_priority", "connection_priority")
    if limit <= 0:
        raise ValueError(f"found {limit} as the limit of the reader; allowed: more than 0")
    check_certificate_files(config)
    await load_transports(config)
    loop = asyncio.get_running_loop()
    until = loop.time() + config.multi_config.open_timeout
    delay = REPLACED
    while True:
        try:
            return await _open(config, limit, until - loop.time(), owns_close=owns_close)
        except SessionRefused as error:
            if error.reason.cause is not Cause.GOING_AWAY or loop.time() + delay >= until:
                raise
        await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # those whom one server sends away do not come together
        delay *= REPLACED_LATER


async def _open(config: Config, limit: int, timeout: float, *, owns_close: bool) -> Session:
    loop = asyncio.get_running_loop()
    started = loop.time()
    core = SessionCore(
        Side.CLIENT,
        config.session_id_bytes(os.urandom),
        session_settings(config),
        entropy=os.urandom,
        make_scheduler=local_scheduler,
        now=started,
    )
    driver = SessionDriver(core, config.transport_settings(), send_buffer=config.limits.max_send_buffer)

    def start(found: Found, resolver: Resolver) -> None:
        driver.attempts = found.rejected
        now = loop.time()
        paths = PathManager(
            found.candidates,
            connect=ConnectMode(config.multi_config.connect),
            mode=Mode(config.multi_config.mode),
            session=core,
            jitter=random.random,
            history=outcomes,
            expecting=found.expecting,
            may_go=resolver.may_go,
            now=now,
        )
        core.open(paths, timeout, now=now, since=started)
        driver.pump()

    networks = Networks(driver, config, start)
    session = Session(driver, networks.resolver, limit=limit, owns_close=owns_close)
    trace_session(driver, config)
    try:
        await open_control(session, driver, config)
        try:
            async with asyncio.timeout(timeout):
                await networks.started()
        except TimeoutError:
            text = f"names were not resolved within {config.multi_config.open_timeout:g} s"
            raise NoUsableConnection(text, driver.rejected) from None
        if not await asyncio.shield(driver.opened):
            raise driver.failure()
        if config.multi_config.wait == "all":
            # A session is there: what is missing then comes later or is reported.
            await asyncio.wait([driver.attempted_all], timeout=max(0.0, started + timeout - loop.time()))
            if driver.closed_error is not None:
                raise driver.failure()
            if not driver.attempted_all.done() and core.paths is not None:
                core.paths.give_up(timeout)
    except SessionRefused:
        await driver.settle()
        raise
    except SessionLost:
        await driver.settle()
        raise _unusable(driver) from None
    except BaseException:
        # Cancelled, or a bug: no socket and no task may stay behind.
        session.abort("opening was given up")
        await driver.settle()
        raise
    return session


def _unusable(driver: SessionDriver) -> NoUsableConnection:
    """A session has ended before it opened."""
    kind = _ConnectionRefused if driver.dial_errors == {errno.ECONNREFUSED} else NoUsableConnection
    error = kind(str(driver.core.reason), driver.failures)
    if len(driver.dial_errors) == 1:
        error.errno = driver.dial_errors.pop()
    return error


class _ConnectionRefused(NoUsableConnection, ConnectionRefusedError):
    """What is caught as `ConnectionRefusedError` with asyncio."""
