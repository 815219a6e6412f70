"""aioquic's connection with several paths: which packets leave where, and when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from math import inf
from typing import Any, NamedTuple

from aioquic.quic.connection import END_STATES
from aioquic.quic.packet import QuicFrameType, QuicPacketType, push_ack_frame
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilderStop
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from aioquic.tls import Epoch

from multi.multipath import acks
from multi.multipath.cap import RELEASE
from multi.multipath.facts import PathError, PathFacts, PathState
from multi.multipath.scheduling import RETRY, PathView, Progress, choose, first_overtaking, usable, view_of
from multi.multipath.silence import MAX_PROBE_INTERVAL, PATIENCE
from multi.transports.mpquic.frames import Frame, PathFrame, Waiting
from multi.transports.mpquic.path import NewId, Path
from multi.transports.mpquic.paths import ConnectionPaths, carrying, take_over
from multi.transports.quic.engine import LANE_STREAMS
from multi.transports.quic.library_engine import largest_message

QUANTUM = 8  # datagrams for which a scheduler is asked at once: asking costs as much as making one
AT_ONCE = 0.0  # seconds; aioquic asks its pacer about acknowledgements that are due now, not about those that are late
CONTROL_WINDOWS = 2  # of congestion control: what is no data may go beyond it, but not without end
KEEP_KNOWN = 15.0  # seconds; NATs forget after 30 at the soonest, as far as is usual (RFC 9000 section 10.1.2)
ACK_CAPACITY = 64  # bytes of a PATH_ACK at least
_STATUS = (PathFrame.PATH_STATUS_BACKUP, PathFrame.PATH_STATUS_AVAILABLE)


class _Waiting(NamedTuple):
    """What has something to send."""

    stream: QuicStream | None
    """None: the datagrams."""
    backlog: int
    """Bytes."""
    room: int
    """How many of them the peer takes now."""


class MultipathConnection(ConnectionPaths):
    """See the module, and `paths`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._far: dict[int, bool] = {}
        """Whether a path is, by its id, while packets are made."""
        self._near_says_limits = False
        """A far path has left it to the nearest to tell what the peer may send."""
        self._behind = 0
        """Bytes that wait to be written to the last stream."""
        self._progress = Progress()
        self._idle_after = self._present_idle_timeout()
        """Seconds, when packets were made last: aioquic asks with each that comes."""

    def packets_to_send(self, now: float, behind: int = 0) -> list[tuple[bytes, Any, int]]:
        """Datagrams, where to, and the path each is of; `behind`: see `PathEngine.waiting`."""
        self._behind = behind
        self._far.clear()
        self._idle_after = self._present_idle_timeout()
        if not self.multipath or self._close_pending:
            if self._close_pending and self.multipath:
                self._enter(self._best())
            path = self._current
            made = [(data, address, path.id) for data, address in super().datagrams_to_send(now)]
            path.sent += sum(len(data) for data, _, _ in made)
            return made
        if self._state in END_STATES:
            return []
        if self._is_client or self._next_path_id == 1:
            self._add_paths()
        for path in self._paths.values():
            path.pacing_at = None
        if self._is_client:
            self._keep_known(now)
        self._plan_acks(now)
        made = []
        if not self._handshake_confirmed:
            made += self._handshake_packets(now)
        made += self._data_packets(now)
        for path in self._open_paths:
            if self._has_control(path):
                made += self._send(path, now, self._largest_datagram, data=False)
        self._note_unused(now)
        return made

    def _keep_known(self, now: float) -> None:
        """Ask now and then on paths that carry nothing, while others do: a NAT that has forgotten one leads nothing of
        what the server sends there to us, and the server has nothing else when all others are dead."""
        for path in self._open_paths:
            if path.state is PathState.ACTIVE and now > path.loss._time_of_last_sent_ack_eliciting_packet + KEEP_KNOWN:
                with self._on(path):
                    self._probe_pending = True

    def _handshake_packets(self, now: float) -> list[tuple[bytes, Any, int]]:
        """Of path 0, until the handshake is confirmed; data of streams is left to whichever path is the best."""
        path = self._paths.get(0)
        if path is None or not path.open:
            return []
        self._enter(path)
        asks = self._probe_pending and path.state is PathState.SUSPECT
        with self._without_data():
            made = [(data, address, 0) for data, address in super().datagrams_to_send(now)]
        self._probe_pending = self._probe_pending or asks  # that of the handshake is gone once it is confirmed
        path.sent += sum(len(data) for data, _, _ in made)
        path.pacing_at = self._pacing_at
        return made

    def _best(self) -> Path:
        """The path for what should arrive soon."""
        able = usable(self.facts())
        if able:
            return self._paths[min(able, key=lambda path: (not path.rtt, path.rtt)).id]
        return next(iter(self._open_paths), self._current)

    def _plan_acks(self, now: float) -> None:
        """Give each acknowledgement that is due to the path that carries it."""
        waiting = [(path.space.ack_at, path) for path in self._acknowledged_together() if path.space.ack_at is not None]
        waiting.sort(key=lambda each: each[0])
        if not waiting or waiting[0][0] > now:
            return
        known = self.facts()
        leaving: set[int] = set()
        for ack_at, path in waiting:
            carriers = acks.carriers(self._policy.ack_path, path.facts(), known, now)
            # What is due a little later leaves with what leaves there now: a datagram each would be twice as many.
            if ack_at > now and not leaving.issuperset(carriers):
                continue
            path.space.ack_at = None
            leaving.update(carriers)
            for carrier in carriers:
                path.told_on = carrier
                self._paths[carrier].acks_due[path.id] = path

    def _queues_back(self) -> float:
        # Half of what is allowed to queue is data, and so is all where nothing but congestion control bounds that. With
        # more the peer's own bound grows no further, though its data waits for nothing.
        loss = self._paths.get(self._current.told_on, self._current).loss
        waits = loss._rtt_latest - loss._rtt_min if self._policy.max_queue and loss._rtt_initialized else 0.0
        return waits if waits > self._policy.max_queue * RELEASE else 0.0

    def _acknowledged_together(self) -> list[Path]:
        """Paths one of which stands for each number space."""
        return list(self._paths.values())

    def _data_packets(self, now: float) -> list[tuple[bytes, Any, int]]:
        """What waits in streams, on the paths that the scheduler chooses."""
        self._retry_at = None
        made: list[tuple[bytes, Any, int]] = []
        waiting = self._waiting()
        able = usable(self.facts()) if waiting else ()
        views = {facts.id: self._view(facts, now) for facts in able}
        while waiting:
            known = list(views.values())
            if not known:  # only probes leave, and carry what fits into them
                for path in self._open_paths:
                    if path.state is PathState.SUSPECT and self._probes(path):
                        made += self._send(path, now, self._largest_datagram, data=True)
                break
            if len(known) > 1 and (copies := self._rescues(known, now)):
                made += copies
                changed = list(views)
            elif sent := self._in_turn(waiting, known, now):
                made += sent
                changed = [self._current.id]
            else:
                break
            views |= {path_id: self._view(self._paths[path_id].facts(), now) for path_id in changed}
            waiting = self._waiting()
        # Once the peer takes nothing more, or all has been sent, the reader waits for nothing but what is under way.
        said_all = not waiting and not (self._behind and self._nothing_pending())
        if said_all and len(self._open_paths) > 1:
            made += self._copies(now)
        return made

    def _nothing_pending(self) -> bool:
        return not any(len(stream.sender._pending) for stream in self._streams_queue)

    def _rescues(self, views: Sequence[PathView], now: float) -> list[tuple[bytes, Any, int]]:
        """What a slow path carries and the reader waits for, on another, while there is more to send."""
        if self._progress.due(now):
            streams = ((at, stream.sender) for at, stream in self._streams.items())
            in_order = ((at, sender._buffer_start, sender.highest_offset) for at, sender in streams)
            self._progress.look(in_order, views, now)
        rescued = self._progress.rescue(views, self._oldest_data, now)
        if rescued is None:
            return []
        slow, fast = rescued
        if self._progress.slowed(slow):
            self._paths[slow.id].rate.late(slow.in_flight)
        return self._taken_over(slow, fast, now)

    def _oldest_data(self, path_id: int) -> tuple[float, int] | None:
        packet = next(carrying(self._paths[path_id].space), None)
        return None if packet is None else (packet.sent_time or 0.0, packet.sent_bytes)

    def _copies(self, now: float) -> list[tuple[bytes, Any, int]]:
        """What a slow path carries, on one that delivers it clearly sooner."""
        if all(stream.sender._buffer_start == stream.sender._buffer_stop for stream in self._streams.values()):
            return []  # all that was sent has arrived
        carried = {path.id: self._oldest_data(path.id) for path in self._open_paths}
        if not any(carried.values()):
            return []
        facts = self.facts()
        views = {each.id: self._view(each, now) for each in facts}
        able = [views[each.id] for each in usable(facts) if views[each.id].credit and each.rtt]
        for path_id, oldest in carried.items():
            others = [view for view in able if view.id != path_id]
            if oldest is None or not others or self._paths[path_id].state is not PathState.ACTIVE:
                continue
            slow, (sent_at, size) = views[path_id], oldest
            at, fast = first_overtaking(slow, sent_at, others, size)
            if at <= now:
                return self._taken_over(slow, fast, now)
            self._retry_at = min(at, self._retry_at or inf)
        return []

    def _taken_over(self, slow: PathView, fast: PathView, now: float) -> list[tuple[bytes, Any, int]]:
        take_over(self._paths[slow.id].space, fast.credit, self._on_repeated_delivery)
        return self._send(self._paths[fast.id], now, fast.credit, data=True)

    def _in_turn(self, waiting: list[_Waiting], views: Sequence[PathView], now: float) -> list[tuple[bytes, Any, int]]:
        """Packets of the first that has a path now. Each is asked about by itself: what is little may be better off
        waiting for a near path, while what is much leaves on a far one."""
        most = (QUANTUM if len(waiting) == 1 else 1) * self._largest_datagram
        if len(waiting) == len(views) == 1:  # there is nothing to choose
            most = waiting[0].room
        for each in waiting:
            size = min(each.room, most)
            able = views if each.stream is not None else self._carrying(len(self._datagrams_pending[0]), views)
            chosen = choose(self._scheduler, able, size, each.backlog, now)
            if not chosen:
                self._retry_at = now + RETRY if any(view.credit for view in views) else None
                continue
            with nullcontext() if len(waiting) == 1 else self._first(each, waiting):
                sent = self._send(self._paths[chosen[0]], now, size + self._largest_datagram, data=True)
            if sent:
                return sent
        return []

    def _carrying(self, message: int, views: Sequence[PathView]) -> Sequence[PathView]:
        """Of paths, those whose datagrams have room for a message of so many bytes."""
        return [view for view in views if message <= largest_message(self._paths[view.id].loss.size.now)]

    @property
    def present_datagram_size(self) -> int:
        paths = self._open_paths
        able = usable(self.facts()) if len(paths) > 1 else ()
        return max((self._paths[each.id].loss.size.now for each in able or paths), default=self._largest_datagram)

    @contextmanager
    def _first(self, chosen: _Waiting, waiting: list[_Waiting]) -> Iterator[None]:
        """Let `chosen` leave, and fill its last packet with what has more to send; the others are not asked."""
        hidden = [each.stream for each in waiting if each is not chosen and each.backlog <= chosen.backlog]
        queue, datagrams = self._streams_queue, self._datagrams_pending
        self._streams_queue = [stream for stream in queue if stream is not chosen.stream and stream not in hidden]
        if chosen.stream is not None:
            self._streams_queue.insert(0, chosen.stream)
            self._datagrams_pending = deque()
        try:
            yield
        finally:
            self._streams_queue = [stream for stream in queue if stream in hidden] + self._streams_queue
            self._datagrams_pending = datagrams

    def _note_unused(self, now: float) -> None:
        """Paths that would take more now: what they deliver is no measure of what they carry."""
        if all(path.unused_at == path.loss.acked + path.loss.bytes_in_flight for path in self._open_paths):
            return  # nothing has been sent there since, as on a side that only receives
        for facts in usable(self.facts()):
            if self._credit(facts.id, now):
                path = self._paths[facts.id]
                path.rate.sent(facts.acked, facts.bytes_in_flight, facts.congestion_window)
                path.unused_at = facts.acked + facts.bytes_in_flight

    def _waiting(self) -> list[_Waiting]:
        """All that have something to send that the peer takes now, in their turns; datagrams go first."""
        found = []
        self._drop_large_messages()
        if self._datagrams_pending:
            size = sum(map(len, self._datagrams_pending))
            found.append(_Waiting(None, size, size))
        new = self._remote_max_data - self._remote_max_data_used
        for stream in self._streams_queue:
            sender = stream.sender
            waiting = sum(part.stop - part.start for part in sender._pending)
            first = min(waiting, max(0, sender._buffer_stop - sender.highest_offset))  # was never sent
            allowed = min(first, new, max(0, stream.max_stream_data_remote - sender.highest_offset))
            room = waiting - first + allowed + (sender._pending_eof and allowed == first)
            if room:
                behind = self._behind if stream.stream_id == LANE_STREAMS[-1] else 0
                found.append(_Waiting(stream, waiting + behind + sender._pending_eof, room))
        return found

    def _view(self, path: PathFacts, now: float) -> PathView:
        return view_of(path, self._paths[path.id].rate.known, self._credit(path.id, now), self._asymmetry(path))

    def _asymmetry(self, path: PathFacts) -> float:
        """See `ConnectionView`: what brings acknowledgements takes half of its own round trip for that."""
        carrier = self._paths.get(self._paths[path.id].carrier)
        back = path.min_rtt if carrier is None else carrier.min_rtts.get(carrier.id, path.min_rtt)
        return max(path.min_rtt - back, -path.min_rtt) / 2  # no way takes less than no time

    def _credit(self, path_id: int, now: float) -> int:
        path = self._paths[path_id]
        path.pacing_at = path.loss._pacer.next_send_time(now=now)
        room = path.most - path.loss.bytes_in_flight
        return room if room >= path.loss.size.now and path.pacing_at is None else 0

    def _probes(self, path: Path) -> bool:
        return bool(self._of(path, "_probe_pending"))

    def _has_control(self, path: Path) -> bool:
        """Something besides data is to be sent there."""
        known = vars(self) if path is self._current else path.kept
        network_path = known["_network_paths"][0]
        return bool(
            path.acks_due
            or known["_probe_pending"]
            or known["_retire_connection_ids"]
            or any(each.remote_challenges for each in known["_network_paths"])
            or not (network_path.is_validated or network_path.local_challenge_sent)
            or not all(each.was_sent for each in known["_host_cids"])
            or (path.state is PathState.ACTIVE and (self._due or self._handshake_done_pending or self._limits_lost()))
            or (self._near_says_limits and path is self._best())
        )

    def _has_room_for_control(self, path: Path) -> bool:
        """A peer that acknowledges nothing, and goes on saying what has to be answered, would have answers pile up."""
        return path.loss.bytes_in_flight < CONTROL_WINDOWS * path.most

    def _send(self, path: Path, now: float, most: int, *, data: bool) -> list[tuple[bytes, Any, int]]:
        """Packets of one path with at most so many bytes; without `data` only with what is not of streams."""
        self._enter(path)
        self._max_datagram_size = self._present_size()
        network_path = self._network_paths[0]
        builder = self._packet_builder(self._max_datagram_size)
        room = path.most - path.loss.bytes_in_flight if data else 0
        if data and path.loss.bytes_in_flight < self._max_datagram_size:
            path.rate.begins(now, path.loss.acked)
        # What is left of a window is no datagram: small ones would take the place of large ones in queues.
        whole = min(room, most) // self._max_datagram_size * self._max_datagram_size
        least = self._max_datagram_size if self._probe_pending or self._has_room_for_control(path) else 0
        builder.max_flight_bytes = max(whole, least)
        if not network_path.is_validated and not self._is_client:
            builder.max_total_bytes = network_path.bytes_received * 3 - network_path.bytes_sent
        own_ack_at = path.space.ack_at
        if path.acks_due:
            path.space.ack_at = AT_ONCE
        self._pacing_at = None
        with nullcontext() if data else self._without_data(), suppress(QuicPacketBuilderStop):
            self._write_application(builder, network_path, now)
        path.pacing_at = self._pacing_at or path.pacing_at
        if path.challenged_at is None and network_path.local_challenge_sent:
            path.challenged_at = now
        # What was planned is in `acks_due`, or has left; what came on this path itself may not be due yet.
        path.space.ack_at = own_ack_at
        made = self._flush_builder(builder=builder, network_path=network_path, peer_cid=self._peer_cid.cid, now=now)
        made += self._probe_size(now)
        made += self._answer_probes(now)
        path.sent += sum(len(datagram) for datagram, _ in made)
        return [(datagram, address, path.id) for datagram, address in made]

    @contextmanager
    def _without_data(self) -> Iterator[None]:
        """Let aioquic see nothing of streams and datagrams meanwhile."""
        queue, datagrams = self._streams_queue, self._datagrams_pending
        self._streams_queue, self._datagrams_pending = [], deque()
        try:
            yield
        finally:
            self._streams_queue, self._datagrams_pending = queue, datagrams

    def _answer_probes(self, now: float) -> list[tuple[bytes, Any]]:
        """On addresses to which the peer may want to move the path in use (RFC 9000 section 9.5)."""
        made = []
        for probed in self._network_paths[1:]:
            if probed.remote_challenges or not (probed.is_validated or probed.local_challenge_sent):
                if probed.peer_cid is None and self._peer_cid_available:
                    probed.peer_cid = self._peer_cid_available.pop(0)
                if probed.peer_cid is not None:
                    made += self._send_probing_frames(network_path=probed, now=now)
        return made

    def _write_application(self, builder: Any, network_path: Any, now: float) -> None:
        if self._agreed and not self._handshake_complete and not self._is_client:
            self._write_early(builder)
        super()._write_application(builder, network_path, now)

    def _write_early(self, builder: Any) -> None:
        """The ids of paths, as soon as there are keys: the client can open paths with the end of the handshake."""
        keys = self._cryptos[Epoch.ONE_RTT]
        if keys.send.is_valid():
            self._add_paths()
            if self._due:
                builder.start_packet(QuicPacketType.ONE_RTT, keys)
                self._write_due(builder)

    def _only_probes(self) -> bool:
        """The path in use does not answer and another does: what is said there is not heard."""
        unheard = self._current.state in (PathState.SUSPECT, PathState.ABANDONED)
        return unheard and any(path.state is PathState.ACTIVE for path in self._open_paths)

    def _write_connection_limits(self, builder: Any, space: Any) -> None:
        if self._due and not self._only_probes():
            self._write_due(builder)
        super()._write_connection_limits(builder, space)

    def _write_max_data(self, builder: Any, space: Any) -> None:
        limit = self._local_max_data
        if self._only_probes():
            self._says_limits = False  # of streams neither
        elif not self._is_far():
            self._near_says_limits = False
            super()._write_max_data(builder, space)
        elif not space.ack_eliciting_in_flight:
            before = limit.sent
            super()._write_max_data(builder, space)
            limit.sent = before
        else:
            taken = sum(stream.receiver.starting_offset() for stream in self._streams.values())
            self._near_says_limits = self._grant(limit.value, taken) != limit.sent

    def _write_max_stream_data(self, builder: Any, space: Any, stream: Any) -> None:
        if not self._is_far():
            super()._write_max_stream_data(builder, space, stream)
        elif not space.ack_eliciting_in_flight:
            before = stream.max_stream_data_local_sent
            super()._write_max_stream_data(builder, space, stream)
            stream.max_stream_data_local_sent = before

    def _is_far(self) -> bool:
        """Another path is clearly nearer than the one in use, as far as is known. What the peer may send is said there,
        and on this one besides; but not while something on it waits for an answer, whose absence is to be noticed."""
        if not self._agreed or self._open_paths == [self._current]:
            return False
        here = self._current.id
        far = self._far.get(here)
        if far is None:
            rtt, best = self._current.facts().rtt, self._best()
            nearest = best.facts().rtt
            far = self._far[here] = best.id != here and 0 < nearest < (rtt * acks.CLEARLY or inf)
        return far

    def _limits_lost(self) -> bool:
        """What the peer may send was said where it was not heard; it may be waiting for nothing else."""
        return self._local_max_data.sent == 0 or any(
            stream.max_stream_data_local_sent == 0 for stream in self._streams.values()
        )

    def _write_due(self, builder: Any) -> None:
        while self._due:
            frame = self._due[0]
            body = frame.body()
            if builder.remaining_flight_space < len(body) + 8:
                return
            buf = builder.start_frame(int(frame.kind), len(body) + 2, self._on_due_delivery, (frame,))
            buf.push_bytes(body)
            self._due.popleft()
            if isinstance(frame, NewId) and (path := self._paths.get(frame.path)) is not None:
                path.told_ids = max(path.told_ids, frame.connection_id.sequence_number)

    def _on_due_delivery(self, delivery: QuicDeliveryState, frame: Waiting) -> None:
        if delivery is QuicDeliveryState.ACKED:
            self._retiring -= frame.kind is PathFrame.PATH_RETIRE_CONNECTION_ID
            return
        if isinstance(frame, Frame) and frame.kind in _STATUS:
            path = self._paths.get(frame.numbers[0])
            if path is None or frame.numbers[1] != path.status_sequence:
                return  # there is a newer one
        if isinstance(frame, NewId) and frame.connection_id.cid not in self._path_of_id:
            return  # it was retired
        self._due.append(frame)

    def _write_ack_frame(self, builder: Any, space: Any, now: float) -> None:
        if not self._agreed or not space.is_application_data or not self._handshake_complete:
            super()._write_ack_frame(builder=builder, space=space, now=now)
            return
        current = self._current
        space.ack_at = None
        for path in list(current.acks_due.values()):
            if builder.remaining_buffer_space < ACK_CAPACITY:
                return
            del current.acks_due[path.id]
            if len(path.space.ack_queue):
                self._write_path_ack(builder, path, now)
        # One that is on its way already puts off the timeout by which its loss is noticed with every further one.
        if not space.ack_eliciting_in_flight and acks.probe_due(current.pinged_at, current.loss._rtt_smoothed, now):
            current.pinged_at = now
            self._write_ping_frame(builder)

    def _write_path_ack(self, builder: Any, path: Path, now: float) -> None:
        space = path.space
        delay = int((now - (space.largest_received_time or now)) * 1e6) >> self._local_ack_delay_exponent
        # It counts as ACK does: it asks for no acknowledgement and is not in flight.
        buf = builder.start_frame(QuicFrameType.ACK, ACK_CAPACITY, self._forgetting(space))
        self._begin_path_ack(buf, path)
        push_ack_frame(buf, space.ack_queue, delay, builder.remaining_buffer_space)

    def _forgetting(self, space: QuicPacketSpace) -> Callable[[QuicDeliveryState], None]:
        """What is to happen when an acknowledgement of what has come by now has arrived, or is lost."""
        return partial(self._on_ack_delivery, space=space, highest_acked=space.largest_received_packet)

    def _begin_path_ack(self, buf: Any, path: Path) -> None:
        buf.seek(buf.tell() - 1)
        buf.push_uint8(PathFrame.PATH_ACK)
        buf.push_uint_var(path.id)

    def _write_retire_connection_id_frame(self, builder: Any, sequence_number: int) -> None:
        if self._current.id == 0:
            super()._write_retire_connection_id_frame(builder, sequence_number)
        else:
            self._due.append(Frame(PathFrame.PATH_RETIRE_CONNECTION_ID, (self._current.id, sequence_number)))
            self._retiring += 1

    # --- time  ---

    def get_timer(self) -> float | None:
        if not self.multipath or self._state in END_STATES:
            return super().get_timer()
        times = [self._close_at, self._retry_at]
        for path in self._paths.values():
            times += [path.space.ack_at, path.forget_at]
            if path.open:
                times += [path.pacing_at, path.answer_due, self._loss_time(path), self._deadline(path)]
        return min((at for at in times if at is not None), default=None)

    def _loss_time(self, path: Path) -> float | None:
        """Of a probe or a loss; a probe to an address that gets no more would only be due again and again.

        Each packet sent puts a probe off (RFC 9002 section 6.2.1), so one that sends steadily would not notice that its
        path is dead before the window is full. Beside another path what counts is how long nothing was acknowledged.
        """
        loss = path.loss
        at: float | None = loss.get_loss_detection_time(amplification_limited=self._limited(path))
        since = loss.waits_since
        if at is None or since is None or path.state is not PathState.ACTIVE or not self._has_others(path):
            return at
        if loss._get_loss_space() is not None:
            return at
        patience: float = PATIENCE * loss.get_probe_timeout() * 2**loss._pto_count
        return min(at, since + patience)

    def _has_others(self, path: Path) -> bool:
        """Another path answers."""
        return any(other.state is PathState.ACTIVE for other in self._open_paths if other is not path)

    def _limited(self, path: Path) -> bool:
        """The address has had as much as it may before it answers."""
        return not (self._is_client or self._of(path, "_network_paths")[0].can_send(path.loss.size.now))

    def _deadline(self, path: Path) -> float | None:
        network_path = self._of(path, "_network_paths")[0]
        return None if network_path.is_validated else network_path.validation_deadline

    def handle_timer(self, now: float) -> None:
        if not self.multipath or self._state in END_STATES or (self._close_at is not None and now >= self._close_at):
            super().handle_timer(now)
            return
        for path in list(self._paths.values()):
            if path.forget_at is not None and now >= path.forget_at:
                self._forget(path)
                continue
            if not path.open:
                continue
            if path.answer_due is not None and now >= path.answer_due:
                path.answer_due = None
                path.unanswered += 1
                self._of(path, "_network_paths")[0].local_challenge_sent = False
            loss_at, deadline = self._loss_time(path), self._deadline(path)
            if loss_at is not None and now >= loss_at:
                self._enter(path)
                self._loss_timeout(path, now)
            if deadline is not None and now >= deadline:
                self._enter(path)
                self._validation_failed(path, now)

    def _loss_timeout(self, path: Path, now: float) -> None:
        loss = path.loss
        if loss._get_loss_space() is not None or path.state is PathState.VALIDATING or not self._has_others(path):
            loss.on_loss_detection_timeout(now=now)
            return
        loss.timed_out(now)
        if loss.get_probe_timeout() * 2 ** (loss._pto_count + 1) <= MAX_PROBE_INTERVAL:
            loss._pto_count += 1
        if (
            not loss.handshake_confirmed
        ):  # what it waits for is said here alone, and nothing else puts the next probe off
            loss.reschedule_data(now=now)
        self._give_up(path, now)

    def _validation_failed(self, path: Path, now: float) -> None:
        if any(each.is_validated for each in self._network_paths):
            super()._abandon_path_validation()
        else:
            self._abandon(path, PathError.PATH_UNSTABLE_OR_POOR, now, by_peer=False)

    def _idle_timeout(self) -> float:
        return self._idle_after

    def _present_idle_timeout(self) -> float:
        return max(super()._idle_timeout(), self.three_probe_timeouts())

    def _close_begin(self, is_initiator: bool, now: float) -> None:
        super()._close_begin(is_initiator, now)
        self._close_at = now + self.three_probe_timeouts()

    def three_probe_timeouts(self) -> float:
        """Of the slowest path (RFC 9000 sections 10.1 and 10.2; draft-ietf-quic-multipath-21 section 2.5)."""
        return 3.0 * max((path.loss.get_probe_timeout() for path in self._open_paths), default=0.0)
