"""The `mpquic` transport: one QUIC connection with a path over each interface (RFC 10069).

Where the peer does not speak it the connection is plain QUIC on its first path: the channel is kept and says so.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import cast

from multi.multipath.fewer import FewerPaths
from multi.transports.base import Channel, TransportSettings
from multi.transports.dials import HEAD_START, first_to_answer
from multi.transports.mpquic.channel import MpquicChannel
from multi.transports.mpquic.settings import MpquicSettings
from multi.transports.quic.channel import QuicChannel
from multi.transports.quic.engine import EngineSettings, PathEngine, QuicEngine, implementation
from multi.transports.quic.transport import Quic, connected_socket
from multi.transports.quic.udp_port import PeerAddress, UdpPort
from multi.types import Candidate, Source


class Mpquic(Quic):
    """QUIC with several paths. Its listener takes plain QUIC too; `info.transport` says which it is."""

    name = "mpquic"
    CHANNEL = MpquicChannel

    async def dial(self, candidate: Candidate, settings: TransportSettings) -> Channel:
        """The first of its networks on which the server answers gives the first path; each has a head start."""
        dial = super().dial
        dials = [partial(dial, candidate.begun_from(source), settings) for source in candidate.sources]
        return await first_to_answer(dials, HEAD_START, after_failure=True)

    def _engine(self, settings: TransportSettings) -> type[QuicEngine]:
        mpquic = settings.section("mpquic", MpquicSettings)
        if mpquic.chosen_engine == "noq":
            return implementation("noq")
        aioquic = import_module("multi.transports.mpquic.aioquic_engine")
        aioquic.check()
        if mpquic.private_modes:
            return cast(type[PathEngine], import_module("multi.transports.mpquic.private").PrivateEngine)
        return cast(type[PathEngine], aioquic.AioquicPathEngine)

    async def _loaded_engine(self, settings: TransportSettings) -> type[QuicEngine]:
        return await asyncio.to_thread(self._engine, settings)

    def _refined(self, wanted: EngineSettings, settings: TransportSettings) -> EngineSettings:
        mpquic = settings.section("mpquic", MpquicSettings)
        quic = wanted.quic.model_copy(update={"idle_timeout": mpquic.idle_timeout})
        return replace(wanted, quic=quic, policy=mpquic.policy())

    def _peer(self, sock: socket.socket) -> PeerAddress:
        return _ends(sock, 0)

    def choice(self, settings: TransportSettings) -> str:
        mpquic = settings.section("mpquic", MpquicSettings)
        return f"engine {mpquic.chosen_engine}" if mpquic.engine == "auto" else ""

    def warnings(self, settings: TransportSettings) -> list[str]:
        modes = settings.section("mpquic", MpquicSettings).private_modes
        if not modes:
            return []
        named = ", ".join(modes)
        return [f"mpquic_config.private_modes: {named}: for experiments between ends of multi (docs/security.md)"]

    def _dialled(self, channel: QuicChannel, candidate: Candidate, settings: TransportSettings) -> None:
        assert isinstance(channel, MpquicChannel)
        if channel.info.fell_back:
            return
        made = 0

        def open_socket(source: Source) -> tuple[UdpPort, PeerAddress]:
            nonlocal made
            made += 1
            sock = connected_socket(candidate.over(source))
            ends = _ends(sock, made)
            return UdpPort(sock, ends), ends

        mpquic = settings.section("mpquic", MpquicSettings)
        fewer = FewerPaths() if mpquic.tries_fewer else None
        channel.keep(candidate.sources, mpquic.trial_ms / 1000, open_socket, fewer)


def _ends(sock: socket.socket, number: int) -> PeerAddress:
    """What tells the paths of a client apart: two networks may have given it the same address."""
    packed = socket.inet_pton(sock.family, sock.getsockname()[0].partition("%")[0])
    return PeerAddress(sock.getpeername(), packed, number)
