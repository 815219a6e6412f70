"""`multi serve`: serve files, forward connections, or both, until a signal comes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from multi.asyncio.server import ClientCallback
from multi.asyncio.streams import SessionReader, SessionWriter
from multi.cli.parser import SERVER, Parser, add_workers
from multi.config import Config, ConfigLike, load_config
from multi.discovery.resources import allow_many_descriptors
from multi.errors import ConfigError, MultiError, printable
from multi.forward.protocol import asks_to_forward
from multi.forward.rules import parse_rules
from multi.forward.service import ForwardService, with_room_for_streams
from multi.lab.files.protocol import MAX_LINE
from multi.lab.files.service import REQUEST_TIMEOUT, FileService
from multi.lab.files.tree import FileTree
from multi.lab.output import put_line
from multi.workers.run import Running, ServingProcess, place_of, run


def add_arguments(parser: Parser) -> None:
    parser.runs(run_serve, SERVER)
    directory = "serve the files of this directory; nothing outside of it"
    parser.add_argument("--dir", metavar="DIR", dest="directory", type=Path, help=directory)
    parser.add_argument("--allow-put", action="store_true", help="let clients store files")
    rules = "forward for clients, to what is allowed: HOST:PORTS,..., or a JSON file (docs/forwarding.md)"
    parser.add_argument("--forward-to", metavar="RULES", help=rules)
    add_workers(parser)


def run_serve(config: ConfigLike, directory: Path | None, *, allow_put: bool, forward_to: str | None) -> int:
    """Serve `directory`, and forward as the rules `forward_to` allow. Returns 130 after Ctrl-C and 0 after SIGTERM.

    Raises ConfigError, TransportError (port in use), OSError (no such directory or file).
    """
    if directory is None and forward_to is None:
        raise ConfigError("nothing to serve: needs --dir or --forward-to")
    if allow_put and directory is None:
        raise ConfigError("--allow-put needs --dir")
    loaded = load_config(config)
    services = []
    if directory is not None:
        with FileTree(directory):  # what cannot be opened is told before anything begins
            services.append(f"serving {printable(str(directory))}")
    if forward_to is not None:
        parse_rules(forward_to)
        loaded = with_room_for_streams(loaded)
        services.append(f"forwarding to {printable(forward_to)}")
    serve = partial(_serve_in_process, directory, allow_put, forward_to)
    stopped_by = run(loaded, serve, partial(_announce, loaded, " and ".join(services)))
    put_line("stopped")
    return 130 if stopped_by is signal.SIGINT else 0


def _announce(config: Config, what: str, server: Running) -> None:
    put_line(f"{what} on {place_of(config, server)}")
    for line in server.control.addresses:
        put_line(line)


def _serve_in_process(
    directory: Path | None, allow_put: bool, forward_to: str | None, process: ServingProcess
) -> signal.Signals:
    allow_many_descriptors()
    with ExitStack() as stack:
        tree = stack.enter_context(FileTree(directory)) if directory is not None else None
        files = FileService(tree, allow_put=allow_put, log=put_line)
        if forward_to is None:
            return asyncio.run(_serve(process, files.serve, [files]))
        forwarding = ForwardService(parse_rules(forward_to), log=put_line)
        return asyncio.run(_serve(process, partial(_either, files, forwarding), [files, forwarding]))


async def _either(files: FileService, forwarding: ForwardService, reader: SessionReader, writer: SessionWriter) -> None:
    """The first line of a client says which of the two it wants."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            first = await reader.readline()
    except (MultiError, ValueError, TimeoutError):
        writer.close()
        return
    wanted = forwarding if asks_to_forward(first) else files
    await wanted.serve(reader, writer, first)


async def _serve(
    process: ServingProcess, on_client: ClientCallback, services: Sequence[FileService | ForwardService]
) -> signal.Signals:
    server = await process.start_server(on_client, limit=MAX_LINE)
    signals = process.stop_signals(server, put_line)

    def under_way() -> str:
        running = sum(service.running for service in services)
        return f"{running} transfers under way" if running else ""

    first = await signals.stopped(under_way)
    for service in services:
        if isinstance(service, ForwardService):
            put_line(f"forwarded: {service.counters}")
    return first
