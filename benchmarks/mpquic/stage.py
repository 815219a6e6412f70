"""A client and a server in virtual time, as the experiments need them: paths are opened as soon as they can be, and a
server answers when it is asked."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from benchmarks.mpquic.cells import Route, Setup
from benchmarks.mpquic.counting import counting_engine
from benchmarks.mpquic.streams import serving_first
from multi.lab.cert import write_development_certificates
from multi.lab.engines.links import Line
from multi.lab.engines.pair import EngineEnd, EnginePair
from multi.transports.base import TlsSettings
from multi.transports.mpquic import aioquic_engine
from multi.transports.mpquic.private import PrivateEngine
from multi.transports.mpquic.settings import MpquicSettings
from multi.transports.quic.engine import EngineSettings, PathEngine, implementation
from multi.transports.quic.settings import QuicSettings

__all__ = ["BULK", "URGENT", "Stage", "Unfinished", "certificates"]

DATAGRAM = 1350  # bytes, as sessions have it
LIMIT = 3600.0  # virtual seconds; a path of 0.1 Mbit/s needs a quarter of an hour for 10 MB
BULK, URGENT = 0, 4
"""Streams; they are opened in this order."""


class Unfinished(Exception):
    """It did not come to its end in time."""


@cache
def certificates() -> Path:
    directory = tempfile.TemporaryDirectory(prefix="multi-bench-mpquic-")
    atexit.register(directory.cleanup)
    write_development_certificates(Path(directory.name), [])
    return Path(directory.name)


def _engine_of(setup: Setup) -> type[PathEngine]:
    if setup.engine == "noq":
        return cast(type[PathEngine], implementation("noq"))
    if setup.urgent_first:
        return serving_first(URGENT)
    if setup.ack_blocks is not None:
        return counting_engine(setup.ack_blocks, setup.ack_order, lost_by_time=setup.lost_by_time)
    return PrivateEngine if "private_modes" in dict(setup.settings) else aioquic_engine.AioquicPathEngine


class Stage:
    """Both ends, from the client's first packet on; `client` and `server` are their applications."""

    def __init__(
        self,
        setup: Setup,
        routes: Sequence[Route],
        seed: int = 1,
        *,
        beside: Stage | None = None,
        bottleneck: Line | None = None,
        listener: type[PathEngine] | None = None,
    ) -> None:
        """`beside` and `bottleneck`: as `EnginePair` has them; `listener`: the server's engine, of aioquic, where it is
        another than the client's."""
        engine = _engine_of(setup)
        made = certificates()
        settings = MpquicSettings.model_validate(
            {
                "engine": setup.engine,
                "congestion": setup.congestion,
                "paths": max(2, len(routes)),
                **dict(setup.settings),
            }
        )
        more: dict[str, Any] = {"seed": seed} if setup.engine == "noq" else {}
        issuers = (made / "ca.pem").read_bytes()
        tls = TlsSettings(cert=made / "server-cert.pem", key=made / "server-key.pem")
        wanted = EngineSettings(QuicSettings(), TlsSettings(), issuers, "localhost", settings.policy())
        dialling = engine.configure(wanted, **more)
        served = EngineSettings(QuicSettings(), tls, policy=settings.policy())
        listening = listener.configure(served) if listener is not None else engine.configure(served, **more)
        answering = listener or engine
        self.pair: EnginePair = EnginePair(
            engine(dialling, DATAGRAM),
            lambda original: answering(listening, DATAGRAM, original),
            routes,
            seed,
            beside.pair if beside is not None else None,
            bottleneck,
        )
        self.begin = self.pair.clock.now
        self.on_connected: Callable[[], None] = lambda: None
        """The client may write."""
        self.on_request: Callable[[], None] = lambda: None
        """The server has got the first byte."""
        self._to_open = list(range(1, len(routes)))
        self.may_open = True
        """False: further paths are not opened for now."""
        self._connected = False
        self.asked = False
        """The server has been."""

    @property
    def client(self) -> EngineEnd:
        return self.pair.client

    @property
    def server(self) -> EngineEnd:
        assert self.pair.server is not None
        return self.pair.server

    @property
    def elapsed(self) -> float:
        """Seconds since the client's first packet."""
        return self.pair.clock.now - self.begin

    def at(self, delay: float, action: Callable[[], None]) -> None:
        """Do it so many seconds from now."""
        self.pair.clock.at(self.pair.clock.now + delay, action)

    def run(self, condition: Callable[[], bool], limit: float = LIMIT) -> None:
        """Until it holds. Raises Unfinished when `limit` virtual seconds pass before."""

        def stepped() -> bool:
            self.step()
            return condition()

        if not self.pair.run(stepped, limit):
            raise Unfinished(f"not done after {limit:g} s")

    def step(self) -> None:
        """Do what is to be done now; `run` does it after each event."""
        if not self.asked:
            self._begin()
        elif self._to_open:
            self._open()

    def _begin(self) -> None:
        if self.client.complete_at is None:
            return
        if not self._connected:
            self._connected = True
            self._open()
            self.on_connected()
        server = self.pair.server
        if server is not None and server.received:
            self.asked = True
            self.on_request()

    def _open(self) -> None:
        engine = cast(PathEngine, self.client.engine)
        while self._to_open and self.may_open:
            place = self.pair.place(self._to_open[0])
            path = engine.open_path(place, self.pair.clock.now)
            if path is None:
                return
            seen = self.pair.seen(self._to_open[0])
            engine.announce_path(path, place.local, seen.peer[1])
            del self._to_open[0]
            self.client.pump()
