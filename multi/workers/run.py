"""Serving until a signal comes, in this process or in several: `run_server` for programs, `run` for commands."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from multi.asyncio.api import start_server
from multi.asyncio.control import ControlSockets
from multi.asyncio.server import ClientCallback, Server
from multi.asyncio.signals import StopSignals
from multi.config import Config, ConfigLike, config_of
from multi.config.keys import check_certificate_files
from multi.errors import ConfigError, counted
from multi.linux import systemd
from multi.types import DEFAULT_LIMIT, LISTEN_BACKLOG
from multi.workers.supervisor import Supervisor

logger = logging.getLogger("multi.server")


def run_server(
    on_client: ClientCallback,
    host: ConfigLike | None = None,
    port: int | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    backlog: int = LISTEN_BACKLOG,
    **options: Any,
) -> signal.Signals:
    """Serve sessions until a signal comes, and return that signal; it makes event loops itself.

    SIGTERM drains (see `Server.drain`), SIGINT leaves sessions 2 s, a second one ends them at once; SIGHUP reads
    certificates and keys again. With `workers` in the configuration that many processes serve, on one port and with
    common limits. Each imports the program again: `on_client` has to be a function that can be imported (or another
    callable that can be pickled), and the call belongs under `if __name__ == "__main__":`. What a worker needs of its
    own, such as connections to a database, is made when its first client comes.

    The other arguments are those of `start_server`. Raises ConfigError, TransportError when the port is in use or a
    certificate cannot be used, and RuntimeError in another thread than the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("run_server takes signals, as only the main thread can; elsewhere: multi.start_server")
    config = config_of(host, port, options, server=True)
    if not config.is_server:
        raise ConfigError("this is a client's configuration: a server needs listen", "listen")
    check_certificate_files(config)
    return run(config, partial(_serve_program, on_client, limit, backlog), partial(_log, config), backlog)


class Running(Protocol):
    """A server, or the parent of its workers."""

    @property
    def port(self) -> int: ...

    @property
    def control(self) -> ControlSockets: ...


class ServingProcess(Protocol):
    """This process: the only one of a server, or a worker."""

    async def start_server(
        self, on_client: ClientCallback, *, limit: int = DEFAULT_LIMIT, backlog: int = LISTEN_BACKLOG
    ) -> Server:
        """As `multi.start_server`, with the configuration that is served."""

    def stop_signals(self, server: Server, say: Callable[[str], None]) -> StopSignals:
        """Those that end this process; `say` gets a line for people about what they do."""


class OnlyProcess:
    """A server without workers."""

    def __init__(self, config: Config, started: Callable[[Running], None]) -> None:
        self._config, self._started = config, started

    async def start_server(
        self, on_client: ClientCallback, *, limit: int = DEFAULT_LIMIT, backlog: int = LISTEN_BACKLOG
    ) -> Server:
        sockets = systemd.inherited_sockets()
        return await start_server(on_client, self._config, limit=limit, backlog=backlog, sockets=sockets)

    def stop_signals(self, server: Server, say: Callable[[str], None]) -> StopSignals:
        signals = StopSignals(server, say).listen()
        self._started(server)  # whoever hears of it may stop it
        return signals


def run(
    config: Config,
    serve: Callable[[ServingProcess], signal.Signals],
    started: Callable[[Running], None],
    backlog: int = LISTEN_BACKLOG,
) -> signal.Signals:
    """Call `serve(process)` here, or in each worker that `config` wants; return the signal that has ended it.

    `serve` starts the server, once, and returns after a signal to stop; workers get those of their parent. `started` is
    called, in this process, when clients are served.
    """

    def ready(server: Running) -> None:
        systemd.service.ready(f"serving on {place_of(config, server)}")
        started(server)

    if (workers := config.worker_count) is None:
        return serve(OnlyProcess(config, ready))

    async def supervise() -> signal.Signals:
        return await Supervisor(config, workers, serve, backlog).run(ready)

    return asyncio.run(supervise())


def place_of(config: Config, server: Running) -> str:
    """Where it serves, for people."""
    listen, workers = config.listen, config.worker_count
    assert listen is not None
    by = f", {counted(workers, 'worker')}" if workers is not None else ""
    return f"{listen.host} port {server.port} ({', '.join(listen.transports)}){by}"


def _under_way(server: Server) -> str:
    count = len(server.sessions)
    return counted(count, "session") if count else ""


def _log(config: Config, server: Running) -> None:
    logger.info("serving on %s", place_of(config, server))


def _serve_program(on_client: ClientCallback, limit: int, backlog: int, process: ServingProcess) -> signal.Signals:
    async def serve() -> signal.Signals:
        server = await process.start_server(on_client, limit=limit, backlog=backlog)
        return await process.stop_signals(server, logger.info).stopped(partial(_under_way, server))

    return asyncio.run(serve())
