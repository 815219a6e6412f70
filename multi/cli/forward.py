"""`multi connect` and `multi forward`: programs that know nothing of sessions, over one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from multi.asyncio.closing import abandon
from multi.asyncio.interruption import run_interruptible
from multi.cli.descriptors import allow_many_descriptors
from multi.config import Config, ConfigLike, load_config
from multi.errors import ConfigError
from multi.forward.client import ForwardClient, finish_session, open_session
from multi.forward.listeners import check_proxy, listen_as_proxy, listen_for, listen_for_datagrams, read_credentials
from multi.forward.opening import forward
from multi.forward.protocol import Connect, HostPort, parse_address
from multi.forward.proxy import Credentials
from multi.forward.relay import Counters
from multi.forward.specs import Forward, ProxyListener, Treatment, parse_forward, parse_listener, parse_treatment
from multi.forward.stdio import standard_streams
from multi.lab.output import put_line

INTERRUPTIONS = (signal.SIGTERM, signal.SIGHUP)  # ssh sends SIGHUP to its proxy command at the end


# --- multi connect ---


def run_connect(config: ConfigLike, target: str, priority: int, steering: str | None) -> int:
    """Carry standard input to `target` and what comes back to standard output, until both have ended. Returns 0.

    Raises ConfigError, ForwardRefused, NoUsableConnection, SessionRefused, SessionLost, BrokenPipeError.
    """
    loaded = load_config(config)
    try:
        address = parse_address(target)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    asked = [f"priority={priority}", *([f"steering={steering}"] if steering is not None else [])]
    run_interruptible(_connect(loaded, address, parse_treatment(asked, "--steering")), *INTERRUPTIONS)
    return 0


async def _connect(config: Config, target: HostPort, treatment: Treatment) -> None:
    async with standard_streams() as near:
        session = await open_session(config)
        try:
            await forward(near, session, Connect(target), treatment, Counters())
            await finish_session(session)
        except BaseException as error:
            await abandon(session, error)
            raise


# --- multi forward ---


def run_forward(
    config: ConfigLike,
    local: Sequence[str],
    remote: Sequence[str],
    proxies: Sequence[str],
    datagrams: Sequence[str],
    users: Path | None,
) -> int:
    """Forward until Ctrl-C.

    Raises ConfigError, TransportError (port in use), ForwardRefused, and what opening a session raises.
    """
    loaded = load_config(config)
    forwards = [parse_forward(text, "-L") for text in local]
    remotes = [parse_forward(text, "-R") for text in remote]
    listeners = [parse_listener(text, "--socks") for text in proxies]
    udp = [parse_forward(text, "--udp") for text in datagrams]
    if not (forwards or remotes or listeners or udp):
        raise ConfigError("nothing to forward: needs -L, -R, --socks or --udp")
    credentials = read_credentials(users) if users is not None else {}
    for listener in listeners:
        check_proxy(listener, credentials)
    allow_many_descriptors()
    run_interruptible(_forward(loaded, forwards, remotes, listeners, udp, credentials), *INTERRUPTIONS)
    return 0


async def _forward(
    config: Config,
    forwards: Sequence[Forward],
    remotes: Sequence[Forward],
    listeners: Sequence[ProxyListener],
    udp: Sequence[Forward],
    credentials: Credentials,
) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ForwardClient(config, remotes, log=put_line))
        for item in forwards:
            stack.callback((server := await listen_for(client, item)).close)
            put_line(f"{_place(server)} leads to {item.target}")
        for listener in listeners:
            stack.callback((server := await listen_as_proxy(client, listener, credentials)).close)
            asked = ", password asked for" if credentials else ""
            put_line(f"{_place(server)} is a proxy (SOCKS5 and HTTP CONNECT{asked})")
        for item in udp:
            stack.push_async_callback((datagrams := await listen_for_datagrams(client, item)).close)
            put_line(f"{_places(port.address for port in datagrams.ports)} (UDP) leads to {item.target}")
        put_line("ready")
        try:
            await client.wait()
        finally:
            put_line(f"forwarded: {client.counters}")


def _place(server: asyncio.Server) -> str:
    return _places(HostPort(*sock.getsockname()[:2]) for sock in server.sockets)


def _places(addresses: Iterable[HostPort]) -> str:
    return ", ".join(map(str, addresses))
