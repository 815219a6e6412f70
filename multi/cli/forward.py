"""`multi forward`: programs that know nothing of sessions, over one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from multi.asyncio.interruption import run_interruptible
from multi.cli.parser import CLIENT, Parser
from multi.config import Config, ConfigLike, load_config
from multi.discovery.resources import allow_many_descriptors
from multi.errors import ConfigError
from multi.forward.client import ForwardClient
from multi.forward.listeners import check_proxy, listen_as_proxy, listen_for, listen_for_datagrams, read_credentials
from multi.forward.protocol import HostPort
from multi.forward.proxy import Credentials
from multi.forward.specs import Forward, ProxyListener, parse_forward, parse_listener
from multi.lab.output import put_line


def add_arguments(parser: Parser) -> None:
    parser.runs(run_forward, CLIENT)
    local = "[ADDR:]PORT:HOST:PORT: connections to a port here lead to HOST:PORT there"
    parser.add_argument("-L", metavar="SPEC", dest="local", action="append", default=[], help=local)
    remote = "[ADDR:]PORT:HOST:PORT: connections to a port of the server's lead to HOST:PORT here"
    parser.add_argument("-R", metavar="SPEC", dest="remote", action="append", default=[], help=remote)
    socks = (
        "[ADDR:]PORT: be a proxy here, SOCKS5 and HTTP CONNECT; each SPEC may end with ,priority=0 to 7,steering=MODE"
    )
    parser.add_argument("--socks", metavar="SPEC", dest="proxies", action="append", default=[], help=socks)
    udp = "[ADDR:]PORT:HOST:PORT: datagrams that come to a UDP port here go to HOST:PORT there, and answers back"
    parser.add_argument("--udp", metavar="SPEC", dest="datagrams", action="append", default=[], help=udp)
    users = "a file with USER:PASSWORD lines that the proxy asks for"
    parser.add_argument("--socks-auth", metavar="FILE", dest="users", type=Path, help=users)


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
    run_interruptible(_forward(loaded, forwards, remotes, listeners, udp, credentials))
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
