"""Random runs in which somebody means harm: nothing he does ends the session, gets in, or costs a byte.

Beside everything that `random_run` does, strangers repeat what the client has said and ask to join without keys, routes
lead to somebody who refuses, at once or late, the client has more connections than the server allows, comes back from
new networks while others flood, and somebody in the path of one connection puts segments into it that lie about sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from multi.events import GoingAway
from multi.lab.sim.oracles import EXPECTED_CAUSES, HOSTILE_CAUSES
from multi.lab.sim.pair import FIRST_STRANGER
from multi.protocol.handshake import ORIGIN_LENGTH, ConnectionTerms, Join, Refuse, RefuseCode
from multi.protocol.payloads import Ack, StreamAck, encode_away
from multi.protocol.segment import SegmentType, encode, encode_header
from multi.reasons import Cause
from multi.types import STREAM_ZERO, StreamId
from tests.sim.random_run import RandomRun
from tests.unit.protocol.wiring import whole_ack

FLOOD = 40  # connections of strangers at once; more than a session lets try at a time
FAR = 1 << 62
SILENCE = 70.0  # seconds without a word after which a session may end: longer than its `resume_timeout`
MAY_END = frozenset({Cause.ABORTED, Cause.CLOSED, Cause.GOING_AWAY, Cause.PEER_ABORTED, Cause.PEER_CLOSED})
"""Why a session may end that was not left alone for long: one of its own ends wanted it."""


class HostileRun(RandomRun):
    """One seed. Whoever is hostile speaks from beside the client, or stands in the path of one connection at a time."""

    EXPECTED = EXPECTED_CAUSES | HOSTILE_CAUSES

    def __init__(self, seed: int) -> None:
        super().__init__(seed, max_connections=3, resume_timeout=60.0)
        self._busy_from_start = False  # while nothing is proved, a refusal is the end
        self._operations += [
            (6, self._say_again),
            (4, self._join_without_keys),
            (4, self._flood),
            (5, self._refuse),
            (5, self._connect_more),
            (4, self._come_back_from_elsewhere),
            (8, self._lie),
        ]

    def _do(self, action: Callable[[], None]) -> None:
        super()._do(action)
        self._check_held()

    def _settle(self) -> None:
        self.pair.refusing.clear()
        super()._settle()
        self._check_held()

    def _check_held(self) -> None:
        """No stranger has got in, what a session keeps is bounded, and it ends only where one of its ends wants it."""
        server = self.pair.server
        if server is not None:
            connections = server.session.connections.values()
            inside = [c.id for c in connections if c.id > FIRST_STRANGER and c.authenticated]
            if inside:
                raise AssertionError(f"strangers got in: {inside}")
            proved = sum(c.authenticated and c.alive for c in connections)
            unproved = sum(not c.authenticated and c.alive for c in connections)
            if proved > self.settings.max_connections or unproved > self.settings.max_unproved:
                raise AssertionError(f"{proved} connections that are proved, {unproved} that are not")
        if not self.stopped and any(isinstance(event, GoingAway) for event in self.pair.client.events):
            raise AssertionError("the client believes that its server goes away, and it does not")
        for end in self.pair.ends:
            if end.closed is not None and end.closed.reason.cause not in MAY_END and self.pair.clock.now < SILENCE:
                raise AssertionError(f"{end.name} ended: {end.closed.reason}")

    # --- operations  ---

    def _say_again(self) -> None:
        """Somebody has heard what the client said first on a connection, and says it."""
        if self.pair.heard:
            words = self._random.choice(self.pair.heard)
            self._log("stranger repeats", words[1])
            self.pair.stranger(self._route(), words)

    def _join_without_keys(self) -> None:
        """Somebody knows the Session ID, and perhaps the origin."""
        dice = self._random
        known = [words for words in self.pair.heard if words[1] == SegmentType.JOIN]
        header = 32
        origin = dice.choice(known)[header : header + ORIGIN_LENGTH] if known else dice.randbytes(ORIGIN_LENGTH)
        join = Join(origin, dice.randbytes(32), ConnectionTerms(sealed=dice.random() < 0.5))
        self._log("stranger joins")
        self.pair.stranger(self._route(), encode(SegmentType.JOIN, self.pair.session_id, join.encode()))

    def _flood(self) -> None:
        for _ in range(FLOOD):
            self._say_again()

    def _refuse(self) -> None:
        """A route leads to somebody who refuses, perhaps long after he was asked; what is there breaks."""
        dice, index = self._random, self._route()
        code = dice.choice((RefuseCode.BUSY, RefuseCode.GOING_AWAY, RefuseCode.ELSEWHERE, RefuseCode.REFUSED))
        delay = dice.choice((0.0, 0.05, 1.0, 4.0))
        self._log("refused on", index, int(code), delay)
        self.pair.refusing[index] = (delay, Refuse(code))
        self.pair.cut(index, 0.02)
        if dice.random() < 0.7:
            self.pair.clock.at(self.pair.clock.now + dice.random() * 2, lambda: self._relent(index))

    def _relent(self, index: int) -> None:
        self.pair.refusing.pop(index, None)

    def _connect_more(self) -> None:
        """More connections than the server lets prove themselves."""
        for _ in range(self.settings.max_connections):
            self._add_connection()

    def _come_back_from_elsewhere(self) -> None:
        """All networks are lost, and the client comes from a new one while others flood."""
        for index in range(len(self.pair.routes)):
            self.pair.cut(index, self._random.choice((0.0, 0.3)), down=True)
        self._flood()
        index = self._route()
        self.pair.restore(index)
        self._add_connection()
        self._flood()

    def _lie(self) -> None:
        """Somebody in the path puts a segment into a connection that says what cannot be."""
        dice, pair = self._random, self.pair
        wires = [wire for wire in pair.wires if wire.server is not None and wire.id < FIRST_STRANGER]
        if not wires:
            return
        wire, session = dice.choice(wires[-6:]), pair.session_id
        acknowledged = Ack(0, 0, (), (StreamAck(STREAM_ZERO, FAR, FAR),))
        lie = dice.choice(
            (
                encode(SegmentType.DATA, session, b"x", sequence=FAR),
                encode(SegmentType.DATA, session, b"x", sequence=FAR, stream=StreamId(1 << 30)),
                encode_header(SegmentType.DATA, session, 0, STREAM_ZERO, (1 << 32) - 100),
                encode(SegmentType.ACK, session, whole_ack(acknowledged)),
                encode(SegmentType.DATA, session, b""),
                encode(SegmentType.AWAY, session, encode_away(0.0), sequence=FAR),
                dice.randbytes(64),
            )
        )
        upwards = dice.random() < 0.5
        self._log("lie", wire.id, int(upwards), len(lie))
        (wire.up if upwards else wire.down).write(lie, wire.route.lanes - 1)
