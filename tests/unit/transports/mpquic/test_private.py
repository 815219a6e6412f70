"""What is in force only between two ends that ask for it, and only by name."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any, cast

import pytest

from multi.lab.engines.links import DatagramLinkSpec, link_of
from multi.lab.engines.pair import EnginePair
from multi.multipath.facts import PathState
from multi.multipath.policy import PRIVATE_MODES, AckPath, PathPolicy
from multi.schedulers import create_scheduler
from multi.transports.mpquic.aioquic_engine import AioquicPathEngine
from multi.transports.mpquic.frames import PathFrame
from multi.transports.mpquic.private import (
    ANNOUNCE_ADDRESS,
    Due,
    PrivateConnection,
    PrivateEngine,
    PrivateMode,
    modes_named,
)
from multi.transports.quic.engine import PathEngine
from tests.engines import engine_or_skip
from tests.unit.transports.mpquic.ends import DEFAULT, TEN, closed, engine, opened, pair

ROUND_TRIP = 0.044  # of TEN
QUARTER = 250_000
Specs = list[tuple[DatagramLinkSpec, DatagramLinkSpec]]


def private(specs: Specs, *modes: str, ack_path: AckPath = AckPath.BEST, last: bool = True) -> EnginePair:
    """Both ends ask for these modes; all paths are open, with `last=False` all but the last."""
    policy = PathPolicy(private_modes=modes, ack_path=ack_path)
    made = pair(specs, policy, policy, (PrivateEngine, PrivateEngine))
    made.connect()
    for index in range(1, len(specs) if last else len(specs) - 1):
        made.open(index)
    return made


def announce(made: EnginePair, index: int, *, host: bytes | None = None) -> int:
    """Open a path over a link and say where the client is on it, or elsewhere."""
    path = made.open(index)
    cast(PrivateEngine, made.client.engine).announce_path(path, host or bytes([10, index, 0, 1]), 1000)
    made.client.pump()
    return path


def asked(made: EnginePair, size: int) -> None:
    """A download has begun."""
    server = made.server
    assert server is not None
    made.client.write(b"?")
    assert made.run(lambda: server.received > 0)
    server.write(bytes(size))


# --- who has them  ---


@pytest.mark.parametrize("name", PRIVATE_MODES)
def test_a_mode_is_in_force_where_both_ends_name_it(name: str) -> None:
    both, none = PathPolicy(private_modes=(name,)), PathPolicy()
    for client, server, expected in (
        (both, both, modes_named([name])),
        (both, none, PrivateMode(0)),
        (none, both, PrivateMode(0)),
    ):
        made = pair([TEN], client, server, (PrivateEngine, PrivateEngine))
        made.connect()
        assert made.server is not None
        for end in (made.client, made.server):
            assert cast(PrivateEngine, end.engine).private_modes == expected


@pytest.mark.parametrize("we_are", ["client", "server"])
@pytest.mark.parametrize("foreign", ["aioquic", "noq"])
def test_another_implementation_gets_the_rfc(foreign: str, we_are: str) -> None:
    """The ordinary engine knows no more of private modes than any other that follows RFC 10069."""
    other = AioquicPathEngine if foreign == "aioquic" else cast(type[PathEngine], engine_or_skip("noq"))
    ours = PathPolicy(private_modes=PRIVATE_MODES)
    if we_are == "client":
        made = pair([TEN, TEN], ours, DEFAULT, (PrivateEngine, other))
    else:
        made = pair([TEN, TEN], DEFAULT, ours, (other, PrivateEngine))
    made.connect()
    announce(made, 1) if we_are == "client" else made.open(1)
    assert made.run(lambda: opened(made.client) == [1])
    assert made.server is not None
    us = made.client if we_are == "client" else made.server
    assert cast(PrivateEngine, us.engine).private_modes == PrivateMode(0)
    made.download(QUARTER)
    assert all(link.carried > 1200 for link in made.downs)


def test_an_end_without_paths_gets_plain_quic() -> None:
    made = pair([TEN], PathPolicy(private_modes=PRIVATE_MODES), None, (PrivateEngine, AioquicPathEngine))
    made.connect()
    assert not engine(made.client).multipath
    made.download(10_000)


def test_the_frame_of_a_mode_that_is_not_in_force_ends_the_connection() -> None:
    modes = PathPolicy(private_modes=("one_number_space",))
    made = pair([TEN, TEN], PathPolicy(private_modes=PRIVATE_MODES), modes, (PrivateEngine, PrivateEngine))
    made.connect()
    connection = cast(PrivateEngine, made.client.engine)._connection
    connection._modes |= PrivateMode.UNIFLOWS  # it lies to itself
    announce(made, 1)
    made.run(lambda: False, 0.5)
    assert engine(made.server).closing is not None


@pytest.mark.parametrize(
    "body",
    [
        b"\1",
        b"\1\4\x0a\0",
        b"\1\3\x0a\0\0\x44\0",
        b"\1\0\x44\0",
        b"\1\4\x0a\0\0\1\x80\1\0\0",  # port 65536
        b"\x40\x63\4\x0a\0\0\1\x44\0",  # path 99
    ],
)
def test_an_announcement_that_is_none_ends_the_connection(body: bytes) -> None:
    made = private([TEN, TEN], "uniflows", last=False)
    engine(made.client)._connection._due.append(Due(ANNOUNCE_ADDRESS, body))
    made.client.pump()
    made.run(lambda: False, 0.2)
    assert engine(made.server).closing is not None


# --- one number space  ---


@pytest.mark.parametrize("ack_path", AckPath)
def test_paths_with_one_number_space_carry_a_download_together_whole_and_in_order(ack_path: AckPath) -> None:
    lossy = (link_of(10, 0.060), replace(link_of(10, 0.060), loss=0.02))
    made = private([TEN, lossy], "one_number_space", ack_path=ack_path)
    made.client.keep_data = True
    payload = bytes(range(251)) * 2000
    asked(made, 0)
    server = made.server
    assert server is not None
    server.write(payload, end=True)
    assert made.run(lambda: made.client.ended)
    assert bytes(made.client.data) == payload
    assert all(link.carried > 20_000 for link in made.downs)


def test_no_number_is_used_twice_and_no_ack_names_a_path() -> None:
    made = private([TEN, TEN], "one_number_space")
    asked(made, QUARTER)
    server = made.server
    assert server is not None
    connection = cast(PrivateConnection, engine(server)._connection)
    frames = connection._path_frames
    handler, epochs = frames[PathFrame.PATH_ACK]
    told: list[int] = []

    def taken(context: Any, frame_type: int, buf: Any) -> None:
        told.append(frame_type)
        handler(context, frame_type, buf)

    frames[PathFrame.PATH_ACK] = (taken, epochs)
    in_flight: list[list[int]] = []

    def watched() -> bool:
        in_flight.append([number for path in connection._open_paths for number in path.space.sent_packets])
        return made.client.received >= QUARTER

    assert made.run(watched)
    assert all(len(numbers) == len(set(numbers)) for numbers in in_flight)
    assert sum(len(numbers) > 10 for numbers in in_flight) > 10
    assert not told


def test_what_comes_late_on_a_slower_path_is_acknowledged_with_one_number_space_too() -> None:
    """Nothing is lost on these links, so nothing may be taken for lost."""
    near, far = (link_of(20, 0.020, queue=20),) * 2, (link_of(20, 0.120, queue=20),) * 2
    policy = PathPolicy(private_modes=("one_number_space",), scheduler=lambda: create_scheduler("RR", {}))
    made = pair([near, far], policy, policy, (PrivateEngine, PrivateEngine))
    made.connect()
    made.open(1)
    made.download(6 * QUARTER)
    assert made.downs[1].carried > QUARTER // 2
    assert [link.dropped for link in made.downs] == [0, 0]
    assert [path.lost for path in made.facts().values()] == [0, 0]


def test_a_silent_path_is_left_with_one_number_space_too() -> None:
    made = private([TEN, TEN], "one_number_space")
    asked(made, 2 * QUARTER)
    made.run(lambda: made.client.received > QUARTER // 2)
    made.ups[0].silent = made.downs[0].silent = True
    assert made.run(lambda: made.client.received >= 2 * QUARTER, 3.0)


# --- uniflows  ---


def test_a_server_sends_on_a_path_that_nothing_comes_back_on() -> None:
    made = private([TEN, TEN], "uniflows", last=False)
    made.ups[1].silent = True
    announce(made, 1)
    assert made.run(lambda: made.server is not None and opened(made.server) == [1], 0.5)
    asked(made, 5 * QUARTER)
    assert made.run(lambda: made.client.received >= 5 * QUARTER, 5.0)
    assert made.downs[1].carried > QUARTER // 2
    made.run(lambda: False, 8.0)  # longer than the validation of a path takes
    assert closed(made.client) == []
    assert made.facts(made.client)[1].state is PathState.VALIDATING
    assert made.facts()[1].state is PathState.ACTIVE


def test_both_directions_of_a_path_are_used_where_both_work() -> None:
    made = private([TEN, TEN], "uniflows", last=False)
    announce(made, 1)
    assert made.run(lambda: made.server is not None and opened(made.server) == opened(made.client) == [1], 0.5)
    made.client.write(bytes(QUARTER))
    assert made.run(lambda: made.server is not None and made.server.received >= QUARTER)
    assert made.ups[1].carried > 5_000


def test_an_announced_address_that_does_not_answer_gets_three_datagrams() -> None:
    made = private([TEN, TEN, TEN], "uniflows", last=False)
    made.ups[2].silent = made.downs[2].silent = True
    made.open(2)  # nothing of it arrives
    cast(PrivateEngine, made.client.engine).announce_path(2, bytes([10, 2, 0, 1]), 1000)
    asked(made, 4 * QUARTER)
    made.client.pump()
    assert made.run(lambda: made.client.received >= 4 * QUARTER)
    made.run(lambda: False, 8.0)
    assert 1 <= made.downs[2].sent <= 3
    assert engine(made.client).closing is None


@pytest.mark.parametrize("host", ["127.0.0.1", "224.0.0.1", "0.0.0.0", "169.254.1.1", "2001:db8::1", "ff02::1"])
def test_nothing_is_sent_to_an_announced_address_that_is_no_other_of_the_client(host: str) -> None:
    made = private([TEN, TEN], "uniflows", last=False)
    made.ups[1].silent = True
    announce(made, 1, host=ip_address(host).packed)
    made.download(QUARTER // 10)
    assert [path.id for path in made.facts().values()] == [0]
    assert engine(made.server).closing is None


# --- trust  ---


@pytest.mark.parametrize(("modes", "least", "most"), [((), 1.9, 3.2), (("trust_announced_paths",), 0.9, 1.3)])
def test_data_comes_over_a_trusted_path_a_round_trip_after_it_was_opened(
    modes: tuple[str, ...], least: float, most: float
) -> None:
    made = private([TEN, TEN], *modes, last=False)
    asked(made, 4 * QUARTER)
    made.run(lambda: made.client.received > QUARTER)
    at = made.clock.now
    made.open(1)
    assert made.run(lambda: made.downs[1].carried > 2700)
    assert least < (made.clock.now - at) / ROUND_TRIP < most


def test_an_address_that_is_trusted_and_silent_gets_three_times_what_came_from_there() -> None:
    made = private([TEN, TEN], "trust_announced_paths", last=False)
    asked(made, 4 * QUARTER)
    made.run(lambda: made.client.received > QUARTER)
    sent = 0

    def first_only() -> bool:
        nonlocal sent
        if made.ups[1].sent and not made.ups[1].silent:
            sent = made.ups[1].sent
            made.clock.at(made.clock.now + ROUND_TRIP / 2 + 0.01, lambda: setattr(made.ups[1], "silent", True))
        return bool(sent)

    made.open(1)
    assert made.run(first_only)
    made.downs[1].silent = True
    assert made.run(lambda: made.client.received >= 4 * QUARTER, 6.0)
    assert 1 <= made.downs[1].sent <= 3 * sent


def test_all_of_them_together_bring_everything() -> None:
    made = private([TEN, TEN], *PRIVATE_MODES, last=False)
    announce(made, 1)
    made.client.keep_data = True
    made.download(QUARTER)
    assert bytes(made.client.data) == bytes(QUARTER)
