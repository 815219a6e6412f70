"""`multi serve`: serve files, forward connections, or both, until a signal comes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from multi.asyncio.api import start_server
from multi.asyncio.server import ClientCallback
from multi.asyncio.signals import StopSignals
from multi.asyncio.streams import SessionReader, SessionWriter
from multi.cli.descriptors import allow_many_descriptors
from multi.config import Config, ConfigLike, load_config
from multi.errors import ConfigError, MultiError, printable
from multi.forward.protocol import HELLO_KEY
from multi.forward.rules import parse_rules
from multi.forward.service import ForwardService, with_room_for_streams
from multi.lab.files.protocol import LINE_LIMIT
from multi.lab.files.service import REQUEST_TIMEOUT, FileService
from multi.lab.files.tree import FileTree


def run_serve(config: ConfigLike, directory: Path | None, *, allow_put: bool, forward_to: str | None) -> int:
    """Serve `directory`, and forward as the rules `forward_to` allow. Returns 130 after Ctrl-C and 0 after SIGTERM.

    Raises ConfigError, TransportError (port in use), OSError (no such directory or file).
    """
    if directory is None and forward_to is None:
        raise ConfigError("nothing to serve: needs --dir or --forward-to")
    if allow_put and directory is None:
        raise ConfigError("--allow-put needs --dir")
    loaded = load_config(config)
    files = forwarding = None
    services = []
    with ExitStack() as stack:
        if directory is not None:
            tree = stack.enter_context(FileTree(directory))
            files = FileService(tree, allow_put=allow_put, log=_print)
            services.append(f"serving {printable(str(directory))}")
        if forward_to is not None:
            forwarding = ForwardService(parse_rules(forward_to), log=_print)
            loaded = with_room_for_streams(loaded)
            allow_many_descriptors()
            services.append(f"forwarding to {printable(forward_to)}")
        running = [service for service in (files, forwarding) if service is not None]
        stopped_by = asyncio.run(_serve(loaded, _on_client(files, forwarding), running, " and ".join(services)))
    return 130 if stopped_by is signal.SIGINT else 0


def _on_client(files: FileService | None, forwarding: ForwardService | None) -> ClientCallback:
    if forwarding is None:
        assert files is not None
        return files.serve
    if files is None:
        return forwarding.serve
    return partial(_either, files, forwarding)


async def _either(files: FileService, forwarding: ForwardService, reader: SessionReader, writer: SessionWriter) -> None:
    """The first line of a client says which of the two it wants."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            first = await reader.readline()
    except (MultiError, ValueError, TimeoutError):
        writer.close()
        return
    wanted = forwarding if HELLO_KEY.encode() in first else files
    await wanted.serve(reader, writer, first)


async def _serve(
    config: Config, on_client: ClientCallback, services: Sequence[FileService | ForwardService], what: str
) -> signal.Signals:
    server = await start_server(on_client, config, limit=LINE_LIMIT)
    signals = StopSignals(server, _print)
    listen = config.listen
    assert listen is not None
    transports = ", ".join(listen.transports)
    _print(f"{what} on {listen.host} port {server.port} ({transports})")
    for line in server.control.addresses:
        _print(line)

    def under_way() -> str:
        running = sum(service.running for service in services)
        return f"{running} transfers under way" if running else ""

    first = await signals.stopped(under_way)
    for service in services:
        if isinstance(service, ForwardService):
            _print(f"forwarded: {service.counters}")
    _print("stopped")
    return first


def _print(line: str) -> None:
    print(line, flush=True)
