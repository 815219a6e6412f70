"""What both ends have to agree on, and what no honest peer says of paths, with either engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.quic.packet import QuicErrorCode

from multi.lab.engines.links import DatagramLink
from multi.lab.engines.pair import EngineEnd, EnginePair
from multi.multipath.facts import PathError
from multi.multipath.policy import PathPolicy
from multi.transports.mpquic import paths
from multi.transports.mpquic.frames import MAX_PATH_ID, PathFrame, new_connection_id_body, parameter
from multi.transports.quic.connection_ids import PLAIN_IDS, ConnectionIds
from multi.transports.quic.packets import LONG_HEADER
from tests.unit.transports.mpquic.ends import (
    BOTH,
    TEN,
    asked,
    connected_engines,
    engine,
    engines_by_name,
    opened,
    paths_of,
)
from tests.unit.transports.mpquic.test_paths import Raw, numbers

TWO = PathPolicy(paths=2)


class NoIds(ConnectionIds):
    """Of a peer that tells its connections from each other by addresses."""

    @property
    def length(self) -> int:
        return 0

    def new(self) -> bytes:
        return b""


class CountedIds(ConnectionIds):
    """Which can be told from all others."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.mark = bytes([first]) * 4
        self.made: list[bytes] = []

    def new(self) -> bytes:
        self.made.append(self.mark + len(self.made).to_bytes(4, "big"))
        return self.made[-1]

    @property
    def length(self) -> int:
        return 8


def code_of(end: EngineEnd | None) -> int | None:
    """With which it has ended; None: it has not."""
    assert end is not None
    closing = end.engine.closing
    return None if closing is None else closing.error_code


def settled(made: EnginePair) -> None:
    """The handshake is done or has failed, and both ends know."""
    made.run(lambda: made.client.complete_at is not None or code_of(made.client) is not None, 2.0)
    made.run(lambda: False, 0.2)


# --- connection ids  ---


@BOTH
def test_a_server_refuses_a_client_that_offers_paths_and_has_no_connection_ids(name: str) -> None:
    """draft-ietf-quic-multipath-21 section 2.1: PROTOCOL_VIOLATION."""
    made = engines_by_name("noq", name, TEN, clients_ids=NoIds())
    settled(made)
    assert code_of(made.server) == code_of(made.client) == QuicErrorCode.PROTOCOL_VIOLATION
    assert made.client.complete_at is None


@BOTH
@pytest.mark.parametrize("server", ["aioquic", "noq"])
def test_a_client_refuses_a_server_that_offers_paths_and_has_no_connection_ids(name: str, server: str) -> None:
    made = engines_by_name(name, server, TEN, ids=NoIds())
    settled(made)
    assert code_of(made.server) == code_of(made.client) == QuicErrorCode.PROTOCOL_VIOLATION
    assert made.client.complete_at is None


@BOTH
def test_a_client_without_connection_ids_is_offered_no_paths(name: str) -> None:
    """The native engine is one that knows of paths: it takes an offer for an error, as the draft wants it to."""
    made = engines_by_name("noq", name, TEN, policy=None, clients_ids=NoIds())
    settled(made)
    assert code_of(made.server) is code_of(made.client) is None
    assert not paths_of(made.server).multipath
    made.download(100_000)


@BOTH
def test_a_server_without_connection_ids_that_offers_no_paths_is_plain_quic(name: str) -> None:
    made = engines_by_name(name, "noq", TEN, servers=None, ids=NoIds())
    settled(made)
    assert code_of(made.server) is code_of(made.client) is None
    assert not paths_of(made.client).multipath
    assert paths_of(made.client).open_path(made.place(0), made.clock.now) is None
    made.download(100_000)


@pytest.mark.parametrize(
    ("client", "server"), [("aioquic", "aioquic"), ("noq", "noq"), ("aioquic", "noq"), ("noq", "aioquic")]
)
def test_every_id_that_an_end_is_reached_by_is_made_by_the_one_function_for_it(client: str, server: str) -> None:
    """Those of further paths too, and of paths that come when others have ended: balancers read whose a packet is, and
    whoever reads the socket whose connection."""
    clients, servers = CountedIds(0xC1), CountedIds(0x5E)
    made = engines_by_name(
        client,
        server,
        TEN,
        TEN,
        TEN,
        policy=PathPolicy(paths=3),
        servers=PathPolicy(paths=3),
        ids=servers,
        clients_ids=clients,
    )
    used = {"client": _ids_on(made.downs), "server": _ids_on(made.ups)}
    made.connect()
    assert made.server is not None
    made.open_all()
    assert made.run(lambda: sorted(opened(made.client)) == [1, 2])
    asked(made).write(bytes(200_000))
    made.run(lambda: made.client.received == 200_000)
    paths_of(made.client).abandon_path(1, PathError.APPLICATION_ABANDON_PATH, made.clock.now)
    made.client.pump()
    assert made.open(1) == 3
    assert made.run(lambda: opened(made.client)[-1] == 3, 1.0)
    made.server.write(bytes(200_000))
    assert made.run(lambda: made.client.received == 400_000)
    for name, end, ids in (("client", made.client, clients), ("server", made.server, servers)):
        assert len(ids.made) == len(set(ids.made))
        told = end.events.count("ConnectionIdIssued")
        assert told in (len(ids.made) - 1, len(ids.made))  # the first one may be known before there are events
        assert len(used[name]) >= 3 + 1  # one of each path that there was
        assert used[name] <= set(ids.made)


def _ids_on(links: list[DatagramLink]) -> set[bytes]:
    """The destination ids of packets with a short header that are sent there from now on."""
    seen: set[bytes] = set()
    for link in links:
        send = link.send

        def noted(data: bytes, send: Callable[[bytes], None] = send) -> None:
            if not data[0] & LONG_HEADER:
                seen.add(data[1 : 1 + PLAIN_IDS.length])
            send(data)

        link.send = noted  # type: ignore[method-assign]
    return seen


# --- where the peer is reached  ---


@BOTH
def test_a_server_that_is_to_be_reached_from_one_address_alone_gets_no_further_path(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 9000 section 18.2, and draft-ietf-quic-multipath-21 leaves it no further path from another address."""
    server = PathPolicy(paths=5)  # which tells its parameter from the client's
    stays = encode_uint_var(0x0C) + encode_uint_var(0)
    monkeypatch.setattr(paths, "parameter", lambda maximum: parameter(maximum) + (stays if maximum == 4 else b""))
    made = engines_by_name(name, "aioquic", TEN, TEN, servers=server)
    made.connect()
    assert paths_of(made.client).multipath
    assert not paths_of(made.client).takes_paths
    assert paths_of(made.server).takes_paths
    assert paths_of(made.client).open_path(made.place(1), made.clock.now) is None
    made.download(100_000)
    assert opened(made.client) == []


# --- numbers  ---


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], PathPolicy]:
    """Makes a policy; an end with it and the engine aioquic says this number for the highest path id it takes."""
    said: list[int] = []
    monkeypatch.setattr(paths, "parameter", lambda maximum: parameter(said[0] if maximum == 4 else maximum))

    def policy(number: int) -> PathPolicy:
        said.append(number)
        return PathPolicy(paths=5)

    return policy


def _with_liar(name: str, from_server: bool, policy: PathPolicy) -> EnginePair:
    if from_server:
        return engines_by_name(name, "aioquic", TEN, TEN, servers=policy)
    return engines_by_name("aioquic", name, TEN, TEN, policy=policy)


@BOTH
@pytest.mark.parametrize("from_server", [False, True])
@pytest.mark.parametrize("number", [MAX_PATH_ID + 1, (1 << 62) - 1])
def test_a_highest_path_id_that_is_none_ends_the_handshake(
    name: str, from_server: bool, number: int, liar: Callable[[int], PathPolicy]
) -> None:
    made = _with_liar(name, from_server, liar(number))
    settled(made)
    assert code_of(made.server) == code_of(made.client) == QuicErrorCode.TRANSPORT_PARAMETER_ERROR
    assert made.client.complete_at is None


@BOTH
@pytest.mark.parametrize("from_server", [False, True])
def test_the_highest_path_id_there_is_is_taken_and_costs_no_more_ids(
    name: str, from_server: bool, liar: Callable[[int], PathPolicy]
) -> None:
    made = _with_liar(name, from_server, liar(MAX_PATH_ID))
    made.connect()
    made.open_all()
    assert made.run(lambda: opened(made.client) == [1])
    honest = made.client if from_server else made.server
    assert honest is not None
    assert honest.events.count("ConnectionIdIssued") <= 4 * 8
    made.download(100_000)


# What the draft wants, and how the native engine puts it where numbers of 32 bits do not have room for it.
MAXIMUM_CODES = {"aioquic": QuicErrorCode.PROTOCOL_VIOLATION, "noq": QuicErrorCode.FRAME_ENCODING_ERROR}


def said_by_client(made: EnginePair, *frames: Raw, seconds: float = 0.2) -> int | None:
    """The client, of the engine aioquic, says these. Returns the code with which the server has closed."""
    engine(made.client)._connection._due.extend(frames)
    made.client.pump()
    made.run(lambda: False, seconds)
    return code_of(made.server)


@BOTH
@pytest.mark.parametrize("from_server", [False, True])
@pytest.mark.parametrize("number", [MAX_PATH_ID + 1, (1 << 62) - 1])
def test_a_new_highest_path_id_that_is_none_ends_the_connection(name: str, from_server: bool, number: int) -> None:
    made = connected_engines(*((name, "aioquic") if from_server else ("aioquic", name)), TEN, TEN)
    lying, hearing = (made.server, made.client) if from_server else (made.client, made.server)
    assert lying is not None
    engine(lying)._connection._due.append(Raw(PathFrame.MAX_PATH_ID, numbers(number)))
    lying.pump()
    made.run(lambda: False, 0.2)
    assert code_of(hearing) == MAXIMUM_CODES[name]


@BOTH
def test_a_smaller_highest_path_id_than_before_means_nothing(name: str) -> None:
    made = connected_engines("aioquic", name, TEN, TEN)
    assert said_by_client(made, Raw(PathFrame.MAX_PATH_ID, numbers(MAX_PATH_ID)), seconds=0.2) is None
    assert said_by_client(made, Raw(PathFrame.MAX_PATH_ID, numbers(0))) is None
    made.download(100_000)


OF_A_PATH = {
    PathFrame.PATH_ACK: (3, 0, 0, 0),
    PathFrame.PATH_ABANDON: (PathError.PATH_UNSTABLE_OR_POOR,),
    PathFrame.PATH_STATUS_BACKUP: (1,),
    PathFrame.PATH_STATUS_AVAILABLE: (1,),
    PathFrame.PATH_RETIRE_CONNECTION_ID: (0,),
    PathFrame.PATH_CIDS_BLOCKED: (0,),
}


@BOTH
@pytest.mark.parametrize("kind", [*OF_A_PATH, PathFrame.PATH_NEW_CONNECTION_ID])
def test_a_path_id_above_what_was_allowed_ends_the_connection(name: str, kind: PathFrame) -> None:
    made = connected_engines("aioquic", name, TEN, TEN, policy=TWO, servers=TWO)
    rest = numbers(*OF_A_PATH[kind]) if kind in OF_A_PATH else new_connection_id_body(0, 1, bytes(8), bytes(16))[1:]
    assert said_by_client(made, Raw(kind, encode_uint_var(2) + rest)) == QuicErrorCode.PROTOCOL_VIOLATION


@BOTH
def test_ending_paths_without_end_that_never_were_ends_the_connection(name: str) -> None:
    """Each would make room for another: no more of them linger than may be open."""
    made = connected_engines("aioquic", name, TEN, TEN, policy=TWO, servers=TWO)
    endings = [Raw(PathFrame.PATH_ABANDON, numbers(path, 0)) for path in range(2, 60)]
    assert said_by_client(made, *endings) == QuicErrorCode.PROTOCOL_VIOLATION
