"""Random runs: a random network, a random policy, random operations, then peace, and everything must have arrived.

The same seed always gives the same trace, byte for byte, so a failing seed is its own bug report; `trace_digest` says
in a few characters what happened in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from multi.errors import LocalProtocolError, SessionLost
from multi.lab.sim.end import SimEnd
from multi.lab.sim.link import StreamLinkSpec
from multi.lab.sim.oracles import EXPECTED_CAUSES
from multi.lab.sim.pair import Pair
from multi.lab.sim.trace import digest
from multi.lab.sim.wire import Route
from multi.paths.handover import HANDOVER_TIMEOUT
from multi.paths.racing import ConnectMode
from multi.paths.roles import Mode
from multi.paths.slots import DIAL_APART, Slot
from multi.protocol.authenticator import ServerAuthenticator
from multi.protocol.payloads import Policy
from multi.protocol.session import LEAVING
from multi.protocol.settings import Protect, SessionSettings
from multi.reasons import Cause, Reason
from multi.schedulers.steering import MODES
from multi.types import STREAM_ZERO, Candidate, Role, StreamId

SCHEDULERS = (
    *("adaptive",) * 3,
    *("RR", "WRR", "lowest_latency", "top_latency", "top_throughput", "BLEST", "ECF", "redundant", "cost"),
)
SIZES = (1, 10, 300, 1_500, 4_096, 16_384, 16_385, 40_000, 70_000, 200_000)
RATES = (50e3, 200e3, 1e6, 3e6, 10e6)
DELAYS = (0.001, 0.005, 0.010, 0.030, 0.080)
BUFFERS = (8 * 1024, 32 * 1024, 64 * 1024, 256 * 1024)
MAX_WRITTEN = 400_000  # bytes per end: slow links must get it through, and a run must stay cheap
SETTLE = 90.0  # seconds of peace in which everything must arrive; a dead last connection needs 10 to be noticed
SETTLE_STEP = 0.02  # seconds between two looks; looking at every event would cost more than the run
CLOSE = 30.0  # seconds in which both sides must have ended after both have closed


def _link(dice: Random) -> StreamLinkSpec:
    return StreamLinkSpec(dice.choice(RATES), dice.choice(DELAYS), dice.choice(BUFFERS))


class RandomRun:
    """One seed, from the first dial to the last close."""

    EXPECTED = EXPECTED_CAUSES
    """Why connections may end."""

    def __init__(self, seed: int, **settings: Any) -> None:
        """`settings` take the place of those that are drawn."""
        self._random = dice = Random(seed)
        protect = dice.choice((Protect.NEVER, Protect.NEVER, Protect.AUTO, Protect.AUTO, Protect.ALWAYS))
        routes = [self._random_route() for _ in range(dice.choice((1, 2, 2, 2, 3, 4)))]
        self.settings = SessionSettings(
            protect=protect,
            resume_timeout=dice.choice((60.0, 60.0, 60.0, 1.0)),
            max_streams=dice.choice((2, 8, 128)),
            max_session_window=dice.choice((128 * 1024, 16 * 1024 * 1024)),
        )
        self.settings = replace(self.settings, **settings)
        apart = Random(f"{seed} patience")  # dice of its own, as below
        server = self.settings
        if "resume_timeout" not in settings and apart.random() < 0.2:
            # One of both would wait longer than the other. The smaller holds, so that what happens is the same.
            longer = self.settings.resume_timeout * apart.choice((2.0, 5.0))
            if apart.random() < 0.5:
                self.settings = replace(self.settings, resume_timeout=longer)
            else:
                server = replace(server, resume_timeout=longer)
        self.patience = self.settings.resume_timeout, server.resume_timeout
        """Seconds that client and server would wait for each other."""
        roles = [Role.ACTIVE if index == 0 or dice.random() < 0.7 else Role.BACKUP for index in range(len(routes))]
        self._count = dice.randint(5, 45)
        self._busy_from_start = dice.random() < 0.3
        ends_early = dice.random() < 0.15
        self.pair = Pair(
            routes,
            seed=seed,
            policy=self._policy(),
            client=self.settings,
            server=server,
            connect=dice.choice(list(ConnectMode)),
            mode=Mode.SWITCH if dice.random() < 0.15 else Mode.AGGREGATE,
            roles=roles,
            open_timeout=30.0,
            expected=self.EXPECTED,
        )
        self._handing_over: set[Slot] = set()
        """Targets of handovers whose outcome has not been told."""
        self.handovers_failed = 0
        """By what became of attempts."""
        self.given_up: set[StreamId] = set()
        """Streams of which somebody said that not everything need arrive."""
        self.finished: set[tuple[str, StreamId]] = set()
        self._written: dict[str, int] = {}
        self.closing = False
        self._operations: list[tuple[int, Callable[[], None]]] = [
            (30, self._write),
            (6, self._advance),
            (4, self._pause),
            (4, self._resume),
            (6, self._cut),
            (4, self._stall),
            (6, self._restore),
            (3, self._open_stream),
            (2, self._finish),
            (2, self._reset),
            (2, self._stop_sending),
            (2, self._drain),
            (2, self._remove),
            (2, self._set_role),
            (2, self._set_scheduler),
            (2, self._hand_over),
            (2, self._network_changed),
            (3, self._networks_come_and_go),
            (1, self._lose_address),
            (1, self._sleep),
            (1, self._change_signal),
            (1, self._announce),
            (1, self._forget_tickets),
            (1, self._add_connection),
        ]
        if ends_early:
            self._operations.append((1, self._close))
        away = Random(~seed)  # dice of their own: runs in which the server is not stopped are what they would be
        self._stopping = (away.random() * 2, away.choice((0.05, 0.3, 1.0, 5.0))) if away.random() < 0.15 else None
        """When the server is stopped, and how long its session gets to end."""
        self.stopped = False
        self._left: dict[StreamId, int] = {}
        """What the server had written on each stream when it began to end its session."""

    def _random_route(self) -> Route:
        dice = self._random
        quic = dice.random() < 0.3
        secure = quic or dice.random() < 0.3
        up = _link(dice)
        down = up if dice.random() < 0.7 else _link(dice)
        return Route(up, down, secure, False, 2 if quic else 1, 2 if secure and not quic else 1)

    def run(self) -> str:
        """Run to the end; return the trace. Raises AssertionError when something does not hold."""
        try:
            if not self._busy_from_start:
                self.pair.until(lambda: self.pair.client.session.confirmed, 20.0)
            if self._stopping is not None:
                self.pair.clock.at(self.pair.clock.now + self._stopping[0], self._stop_server)
            weights = [weight for weight, _ in self._operations]
            actions = [action for _, action in self._operations]
            for action in self._random.choices(actions, weights, k=self._count):
                self._do(action)
                self.pair.run(self._random.choice((0.0, 0.001, 0.01, 0.05, 0.2)) * self._random.random())
            self._settle()
            self._finish_both()
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + "\n".join(self.pair.clock.trace[-60:])) from error
        return "\n".join(self.pair.clock.trace)

    # --- peace  ---

    def _settle(self) -> None:
        pair = self.pair
        self._log("peace")
        for index in range(len(pair.routes)):
            pair.restore(index)
        pair.refused.clear()
        for end in pair.ends:
            end.paused.clear()
            end.read_all()
        for index in range(len(pair.routes)):
            pair.client.change_network(f"if{index}", True)
        self._update(pair.candidates)
        patience_ends = pair.clock.now + SETTLE
        while not (self._ended or self._arrived) and pair.clock.now < patience_ends:
            pair.run(SETTLE_STEP)
        if not self._ended:
            self._check_arrived()

    @property
    def _ended(self) -> bool:
        return any(end.closed is not None for end in self.pair.ends)

    @property
    def _arrived(self) -> bool:
        # A connection that died unnoticed would swallow the last words of the close; wait until it has been noticed.
        dead = any(wire.up.cut or wire.down.cut for end in self.pair.ends for wire in end.wires.values())
        return not dead and self.pair.server is not None and not self._missing()

    def _missing(self) -> list[str]:
        """What has not arrived, or is not known to have."""
        missing = []
        for end in self.pair.ends:
            other = end.other
            if other is None:
                continue
            if other.session.sender.unacked:
                missing.append(f"{other.name}: {other.session.sender.unacked} bytes are not acknowledged")
            if not other.session.outbox.empty:
                missing.append(f"{other.name}: control is not acknowledged")
            for stream, sent in other.sent.items():
                if not self.closing and stream not in self.given_up and end.got(stream) != len(sent):
                    missing.append(f"{end.name}: {end.got(stream)} of {len(sent)} bytes on stream {stream}")
            for name, stream in self.finished:
                if name == other.name and stream not in self.given_up and not end.at_end(stream):
                    missing.append(f"{end.name}: stream {stream} has not ended")
        return missing

    def _check_arrived(self) -> None:
        if self.pair.server is None:
            raise AssertionError("the session never opened")
        if missing := self._missing():
            raise AssertionError("; ".join(missing))

    def _finish_both(self) -> None:
        """Both close: both end, in order unless the session was lost for a good reason before."""
        pair = self.pair
        in_order = not self._ended and not self.closing
        for end in pair.ends:
            if end.session.confirmed and end.session.resume_timeout != min(self.patience):
                raise AssertionError(
                    f"{end.name} waits {end.session.resume_timeout:g} s, not the least of {self.patience}"
                )
        if in_order and self._random.random() < 0.2:
            self._lose_the_close()
        for end in pair.ends:
            end.close()
        limit = CLOSE + max(self.patience)
        pair.until(lambda: all(end.closed is not None for end in pair.ends), limit)
        for end in pair.ends:
            if end.closed is None:
                raise AssertionError(f"{end.name} did not end: {end.session.state.value}")
            if in_order and not self.stopped and not end.closed.reason.orderly:
                raise AssertionError(f"{end.name} ended with {end.closed.reason!r}")
        pair.run(2.0)
        if any(end.wires for end in pair.ends):
            raise AssertionError("a connection was left open")
        for stream, written in self._left.items():
            if stream not in self.given_up and pair.client.got(stream) < written:
                raise AssertionError(f"stream {stream}: {written} bytes written before the server left were not read")

    def _lose_the_close(self) -> None:
        """One end closes, all networks go away with its last words, and the other closes without having heard them."""
        pair, closer = self.pair, self._end()
        closer.close()
        pair.until(lambda: closer.closed is not None or closer.session.lingering_since is not None, CLOSE)
        for index in range(len(pair.routes)):
            pair.cut(index, 0.05, down=True)
        for end in pair.ends:
            end.close()
        pair.run(self._random.choice((0.5, 5.0, 30.0)))
        for index in range(len(pair.routes)):
            pair.restore(index)

    # --- a server that is stopped  ---

    def _stop_server(self) -> None:
        """As `Server.drain` does for each of its sessions."""
        pair, server = self.pair, self.pair.server
        if server is None or server.closed is not None:
            return
        assert self._stopping is not None
        seconds = self._stopping[1]
        self.stopped = True
        self._log("server goes-away", seconds)
        pair.table.refuse_new()
        server.session.go_away(seconds, now=pair.clock.now)
        server.pump()
        pair.clock.at(pair.clock.now + 0.8 * seconds, lambda: self._leave(server))
        pair.clock.at(pair.clock.now + seconds, lambda: self._cut_off(server))

    def _leave(self, server: SimEnd) -> None:
        if server.closed is None and not server.session.closing:
            self._left = {stream: len(sent) for stream, sent in server.sent.items()}
            server.session.leave(now=server.now)
            server.pump()

    def _cut_off(self, server: SimEnd) -> None:
        if server.closed is None:
            self._left.clear()  # there was no time, or no network, for all of it
            server.session.abort(LEAVING, now=server.now)
            server.pump()

    # --- operations  ---

    def _do(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (LocalProtocolError, SessionLost) as error:
            self._log("not-possible", comment=str(error))

    def _log(self, *words: object, comment: str = "") -> None:
        self.pair.clock.log("*", *words, comment=comment)

    def _end(self) -> SimEnd:
        return self._random.choice(self.pair.ends)

    def _stream(self, end: SimEnd) -> StreamId:
        streams = list(end.session.sender.streams)
        return self._random.choice(streams) if streams and self._random.random() < 0.5 else STREAM_ZERO

    def _route(self) -> int:
        return self._random.randrange(len(self.pair.routes))

    def _write(self) -> None:
        end = self._end()
        stream, size = self._stream(end), self._random.choice(SIZES)
        if self._written.get(end.name, 0) + size > MAX_WRITTEN:
            return
        self._written[end.name] = self._written.get(end.name, 0) + size
        self._log(end.name, "writes", stream, size)
        end.write(self._random.randbytes(size), stream)

    def _advance(self) -> None:
        self.pair.run(self._random.random())

    def _pause(self) -> None:
        end = self._end()
        stream = self._random.choice(list(end.session.receiver.streams))
        self._log(end.name, "pauses", stream)
        end.pause(stream)

    def _resume(self) -> None:
        end = self._end()
        for stream in sorted(end.paused):
            self._log(end.name, "resumes", stream)
            end.resume(stream)

    def _cut(self) -> None:
        notice = self._random.choice((0.0, 0.02, 0.3, 2.0, None, None))
        self.pair.cut(self._route(), notice, down=self._random.random() < 0.3)

    def _stall(self) -> None:
        self.pair.stall(self._route())

    def _restore(self) -> None:
        for index in sorted(self.pair.down | self.pair.stalled):
            if self._random.random() < 0.7:
                self.pair.restore(index)

    def _open_stream(self) -> None:
        end = self._end()
        stream = end.open_stream(self._random.randint(0, 7))
        self._log(end.name, "opens", "-" if stream is None else stream)
        if stream is not None:
            if self._random.random() < 0.3:
                mode = self._random.choice(list(MODES))
                self._log(end.name, "steers", stream, mode)
                end.steer([stream, STREAM_ZERO] if self._random.random() < 0.2 else [stream], mode)
            self._written[end.name] = self._written.get(end.name, 0) + 1000
            end.write(self._random.randbytes(1000), stream)

    def _finish(self) -> None:
        end = self._end()
        stream = self._stream(end)
        if stream != STREAM_ZERO or self._random.random() < 0.3:
            self._log(end.name, "finishes", stream)
            end.finish(stream)
            self.finished.add((end.name, stream))

    def _reset(self) -> None:
        end = self._end()
        stream = self._stream(end)
        if stream != STREAM_ZERO:
            self._log(end.name, "resets", stream)
            self.given_up.add(stream)
            end.reset(stream)

    def _stop_sending(self) -> None:
        end = self._end()
        stream = self._random.choice(list(end.session.receiver.streams))
        if stream != STREAM_ZERO:
            self._log(end.name, "stops", stream)
            self.given_up.add(stream)
            end.stop_sending(stream)

    def _drain(self) -> None:
        end = self._end()
        if len(end.active) > 1:
            connection = self._random.choice(end.active)
            self._log(end.name, "drains", connection)
            end.drain(connection)

    def _remove(self) -> None:
        client = self.pair.client
        assert client.session.paths is not None
        if len(client.active) > 1 and len(client.session.paths.slots) > 1:
            connection = self._random.choice(client.active)
            self._log("client removes", connection)
            client.remove_connection(connection)

    def _add_connection(self) -> None:
        index = self._route()
        self._log("client adds", index)
        candidate = self.pair.candidate(index, group=f"added {len(self.pair.candidates)}")
        self.pair.candidates.append(candidate)
        self.pair.client.session.path_manager(now=self.pair.clock.now).add([candidate], self.pair.clock.now)
        self.pair.client.pump()

    def _set_role(self) -> None:
        end = self._end()
        if end.active:
            connection, role = (
                self._random.choice(end.active),
                self._random.choice((Role.ACTIVE, Role.BACKUP, Role.SECONDARY)),
            )
            self._log(end.name, "makes", connection, role.name.lower())
            end.set_role(connection, role)

    def _set_scheduler(self) -> None:
        end, policy = self._end(), self._policy()
        self._log(end.name, "schedules", policy.scheduler, policy.reinject)
        end.set_scheduler(policy)

    def _hand_over(self) -> None:
        client = self.pair.client
        assert client.session.paths is not None
        slot = self._random.choice(client.session.paths.slots)
        began, busy = client.now, bool(self._handing_over)

        def handed_over(failure: Reason | None) -> None:
            self._log("handover", int(failure is not None), comment=failure or "")
            under_way.discard(slot)
            if failure is not None:
                self._check_handover(slot, failure, began, busy=busy)

        self._log("client hands-over", slot.candidates[0].entry)
        under_way = set[Slot]() if busy else self._handing_over
        under_way.add(slot)
        client.session.path_manager(now=client.now).hand_over([slot], handed_over, client.now)
        client.pump()

    def _check_handover(self, slot: Slot, failure: Reason, began: float, *, busy: bool) -> None:
        """A handover fails when all has failed that was begun for it, when nothing can be begun, or after its time.

        `busy`: another one was under way when it was asked for.
        """
        pair, client = self.pair, self.pair.client
        paths = client.session.paths
        assert paths is not None
        target = slot.candidates[0]
        made = {
            connection
            for connection, (when, candidate) in pair.attempts.items()
            if (candidate.entry, candidate.group) == (target.entry, target.group) and when > began - DIAL_APART
        }
        timed_out = failure.cause is Cause.ATTEMPT_TIMEOUT and client.now >= began + HANDOVER_TIMEOUT
        if failure.cause is Cause.ABORTED:
            good = busy and client.now == began
        elif timed_out or client.session.over or client.session.closing:
            good = True
        elif slot.absent or slot not in paths.slots:
            good = failure.cause in (Cause.NETWORK_GONE, Cause.REMOVED)
        else:
            self.handovers_failed += 1
            good = bool(made) and made.isdisjoint(slot.attempts)
        if not good:
            raise AssertionError(f"a handover begun at {began:.6f} failed, {failure!r}, its attempts: {sorted(made)}")

    def _network_changed(self) -> None:
        index, usable = self._route(), self._random.random() < 0.6
        self._log("network", index, int(usable))
        self.pair.client.change_network(f"if{index}", usable)

    def _networks_come_and_go(self) -> None:
        """Some candidates can be dialled now, the others cannot."""
        self._update([c for c in self.pair.candidates if self._random.random() < 0.6])

    def _update(self, there: list[Candidate]) -> None:
        client = self.pair.client
        self._log("networks", *[c.entry for c in there])
        paths = client.session.path_manager(now=client.now)
        paths.update(there, client.now, reason=lambda entry: "no carrier")
        client.pump()

    def _lose_address(self) -> None:
        client, index = self.pair.client, self._route()
        self._log("address", index)
        client.session.network_changed(
            f"if{index}", False, address=f"10.0.{index}.2", reason="the address was removed", now=client.now
        )
        client.pump()

    def _sleep(self) -> None:
        client = self.pair.client
        self._log("client sleeps")
        client.session.slept(100.0, now=client.now)
        client.pump()

    def _change_signal(self) -> None:
        client, index, fading = self.pair.client, self._route(), self._random.random() < 0.6
        self._log("signal", index, int(fading))
        client.session.signal_changed(f"if{index}", fading, -80.0, now=client.now)
        client.pump()

    def _announce(self) -> None:
        if self.pair.server is not None:
            self._log("server announces")
            self.pair.server.session.announce([("192.0.2.1", 7788)], now=self.pair.clock.now)
            self.pair.server.pump()

    def _forget_tickets(self) -> None:
        """What the client joins with next is not known to the server any more."""
        if self.pair.server is not None:
            self._log("server forgets")
            authenticator = self.pair.server.session._auth
            assert isinstance(authenticator, ServerAuthenticator)
            authenticator._tickets.clear()

    def _close(self) -> None:
        end = self._end()
        self.closing = True
        if self._random.random() < 0.7:
            self._log(end.name, "closes")
            end.close()
        else:
            self._log(end.name, "aborts")
            end.abort()

    def _policy(self) -> Policy:
        reinject = self._random.choice(("full", "full", "rescue", "off"))
        return Policy(self._random.choice(SCHEDULERS), (), False, reinject)


def run_seed(seed: int) -> str:
    """Run one seed; return its trace. Raises AssertionError, with the last lines of the trace, when it fails."""
    return RandomRun(seed).run()


def trace_digest(seed: int) -> str:
    """Run one seed; return the digest of its trace (see `multi.lab.sim.trace`)."""
    return digest(run_seed(seed))
