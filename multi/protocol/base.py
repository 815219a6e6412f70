"""What three parts of a session know of it: what it is, how far it is, its connections, and what leaves it.

`session.SessionCore` is the only session. Its handshakes (`authenticator`), what comes (`dispatch`) and its liveness
get it as a `SessionBase`: state they may look at, effects they may add to, and what they may make happen to the session
as a whole. Its streams, datagrams and scheduling know nothing of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from multi.errors import LocalProtocolError
from multi.events import Effect, Event, Notify
from multi.protocol.connection import Connection, Connections
from multi.protocol.control import Outbox
from multi.protocol.handshake import Extensions, Refuse
from multi.protocol.payloads import Close, Policy
from multi.protocol.receiver import Receiver
from multi.protocol.sender import Sender
from multi.protocol.settings import SessionSettings
from multi.protocol.state import SESSION_TRANSITIONS, SessionState
from multi.reasons import Reason
from multi.types import ConnectionState, SessionId, Side


class SessionBase(ABC):
    """`entropy(n)` gives n random bytes."""

    # With so many attributes an object's dictionary shares its keys with no other: it took 1,200 bytes more.
    __slots__ = (
        *("__weakref__", "closing", "confirmed", "connections", "entropy", "helpless", "leaving"),
        *("lingering_since", "needs_flush", "now", "outbox", "over", "pending", "receiver", "sender", "session_id"),
        *("settings", "side", "state", "steady", "unsettled"),
    )
    sender: Sender

    def __init__(
        self, side: Side, session_id: SessionId, settings: SessionSettings, entropy: Callable[[int], bytes], now: float
    ) -> None:
        self.side = side
        self.session_id = session_id
        self.settings = settings
        self.entropy = entropy
        self.now = now
        """The time of the last input."""
        self.state = SessionState.OPENING
        self.over = False
        """The state is CLOSED."""
        self.confirmed = False
        """The peer has proved itself."""
        self.lingering_since: float | None = None
        """When CLOSE was said, or data or control came after it; None = not yet. The session lingers from then on."""
        self.closing = False
        """This side has ended the session."""
        self.leaving = False
        """The server goes away: nothing more is written, and the session ends once what was written is acknowledged."""
        self.connections = Connections()
        self.outbox = Outbox(self.connections)
        self.receiver = Receiver(settings, now)
        self.pending: list[Effect] = []
        """The effects since they were taken last."""
        self.needs_flush = True
        """Something has happened since the last effects that may call for more than acknowledgements."""
        self.steady: list[Connection] = []
        """Those that carry data, as of the last flush, while nothing is about to end or runs short; else empty."""
        self.helpless = False
        """A server with a single connection: should that be dead, it can say nothing elsewhere, and it dials nothing.

        The client has to find out, and does: it waits for what does not come. So nobody watches over acknowledgements
        that leave on this connection.
        """
        self.unsettled = True
        """Not only bytes have come and gone since `far_timer` was asked: what it said may lie too late."""

    def move(self, state: SessionState) -> None:
        if state not in SESSION_TRANSITIONS[self.state]:
            raise LocalProtocolError(f"a session cannot go from {self.state.value} to {state.value}")
        self.state = state
        self.over = state is SessionState.CLOSED

    def emit(self, effect: Effect) -> None:
        self.pending.append(effect)

    def notify(self, event: Event) -> None:
        """Let subscribers hear of it."""
        self.needs_flush = self.unsettled = True
        self.pending.append(Notify(event))

    @property
    def settling(self) -> bool:
        """The session or a connection ends as soon as the peer has acknowledged enough."""
        if self.closing or self.leaving:
            return True
        for connection in self.connections.values():  # noqa: SIM110 - asked for every acknowledgement
            if connection.draining:
                return True
        return False

    # --- handshakes  ---

    @abstractmethod
    def may_send(self, connection: Connection, *, receives: bool = False) -> None:
        """Data may be written on `connection` before the peer has proved itself; `receives`: and is taken, too."""

    @abstractmethod
    def peer_known(
        self, window: int, max_streams: int, resume_timeout: float, policy: Policy | None, extensions: Extensions
    ) -> None:
        """The peer's HELLO or ACCEPT has come; it will wait or try `resume_timeout` seconds for the session."""

    @abstractmethod
    def peer_lives(self) -> None:
        """Whatever it has closed, it dials: it has the whole `resume_timeout` to come back."""

    @abstractmethod
    def admitted(self, connection: Connection) -> None:
        """What comes on `connection` is the peer's, but perhaps said before: nothing is sent until it has answered."""

    @abstractmethod
    def authenticated(self, connection: Connection) -> None:
        """The peer has proved itself: the connection becomes ACTIVE."""

    @abstractmethod
    def start_over(self, connection: Connection) -> None:
        """The peer cannot read what was sent on `connection` so far: all of it is said again."""

    @abstractmethod
    def join_elsewhere(self, connection: Connection) -> None:
        """The server that has answered on `connection` takes further ones only at addresses that it tells."""

    @abstractmethod
    def refused(self, connection: Connection, refuse: Refuse) -> None:
        """The server refused HELLO or JOIN on this connection."""

    # --- roles  ---

    @abstractmethod
    def say_role(self, connection: Connection) -> None:
        """Tell the peer what role a connection has."""

    # --- ends  ---

    @abstractmethod
    def disconnect(
        self, connection: Connection, reason: Reason, *, abort: bool, state: ConnectionState = ConnectionState.LOST
    ) -> None:
        """Give up one connection; what it carried is rescued."""

    @abstractmethod
    def stuck(self, connection: Connection) -> None:
        """Its transport gets on with nothing for so long that another should be tried."""

    @abstractmethod
    def gets_on(self, connection: Connection) -> None:
        """The transport of one that was stuck gets on again."""

    @abstractmethod
    def peer_lost(self, connection: Connection) -> None:
        """On the peer's side it is over: nothing need be said about it any more."""

    @abstractmethod
    def peer_goes_away(self, seconds: float) -> None:
        """AWAY has come: the server ends the session within `seconds`."""

    @abstractmethod
    def peer_closed(self, close: Close) -> None:
        """CLOSE has come."""
