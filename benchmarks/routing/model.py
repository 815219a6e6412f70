"""Servers with their session tables, balancers of several kinds, and clients that come back. Pure.

The bytes are those of the wire: HELLO and JOIN with route tokens, connection ids, refusals with reset tokens. Servers
find sessions with `SessionTable`, workers with the route in the first bytes, as real ones do. What is left out is
everything that takes time: proofs, transports, timers.
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from random import Random

from multi.protocol.acceptor import Refused, SessionTable
from multi.protocol.handshake import (
    ConnectionTerms,
    Hello,
    Join,
    Refuse,
    RefuseCode,
    origin_of,
    reset_commitment,
    reset_token,
)
from multi.protocol.payloads import Policy
from multi.protocol.segment import HEADER_LENGTH, SegmentType, encode, encode_routed
from multi.transports.quic.connection_ids import ConnectionIds
from multi.types import ROUTE_LENGTH, Address, SessionId
from multi.workers.first_bytes import route_named

WORKERS = 4  # of each server
SAID = 3  # times that a client has to hear on a network that its session is unknown (docs/wire-format.md)
POINTS = 64  # of a server on the ring of consistent hashing
TERMS = ConnectionTerms(sealed=True)


@dataclass(eq=False)
class Server:
    """One of those behind the balancer, with its workers."""

    name: int
    base: bytes
    """Of its route: the workers' have one byte more."""
    key: bytes
    address: Address
    tables: list[SessionTable[object]] = field(default_factory=list)
    draining: bool = False
    alive: bool = True

    def take(self, first: bytes, arrives_at: int, connection_id: bytes = b"") -> tuple[int, object]:
        """(the worker that answers, what it finds). QUIC's are sorted by the id, others by what they begin with."""
        route = _route_of(connection_id) if connection_id else route_named(first)
        owner = arrives_at
        if route and route[:-1] == self.base and route[-1] < len(self.tables):
            owner = route[-1]
        return owner, self.tables[owner].route(first, "client")


def _route_of(connection_id: bytes) -> bytes:
    """What a QUIC-LB balancer reads, and the kernel's program."""
    whole = len(connection_id) > ROUTE_LENGTH and connection_id[0] & 0x1F == len(connection_id) - 1
    return connection_id[1 : 1 + ROUTE_LENGTH] if whole else b""


@dataclass(eq=False, slots=True)
class Client:
    """One session."""

    id: SessionId
    origin: bytes
    server: Server
    route: bytes
    commitment: bytes
    living: bool = True


class Balancer:
    """Where a connection goes; `first` and `connection_id` are what it can see of it."""

    reads_quic = True
    """Otherwise clients have sealed TCP alone."""

    def __init__(self, servers: Sequence[Server], random: Random) -> None:
        self._servers, self._random = servers, random
        self.look()

    def look(self) -> None:
        """A server has come, drains or has died."""
        self.takers = [server for server in self._servers if server.alive and not server.draining]
        """Of new sessions."""
        self._living = {server.base: server for server in self._servers if server.alive}

    def pick(self, first: bytes, connection_id: bytes = b"") -> Server:
        """Round robin, as by chance: what is known of a connection does not matter."""
        return self._random.choice(self.takers)

    def forget(self) -> None:
        """It was killed, and has begun again."""


class Hash(Balancer):
    """Consistent hashing of the Session ID over the servers that take new sessions."""

    reads_quic = False

    def look(self) -> None:
        super().look()
        points = (
            (_number(f"{server.name} {point}".encode()), server) for server in self.takers for point in range(POINTS)
        )
        self._ring = sorted(points, key=itemgetter(0))

    def pick(self, first: bytes, connection_id: bytes = b"") -> Server:
        at = bisect(self._ring, _number(first[8:24]), key=itemgetter(0))
        return self._ring[at % len(self._ring)][1]


class HashAndTable(Hash):
    """The same, and whoever was somewhere once comes there again: HAProxy's `stick on`."""

    def __init__(self, servers: Sequence[Server], random: Random) -> None:
        super().__init__(servers, random)
        self._table: dict[bytes, Server] = {}

    def pick(self, first: bytes, connection_id: bytes = b"") -> Server:
        found = self._table.get(first[8:24])
        if found is None or not found.alive:
            found = self._table[first[8:24]] = super().pick(first)
        return found

    def forget(self) -> None:
        self._table.clear()


class Token(Balancer):
    """Reads the route, whose last byte is for the server itself: from JOIN, and from QUIC's connection ids."""

    def pick(self, first: bytes, connection_id: bytes = b"") -> Server:
        route = _route_of(connection_id) if connection_id else route_named(first)
        return (self._living.get(route[:-1]) if route else None) or super().pick(first)


def _number(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


class World:
    """Some servers, a balancer and its clients."""

    def __init__(
        self,
        balancer: Callable[[Sequence[Server], Random], Balancer],
        servers: int,
        *,
        seed: int,
        own: bool = False,
        peers: bool = False,
    ) -> None:
        """`own`: servers tell an address of theirs alone; `peers`: they know each other's."""
        self.random = Random(seed)
        self._own, self._peers = own, peers
        self._addresses: dict[bytes, Address] = {}
        self.servers: list[Server] = []
        for _ in range(servers):
            self._new_server()
        self.balancer = balancer(self.servers, self.random)
        self.clients: list[Client] = []
        self.counts: Counter[str] = Counter()
        """What became of all sessions, and of their attempts."""

    # What happens to servers

    def add_server(self) -> None:
        self._new_server()
        self.balancer.look()

    def _new_server(self) -> Server:
        name = len(self.servers)
        base = self.random.randbytes(ROUTE_LENGTH - 1)
        server = Server(name, base, self.random.randbytes(32), (f"10.0.{name // 250}.{name % 250 + 1}", 7788))
        if self._peers:
            self._addresses[base.rstrip(b"\0")] = server.address
        server.tables = [
            SessionTable(lambda *_: object(), reset_key=server.key, peers=self._addresses) for _ in range(WORKERS)
        ]
        self.servers.append(server)
        return server

    def drain_server(self) -> None:
        """It takes no new sessions; those that it has stay until they end."""
        server = self.random.choice(self.balancer.takers)
        server.draining = True
        self.balancer.look()
        for table in server.tables:
            table.refuse_new()

    def kill_server(self) -> None:
        self.random.choice([server for server in self.servers if server.alive]).alive = False
        self.balancer.look()

    # What clients do

    def open(self, count: int) -> None:
        for _ in range(count):
            session_id = SessionId(self.random.randbytes(16))
            hello = Hello(self.random.randbytes(32), self.random.randbytes(32), 65536, 128, Policy("adaptive"), TERMS)
            first = encode(SegmentType.HELLO, session_id, hello.encode())
            server = self.balancer.pick(first)
            worker, found = server.take(first, self.random.randrange(WORKERS))
            assert not isinstance(found, Refused)
            origin = origin_of(hello.session_part(), self.random.randbytes(32))
            commitment = reset_commitment(reset_token(server.key, session_id, origin))
            route = server.base + bytes([worker])
            self.clients.append(Client(session_id, origin, server, route, commitment))

    def come_back(self, share: float) -> None:
        """So many of all sessions have lost both their connections."""
        for client in self.clients:
            if client.living and (share >= 1 or self.random.random() < share):
                self._come_back(client)
        self.clients = [client for client in self.clients if client.living]

    def _come_back(self, client: Client) -> None:
        """Two networks; a session without any connection ends when both have said often enough that it is unknown."""
        payload = Join(client.origin, bytes(32), TERMS).encode()
        first = encode_routed(SegmentType.JOIN, client.id, payload, client.route)
        connected = 0
        for network in range(2):
            quic = network == 1 and self.balancer.reads_quic
            for _ in range(SAID):
                answer = self._join(client, first, ConnectionIds(client.route).new() if quic else b"")
                if answer is None:
                    connected += 1
                    break
                if answer.token and reset_commitment(answer.token) == client.commitment:
                    break
        if connected == 1:
            self.counts["second connection missing"] += 1
        if not connected:
            client.living = False
            self.counts["ended wrongly" if client.server.alive else "ended with their server"] += 1

    def _join(self, client: Client, first: bytes, connection_id: bytes) -> Refuse | None:
        """One attempt; None: the session has taken the connection."""
        counts = self.counts
        counts["joins"] += 1
        server = self.balancer.pick(first, connection_id)
        if self._own and client.server.alive:
            server = client.server
        elif self._own:
            counts["dials"] += 1  # in vain
        for _ in range(2):  # one redirect for each attempt
            counts["dials"] += 1
            _, found = server.take(first, self.random.randrange(WORKERS), connection_id)
            if not isinstance(found, Refused):
                assert server is client.server
                return None
            counts["at strangers"] += 1
            refuse = Refuse.decode(found.reply[HEADER_LENGTH:])
            target = next((s for s in self.servers if s.alive and s.address == refuse.address), None)
            if refuse.meaning is not RefuseCode.ELSEWHERE or target is None:
                return refuse
            server = target
        return refuse
