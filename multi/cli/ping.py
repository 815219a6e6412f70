"""`multi ping`: open every connection a configuration wants, measure it, close it, and say what a session would do."""

from __future__ import annotations

import asyncio

from multi.asyncio.api import connect
from multi.asyncio.closing import close_in_time
from multi.asyncio.info import ConnectionInfo
from multi.asyncio.interruption import run_interruptible
from multi.asyncio.resolution import Resolver
from multi.cli.check import filter_warnings, only_looking
from multi.cli.parser import CLIENT, Parser
from multi.config import Config, ConfigLike, load_config
from multi.errors import NoUsableConnection, printable
from multi.types import ConnectionState, Role, host_of

LOOKS = 5  # at each connection's round-trip time
BETWEEN = 0.2  # seconds from a question to a look. Unasked, TCP tells of one round trip in which the peer's ack waited


def add_arguments(parser: Parser) -> None:
    parser.runs(run_ping, CLIENT)


def run_ping(config: ConfigLike) -> int:
    """Print a line for each connection. Returns 0 when all could be opened, 1 otherwise; raises ConfigError."""
    loaded = load_config(config)
    waits = loaded.multi_config.model_copy(update={"wait": "all"})
    return run_interruptible(_ping(loaded.model_copy(update={"multi_config": waits})))


async def _ping(config: Config) -> int:
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        session = await connect(config)
    except NoUsableConnection as error:
        for what, reason in error.attempts:
            print(f"{printable(what)}: no: {printable(reason)}")
        await _explain(config)
        raise
    taken = loop.time() - started
    looks: dict[int, list[float]] = {}
    try:
        await session.confirmed()
        for _ in range(LOOKS):
            for connection in session.connections:
                session.ping(connection.id)
            await asyncio.sleep(BETWEEN)
            for connection in session.connections:
                if connection.state is ConnectionState.ACTIVE and connection.rtt:
                    looks.setdefault(connection.id, []).append(connection.rtt)
        connections = session.connections
        failed = session.failures
        _show(config, connections, looks, failed, taken)
    finally:
        await close_in_time(session, config.multi_config.open_timeout)
    alive = [c for c in connections if c.state is ConnectionState.ACTIVE]
    if len(alive) == len(connections) and not failed:
        return 0
    await _explain(config)
    return 1


async def _explain(config: Config) -> None:
    """What this machine itself does to connections that have failed."""
    resolver = Resolver(only_looking(config), lambda: None, lambda _: None)
    try:
        found = await resolver.find()
    finally:
        resolver.close()
    for text in filter_warnings(config, found):
        print(f"warning: {text}")


def _show(
    config: Config,
    connections: tuple[ConnectionInfo, ...],
    looks: dict[int, list[float]],
    failed: list[tuple[str, str]],
    taken: float,
) -> None:
    used: list[str] = []
    for c in connections:
        over = c.interface or host_of(c.local)
        where = f"{c.transport} over {over} to {c.remote}"
        if c.state is not ConnectionState.ACTIVE:
            print(f"{where}: {c.state.value}: {printable(c.reason)}")
            continue
        times = sorted(looks.get(c.id, []))
        measured = f"round trip {times[len(times) // 2] * 1000:.2f} ms" if times else "round trip not known"
        protection = "encrypted by its transport" if c.secure else "sealed" if c.sealed else "NOT protected"
        print(f"{where}: open; {measured}; {protection}" + (f"; {printable(c.detail)}" if c.detail else ""))
        if c.role is Role.ACTIVE:
            used.append(f"{c.transport} over {over}")
    for what, reason in failed:
        print(f"{printable(what)}: no: {printable(reason)}")
    print(f"all attempts over after {taken * 1000:.0f} ms")
    print(f"a session sends over {', '.join(used) or 'nothing'}: {config.multi_config.mode}, {config.division}")
