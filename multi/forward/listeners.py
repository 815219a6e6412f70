"""Ports of this machine whose connections are forwarded: to one target (-L), or as a proxy (--socks)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from multi.errors import ConfigError, TransportError
from multi.forward.client import ForwardClient
from multi.forward.opening import answer_of, open_stream
from multi.forward.protocol import Address, Code, Connect, ForwardRefused
from multi.forward.proxy import Credentials, Refusal, read_wish
from multi.forward.relay import BUFFERED, ENDS, Pair, relay
from multi.forward.specs import EVERYWHERE, Forward, Listener

logger = logging.getLogger("multi.forward")

BACKLOG = 512  # connections a port may have waiting to be accepted
Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


async def listen_for(client: ForwardClient, forward: Forward) -> asyncio.Server:
    """Forward what connects here to the forward's target at the far end. Raises TransportError."""

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near = Pair(reader, writer)
        client.start(near, client.forward(near, forward.target, forward.priority))

    return await _listen(forward.listen, accepted)


async def listen_as_proxy(client: ForwardClient, listener: Listener, credentials: Credentials) -> asyncio.Server:
    """Be a proxy, SOCKS5 and HTTP CONNECT. Raises ConfigError, TransportError.

    Whoever can connect gets where the far end allows, so on other addresses than loopback a password is needed.
    """
    if not credentials and not is_loopback(listener.listen.host):
        raise ConfigError(f"{listener.listen} is not loopback: that needs --socks-auth", "--socks")

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client.start(Pair(reader, writer), _serve_wish(client, listener.priority, credentials, reader, writer))

    return await _listen(listener.listen, accepted)


async def _serve_wish(
    client: ForwardClient,
    priority: int,
    credentials: Credentials,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """One connection to the proxy."""
    try:
        wish = await read_wish(reader, writer, credentials)
    except (Refusal, EOFError) as error:
        client.counters.failed += 1
        logger.info("a connection to the proxy ended: %s", error)
        await _end(writer)
        return
    stream = None
    try:
        stream = await open_stream(await client.session(), Connect(wish.target), priority)
        bound = await answer_of(stream)
    except ENDS as error:
        client.counters.failed += 1
        logger.info("%s: %s", wish.target, error)
        if stream is not None:
            stream.reset()
        code = error.code if isinstance(error, ForwardRefused) else Code.FAILED
        writer.write(wish.answer(code, str(error)))
        await _end(writer)
        return
    except BaseException:
        if stream is not None:
            stream.reset()
        raise
    writer.write(wish.answer(Code.OK, bound))
    await relay(Pair(reader, writer), stream, client.counters)


async def _end(writer: asyncio.StreamWriter) -> None:
    """Close once what was said has left."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _listen(address: Address, accepted: Accept) -> asyncio.Server:
    host = None if address.host == EVERYWHERE else address.host
    try:
        return await asyncio.start_server(accepted, host, address.port, limit=BUFFERED, backlog=BACKLOG)
    except OSError as error:
        raise TransportError(
            error.errno, f"cannot listen on {address}: {os.strerror(error.errno or 0).lower()}"
        ) from None


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def read_credentials(path: Path) -> Credentials:
    """A file of `user:password` lines, with empty ones and comments (`#`). Raises ConfigError, OSError."""
    found = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, password = line.partition(":")
        if not (colon and user and password) or max(len(user.encode()), len(password.encode())) > 255:
            raise ConfigError(f"line {number} is not USER:PASSWORD (1 to 255 bytes each)", str(path))
        found[user] = password
    if not found:
        raise ConfigError("no user in it", str(path))
    return found
