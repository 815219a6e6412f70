"""What peers may say that no honest one says: the connection ends with a reason, or it is ignored, and costs little."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.quic.connection import QuicConnectionId
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.quic.packet_builder import QuicDeliveryState

from multi.lab.engines.links import link_of
from multi.lab.engines.pair import EnginePair
from multi.multipath.facts import VALIDATION_TIME, PathState
from multi.multipath.policy import AckPath, PathPolicy
from multi.transports.mpquic.frames import Frame, PathFrame, new_connection_id_body
from multi.transports.mpquic.path import NewId
from tests.unit.transports.mpquic.ends import (
    BOTH,
    FAST,
    TEN,
    asked,
    closed,
    connected,
    connected_engines,
    engine,
    engines_by_name,
    opened,
    pair,
)

PATHS = PathPolicy(paths=2)


@dataclass(frozen=True)
class Raw:
    """A frame of any bytes."""

    kind: int
    said: bytes

    def body(self) -> bytes:
        return self.said


def numbers(*values: int) -> bytes:
    return b"".join(map(encode_uint_var, values))


def said(made: EnginePair, *frames: Raw | Frame, seconds: float = 0.2) -> None:
    """The client says them, and the server has taken them within the default `seconds`."""
    connection = engine(made.client)._connection
    connection._due.extend(frames)
    made.client.pump()
    made.run(lambda: False, seconds)


def told_to(name: str) -> EnginePair:
    """A client that may say anything, and a server with this engine."""
    return connected_engines("aioquic", name, TEN, TEN, policy=PATHS, servers=PATHS)


def verdict(made: EnginePair) -> int | None:
    """The error code with which the server has closed, or None."""
    assert made.server is not None
    closing = made.server.engine.closing
    return None if closing is None else closing.error_code


VALID = {
    PathFrame.PATH_ACK: numbers(1, 3, 0, 0, 0),
    PathFrame.PATH_ACK_ECN: numbers(1, 3, 0, 0, 0, 1, 1, 1),
    PathFrame.PATH_ABANDON: numbers(1, 0x3E76),
    PathFrame.PATH_STATUS_BACKUP: numbers(1, 0x4001),
    PathFrame.PATH_STATUS_AVAILABLE: numbers(1, 0x4001),
    PathFrame.PATH_NEW_CONNECTION_ID: new_connection_id_body(1, 1, bytes(8), bytes(16)),
    PathFrame.PATH_RETIRE_CONNECTION_ID: numbers(1, 0x4001),
    PathFrame.MAX_PATH_ID: numbers(0x4005),
    PathFrame.PATHS_BLOCKED: numbers(0x4001),
    PathFrame.PATH_CIDS_BLOCKED: numbers(1, 0x4001),
}
NO_PATH = PathFrame.MAX_PATH_ID, PathFrame.PATHS_BLOCKED
OF_A_PATH: dict[PathFrame, bytes] = {kind: body for kind, body in VALID.items() if kind not in NO_PATH}
LATE = OF_A_PATH | {
    PathFrame.PATH_ACK: numbers(1, 0, 0, 0, 0),
    PathFrame.PATH_ACK_ECN: numbers(1, 0, 0, 0, 0, 0, 0, 0),
    PathFrame.PATH_RETIRE_CONNECTION_ID: numbers(1, 0),
    PathFrame.PATH_CIDS_BLOCKED: numbers(1, 1),
}
"""What an honest peer may say of path 1 and be heard when it has been abandoned."""


@pytest.mark.parametrize("kind", VALID)
def test_a_frame_that_is_cut_off_ends_the_connection(kind: PathFrame) -> None:
    made = pair([TEN, TEN], PATHS, PATHS)
    made.connect()
    connection = engine(made.server)._connection
    ends = []
    for length in range(len(VALID[kind])):
        ended = encode_uint_var(kind) + VALID[kind][:length]
        try:
            connection._payload_received(_context(made), ended)
        except Exception as error:  # the assertion is about which
            ends.append((type(error).__name__, getattr(error, "error_code", None)))
    assert ends == [("QuicConnectionError", QuicErrorCode.FRAME_ENCODING_ERROR)] * len(VALID[kind])


def _context(made: EnginePair) -> object:
    from aioquic.quic.connection import QuicReceiveContext
    from aioquic.tls import Epoch

    connection = engine(made.server)._connection
    path = connection._network_paths[0]
    return QuicReceiveContext(Epoch.ONE_RTT, connection.host_cid, path, None, made.clock.now, 1)


@pytest.mark.parametrize("kind", VALID)
def test_a_frame_that_is_cut_off_ends_a_connection_of_the_native_engine(kind: PathFrame) -> None:
    for length in (0, 1, len(VALID[kind]) - 1):
        made = told_to("noq")
        said(made, Raw(kind, VALID[kind][:length]))
        assert verdict(made) == QuicErrorCode.FRAME_ENCODING_ERROR, length


@BOTH
@pytest.mark.parametrize("kind", OF_A_PATH)
def test_an_id_above_the_maximum_ends_the_connection(name: str, kind: PathFrame) -> None:
    made = told_to(name)
    said(made, Raw(kind, encode_uint_var(PATHS.paths) + OF_A_PATH[kind][1:]))
    assert verdict(made) == QuicErrorCode.PROTOCOL_VIOLATION


@BOTH
def test_frames_of_paths_without_an_agreement_end_the_connection(name: str) -> None:
    for kind, body in VALID.items():
        made = engines_by_name("aioquic", name, TEN, policy=PATHS, servers=None)
        made.connect()
        said(made, Raw(kind, body))
        assert verdict(made) == QuicErrorCode.PROTOCOL_VIOLATION, kind


@BOTH
def test_what_is_said_of_an_abandoned_path_means_nothing(name: str) -> None:
    """While the native engine remembers it, lies about it end the connection as those about any path."""
    made = told_to(name)
    engine(made.client).abandon_path(1, 0, made.clock.now)
    made.client.pump()
    made.run(lambda: False, 0.3)
    said(made, *(Raw(kind, body) for kind, body in (OF_A_PATH if name == "aioquic" else LATE).items()))
    assert verdict(made) is None
    made.run(lambda: False, 3.0)
    said(made, *(Raw(kind, body) for kind, body in OF_A_PATH.items()))
    assert verdict(made) is None
    made.download(100_000)


@BOTH
def test_acknowledging_what_was_never_sent_ends_the_connection(name: str) -> None:
    made = told_to(name)
    said(made, Raw(PathFrame.PATH_ACK, numbers(1, 4000, 0, 0, 0)))
    assert verdict(made) == QuicErrorCode.PROTOCOL_VIOLATION


@BOTH
def test_a_negative_packet_number_in_an_acknowledgement_ends_the_connection(name: str) -> None:
    made = told_to(name)
    said(made, Raw(PathFrame.PATH_ACK, numbers(1, 1, 0, 0, 5)))
    assert verdict(made) == QuicErrorCode.FRAME_ENCODING_ERROR


@BOTH
def test_a_flood_of_connection_ids_ends_the_connection(name: str) -> None:
    made = told_to(name)
    flood = [
        Raw(PathFrame.PATH_NEW_CONNECTION_ID, new_connection_id_body(1, at, at.to_bytes(8, "big"), bytes(16)))
        for at in range(2, 40)
    ]
    said(made, *flood)
    assert verdict(made) == QuicErrorCode.CONNECTION_ID_LIMIT_ERROR


def said_without_end(made: EnginePair, path: int, *frames: Raw, seconds: float = 0.2) -> None:
    """The client says them on a path, heeding no congestion control; it has heard nothing of the server for long."""
    connection = engine(made.client)._connection
    for one in connection._paths.values():
        one.loss._cc.congestion_window, one.loss._cc.bytes_in_flight = 1 << 30, 0
    with connection._on(connection._paths[path]):
        said(made, *frames, seconds=seconds)


@pytest.mark.parametrize(("name", "most"), [("aioquic", 70), ("noq", 1700)])
@pytest.mark.parametrize("path", [0, 1])
def test_ids_that_are_replaced_again_and_again_by_a_peer_that_acknowledges_nothing_end_the_connection(
    name: str, most: int, path: int
) -> None:
    """Each that is replaced has to be retired, and is kept until the peer has heard of it. The native engine bounds
    those that wait to be told, and congestion control those that were."""
    made = told_to(name)
    for link in made.downs:
        link.silent = True
    for at in range(2, most, 10):
        replacing = (numbers(path, n, n) + bytes((8,)) + n.to_bytes(8, "big") + bytes(16) for n in range(at, at + 10))
        frames = (Raw(PathFrame.PATH_NEW_CONNECTION_ID, one) for one in replacing)
        said_without_end(made, path, *frames, seconds=0.01)
    made.run(lambda: False, 0.2)
    assert verdict(made) == QuicErrorCode.CONNECTION_ID_LIMIT_ERROR


@BOTH
def test_ids_may_be_replaced_without_end_by_a_peer_that_acknowledges(name: str) -> None:
    made = told_to(name)
    for at in range(2, 80):
        body = numbers(1, at, at) + bytes((8,)) + at.to_bytes(8, "big") + bytes(16)
        said(made, Raw(PathFrame.PATH_NEW_CONNECTION_ID, body))
    assert verdict(made) is None
    if name == "aioquic":
        assert engine(made.server)._connection._retiring == 0


@BOTH
def test_answers_to_challenges_that_are_never_acknowledged_keep_to_congestion_control(name: str) -> None:
    made = told_to(name)
    for link in made.downs:
        link.silent = True
    for _ in range(100):
        said_without_end(made, 0, Raw(QuicFrameType.PATH_CHALLENGE, b"answer!!"), seconds=0.003)
    path = made.facts()[0]
    assert path.bytes_in_flight < 2 * path.congestion_window + 2 * 1350


def test_an_id_that_has_not_left_cannot_be_retired() -> None:
    """Each that is retired makes another, which waits to be told: a peer that goes on before it hears of it would have
    them pile up."""
    made = connected([TEN, TEN], PATHS, PATHS)
    connection = engine(made.server)._connection
    flood = b"".join(encode_uint_var(PathFrame.PATH_RETIRE_CONNECTION_ID) + numbers(1, at) for at in range(30))
    connection._enter(connection._paths[0])
    with pytest.raises(Exception, match="never told") as caught:
        connection._payload_received(_context(made), flood)
    assert caught.value.error_code == QuicErrorCode.PROTOCOL_VIOLATION  # type: ignore[attr-defined]
    assert len(connection._due) <= 2


def test_an_id_that_was_retired_is_not_told_again_though_its_loss_is_noticed_later() -> None:
    made = connected([TEN, TEN], PATHS, PATHS)
    said(made, Raw(PathFrame.PATH_RETIRE_CONNECTION_ID, numbers(1, 1)))
    assert verdict(made) is None
    connection = engine(made.server)._connection
    gone = QuicConnectionId(cid=b"retired!", sequence_number=1, stateless_reset_token=bytes(16))
    connection._on_due_delivery(QuicDeliveryState.LOST, NewId(1, gone))
    assert not connection._due


@BOTH
def test_a_connection_id_without_length_ends_the_connection(name: str) -> None:
    made = told_to(name)
    said(made, Raw(PathFrame.PATH_NEW_CONNECTION_ID, new_connection_id_body(1, 5, b"", bytes(16))))
    assert verdict(made) == QuicErrorCode.FRAME_ENCODING_ERROR


@BOTH
def test_a_peer_that_opens_paths_without_end_makes_no_more_than_agreed_at_a_time(name: str) -> None:
    made = told_to(name)
    for _ in range(5):
        latest = opened(made.client)[-1]
        engine(made.client).abandon_path(latest, 0, made.clock.now)
        made.client.pump()
        made.run(lambda: False, 2.0)
        made.open(1)
        made.run(lambda: False, 0.2)
        assert opened(made.client)[-1] > latest
        assert len(made.facts()) <= 3
    assert opened(made.client) == [1, 2, 3, 4, 5, 6]


@BOTH
def test_challenges_that_are_never_answered_cost_a_path_its_life_and_nothing_else(name: str) -> None:
    made = engines_by_name(name, name, TEN, TEN, policy=PATHS, servers=PATHS)
    made.connect()
    made.downs[1].silent = True
    made.open(1)
    assert made.run(lambda: bool(closed(made.client)), 10.0)
    assert made.downs[1].sent * 1350 <= 3 * made.ups[1].carried + 1350
    made.download(100_000)


def both_active(made: EnginePair) -> bool:
    """Each end has heard the other's answer on the second path."""
    paths = (made.facts(end).get(1) for end in (made.client, made.server))
    return all(path is not None and path.state is PathState.ACTIVE for path in paths)


def test_the_answer_to_a_challenge_is_asked_for_again_where_it_is_lost() -> None:
    """The challenge itself was acknowledged, and nobody sends an answer twice."""
    longest = 0.0
    for seed in range(32):
        made = pair([FAST, (replace(link_of(50, 0.020), loss=0.05),) * 2])
        made.clock.random.seed(seed)
        made.connect()
        made.open_all()
        begin = made.clock.now
        assert made.run(partial(both_active, made), VALIDATION_TIME), seed
        longest = max(longest, made.clock.now - begin)
    assert longest < 1.2, "a challenge that is lost comes again after a second"


def test_an_answer_on_a_way_back_slower_than_that_of_acknowledgements_is_waited_for() -> None:
    """Those come over the other path. Challenges made again and again meanwhile were more than an end remembers."""
    quick, slow = link_of(50, 0.020), link_of(50, 3.0)
    made = pair([FAST, (quick, slow)])
    made.connect()
    made.open_all()
    assert made.run(partial(both_active, made), 1.7)
    assert 0 < engine(made.client)._connection._paths[1].unanswered < 6


@pytest.mark.parametrize("near", [0.020, 0.190])
def test_a_first_path_that_is_abandoned_before_the_handshake_is_confirmed_is_told_nothing_any_more(
    near: float,
) -> None:
    """Limits, and the abandonment itself, were said where they cannot be heard."""
    made = pair([(link_of(50, 0.200),) * 2, (link_of(50, near),) * 2])
    assert made.run(lambda: made.server is not None)
    # The frame that confirms it is lost each time.
    engine(made.server)._connection._write_handshake_done_frame = lambda builder: None  # type: ignore[method-assign]
    made.connect()
    made.open_all()
    server, connection = asked(made), engine(made.client)._connection
    assert made.run(lambda: opened(made.client) == [1])
    made.ups[0].silent = made.downs[0].silent = True
    engine(made.client).abandon_path(0, 0x3E, made.clock.now)
    made.client.pump()
    server.write(bytes(2_000_000))
    assert made.run(lambda: made.client.received == 2_000_000, 5.0)
    assert not connection._handshake_confirmed
    assert made.run(lambda: 0 not in connection._paths, 10.0)
    server.write(b"more")
    assert made.run(lambda: made.client.received == 2_000_004, 1.0)


def test_an_address_that_has_not_answered_gets_three_times_what_came_from_it() -> None:
    made = connected([TEN, TEN], PATHS, PATHS)
    server = asked(made)
    server.write(bytes(2_000_000), end=True)
    made.run(lambda: made.client.received > 200_000)
    made.move(1)  # somebody forwards packets of the path from an address of his own and hears no answers
    made.downs[1].silent = True
    came, went = made.ups[1].carried, made.downs[1].sent
    made.run(lambda: made.downs[1].sent > went, 0.5)
    made.run(lambda: False, 0.03)
    assert (made.downs[1].sent - went) * 1350 <= 3 * (made.ups[1].carried - came) + 80_000  # what was on its way


@BOTH
def test_a_storm_of_rebindings_is_lived_through(name: str) -> None:
    made = connected_engines(name, name, TEN, TEN, policy=PATHS, servers=PATHS)
    server = asked(made)
    server.write(bytes(1_000_000), end=True)
    for _ in range(40):
        made.run(lambda: made.client.ended, 0.02)
        made.move(1)
    assert made.run(lambda: made.client.ended, 8.0)
    assert len(made.facts()) == 2


def test_a_path_that_has_another_address_as_it_is_abandoned_leaves_no_window_behind() -> None:
    """The answer to a challenge at the new address comes after the abandonment, which was said over a nearer path."""
    coupled = PathPolicy(congestion="olia", paths=2)
    made = connected([TEN, (link_of(10, 0.400),) * 2], coupled, coupled)
    made.download(50_000)
    made.run(lambda: False, 1.0)
    server = engine(made.server)._connection
    assert server._coupled is not None
    path, windows = server._paths[1], server._coupled.windows
    assert len(windows) == 2
    made.move(1, address=True)
    engine(made.client).suspect_path(0, made.clock.now)
    made.client.write(b"x")  # on path 1
    made.run(lambda: False, 0.420)
    engine(made.client).abandon_path(1, 0, made.clock.now)
    made.client.pump()
    assert made.run(lambda: path.state is PathState.ABANDONED, 0.1)
    assert not path.kept["_network_paths"][0].is_validated
    assert made.run(lambda: path.kept["_network_paths"][0].is_validated, 0.5)
    assert path.answered_at is not None
    assert path.answered_at.peer[0] == "10.1.0.1"
    assert len(windows) == 1
    assert made.run(lambda: 1 not in server._paths, 20.0)
    assert len(windows) == len(server._paths) == 2  # it has made room for another


def test_round_trips_by_way_of_paths_that_are_gone_are_forgotten() -> None:
    """What comes on the far path is acknowledged on a near one, of which there is another each time."""
    best = PathPolicy(paths=2, ack_path=AckPath.BEST)
    made = connected([(link_of(10, 0.100),) * 2, (link_of(10, 0.020),) * 2], best, best)
    asked(made).write(bytes(8_000_000))
    path = engine(made.server)._connection._paths[0]
    for latest in range(1, 7):
        assert made.run(lambda latest=latest: path.carrier == latest, 5.0)  # type: ignore[misc]
        engine(made.client).abandon_path(latest, 0, made.clock.now)
        made.client.pump()
        assert made.open(1) == latest + 1
    assert len(path.min_rtts) <= 3


@BOTH
def test_datagrams_that_come_twice_change_nothing(name: str) -> None:
    made = connected_engines(name, name, TEN, TEN, policy=PATHS, servers=PATHS)
    for link in (*made.ups, *made.downs):
        link.copies = 2
    made.download(300_000)
    assert verdict(made) is None


@BOTH
def test_a_path_on_which_large_datagrams_vanish_is_not_used(name: str) -> None:
    narrow = link_of(10, 0.044, largest=1199)
    made = engines_by_name(name, name, TEN, (narrow, narrow), policy=PATHS, servers=PATHS)
    made.connect()
    made.open(1)
    assert made.run(lambda: bool(closed(made.client)), 10.0)
    made.download(200_000)


@BOTH
def test_a_path_that_carries_1280_bytes_only_does_not_lose_data(name: str) -> None:
    narrow = link_of(10, 0.044, largest=1280)
    made = engines_by_name(name, name, TEN, (narrow, narrow), policy=PATHS, servers=PATHS)
    made.connect()
    made.open(1)
    made.download(500_000, limit=20.0)


@BOTH
def test_random_loss_on_both_paths_loses_nothing(name: str) -> None:
    lossy = link_of(10, 0.044, loss=0.02)
    made = connected_engines(name, name, (lossy, lossy), (lossy, lossy), policy=PATHS, servers=PATHS)
    made.client.keep_data = True
    payload = bytes(range(251)) * 2000
    server = asked(made)
    server.write(payload, end=True)
    assert made.run(lambda: made.client.ended, 20.0)
    assert bytes(made.client.data) == payload


@BOTH
def test_datagrams_that_overtake_each_other_on_both_paths_lose_nothing(name: str) -> None:
    shaken = link_of(10, 0.044, jitter=0.010)
    made = connected_engines(name, name, (shaken, shaken), (shaken, shaken))
    made.client.keep_data = True
    payload = bytes(range(251)) * 2000
    server = asked(made)
    server.write(payload, end=True)
    assert made.run(lambda: made.client.ended)
    assert bytes(made.client.data) == payload
    assert made.client.engine.closing is server.engine.closing is None
