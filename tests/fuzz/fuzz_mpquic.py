"""What an authenticated stranger says about paths: frames of RFC 10069 within valid packets, and the parameter."""

from __future__ import annotations

from functools import cache

from aioquic.buffer import encode_uint_var
from aioquic.quic.connection import END_STATES, QuicConnectionError, QuicReceiveContext
from aioquic.tls import Epoch

from multi.transports.mpquic import connection, frames, paths
from multi.transports.mpquic.frames import MAX_PATH_ID, PathFrame, parameter, pull_parameter
from tests.fuzz.mutation import Choices
from tests.fuzz.target import Target, check
from tests.unit.transports.mpquic.ends import TEN, connected, engine

PATHS_MOST = 8
FRESH = 1 << 20  # bytes; whoever ends a connection is given a new one, which is not his doing
_LIVES = 64  # inputs for one server


class _Server:
    """A connection whose client says anything."""

    def __init__(self) -> None:
        self.pair = connected([TEN, TEN])
        self.left = _LIVES


@cache
def _servers() -> list[_Server]:
    return []


def _server() -> _Server:
    known = _servers()
    if not known or known[0].left <= 0:
        known[:] = [_Server()]
    known[0].left -= 1
    return known[0]


def run_frames(data: bytes) -> None:
    """Frames in packets on either path: refused by closing, or taken within all limits."""
    server = _server()
    made, choices = server.pair, Choices(data)
    protocol = engine(made.server)._connection
    while choices.left:
        kind = choices.pick((*PathFrame, *PathFrame, 0x02, 0x18, 0x19, choices.byte()))
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
    check(len(protocol._paths) <= PATHS_MOST, "paths without end")
    check(len(protocol._path_of_id) <= 2 * PATHS_MOST + 2, "ids without end")
    check(len(protocol._due) <= 256, "frames without end")


def frame_seeds() -> list[bytes]:
    return [bytes([at, *range(at, at + 40)]) for at in range(0, 200, 11)]


def run_parameter(data: bytes) -> None:
    """Either a maximum that may be, or a ValueError."""
    try:
        found = pull_parameter(data)
    except ValueError:
        return
    check(found is None or 0 <= found <= MAX_PATH_ID, "a maximum beyond the largest")


def parameter_seeds() -> list[bytes]:
    other = encode_uint_var(0x0F) + encode_uint_var(8) + bytes(8)
    return [parameter(3), other + parameter(3), parameter(MAX_PATH_ID), parameter(0) + other, b""]


TARGETS = (
    Target("mpquic_frames", run_frames, frame_seeds, (frames, paths, connection), short=40, memory_base=FRESH),
    Target("mpquic_parameter", run_parameter, parameter_seeds, (frames,)),
)
