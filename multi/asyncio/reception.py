"""The reception of a server: it finds out which session each new connection belongs to, and keeps it until then."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic

from multi.asyncio.admission import Admission
from multi.asyncio.driver import SessionDriver
from multi.asyncio.sources import source_of
from multi.config import Config
from multi.errors import RemoteProtocolError, TransportError
from multi.protocol.acceptor import Refused, SessionTable, first_payload, refusal
from multi.protocol.dispatch import HELD_OVERHEAD, MAX_HELD
from multi.protocol.handshake import Join, Refuse, RefuseCode
from multi.protocol.segment import SegmentType, peek
from multi.transports.base import Channel, transport_type
from multi.types import ConnectionId, host_of

logger = logging.getLogger("multi.server")

ROOM_TIME = 0.005  # seconds to end sessions for a new one; whoever comes next goes on


class PendingConnection:
    """A connection that has not said which session it belongs to."""

    def __init__(self, reception: Reception, channel: Channel) -> None:
        self._reception = reception
        self.channel = channel
        self.host = host_of(channel.info.remote)
        self.source = source_of(self.host)
        self.first = bytearray()
        """What has come on the first lane."""
        self.lanes: list[tuple[int, bytes]] = []
        """What has come on the others."""
        self.nonce = b""
        """Of the JOIN it begins with: what tells it from others, and from what somebody repeats."""
        self._held = 0
        self._answered = False
        self._start_clock()
        reception.arrivals[self] = None
        self.has_descriptor = not transport_type(channel.info.transport).over_udp
        reception.admission.admit(self, self.host, self.drop, has_descriptor=self.has_descriptor)

    @property
    def behind(self) -> bool:
        return False

    @property
    def proved(self) -> bool:
        return False

    @property
    def waiting(self) -> int:
        return 0

    def data_received(self, data: memoryview, lane: int) -> None:
        if self._answered:
            return
        self._held += len(data) + (HELD_OVERHEAD if lane else 0)
        if self._held > MAX_HELD:
            self._reception.admission.report("flow_control", self.host)
            self.drop("too many bytes before the handshake")
        elif lane:
            self.lanes.append((lane, bytes(data)))
        else:
            self.first += data

    def batch_finished(self) -> None:
        if self.first and not self._answered:
            self._reception.admission.in_turn(self, self.host, partial(self._reception.route, self))

    def writable(self) -> None:
        """Nothing waits to be written before the first segment."""

    def connection_lost(self, error: TransportError | None) -> None:
        self.leave()

    def _start_clock(self) -> None:
        timeout = self._reception.admission.handshake_timeout
        self._deadline = asyncio.get_running_loop().call_later(timeout, self._too_slow, timeout)

    def _too_slow(self, timeout: float) -> None:
        if self._reception.admission.owes(self):  # it waits for us
            self._start_clock()
            return
        self._reception.admission.report("handshake_timeout", self.host)
        self.drop(f"no segment within {timeout:g} s")

    def drop(self, reason: str, reply: bytes = b"") -> None:
        """Give the connection up, after a reply when there is one; until that has left it counts as before."""
        if not self._answered:
            logger.info("connection from %s refused: %s", self.channel.info.remote, reason)
        if reply:
            self._answered = True
            self.channel.write((reply,), 0)
            self.channel.flush()
            self.channel.close()
        else:
            self.leave()
            self.channel.abort()

    def leave(self) -> None:
        self._deadline.cancel()
        self._reception.arrivals.pop(self, None)
        self._reception.admission.settled(self)


class Reception:
    """Of one server. What is not known yet counts as half open with its `admission`."""

    def __init__(self, config: Config, admission: Admission, table: SessionTable[SessionDriver]) -> None:
        self.admission = admission
        self.arrivals: dict[PendingConnection, None] = {}
        """Connections that have not said which session they want."""
        self._needs_tls = config.ssl_config is not None
        self._table = table
        self._next_connection = 0

    def stop(self) -> None:
        """Nobody is received any more."""
        for arrival in list(self.arrivals):
            arrival.drop("the server stops")

    def accept(self, channel: Channel) -> None:
        """A listener has got a connection."""
        channel.start(PendingConnection(self, channel))

    def route(self, arrival: PendingConnection) -> None:
        """Hand a connection to its session as soon as its first segment says which one that is."""
        try:
            found = self._session_for(arrival)
        except RemoteProtocolError as error:
            arrival.drop(f"it does not speak MULTI ({error})")
            return
        if found is None:
            return
        if isinstance(found, Refused):
            arrival.drop(found.reason, found.reply)
            return
        arrival.leave()
        connection = ConnectionId(self._next_connection)
        self._next_connection += 1
        link = found.adopt(connection, arrival.channel, arrival.channel.info)
        self.admission.connection_came(
            found, connection, arrival.host, arrival.nonce, has_descriptor=arrival.has_descriptor
        )
        for lane, data in ((0, arrival.first), *arrival.lanes):
            link.data_received(memoryview(bytes(data)), lane)
        found.pump()

    def _session_for(self, arrival: PendingConnection) -> SessionDriver | Refused | None:
        """The session a first segment asks for; None = more bytes are needed. Raises RemoteProtocolError."""
        first, source = arrival.first, arrival.source
        if self._needs_tls and not arrival.channel.info.secure:
            peeked = peek(first)
            if peeked is None:
                return None
            return refusal(peeked[1], Refuse(RefuseCode.PROTECTION), "a plain connection, but ssl_config asks for TLS")
        found, until = self._table.route(first, source), monotonic() + ROOM_TIME
        while isinstance(found, Refused) and found.limit and monotonic() < until:
            if not self.admission.make_room(found.limit, arrival.host):
                break
            found = self._table.route(first, source)
        if isinstance(found, SessionDriver):
            session_id, payload = found.core.session_id, first_payload(first)
            assert payload is not None
            if first[1] == SegmentType.JOIN:
                join = Join.decode(payload)
                if not found.core.may_join(join, arrival.channel.info.channel_binding):
                    return refusal(session_id, Refuse(RefuseCode.REFUSED), "JOIN without the session's keys")
                arrival.nonce = join.nonce
            if not self.admission.may_try(found, source, arrival.nonce):
                return refusal(session_id, Refuse(RefuseCode.BUSY, limit="max_pending_joins"), "too many try to join")
        return found
