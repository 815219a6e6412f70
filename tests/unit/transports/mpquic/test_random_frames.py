"""What the native engine makes of a peer with the right keys that says anything, and of packets that are changed on the
way: the connection goes on or ends with an error of QUIC, nothing is raised, and another connection is served."""

from __future__ import annotations

import random

import pytest
from aioquic.quic.packet import QuicErrorCode, QuicFrameType

from multi.lab.engines.pair import EngineEnd
from multi.multipath.facts import PathError
from multi.transports.mpquic.frames import PathFrame, new_connection_id_body
from multi.transports.quic.udp_port import PeerAddress
from tests.unit.transports.mpquic.test_paths import VALID, Raw, numbers, said, told_to

pytestmark = pytest.mark.slow  # whole engines in virtual time

CONNECTIONS = 40
DATAGRAMS = 10  # to each, as long as it lasts
EDGES = (2, 3, 7, 8, 63, 64, 1 << 14, (1 << 32) - 1, 1 << 32, (1 << 62) - 1)
CODES = {*QuicErrorCode, *PathError, *range(0x100, 0x200)}
"""Those of TLS are above 0x100."""
NUMBERS = {PathFrame.PATH_ACK: 5, PathFrame.PATH_ACK_ECN: 8, PathFrame.MAX_PATH_ID: 1, PathFrame.PATHS_BLOCKED: 1}
"""Of which a frame consists; two where nothing is said."""


def drawn(chance: random.Random) -> Raw:
    """A frame: mostly one of a path that could be right, else with large numbers, cut off, longer, changed, or of any
    kind."""
    kind = chance.choice(list(VALID))
    values = [chance.choice((0, 0, 1)) for _ in range(NUMBERS.get(kind, 2))]
    if chance.random() < 0.1:
        values[chance.randrange(len(values))] = chance.choice(EDGES)
    body = numbers(*values)
    if kind is PathFrame.PATH_NEW_CONNECTION_ID:
        length = 8 if chance.random() < 0.9 else chance.choice((0, 1, 20, 21))
        body = new_connection_id_body(values[0], values[1], chance.randbytes(length), bytes(16))
    match chance.randrange(40):
        case 0:
            body = body[: chance.randrange(len(body))]
        case 1:
            body += chance.randbytes(chance.choice((1, 8, 300)))
        case 2:
            body = changed(VALID[kind], chance)
        case 3:
            return Raw(chance.choice(list(QuicFrameType)), chance.randbytes(chance.randrange(40)))
    return Raw(kind, body)


def changed(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)


def noted(server: EngineEnd) -> list[bytes]:
    """Datagrams that it is given from now on."""
    given: list[bytes] = []
    take = server.take

    def note(data: bytes, address: PeerAddress) -> None:
        given.append(data)
        take(data, address)

    server.take = note  # type: ignore[method-assign]
    return given


@pytest.mark.parametrize("seed", range(3))
def test_anything_that_is_said_is_taken_or_ends_the_connection(seed: int) -> None:
    chance = random.Random(seed)
    other, taken, ended = told_to("noq"), 0, 0
    for _ in range(CONNECTIONS):
        made = told_to("noq")
        assert made.server is not None
        given = noted(made.server)
        for _ in range(DATAGRAMS):
            said(made, *(drawn(chance) for _ in range(chance.randint(1, 2))), seconds=0.05)
            for data in list(given):
                made.server.take(changed(data, chance), made.seen(chance.randrange(2)))
            given.clear()
            if made.server.engine.closing or made.client.engine.closing:
                break
            taken += 1
        if (closing := made.server.engine.closing) is not None:
            assert closing.error_code in CODES
            ended += 1
    assert min(taken, ended) > CONNECTIONS // 2
    other.download(100_000)
