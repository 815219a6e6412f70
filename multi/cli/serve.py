"""`multi serve`: run the file service until a signal comes."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from multi.asyncio.server import Server, start_server
from multi.config import Config, load_config
from multi.errors import printable
from multi.lab.files.protocol import LINE_LIMIT
from multi.lab.files.service import FileService
from multi.lab.files.tree import FileTree

GRACE = 2.0  # seconds that transfers under way get to finish; what is cut off can be taken up again


def run_serve(config: str, directory: Path, *, allow_put: bool) -> int:
    """Serve `directory`. Returns 130 after Ctrl-C and 0 after SIGTERM.

    Raises ConfigError, TransportError (port in use), OSError (no such directory).
    """
    loaded = load_config(config)
    with FileTree(directory) as tree:
        stopped_by = asyncio.run(_serve(loaded, tree, directory, allow_put))
    return 130 if stopped_by is signal.SIGINT else 0


async def _serve(config: Config, tree: FileTree, directory: Path, allow_put: bool) -> signal.Signals:
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    service = FileService(tree, allow_put=allow_put, log=_print)
    server = await start_server(service.serve, config, limit=LINE_LIMIT)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, number)
    listen = config.listen
    assert listen is not None
    transports = ", ".join(listen.transports)
    _print(f"serving {printable(str(directory))} on {listen.host} port {server.port} ({transports})")
    first = await signals.get()
    await _stop(server, service, signals)
    return first


async def _stop(server: Server, service: FileService, signals: asyncio.Queue[signal.Signals]) -> None:
    """No new sessions; those that live may finish for a moment; a second signal ends them at once."""
    server.close()
    if service.running:
        _print(f"stopping: {service.running} transfers under way get {GRACE:g} s")
        finished = asyncio.ensure_future(server.wait_closed())
        impatient = asyncio.ensure_future(signals.get())
        await asyncio.wait({finished, impatient}, timeout=GRACE, return_when=asyncio.FIRST_COMPLETED)
        for task in (finished, impatient):
            task.cancel()
        await asyncio.gather(finished, impatient, return_exceptions=True)
    server.abort()
    await server.wait_closed()
    _print("stopped")


def _print(line: str) -> None:
    print(line, flush=True)
