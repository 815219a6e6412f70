"""Which connection takes what leaves a session: data, control, acknowledgements.

It decides which connections are usable, and which of them delivers a small segment first. What is sent is decided by
the sender, the outbox and the receiver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from multi.protocol.connection import Connection
from multi.protocol.control import Outbox
from multi.protocol.receiver import Receiver
from multi.protocol.segment import SegmentType
from multi.protocol.sender import Sender
from multi.schedulers.estimates import soonest
from multi.types import ConnectionId, ConnectionState, Role

REINJECT_CHECK = 0.020  # seconds between looks at late bytes while nothing else happens


class Outgoing:
    """Chooses connections for one session."""

    def __init__(
        self, connections: Mapping[ConnectionId, Connection], sender: Sender, receiver: Receiver, outbox: Outbox
    ) -> None:
        self._connections = connections
        self._sender = sender
        self._receiver = receiver
        self._outbox = outbox
        self.reinject_at: float | None = None
        """When late bytes are looked at again; None = nothing could be done about them."""

    def usable(self) -> list[Connection]:
        """Connections for data now: active roles first, backups when there are none.

        When neither is there, a connection that drains is still better than none, and a suspect one better than that.
        """
        ready: list[Connection] = []
        active: list[Connection] = []
        for connection in self._connections.values():
            if connection.state is ConnectionState.ACTIVE:
                ready.append(connection)
                if connection.role is Role.ACTIVE:
                    active.append(connection)
        if active:
            return active
        if not ready:
            ready = [c for c in self._connections.values() if c.sends and c.state is ConnectionState.AUTHENTICATING]
            active = [c for c in ready if c.role is Role.ACTIVE]
        if active or ready:
            return active or ready
        left = [c for c in self._connections.values() if c.sends]
        return [c for c in left if c.state is ConnectionState.DRAINING] or left

    def usable_for_control(self) -> list[Connection]:
        """Connections for acknowledgements and control now, whatever their role: the best there are."""
        ready: list[Connection] = []
        draining = False
        for connection in self._connections.values():
            if connection.state is ConnectionState.ACTIVE:
                ready.append(connection)
            draining = draining or connection.state is ConnectionState.DRAINING
        if ready:
            return ready
        wanted = ConnectionState.DRAINING if draining else ConnectionState.SUSPECT
        return [c for c in self._connections.values() if c.state is wanted]

    def send_control(self, now: float) -> None:
        """Put waiting control on the connection that delivers it first."""
        if self._outbox.waiting and (ready := self.usable_for_control()):
            self._outbox.send(soonest(ready), now)

    def send_acks(self, now: float) -> None:
        """Acknowledge what is due, where it arrives first and where the peer has to hear something."""
        receiver = self._receiver
        due = receiver.ack_now or (receiver.ack_due is not None and now >= receiver.ack_due)
        wanted: list[Connection] = []
        for connection in self._connections.values():
            if connection.ack_wanted and connection.sends:
                wanted.append(connection)
        if not due and not wanted:
            return
        ready = self.usable_for_control()
        if not ready:
            return
        # On the connection that delivers it first, not the one the data came on (the Multiflow idea), and on every
        # connection whose peer needs to hear something there.
        targets: list[Connection] = []
        for connection in wanted:
            connection.ack_wanted = False
            if connection.authenticated:
                targets.append(connection)
        if due:
            best = soonest(ready)
            if best not in targets:
                targets.append(best)
        for connection in targets:
            connection.ack_keepalive_due = 0.0
            # What it brought may have been acknowledged on a path that died meanwhile: say it here once more.
            receiver.say_again(connection.streams_to_ack)
            connection.streams_to_ack.clear()
        if not targets:
            return
        while True:
            payload = receiver.ack_payload()
            for connection in targets:
                connection.send(SegmentType.ACK, (payload,), len(payload))
                connection.sent_at = now
            if not receiver.ack_now:
                return

    def plan_reinjection(self, usable: Sequence[Connection], now: float) -> None:
        """Late bytes are looked at again soon even when nothing else happens, while a connection could take them."""
        waiting = (
            self._sender.reinject == "full"
            and len(usable) > 1
            and any(c.in_flight for c in self._connections.values())
            and any(c.credit > 0 for c in usable)
        )
        self.reinject_at = now + REINJECT_CHECK if waiting else None
