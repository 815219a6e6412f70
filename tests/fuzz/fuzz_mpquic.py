"""What an authenticated stranger says about paths: frames of RFC 10069 within valid packets, and the parameter."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

from aioquic.buffer import encode_uint_var
from aioquic.quic.connection import END_STATES, QuicConnectionError, QuicReceiveContext
from aioquic.tls import Epoch

from multi.lab.engines.links import DatagramLink
from multi.lab.engines.pair import EnginePair
from multi.multipath.policy import PRIVATE_MODES, PathPolicy
from multi.transports.mpquic import connection, frames, paths, private
from multi.transports.mpquic.frames import INITIAL_MAX_PATH_ID, MAX_PATH_ID, PathFrame, parameter, pull_parameter
from multi.transports.mpquic.private import ANNOUNCE_ADDRESS, PARAMETER, PrivateEngine
from multi.transports.quic.udp_port import PeerAddress
from tests.fuzz.mutation import Choices
from tests.fuzz.target import Target, check
from tests.unit.transports.mpquic.ends import TEN, connected, engine, pair

MAX_PATHS = 8
FRESH = 1 << 20  # bytes; whoever ends a connection is given a new one, which is not his doing
_LIVES = 64  # inputs for one server


class _Server:
    """A connection whose client says anything."""

    def __init__(self, modes: tuple[str, ...]) -> None:
        if modes:
            policy = PathPolicy(private_modes=modes)
            self.pair = pair([TEN, TEN], policy, policy, (PrivateEngine, PrivateEngine))
            self.pair.connect()
            self.pair.open(1)
        else:
            self.pair = connected([TEN, TEN])
        assert self.pair.server is not None
        self.pair.server.links = _Anywhere(self.pair)
        self.left = _LIVES


class _Anywhere(dict[PeerAddress, DatagramLink]):
    """The links of a server that is told to send somewhere else."""

    def __init__(self, made: EnginePair) -> None:
        assert made.server is not None
        super().__init__(made.server.links)
        self._nowhere = DatagramLink(TEN[0], made.clock, lambda data: None)

    def __missing__(self, address: PeerAddress) -> DatagramLink:
        return self._nowhere


@cache
def _servers(modes: tuple[str, ...]) -> list[_Server]:
    return []


def _server(modes: tuple[str, ...]) -> _Server:
    known = _servers(modes)
    if not known or known[0].left <= 0:
        known[:] = [_Server(modes)]
    known[0].left -= 1
    return known[0]


def run_frames(data: bytes) -> None:
    """Frames in packets on either path: refused by closing, or taken within all limits."""
    _run_frames(data, ())


def run_private_frames(data: bytes) -> None:
    """The same where all private modes are in force."""
    _run_frames(data, PRIVATE_MODES)


def _run_frames(data: bytes, modes: tuple[str, ...]) -> None:
    server = _server(modes)
    made, choices = server.pair, Choices(data)
    protocol = engine(made.server)._connection
    kinds = (*PathFrame, *PathFrame, *((ANNOUNCE_ADDRESS, 0x02, 0x1B) if modes else ()), 0x02, 0x18, 0x19)
    while choices.left:
        kind = choices.pick((*kinds, choices.byte()))
        body = choices.take(choices.pick((1, 2, 4, 8, 28, 40)))
        path = choices.pick(list(protocol._paths.values()))
        made.clock.now += 0.01
        protocol._enter(path)
        if not protocol._network_paths:
            continue
        context = QuicReceiveContext(
            Epoch.ONE_RTT, protocol.host_cid, protocol._network_paths[0], None, made.clock.now, 1
        )
        try:
            protocol._payload_received(context, encode_uint_var(kind) + body)
        except QuicConnectionError:
            server.left = 0
            break
        made.server.pump() if made.server is not None else None
        if protocol._state in END_STATES:
            server.left = 0
            break
    check(len(protocol._paths) <= MAX_PATHS, "paths without end")
    check(len(protocol._path_of_id) <= 2 * MAX_PATHS + 2, "ids without end")
    check(len(protocol._due) <= 256, "frames without end")


def frame_seeds() -> list[bytes]:
    return [bytes([at, *range(at, at + 40)]) for at in range(0, 200, 11)]


def run_parameter(data: bytes) -> None:
    """Either a number that may be, or a ValueError: a maximum, or private modes."""
    for wanted in (INITIAL_MAX_PATH_ID, PARAMETER):
        with suppress(ValueError):
            found = pull_parameter(data, wanted)
            check(found is None or 0 <= found <= MAX_PATH_ID, "a number beyond the largest")


def parameter_seeds() -> list[bytes]:
    other = encode_uint_var(0x0F) + encode_uint_var(8) + bytes(8)
    modes = encode_uint_var(PARAMETER) + encode_uint_var(1) + encode_uint_var(3)
    return [parameter(3), other + parameter(3), parameter(MAX_PATH_ID), parameter(0) + other, other + modes, b""]


def private_seeds() -> list[bytes]:
    return [*frame_seeds(), *(bytes([at, 5, 1, 4, 10, 1, 0, 1, 67, 232]) for at in range(20, 24))]


TARGETS = (
    Target("mpquic_frames", run_frames, frame_seeds, (frames, paths, connection), short=40, memory_base=FRESH),
    Target("mpquic_private", run_private_frames, private_seeds, (private,), short=40, memory_base=FRESH),
    Target("mpquic_parameter", run_parameter, parameter_seeds, (frames,)),
)
