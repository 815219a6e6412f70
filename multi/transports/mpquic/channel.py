"""A channel over one QUIC connection with several paths: a socket for each on a client, one for all on a server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, cast

from multi.errors import TransportError, counted
from multi.multipath.facts import PathState
from multi.multipath.fewer import FewerPaths
from multi.multipath.keeper import AbandonPath, OpenPath, PathKeeper, SetBackup, SuspectPath
from multi.multipath.scheduling import usable
from multi.transports.base import SteeredChannel
from multi.transports.quic.channel import BURST_TIME, MAX_BURST, MAX_SLACK, MIN_BURST, QuicChannel
from multi.transports.quic.engine import EngineError, PathClosed, PathEngine, PathOpened
from multi.transports.quic.udp_port import Burst, PeerAddress, UdpPort
from multi.types import Source

logger = logging.getLogger("multi.transports")

FELL_BACK = "the peer does not speak multipath QUIC"
STAYS = "the peer takes no further paths (disable_active_migration)"

OpenPort = Callable[[Source], tuple[UdpPort, PeerAddress]]
"""From there to the server. Raises TransportError."""


class MpquicChannel(QuicChannel, SteeredChannel):
    """See `QuicChannel`. `info` follows the paths as they come and go."""

    _keeper: PathKeeper | None = None
    _fewer: FewerPaths | None = None
    _open_socket: OpenPort
    _keeper_timer: asyncio.TimerHandle | None = None
    _acting = False

    @property
    def _paths(self) -> PathEngine:
        return cast(PathEngine, self.engine)

    def keep(self, sources: Sequence[Source], trial: float, open_socket: OpenPort, fewer: FewerPaths | None) -> None:
        """Open paths over all networks but the first, which it came by, and have one over each from now on; `fewer`:
        unless it says which is to carry all data."""
        self._ports: dict[PeerAddress, UdpPort] = {}
        self._path_from: dict[PeerAddress, int] = {}
        self._open_socket = open_socket
        self._keeper = PathKeeper(sources[0], trial)
        self._fewer = fewer
        self.use(sources)

    def secured(self, verified: bool, server_certificate: bytes) -> None:
        super().secured(verified, server_certificate)
        self._describe()

    # --- networks  ---

    def use(self, sources: Sequence[Source], blocked: Collection[str] = ()) -> None:
        """These networks are there and wanted, and no others; interfaces that are `blocked` are left at once."""
        if self._keeper is not None:
            self._keeper.use(sources, time.monotonic(), blocked)
            self._act()

    def network_lost(self, interface: str, address: str) -> None:
        """For certain: its carrier, or with `address` that one."""
        if self._keeper is not None:
            self._keeper.network_lost(interface, address, time.monotonic())
            self._act()

    def signal_changed(self, interface: str, fading: bool) -> None:
        """A network grows weak, or is well again."""
        if self._keeper is not None:
            self._keeper.signal_changed(interface, fading, time.monotonic())
            self._act()

    def slept(self) -> None:
        """Nothing is known of any network."""
        if self._keeper is not None:
            self._keeper.slept()
            self._act()

    def works_over(self, interfaces: Collection[str]) -> bool:
        """A path over one of these answers."""
        known = self._keeper.answered(interfaces) if self._keeper is not None else []
        return any(path.id in known and path.state is PathState.ACTIVE for path in self._paths.paths())

    def prefer(self, interfaces: Collection[str]) -> None:
        """Let the paths over these carry everything."""
        if self._keeper is not None:
            self._keeper.prefer(interfaces, time.monotonic())
            self._act()

    def _act(self) -> None:
        """Do what the keeper says, which may lead to more."""
        keeper = self._keeper
        if keeper is None or self._acting or self._is_closed():
            return
        self._acting = True
        try:
            while effects := keeper.effects():
                for effect in effects:
                    self._do(effect, time.monotonic())
        except EngineError as error:
            self._lose(error)
            return
        finally:
            self._acting = False
        if self._keeper_timer is not None:
            self._keeper_timer.cancel()
        at = keeper.next_timer()
        self._keeper_timer = (
            self._loop.call_later(max(0.0, at - time.monotonic()), self._keeper_due) if at is not None else None
        )
        self.burst_finished()

    def _keeper_due(self) -> None:
        self._keeper_timer = None
        if self._keeper is not None:
            self._keeper.handle_timer(time.monotonic())
            self._act()

    def _do(self, effect: Any, now: float) -> None:
        assert self._keeper is not None
        match effect:
            case OpenPath(source, backup):
                self._open_path(source, backup, now)
            case AbandonPath(source, path, code):
                logger.info("%s: path %d over %s is given up", self._info.remote, path, source.interface)
                self._paths.abandon_path(path, code, now)
            case SuspectPath(path):
                self._paths.suspect_path(path, now)
            case SetBackup(path, backup):
                self._paths.set_backup(path, backup)

    def _open_path(self, source: Source, backup: bool, now: float) -> None:
        assert self._keeper is not None
        try:
            port, address = self._open_socket(source)
        except TransportError as error:
            logger.info("%s: no path over %s: %s", self._info.remote, source.interface or source.address, error)
            self._keeper.not_opened(source, now)
            return
        path = self._paths.open_path(address, now, backup)
        if path is None:
            port.close()
            self._keeper.not_opened(source, now)
            return
        self._paths.announce_path(path, address.local, port.address[1])
        self._ports[address] = port
        self._path_from[address] = path
        port.start(_PathPort(self, port, path))
        self._keeper.opened(source, path, now)

    def path_failed(self, path: int) -> None:
        """Its socket has heard that nothing leaves there."""
        try:
            self._paths.suspect_path(path, time.monotonic())
        except EngineError as error:
            self._lose(error)
            return
        self.burst_finished()

    def _path_event(self, event: Any) -> None:
        now = time.monotonic()
        keeper = self._keeper
        if keeper is not None and isinstance(event, PathOpened):
            keeper.validated(event.path, now)
        elif keeper is not None and isinstance(event, PathClosed):
            keeper.closed(event.path, now)
            for address in [address for address, path in self._path_from.items() if path == event.path]:
                del self._path_from[address]
                self._ports.pop(address).close()
        self._describe()
        self._loop.call_soon(self._act)

    def _describe(self) -> None:
        engine = self._paths
        if not engine.multipath or (self._server and not engine.takes_paths):
            self._info = replace(self._info, transport="quic")
            if self._server:
                self._info = replace(self._info, fell_back=True, detail=STAYS if engine.multipath else FELL_BACK)
            return
        answering = [path.id for path in engine.paths() if path.state is not PathState.VALIDATING]
        detail = counted(len(answering), "path")
        if self._keeper is not None:
            detail += f" ({', '.join(self._keeper.networks(answering))})"
        if (detail, len(answering)) != (self._info.detail, self._info.subflows):
            self._info = replace(self._info, transport="mpquic", detail=detail, subflows=len(answering))

    def _use_fewer(self, keeper: PathKeeper, fewer: FewerPaths, now: float) -> None:
        """Leave all data to one path where the processor carries no more over several."""
        before, carrying = fewer.only, keeper.carrying()
        paths = [path for path in self._paths.paths() if path.id in carrying and path.state is PathState.ACTIVE]
        carried = {path.id: path.acked + path.received for path in sorted(paths, key=lambda path: path.min_rtt)}
        fewer.look(now, time.thread_time(), carried)
        if fewer.only == before:
            return
        which = "all paths" if fewer.only is None else f"path {fewer.only} alone"
        logger.info("%s: data goes over %s", self._info.remote, which)
        keeper.use_only(fewer.only)
        self._act()

    # --- what QuicChannel asks  ---

    def _measure(self) -> None:
        super()._measure()
        if self._keeper is not None and self._fewer is not None and self._fewer.due(now := time.monotonic()):
            self._use_fewer(self._keeper, self._fewer, now)

    def _transmit(self) -> None:
        self._paths.waiting = self._sink.waiting if self._sink is not None else 0
        super()._transmit()

    def _room(self) -> int:
        """What the paths that carry data take soon; each has its bound of queueing in the engine."""
        if not self._paths.multipath:
            return super()._room()
        room = 0
        for path in usable(self._paths.paths()):
            own = max(0, path.congestion_window - path.bytes_in_flight)
            if path.rtt:
                paced = int(path.congestion_window / path.rtt * BURST_TIME)
                own = min(own, max(MIN_BURST, min(paced, MAX_BURST)))
            room += own
        return room + MAX_SLACK

    def _most(self) -> int:
        return self.engine.congestion_window if self._paths.multipath else super()._most()

    def _blocked(self) -> bool:
        return self._port.blocked and all(port.blocked for port in self._further())

    def _further(self) -> Iterable[UdpPort]:
        return self._ports.values() if self._keeper is not None else ()

    def _waited(self, now: float) -> float:
        return max([self._port.waited(now), *(port.waited(now) for port in self._further())])

    def _send(self, bursts: Sequence[Burst]) -> None:
        if self._keeper is None:
            super()._send(bursts)
            return
        for address, those in groupby(bursts, key=lambda burst: burst.address):
            of_path = list(those)
            try:
                self._ports.get(address, self._port).send(of_path, self._at_once(of_path[0].segment))
            except OSError:  # one network is gone, the others are not
                self._loop.call_soon(self.path_failed, of_path[0].path)

    def port_failed(self, error: OSError) -> None:
        if self._keeper is None or not self._ports:
            super().port_failed(error)
        else:
            self.path_failed(0)

    def _release(self, code: int | None, reason: str = "") -> None:
        super()._release(code, reason)
        if self._keeper_timer is not None:
            self._keeper_timer.cancel()
        for port in self._further():
            port.close()


class _PathPort:
    """The user of a further socket."""

    def __init__(self, channel: MpquicChannel, port: UdpPort, path: int) -> None:
        self._channel, self._port, self._path = channel, port, path
        self.datagrams_received = channel.datagrams_received
        self.burst_finished = channel.burst_finished
        self.port_writable = channel.port_writable

    def port_failed(self, error: OSError) -> None:
        """Like silence: the network may be back, and the socket then works again."""
        self._channel.path_failed(self._path)
