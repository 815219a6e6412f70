"""Several paths of the native engine, in virtual time: what every engine with paths promises (`PathEngine`)."""

from __future__ import annotations

import datetime
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from multi.errors import TransportError
from multi.multipath.facts import PathState
from multi.multipath.policy import AckPath, PathPolicy
from multi.transports.base import TlsSettings
from multi.transports.quic.engine import EngineSettings, PathClosed, PathEngine, PathOpened, PathStatusChanged
from multi.transports.quic.packets import header_of
from multi.transports.quic.settings import QuicSettings
from multi.transports.quic.udp_port import Burst, PeerAddress
from tests.engines import engine_or_skip

pytestmark = pytest.mark.slow  # whole engines in virtual time

MBIT = 1e6 / 8
SERVER = ("192.0.2.1", 443)
STREAM = 0
PIECE = 1 << 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate, always the same: signatures of Ed25519 are, and have one length."""
    engine_or_skip("noq")
    directory = tmp_path_factory.mktemp("certificates")
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    begin, end = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2020, 2120))
    unsigned = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, end)
    (directory / "server-cert.pem").write_bytes(unsigned.sign(key, None).public_bytes(Encoding.PEM))
    content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (directory / "server-key.pem").write_bytes(content)
    return directory


@dataclass
class Link:
    """Both directions between a network of the client and the server."""

    rate: float = 50 * MBIT
    delay: float = 0.010
    """Seconds, one way."""
    queue: float = 0.050
    """Seconds of sending that wait at most."""
    up: bool = True
    free_at: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    carried: int = 0
    """Bytes towards the client."""

    def arrives_at(self, size: int, now: float, to_server: bool) -> float | None:
        begin = max(now, self.free_at[to_server])
        if not self.up or begin - now > self.queue:
            return None
        self.free_at[to_server] = begin + size / self.rate
        self.carried += 0 if to_server else size
        return self.free_at[to_server] + self.delay


class World:
    """A client with a network for each link, a server, and the time."""

    def __init__(self, directory: Path, *links: Link, policy: PathPolicy | None = None, seed: int = 1) -> None:
        """Runs with the same `seed` are the same, on every machine."""
        kind: Any = engine_or_skip("noq")
        assert issubclass(kind, PathEngine)
        tls = TlsSettings(cert=directory / "server-cert.pem", key=directory / "server-key.pem")
        policy = policy or PathPolicy()
        self.links = links
        self.now = 100.0
        self.client: PathEngine = kind(
            kind.configure(EngineSettings(QuicSettings(), TlsSettings(), b"", "localhost", policy), 1000 * seed + 1),
            1350,
        )
        self._accepting: Callable[[bytes], PathEngine] = lambda original: kind(
            kind.configure(EngineSettings(QuicSettings(), tls, policy=policy), 1000 * seed + 2), 1350, original
        )
        self.server: PathEngine | None = None
        self.events: dict[bool, list[Any]] = {True: [], False: []}
        """Of the client, of the server."""
        self.sent: list[tuple[float, bool, int, int]] = []
        """Datagrams: when, whether to the server, over which link, how many bytes."""
        self.received: list[tuple[float, int]] = []
        """When how many bytes came to the client."""
        self._flying: list[tuple[float, int, bool, int, bytes]] = []
        self._number = itertools.count()
        self._ours = [PeerAddress(SERVER, bytes([10, 0, n, 1])) for n in range(len(links))]
        self._theirs = [PeerAddress((f"10.0.{n}.1", 1000), bytes([192, 0, 2, 1])) for n in range(len(links))]
        self.client.connect(self._ours[0], self.now)

    def address(self, link: int) -> PeerAddress:
        return self._ours[link]

    def run(self, until: Callable[[], bool], limit: float = 60.0) -> float:
        """Seconds until it is so; fails after `limit`."""
        began = self.now
        while True:
            self._flush()
            if until():
                return self.now - began
            assert self.now - began < limit, "it never came"
            self._step(began + limit)

    def run_for(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self._flush()
            self._step(end)
        self._flush()

    def _ends(self) -> list[tuple[bool, PathEngine]]:
        return [(True, self.client)] + ([(False, self.server)] if self.server is not None else [])

    def _step(self, end: float) -> None:
        timers = [(at, is_client, end_) for is_client, end_ in self._ends() if (at := end_.next_timer()) is not None]
        next_timer = min((at for at, _, _ in timers), default=end)
        arrival = self._flying[0][0] if self._flying else end
        self.now = max(self.now, min(next_timer, arrival, end))
        while self._flying and self._flying[0][0] <= self.now:
            _, _, to_server, link, data = heapq.heappop(self._flying)
            if to_server and self.server is None:
                header = header_of(data)
                assert header is not None
                self.server = self._accepting(header.destination_cid)
            end_ = self.server if to_server else self.client
            assert end_ is not None
            end_.receive(data, len(data), (self._theirs if to_server else self._ours)[link], self.now)
        for at, _, end_ in timers:
            if at <= self.now:
                end_.handle_timer(self.now)

    def _flush(self) -> None:
        for is_client, end in self._ends():
            while (event := end.next_event()) is not None:
                self.events[is_client].append(event)
                if is_client and type(event).__name__ == "StreamDataReceived":
                    self.received.append((self.now, len(event.data)))
            for burst in end.bursts(self.now):
                self._send(burst, is_client)

    def _send(self, burst: Burst, to_server: bool) -> None:
        link = (self._ours if to_server else self._theirs).index(burst.address)
        for start in range(0, len(burst.data), burst.segment):
            data = bytes(burst.data[start : start + burst.segment])
            self.sent.append((self.now, to_server, link, len(data)))
            at = self.links[link].arrives_at(len(data), self.now, to_server)
            if at is not None:
                heapq.heappush(self._flying, (at, next(self._number), to_server, link, data))

    # What happened

    def has(self, client: bool, kind: type[Any] | str) -> bool:
        name = kind if isinstance(kind, str) else kind.__name__
        return any(type(event).__name__ == name for event in self.events[client])

    def longest_gap(self, since: float) -> float:
        times = [at for at, _ in self.received if at >= since]
        return max(later - earlier for earlier, later in itertools.pairwise([since, *times]))

    def total(self) -> int:
        return sum(size for _, size in self.received)


def joined(directory: Path, *links: Link, policy: PathPolicy | None = None, seed: int = 1) -> World:
    """With a path over each link that the peer has answered on."""
    world = World(directory, *links, policy=policy, seed=seed)
    world.run(lambda: world.has(True, "HandshakeCompleted"))
    world.client.write(STREAM, b"x")  # opens it for the server
    for number in range(1, len(links)):
        assert world.client.open_path(world.address(number), world.now) == number
    world.run(lambda: len([e for e in world.events[True] if isinstance(e, PathOpened)]) == len(links) - 1)
    world.run(lambda: world.has(False, "HandshakeCompleted"))
    return world


def server_of(world: World) -> PathEngine:
    assert world.server is not None
    return world.server


def download(world: World, size: int) -> None:
    for _ in range(size // PIECE):
        server_of(world).write(STREAM, bytes(PIECE))


def test_both_ends_know_that_there_may_be_paths(files: Path) -> None:
    world = joined(files, Link(), Link())
    assert world.client.multipath
    assert server_of(world).multipath
    assert [path.id for path in world.client.paths()] == [0, 1]
    assert {path.state for path in world.client.paths()} == {PathState.ACTIVE}
    opened = [event for event in world.events[True] if isinstance(event, PathOpened)]
    assert [(event.path, event.address) for event in opened] == [(1, world.address(1))]


def test_who_was_told_of_no_paths_has_one(files: Path) -> None:
    world = joined(files, Link(), policy=PathPolicy(paths=1))
    assert not world.client.multipath


def test_a_path_is_open_a_round_trip_after_the_handshake(files: Path) -> None:
    """The server gives ids for it with its first flight, without waiting for the client's answer."""
    world = World(files, Link(delay=0.1), Link(delay=0.1))
    world.run(lambda: world.has(True, "HandshakeCompleted"))
    assert world.client.open_path(world.address(1), world.now) == 1
    assert world.run(lambda: world.has(True, PathOpened)) < 1.1 * 0.2


def test_two_paths_carry_what_both_can(files: Path) -> None:
    world = joined(files, Link(), Link(), policy=PathPolicy(congestion="bbr"))
    size = 6 * PIECE
    download(world, size)
    took = world.run(lambda: world.total() >= size)
    assert size / took > 1.3 * 50 * MBIT
    assert all(link.carried > size // 3 for link in world.links)


def test_unequal_paths_that_leave_many_gaps_end_no_connection(files: Path) -> None:
    world = joined(files, Link(), Link(rate=90 * MBIT, delay=0.090))
    size = 8 * PIECE
    download(world, size)
    world.run(lambda: world.total() >= size)
    assert world.client.closing is None


def test_runs_with_the_same_seed_are_the_same(files: Path) -> None:
    def run(seed: int) -> World:
        world = joined(files, Link(rate=20 * MBIT), Link(), policy=PathPolicy(congestion="cubic"), seed=seed)
        download(world, PIECE)
        world.run(lambda: world.total() >= PIECE)
        return world

    first, second, other = run(1), run(1), run(2)
    assert (first.sent, first.received) == (second.sent, second.received)
    assert first.sent != other.sent


# 204 stood still: both ends took both paths for silent, and each gave its acknowledgements to the one that was dead.
@pytest.mark.parametrize("seed", [*range(12), 204])
def test_a_death_at_any_moment_stops_no_download(files: Path, seed: int) -> None:
    chance = random.Random(seed)
    links = [
        Link(
            rate=chance.choice([5, 20, 50]) * MBIT,
            delay=chance.choice([0.002, 0.010, 0.030]),
            queue=chance.choice([0.020, 0.050, 0.100]),
        )
        for _ in range(2)
    ]
    size = (1 + seed % 2) * PIECE
    world = joined(files, *links, seed=seed)
    download(world, size)
    moment = chance.random() * size
    world.run(lambda: world.total() >= moment)
    links[chance.randrange(2)].up = False
    assert world.run(lambda: world.total() >= size) < 10


@pytest.mark.parametrize("dies", [0, 1])
def test_silent_death_of_a_path_stops_a_download_for_a_moment(files: Path, dies: int) -> None:
    """The near path carries the acknowledgements too; what was in flight on it goes again on the other."""
    world = joined(files, Link(), Link(delay=0.020))
    size = 6 * PIECE
    download(world, size)
    world.run(lambda: world.total() >= size // 3)
    world.links[dies].up = False
    died = world.now
    world.run(lambda: world.total() >= size)
    assert world.longest_gap(died) < 0.5
    paths = {path.id: path.state for path in server_of(world).paths()}
    assert paths[dies] is PathState.SUSPECT
    assert paths[1 - dies] is PathState.ACTIVE


def test_a_silent_path_is_probed_and_used_again_when_it_answers(files: Path) -> None:
    world = joined(files, Link(), Link())
    download(world, 8 * PIECE)
    world.run(lambda: world.total() >= PIECE)
    world.links[0].up = False
    world.run(lambda: world.total() >= 4 * PIECE)
    world.links[0].up = True
    download(world, 8 * PIECE)
    carried = world.links[0].carried
    world.run(lambda: world.links[0].carried > carried + PIECE)
    states = {path.id: path.state for path in server_of(world).paths()}
    assert states[0] is PathState.ACTIVE


def test_who_only_receives_notices_that_its_acknowledgements_go_nowhere(files: Path) -> None:
    world = joined(files, Link(), Link(delay=0.020))
    download(world, 8 * PIECE)
    world.run(lambda: world.total() >= 2 * PIECE)
    world.links[0].up = False
    world.run(lambda: world.total() >= 8 * PIECE)
    states = {path.id: path.state for path in world.client.paths()}
    assert states[0] is PathState.SUSPECT


def test_a_path_whose_network_went_away_gives_up_what_it_carries_at_once(files: Path) -> None:
    world = joined(files, Link(), Link())
    download(world, 4 * PIECE)
    world.run(lambda: world.total() >= 2 * PIECE)
    world.links[0].up = False
    died = world.now
    server_of(world).suspect_path(0, world.now)
    world.client.suspect_path(0, world.now)
    world.run(lambda: world.total() >= 4 * PIECE)
    assert world.longest_gap(died) < 0.1


def test_an_abandoned_path_is_gone_at_both_ends_and_its_id_is_not_used_again(files: Path) -> None:
    world = joined(files, Link(), Link())
    download(world, 6 * PIECE)
    world.run(lambda: world.total() >= PIECE)
    world.client.abandon_path(0, 0x3E, world.now)
    world.run(lambda: world.has(False, PathClosed))
    theirs = [event for event in world.events[False] if isinstance(event, PathClosed)]
    assert theirs == [PathClosed(0, 0x3E, True)]
    world.run(lambda: world.total() >= 6 * PIECE)
    assert [path.id for path in world.client.paths()] == [1]
    assert world.client.open_path(world.address(0), world.now) == 2
    world.run(lambda: PathOpened(2, world.address(0)) in world.events[True])


def test_a_path_nobody_answers_on_is_given_up_and_another_can_be_opened(files: Path) -> None:
    """The engine itself would challenge it for as long as the connection lives."""
    world = World(files, Link(), Link())
    world.run(lambda: world.has(True, "HandshakeCompleted"))
    world.links[1].up = False
    assert world.client.open_path(world.address(1), world.now) == 1
    assert 6.0 <= world.run(lambda: world.has(True, PathClosed)) < 6.5
    assert [event for event in world.events[True] if isinstance(event, PathClosed)] == [PathClosed(1, 0x3E76, False)]
    world.links[1].up = True
    assert world.client.open_path(world.address(1), world.now) == 2
    world.run(lambda: PathOpened(2, world.address(1)) in world.events[True])
    world.run_for(10.0)
    assert [path.state for path in world.client.paths()] == [PathState.ACTIVE, PathState.ACTIVE]


def test_the_last_path_is_not_abandoned(files: Path) -> None:
    world = joined(files, Link(), Link())
    world.client.abandon_path(0, 0x3E, world.now)
    world.client.abandon_path(1, 0x3E, world.now)
    world.run_for(1.0)
    assert [path.id for path in world.client.paths()] == [1]
    assert world.client.closing is None


def test_a_backup_carries_nothing_while_another_path_works(files: Path) -> None:
    world = joined(files, Link(), Link())
    world.client.set_backup(1, True)
    world.run(lambda: PathStatusChanged(1, True) in world.events[False])
    server_of(world).set_backup(1, True)
    before = world.links[1].carried
    download(world, 4 * PIECE)
    world.run(lambda: world.total() >= 3 * PIECE)
    assert world.links[1].carried - before < PIECE // 20
    world.links[0].up = False
    world.run(lambda: world.total() >= 4 * PIECE)


def test_the_end_is_said_on_a_path_that_works(files: Path) -> None:
    world = joined(files, Link(), Link())
    download(world, 4 * PIECE)
    world.run(lambda: world.total() >= PIECE)
    world.links[0].up = False
    world.run(lambda: world.total() >= 3 * PIECE)
    server_of(world).close(1, "enough")
    world.run(lambda: world.client.closing is not None, limit=0.1)
    assert world.client.closing is not None
    assert world.client.closing.reason_phrase == "enough"


def test_nobody_asks_for_answers_for_ever(files: Path) -> None:
    """Acknowledgements that ask for an answer must not answer each other."""
    world = joined(files, Link(), Link())
    download(world, 2 * PIECE)
    world.run(lambda: world.total() >= 2 * PIECE)
    world.run_for(5.0)
    before = sum(link.carried for link in world.links)
    world.run_for(5.0)
    assert sum(link.carried for link in world.links) == before


def test_a_congestion_control_that_is_none_and_copies_of_acknowledgements_are_refused(files: Path) -> None:
    with pytest.raises(TransportError, match="no congestion control is called"):
        World(files, Link(), policy=PathPolicy(congestion="vegas"))
    with pytest.raises(TransportError, match="ack_path"):
        World(files, Link(), policy=PathPolicy(ack_path=AckPath.ALL))


def test_coupled_paths_take_no_more_of_a_bottleneck_than_a_flow_of_its_own(files: Path) -> None:
    """Beside one Reno flow; two windows that grow by themselves take about two thirds."""
    shared = Link(rate=10 * MBIT, delay=0.010, queue=0.040)
    two = joined(files, shared, shared, policy=PathPolicy(congestion="olia", max_queue=0.0))
    one = joined(files, shared, policy=PathPolicy(congestion="reno", paths=1, max_queue=0.0))
    latest = max(two.now, one.now)
    for world in (two, one):
        world.run_for(latest - world.now)
        download(world, 16 * PIECE)
    began = {}
    for turn in range(4_000):  # both see the same link: they take turns of two milliseconds, either first as often
        for world in (two, one) if turn % 2 else (one, two):
            world.run_for(0.002)
            if turn == 1_500:
                began[world] = world.total()
    rates = [world.total() - began[world] for world in (two, one)]
    assert 0.3 < rates[0] / sum(rates) < 0.6
