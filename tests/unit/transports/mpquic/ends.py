"""Two engines with several paths between them, in virtual time."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from multi.lab.cert import write_development_certificates
from multi.lab.engines.links import DatagramLink, DatagramLinkSpec, link_of
from multi.lab.engines.pair import EngineEnd, EnginePair
from multi.multipath.facts import PathFacts
from multi.multipath.policy import AckPath, PathPolicy
from multi.multipath.silence import ACK_DELAY, GRANULARITY
from multi.transports.base import TlsSettings
from multi.transports.mpquic.aioquic_engine import AioquicPathEngine
from multi.transports.quic.connection_ids import PLAIN_IDS, ConnectionIds
from multi.transports.quic.engine import EngineSettings, PathEngine
from multi.transports.quic.settings import QuicSettings
from tests.engines import engine_or_skip

DATAGRAM = 1350
TEN = (link_of(10, 0.044),) * 2
"""10 Mbit/s each way and 44 ms: the paths of Viernickel et al."""
FAST = (link_of(50, 0.020),) * 2
FAR = (link_of(50, 0.180),) * 2
TEN_NEAR, TEN_FAR = ((link_of(10, round_trip),) * 2 for round_trip in (0.020, 0.180))
DEFAULT = PathPolicy()
SAME = PathPolicy(ack_path=AckPath.SAME)
"""With it both engines acknowledge on the path of the packets, as the native one always does."""
MEGABYTE = 1_000_000
BOTH = pytest.mark.parametrize("name", ["aioquic", "noq"])
PAIRS = pytest.mark.parametrize(
    ("client", "server"), [("aioquic", "aioquic"), ("noq", "noq"), ("aioquic", "noq"), ("noq", "aioquic")]
)


@cache
def certificates() -> Path:
    """Made once for all tests."""
    directory = tempfile.TemporaryDirectory(prefix="multi-mpquic-")
    atexit.register(directory.cleanup)
    write_development_certificates(Path(directory.name), [])
    return Path(directory.name)


def pair(
    specs: Sequence[tuple[DatagramLinkSpec, DatagramLinkSpec]],
    policy: PathPolicy | None = DEFAULT,
    servers: PathPolicy | None = DEFAULT,
    engines: tuple[type[PathEngine], type[PathEngine]] = (AioquicPathEngine, AioquicPathEngine),
    ids: ConnectionIds = PLAIN_IDS,
) -> EnginePair:
    """A client that begins its handshake, and the server it will find; `None`: an end without multipath."""
    made = certificates()
    tls = TlsSettings(cert=made / "server-cert.pem", key=made / "server-key.pem")
    issuers = (made / "ca.pem").read_bytes()
    client, server = engines
    dialling = client.configure(EngineSettings(QuicSettings(), TlsSettings(), issuers, "localhost", policy))
    listening = server.configure(EngineSettings(QuicSettings(), tls, policy=servers, ids=ids))
    return EnginePair(client(dialling, DATAGRAM), lambda original_id: server(listening, DATAGRAM, original_id), specs)


def connected(
    specs: Sequence[tuple[DatagramLinkSpec, DatagramLinkSpec]],
    policy: PathPolicy | None = DEFAULT,
    servers: PathPolicy | None = DEFAULT,
    ids: ConnectionIds = PLAIN_IDS,
) -> EnginePair:
    """With all paths open, if they can be."""
    made = pair(specs, policy, servers, ids=ids)
    made.connect()
    if policy is not None and servers is not None:
        made.open_all()
        assert made.run(lambda: len(opened(made.client)) == len(specs) - 1)
    return made


def engines_by_name(
    client: str,
    server: str,
    *specs: tuple[DatagramLinkSpec, DatagramLinkSpec],
    policy: PathPolicy | None = DEFAULT,
    servers: PathPolicy | None = DEFAULT,
    ids: ConnectionIds | None = None,
    clients_ids: ConnectionIds | None = None,
) -> EnginePair:
    """A client that begins its handshake, with engines by their names; skips the test where `noq` is not built.

    Without `ids` for an end, those of `noq` are drawn with its seed, so that runs are the same.
    """
    own: dict[str, Any] = {"aioquic": AioquicPathEngine}
    kinds = {name: own.get(name) or engine_or_skip(name) for name in (client, server)}
    files = certificates()
    tls = TlsSettings(cert=files / "server-cert.pem", key=files / "server-key.pem")
    issuers = (files / "ca.pem").read_bytes()

    def configured(name: str, own: ConnectionIds | None, settings: EngineSettings) -> Any:
        chance = {"seed": 1} if name == "noq" and own is None else {}
        return kinds[name].configure(replace(settings, ids=own or PLAIN_IDS), **chance)

    wanted = EngineSettings(QuicSettings(), TlsSettings(), issuers, "localhost", policy)
    dialling = configured(client, clients_ids, wanted)
    listening = configured(server, ids, EngineSettings(QuicSettings(), tls, policy=servers))
    return EnginePair(
        kinds[client](dialling, DATAGRAM),
        lambda original: kinds[server](listening, DATAGRAM, original),
        specs,
    )


def connected_engines(
    client: str, server: str, *specs: tuple[DatagramLinkSpec, DatagramLinkSpec], **settings: Any
) -> EnginePair:
    """The same with all paths open."""
    made = engines_by_name(client, server, *specs, **settings)
    made.connect()
    made.open_all()
    assert made.run(lambda: len(opened(made.client)) == len(specs) - 1)
    return made


def asked(made: EnginePair) -> EngineEnd:
    """The server, once a byte has come that lets it write on stream 0."""
    server = made.server
    assert server is not None
    made.client.write(b"?")
    made.run(lambda: server.received > 0)
    return server


def opened(end: EngineEnd) -> list[int]:
    """Paths that this end has heard to be open."""
    return [event.path for event in end.paths if type(event).__name__ == "PathOpened"]


def closed(end: EngineEnd) -> list[tuple[int, int, bool]]:
    """Paths that are gone: id, code, whether the peer said so."""
    return [tuple(event) for event in end.paths if type(event).__name__ == "PathClosed"]  # type: ignore[misc]


def engine(end: EngineEnd | None) -> AioquicPathEngine:
    assert end is not None
    return cast(AioquicPathEngine, end.engine)


def paths_of(end: EngineEnd | None) -> PathEngine:
    assert end is not None
    return cast(PathEngine, end.engine)


def probe_timeout(path: PathFacts) -> float:
    """Seconds; RFC 9002 section 6.2.1."""
    return path.rtt + max(4 * path.rtt_variation, GRANULARITY) + ACK_DELAY


def sizes_on(link: DatagramLink) -> list[int]:
    """Of the datagrams that are sent there from now on."""
    sizes: list[int] = []
    send = link.send

    def noted(data: bytes) -> None:
        sizes.append(len(data))
        send(data)

    link.send = noted  # type: ignore[method-assign]
    return sizes
