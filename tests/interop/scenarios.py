"""What two implementations must do together, in virtual time; both ends, all paths, every byte compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from aioquic.tls import Epoch

from multi.lab.engines.links import link_of
from multi.lab.engines.pair import EngineEnd, EnginePair
from multi.multipath.facts import PathError
from multi.multipath.policy import PathPolicy
from multi.transports.base import TlsSettings
from multi.transports.mpquic.aioquic_engine import AioquicPathEngine
from multi.transports.quic.engine import EngineSettings, PathClosed, PathOpened
from multi.transports.quic.settings import QuicSettings
from tests.interop.foreign import ForeignEngine

SIZE = 600_000  # bytes; a second or less at 10 Mbit/s
DATA = Random(69).randbytes(SIZE)
ROUND_TRIP = 0.044  # seconds
PATH = (link_of(10, ROUND_TRIP),) * 2  # 10 Mbit/s each way
LIMIT = 20.0  # seconds of virtual time
MIN_SHARE = 0.1  # of a transfer, on each of two or three equal paths
FOREIGN_SHARE = 0.05  # the same where the other end decides
SILENCE = 0.05  # of a transfer: what a path that is out of use may still carry, for acknowledgements and probes
DATAGRAM = 1350
MakeForeign = Callable[..., ForeignEngine]


class Failed(AssertionError):
    """What did not happen as it should."""


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Failed(what)


class Scene:
    """Our aioquic engine at one end, a foreign one at the other."""

    def __init__(self, make: MakeForeign, certificates: Path, *, we_are: str, paths: int) -> None:
        def foreign(is_client: bool) -> ForeignEngine:
            self.foreign_engine = make(certificates, is_client=is_client)
            return self.foreign_engine

        policy = PathPolicy()
        issuers = (certificates / "ca.pem").read_bytes()
        tls = TlsSettings(cert=certificates / "server-cert.pem", key=certificates / "server-key.pem")
        specs = [PATH] * paths
        self.we_are = we_are
        self.pair: EnginePair
        if we_are == "client":
            wanted = EngineSettings(QuicSettings(), TlsSettings(), issuers, "localhost", policy)
            dialling = AioquicPathEngine.configure(wanted)
            self.pair = EnginePair(AioquicPathEngine(dialling, DATAGRAM), lambda _: foreign(False).as_engine(), specs)
        else:
            listening = AioquicPathEngine.configure(EngineSettings(QuicSettings(), tls, policy=policy))
            client = foreign(True).as_engine()
            self.pair = EnginePair(client, lambda original: AioquicPathEngine(listening, DATAGRAM, original), specs)
        self.run(lambda: None not in (self.pair.client.complete_at, self.pair.server and self.pair.server.complete_at))
        self.server = self.pair.server
        assert self.server is not None
        self.us, self.them = (self.client, self.server) if we_are == "client" else (self.server, self.client)
        self.us.keep_data = self.them.keep_data = True
        expect(self.engine.multipath, "multipath was not negotiated")
        for index in range(1, paths):
            self.pair.open(index)
        self.run(lambda: len(self.opened(self.us)) == paths - 1, "our end has not heard that all paths are open")

    @property
    def client(self) -> EngineEnd:
        return self.pair.client

    @property
    def engine(self) -> AioquicPathEngine:
        engine = self.us.engine
        assert isinstance(engine, AioquicPathEngine)
        return engine

    def run(self, condition: Callable[[], bool], what: str = "no handshake") -> None:
        def checked() -> bool:
            if hasattr(self, "us") and self.engine.closing is not None:
                raise Failed(f"our end has closed: {self.engine.closing}")
            return condition()

        expect(self.pair.run(checked, LIMIT), what)

    @staticmethod
    def opened(end: EngineEnd) -> list[int]:
        return [event.path for event in end.paths if isinstance(event, PathOpened)]

    @staticmethod
    def closed(end: EngineEnd) -> list[int]:
        return [event.path for event in end.paths if isinstance(event, PathClosed)]

    def begin(self, *, download: bool = True) -> EngineEnd:
        """Start a transfer; the end that receives, once a fifth has come."""
        server = self.server
        assert server is not None
        if download:
            self.client.write(b"?")
            self.run(lambda: server.received > 0, "the request has not come")
            server.write(DATA, end=True)
        else:
            self.client.write(DATA, end=True)
        receiver = self.client if download else server
        self.run(lambda: receiver.received > SIZE // 5, "the transfer stands still at its begin")
        return receiver

    def finish(self, receiver: EngineEnd) -> None:
        self.run(lambda: receiver.ended, f"the transfer stands still at {receiver.received} of {SIZE} bytes")
        expect(bytes(receiver.data) == DATA, "other bytes have come than were sent")

    def carried(self, *, download: bool) -> list[int]:
        return [link.carried for link in (self.pair.downs if download else self.pair.ups)]

    def act(self, end: EngineEnd, action: Callable[[], None]) -> None:
        """Something that the application at one end asks for."""
        action()
        end.pump()


def transfer(paths: int, *, download: bool) -> Callable[[Scene], None]:
    """A transfer that uses all paths."""

    def play(scene: Scene) -> None:
        scene.finish(scene.begin(download=download))
        carried = scene.carried(download=download)
        least = MIN_SHARE if download == (scene.we_are == "server") else FOREIGN_SHARE
        expect(min(carried) > least * SIZE, f"paths have carried {carried} bytes")

    return play


def abandon(path: int, *, by_us: bool) -> Callable[[Scene], None]:
    """A path is abandoned during a download, which goes on over the other one."""

    def play(scene: Scene) -> None:
        receiver = scene.begin()
        doing, told = (scene.us, scene.them) if by_us else (scene.them, scene.us)
        engine = scene.engine if by_us else scene.foreign_engine
        now = scene.pair.clock.now
        scene.act(doing, lambda: engine.abandon_path(path, PathError.APPLICATION_ABANDON_PATH, now))
        scene.pair.run(lambda: False, 2 * ROUND_TRIP)
        before = scene.carried(download=True)
        scene.finish(receiver)
        scene.run(lambda: path in scene.closed(told), f"the peer has not heard that path {path} is abandoned")
        after = scene.carried(download=True)
        expect(after[path] - before[path] < SILENCE * SIZE, "data still travels on the abandoned path")
        expect(after[1 - path] - before[1 - path] > MIN_SHARE * SIZE, "the other path carries nothing")

    return play


def backup(*, by_us: bool) -> Callable[[Scene], None]:
    """Path 1 is a backup from the middle of a download on: the other end stops to use it."""

    def play(scene: Scene) -> None:
        scene.pair.client.write(b"?")
        end, engine = (scene.us, scene.engine) if by_us else (scene.them, scene.foreign_engine)
        scene.act(end, lambda: engine.set_backup(1, True))
        scene.pair.run(lambda: False, 0.3)
        if not by_us:
            expect(scene.pair.facts(scene.us)[1].backup, "our end has not heard of it")
        before = scene.carried(download=True)
        scene.finish(scene.begin())
        after = scene.carried(download=True)
        expect(after[1] - before[1] < SILENCE * SIZE, f"the backup has carried {after[1] - before[1]} bytes")

    return play


def key_update(*, by_us: bool) -> Callable[[Scene], None]:
    """Keys change during a download over two paths."""

    def play(scene: Scene) -> None:
        receiver = scene.begin()
        before = phase(scene) if by_us else 0  # noq updates them by itself too, after a random number of packets
        update = scene.engine._connection.request_key_update if by_us else scene.foreign_engine.update_keys
        for _ in range(20):
            scene.act(scene.us if by_us else scene.them, update)  # noq does nothing while the last one is fresh
            if scene.pair.run(lambda: phase(scene) != before, 0.05) or by_us:
                break
        expect(phase(scene) != before, "our end has still the old keys")
        scene.finish(receiver)

    return play


def rebinding(path: int) -> Callable[[Scene], None]:
    """A NAT gives the client another port on one path during a download: it is validated, and goes on."""

    def play(scene: Scene) -> None:
        receiver = scene.begin()
        before = scene.carried(download=True)
        scene.pair.move(path)
        scene.finish(receiver)
        after = scene.carried(download=True)
        expect(scene.closed(scene.us) == scene.closed(scene.them) == [], "a path was closed")
        expect(after[path] - before[path] > MIN_SHARE / 2 * SIZE, "the path has carried nothing since")

    return play


def phase(scene: Scene) -> int:
    """Of our end's keys."""
    found: int = scene.engine._connection._cryptos[Epoch.ONE_RTT].key_phase
    return found


class Scenario(NamedTuple):
    name: str
    paths: int
    play: Callable[[Scene], None]


SCENARIOS = [
    *(Scenario(f"download, {n} path{'s' * (n > 1)}", n, transfer(n, download=True)) for n in (1, 2, 3)),
    *(Scenario(f"upload, {n} path{'s' * (n > 1)}", n, transfer(n, download=False)) for n in (1, 2, 3)),
    *(
        Scenario(f"path {n} abandoned by {'us' if ours else 'the peer'}", 2, abandon(n, by_us=ours))
        for n in (0, 1)
        for ours in (True, False)
    ),
    *(Scenario(f"path 1 a backup, by {'us' if ours else 'the peer'}", 2, backup(by_us=ours)) for ours in (True, False)),
    *(Scenario(f"key update by {'us' if ours else 'the peer'}", 2, key_update(by_us=ours)) for ours in (True, False)),
    *(Scenario(f"NAT rebinding of path {n}", 2, rebinding(n)) for n in (0, 1)),
]
