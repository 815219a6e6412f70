"""One connection as the core sees it: its codec, its keys, what it carries, how fast it is, whether it lives.

It decides how large segments are and when silence means suspicion. What is sent on it is decided by the sender, what
happens to it by the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar

from multi.events import ConnectionChanged
from multi.protocol.payloads import DrainStep
from multi.protocol.room import Room
from multi.protocol.sealing import Cipher, Opener, Sealer
from multi.protocol.segment import HEADER_LENGTH, TAG_LENGTH, SegmentDecoder, SegmentType, encode_header, encode_routed
from multi.protocol.startup import STANDING, Startup
from multi.protocol.state import TRAITS, Phase, Step, next_phase
from multi.reasons import Cause, Reason
from multi.schedulers.estimates import INITIAL_WINDOW
from multi.types import (
    STREAM_ZERO,
    Buffer,
    ConnectionFacts,
    ConnectionId,
    ConnectionState,
    Role,
    SessionId,
    Source,
    StreamId,
    TransportSample,
)

LOSS_WINDOW = 32 * 1024  # bytes: some twenty packets
LOSS_WEIGHT = 1 / 4
SHORT_SEGMENT = 2 * 1024  # bytes, where it takes SEGMENT_TIME or longer: what others have brought waits for the rest
SEGMENT_TIME = 0.020  # seconds
SLOW_SEGMENT = 16 * 1024  # bytes, below 200 Mbit/s; one write may exceed TCP_NOTSENT_LOWAT by its size, and waits there
FAST_SEGMENT = 64 * 1024
FASTEST_SEGMENT = 256 * 1024  # above 2 Gbit/s the cost per segment matters most
SLOW_RATE = 25e6  # bytes/s
FAST_RATE = 250e6
SUSPECT_SLACK = 0.050  # seconds of silence beyond srtt + 4 rttvar (RFC 6298 section 2), for a busy peer
UNKNOWN_RTT = 0.200
JOINED = 2048  # payload bytes up to which a segment is one buffer: copying them costs less than a second buffer
URGENT_WAIT = 0.015  # seconds of sending that may be on the way of bytes which are more urgent than those
FULL_WAIT = 0.100  # the same of bytes that come after them in a stream, and have arrived on another connection
BOUNDED_TRIPS = 3  # round trips of bytes besides, where the transport bounds them by itself: usually it does
RECENT = 0.200  # seconds over which it is counted what comes now, and up to twice as long
SLOWED = 3  # times less, at least, comes now than did of late on a path that has become slower
BUCKET_SECONDS = 0.010  # depth of the token bucket of a capped connection
RATE_WINDOW = 0.100  # seconds over which the session's own rate estimate averages
REST_BYTES = 12_000  # some packets, of which each may have to be sent again, until the rest of a segment is there
MIN_REST, MAX_REST = 1.0, 5.0  # seconds for them: busy peers stop in the midst, and a network may be slow
DOUBTED = 4096  # bytes on a path of unknown rate from which it is doubtful when they arrive; fewer need a moment
MIN_ACK_KEEPALIVE = 0.025  # seconds; a connection that only receives says so after half its suspicion, but not sooner
SLOW_WINDOW = 0.2  # seconds that an initial window takes at least on a path that is slow to begin with
ACK_WAITS = 0.010  # seconds the peer may wait with an acknowledgement
SEGMENT_MEMORY = 256  # bytes that a segment of control takes with its objects until the transport takes it
SLOWDOWN = 0.5  # of a rate is left at least by one sample: a kernel that repeats what was lost tells far too little
ACCELERATION = 1.5  # times its rate a round trip before, at least, of a path whose congestion control has just begun
PEAK_TIME = 0.5  # seconds for which the largest rate counts, and up to twice as long
RTT_KEPT = 0.005  # seconds until the round-trip time that paces windows is looked up again
SAMPLE_INTERVAL = 0.010  # seconds between looks at a transport while much is on its way
ANSWER_KEPT = 2.0  # seconds for which the answer to a question is fresher than the transport's mean
LAGS_AFTER = 0.3  # seconds in which all that is little was late; longer than a repetition after a loss usually takes
NEAR_AGAIN = 1.25  # times its smallest round trip, at most, of one that lags no more
NEAR_SLACK = 0.005  # seconds besides
SAMPLE_REFRESH = 0.5  # seconds between looks at one that carries little: round trips change slowly
LITTLE = 16 * 1024  # bytes in both directions since the last look

CONNECTED = Reason(Cause.CONNECTED, "connected")

DATA = int(SegmentType.DATA)
DATAGRAM = int(SegmentType.DATAGRAM)
STUCK_BESIDE = 0.5  # seconds stuck until another is dialled beside: TCP has repeated twice what is lost
STUCK_FOR = 4.0  # seconds without progress although the peer is heard; a timeout of TCP doubles a few times meanwhile
MAX_DATAGRAM = 65_535  # bytes; UDP has no more either, and one must not hold up a slow connection for long


@dataclass(slots=True, eq=False)
class Connection:
    """Implements `ConnectionView` for schedulers; everything else is for the core."""

    asymmetry: ClassVar[float] = 0.0
    """Not known."""

    id: ConnectionId
    session_id: SessionId
    facts: ConnectionFacts
    created_at: float

    transport: str = field(init=False)
    interface: str = field(init=False)
    role: Role = field(init=False)
    weight: float = field(init=False)
    cost: float = field(init=False)
    max_rate: float = field(init=False)
    lanes: int = field(init=False)
    urgent_lane: int = field(init=False)
    """Of data that is not to wait for other data; where there are too few lanes, that of all data."""
    number: int = -1
    """Number the server gave it; enters keys and control segments. -1 = not yet."""

    phase: Phase = field(init=False)
    state: ConnectionState = field(init=False)
    active: bool = field(init=False)
    suspect: bool = field(init=False)
    draining: bool = field(init=False)
    sends: bool = field(init=False)
    receives: bool = field(init=False)
    authenticated: bool = field(init=False)
    delivers: bool = field(init=False)
    alive: bool = field(init=False)
    reason: Reason = CONNECTED
    answered: bool = False
    """The peer has sent what only a MULTI server sends."""
    drain_pending: DrainStep | None = None
    """How far the peer has drained it, said before it had proved itself here."""
    role_sequence: int = -1
    """Number of the newest ROLE taken."""
    rate_sequence: int = -1
    """Number of the newest RATE taken."""
    role_said: int = -1
    """Number of the newest ROLE that this side has said."""
    role_pending: bool = False
    """This side has set the role before the peer had proved itself here, or while it acknowledges nothing."""

    held: deque[tuple[int, bytes]] = field(default_factory=deque)
    """(lane, bytes) that came before the handshake was far enough, or before there was time."""
    held_size: int = 0
    decoders: list[SegmentDecoder] = field(init=False)
    sealers: list[Sealer] | None = None
    openers: list[Opener] | None = None
    """One per lane; None = what comes is not sealed."""
    output: list[list[Buffer]] = field(init=False)
    """What is to be written, per lane."""
    written: bool = False
    """There is some of it, or of `messages`."""
    bytes_written: int = 0
    """Given to the transport, headers included."""
    _transport_sent: int = 0
    _transport_lost: int = 0
    messages: list[Buffer] = field(default_factory=list)
    """Whole segments that are to be sent as messages of their own."""
    asked_at: float = -inf
    """When a sign of life was wanted last because datagrams were sent on it."""

    heard_at: float = field(init=False)
    _hears_parts: bool = field(init=False)
    """Whatever comes counts as heard: TLS hands out nothing before a record is whole, but its transport may tell."""
    sent_at: float = field(init=False)
    progress_at: float = field(init=False)
    acked_at: float = field(init=False)
    """As `progress_at`, where signs of life do not count: what the transport itself was told."""
    session_progress_at: float = field(init=False)
    suspect_since: float = -inf
    stuck_since: float = -inf
    """When its transport had got on with nothing for too long, while the peer was heard."""
    stuck_long: bool = False
    """Another was dialled beside it since."""
    ask_after: float = 0.0
    """Seconds between questions while it is SUSPECT."""
    peer_suspect_at: float = -inf
    """When the peer said last that it hears nothing of what it waits for."""
    ping_sent_at: float = 0.0
    ping_token: int = 0
    ack_keepalive_due: float = 0.0
    ack_wanted: bool = False
    streams_to_ack: set[StreamId] = field(default_factory=set)
    """Streams it brought bytes of since the last ACK that went back on it."""
    early_data_moved: bool = False
    """It did not authenticate in time: all that was sent on it so far has been queued for rescue."""
    carried_control: set[int] = field(default_factory=set)

    in_flight: int = 0
    allowance: int | None = None
    """Data bytes that may leave before the peer has been heard; None = no bound."""
    bytes_sent: int = 0
    bytes_received: int = 0
    payload_received: int = 0
    reinjected: int = 0
    control_backlog: int = 0
    """Memory of what else than data was written since the transport last took any; a peer decides how much it asks."""
    channel_credit: int = 0
    credit: int = 0

    has_samples: bool = False
    _carried_datagrams: bool = False
    """Since the last sample."""
    unsampled_at: float | None = None
    """When something was first written since the transport was last asked."""
    sampled_at: float = -inf
    _sampled_bytes: int = 0
    """Bytes in both directions then."""
    sampled_acked: int = 0
    loss: float = 0.0
    """Share of what the transport has sent lately that it had to send again."""
    repeated_at: float = -inf
    """When it was seen last to have sent something again: what it was given before comes a round trip after that."""
    _loss_mark: tuple[int, int] = (0, 0)
    """Bytes sent and sent again when losses were last counted."""
    unacked: int = 0
    not_sent: int = 0
    overtaken: int = 0
    """Bytes that have come on another connection, and are still to come on this one too."""
    _arrived: int = 0
    """Of `unacked`, what the peer's transport has and cannot hand over yet."""
    _unsampled: int = 0
    """Bytes given to the transport since the last sample."""
    congestion_window: int = 0
    rtt: float = field(init=False)
    rtt_variation: float = field(init=False)
    min_rtt: float = field(init=False)
    """What schedulers count on without queues of ours: the smallest there was, unless the connection lags."""
    least_rtt: float = field(init=False)
    """The smallest there was."""
    _late_since: float = inf
    """When something was copied that only this one carried; nothing was delivered in time since."""
    _lags: bool = False
    """What little it carries has been late for `LAGS_AFTER`: its network is not what it was."""
    _mean_rtt: float = 0.0
    """What the transport said last: over round trips that may be of long ago."""
    _answer: tuple[float, float] = (0.0, -inf)
    """The round trip of the last question that was shorter, and until when it counts."""
    _urgent_room: Room | None = None
    """None while there was nothing of less urgency to send than what may come."""
    _full_room: Room | None = None
    """None while nobody asked whether it is full."""
    _limited: bool = False
    """Its transport was given less than it would send; not while its rate is still to show."""
    _startup: Startup | None = None
    """None while nobody asked whether it is kept there."""
    look_again_after: float = 0.0
    """Seconds between questions while others carry what this one may carry sooner; 0 = they do not."""
    rate: float = 0.0
    _peaks: tuple[float, float] = (0.0, 0.0)
    """The largest rate since `_peak_since`, and in the PEAK_TIME before."""
    _peak_since: float = -inf
    _came: tuple[tuple[float, int], tuple[float, int]] = ((0.0, 0), (0.0, 0))
    """When it was looked last how many bytes had come, RECENT apart, and how many; and the time before."""
    slowed: bool = False
    """Far less comes than did: its network has become slower, or loses most of it."""
    _rate_before_slowed: float = 0.0
    rate_told: bool = False
    """By the transport."""
    _begun_at: float = field(init=False)
    """When the peer began to owe acknowledgements, and the bytes it has acknowledged since then."""
    _returned: int = 0
    _backlog_since: float = inf
    """Since when its transport has held bytes that its window does not let out; `inf` = it holds none."""
    _backlog_acked: int = 0
    accelerates: bool = True
    _rate_before: float = 0.0
    """At the last look whether it still grows, and when that was."""
    _rate_looked_at: float = -inf
    _not_sent_at: float = field(init=False)
    rest_late: bool = False
    """It is SUSPECT because the rest of a segment is late: acknowledgements are no sign that it comes."""
    _incoming_rate: float = 0.0
    """Bytes per second that have come lately; 0.0 = not known."""
    _incoming_mark: tuple[float, int] = field(init=False)
    """When that was measured last, and the bytes that had come then."""
    _rate_bytes: int = 0
    _rate_since: float = field(init=False)
    _tokens: float = field(init=False)
    _tokens_at: float = field(init=False)

    def __post_init__(self) -> None:
        facts, now = self.facts, self.created_at
        self.transport, self.interface, self.lanes = facts.transport, facts.interface, facts.lanes
        self.urgent_lane = facts.lanes - 2 if facts.lanes > 2 else facts.lanes - 1
        self.role, self.weight, self.cost, self.max_rate = facts.role, facts.weight, facts.cost, facts.max_rate
        self._hears_parts = not facts.secure
        self._enter(Phase.HANDSHAKE)
        self.decoders = [SegmentDecoder() for _ in range(facts.lanes)]
        self.output = [[] for _ in range(facts.lanes)]
        self.heard_at = self.sent_at = self.progress_at = self.acked_at = self.session_progress_at = now
        self._not_sent_at = self._rate_since = self._begun_at = self._tokens_at = now
        self._incoming_mark = (now, 0)
        self.rtt, self.rtt_variation = facts.rtt, facts.rtt / 2
        self.min_rtt = self.least_rtt = facts.rtt
        self._tokens = self.bucket_depth

    def starts_from(self, sources: Sequence[Source]) -> None:
        """It uses these networks from now on: what it is known by stays, while that is one of them."""
        first, *more = sorted(sources, key=lambda source: source.interface != self.interface)
        self.interface = first.interface
        further = tuple(source.interface for source in more)
        self.facts = replace(self.facts, interface=first.interface, kind=first.kind, more_interfaces=further)

    # --- codec  ---

    def protect(self, cipher: Cipher, *, outgoing: bytes | None = None, incoming: bytes | None = None) -> None:
        """From now on every segment in the directions whose secret is given is sealed."""
        if outgoing is not None:
            self.sealers = [Sealer(outgoing, cipher, lane) for lane in range(self.lanes)]
        if incoming is not None:
            self.openers = [Opener(incoming, cipher, lane) for lane in range(self.lanes)]

    def unprotect(self) -> None:
        """The peer does not have these keys: what follows is not sealed until there are others."""
        self.sealers = self.openers = None

    def send(
        self,
        kind: int,
        payload: bytes,
        now: float,
        *,
        sequence: int = 0,
        stream: StreamId = STREAM_ZERO,
        lane: int = 0,
    ) -> None:
        """Queue one segment other than DATA for the next SendBytes. See `send_control` for those with a number."""
        self.sent_at = now
        self.control_backlog += len(payload) + SEGMENT_MEMORY
        self._write(lane, kind, (payload,), len(payload), sequence, stream)

    def send_control(self, number: int, kind: int, payload: bytes, stream: StreamId, now: float) -> None:
        """Queue a numbered segment, which is on its way here until it is acknowledged."""
        if not self.outstanding:
            self._begin(now)
            self.early_data_moved = False
        self.carried_control.add(number)
        self.send(kind, payload, now, sequence=number, stream=stream)

    def send_join(self, payload: bytes, route: bytes, now: float) -> None:
        """Queue a JOIN; `route` is the token by which whoever stands between finds the server."""
        self.sent_at = now
        self.control_backlog += len(payload) + SEGMENT_MEMORY
        self.send_clear(encode_routed(SegmentType.JOIN, self.session_id, payload, route))

    def send_clear(self, segment: bytes) -> None:
        """Queue a whole segment as it is, whatever keys there are."""
        self.bytes_written += len(segment)
        self.output[0].append(segment)
        self.written = True

    def send_data(
        self, buffers: Sequence[Buffer], size: int, start: int, stream: StreamId, now: float, *, urgent: bool = False
    ) -> None:
        """Queue `size` bytes of `stream` from offset `start`, and account for them."""
        if not self.in_flight:
            self._begin(now)
        self.early_data_moved = False
        self.in_flight += size
        self._spend(size, now)
        self._write(self.urgent_lane if urgent else self.lanes - 1, DATA, buffers, size, start, stream)

    def _spend(self, size: int, now: float) -> None:
        """`size` bytes of data leave here."""
        if not self.not_sent:
            self._not_sent_at = now
        self._unsampled += size
        self.not_sent += size  # until a sample knows better, or many segments given at once would all seem to leave now
        self.channel_credit -= size
        self.credit = self.credit - size if self.credit > size else 0
        if self.max_rate:
            self._tokens -= size
        if self.allowance is not None:
            self.allowance -= size
        self.bytes_sent += size
        self.sent_at = now

    @property
    def carries_datagrams(self) -> bool:
        """As messages of the transport, which may be lost; what the session seals has to arrive in order."""
        return self.facts.message_size > HEADER_LENGTH and self.sealers is None

    @property
    def largest_datagram(self) -> int:
        """Bytes of the largest datagram it carries."""
        return min(MAX_DATAGRAM, self.facts.message_size - HEADER_LENGTH) if self.carries_datagrams else MAX_DATAGRAM

    def send_datagram(self, number: int, data: bytes, now: float) -> None:
        """Write a DATAGRAM segment; it counts against credit as data does."""
        self._spend(len(data), now)
        self._carried_datagrams = True
        if self.carries_datagrams:
            self.bytes_written += HEADER_LENGTH + len(data)
            self.written = True
            self.messages.append(encode_header(DATAGRAM, self.session_id, number, STREAM_ZERO, len(data)) + data)
        else:
            self._write(self.urgent_lane, DATAGRAM, [data], len(data), number, STREAM_ZERO)

    def _write(
        self, lane: int, type_: int, buffers: Sequence[Buffer], size: int, sequence: int, stream: StreamId
    ) -> None:
        output = self.output[lane]
        self.bytes_written += HEADER_LENGTH + size
        self.written = True
        if self.sealers is None:
            header = encode_header(type_, self.session_id, sequence, stream, size)
            if size <= JOINED:
                output.append(b"".join((header, *buffers)))
            else:
                output.append(header)
                output.extend(buffers)
        else:
            header = encode_header(type_, self.session_id, sequence, stream, size + TAG_LENGTH)
            sealed = self.sealers[lane].seal(header, buffers)
            if size <= JOINED:
                output.append(header + sealed)
            else:
                output.append(header)
                output.append(sealed)

    @property
    def wire_bytes(self) -> int:
        """Bytes that have crossed the network in both directions, as far as this side knows. It only grows."""
        return self.bytes_received + max(self.bytes_written + self._transport_lost, self._transport_sent)

    # --- state  ---

    @property
    def behind(self) -> bool:
        """Some of what has come could be taken and was not: there was no time."""
        return bool(self.held) and self.receives

    def step(self, step: Step, reason: Reason | None = None) -> None:
        """Enter the next phase, for `reason`; without one nobody need be told."""
        self._enter(next_phase(self.phase, step))
        self.reason = reason or self.reason

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        # Looked at for every segment: attributes, though the phase says it all.
        self.state, self.sends, self.receives, self.authenticated, self.delivers, self.alive = TRAITS[phase]
        self.active = self.state is ConnectionState.ACTIVE
        self.suspect = self.state is ConnectionState.SUSPECT
        self.draining = self.state is ConnectionState.DRAINING

    def changed(self) -> ConnectionChanged:
        """The event that tells of its state."""
        return ConnectionChanged(self.id, self.state, self.reason, self.facts)

    # --- sending  ---

    @property
    def segment_size(self) -> int:
        """Payload bytes of a full DATA segment here and now, where others carry some of the stream."""
        rate = self.rate
        if rate < SLOW_RATE:
            return min(max(int(rate * SEGMENT_TIME), SHORT_SEGMENT), SLOW_SEGMENT) if rate else SLOW_SEGMENT
        return FAST_SEGMENT if rate < FAST_RATE else FASTEST_SEGMENT

    @property
    def bucket_depth(self) -> float:
        return max(self.max_rate * BUCKET_SECONDS, SLOW_SEGMENT / 2)

    def refresh_credit(self, now: float) -> None:
        """Recompute `credit` from what the transport takes and what the rate cap allows."""
        credit = self.channel_credit
        if self.max_rate:
            self._tokens = min(self.bucket_depth, self._tokens + (now - self._tokens_at) * self.max_rate)
            self._tokens_at = now
            credit = min(credit, int(self._tokens))
        if self.allowance is not None:
            credit = min(credit, self.allowance)
        self.credit = credit if credit > 0 else 0

    def set_max_rate(self, max_rate: float) -> None:
        self.max_rate = max_rate
        self.rate = self._capped(self.rate)
        self._tokens = min(self._tokens, self.bucket_depth) if max_rate else self.bucket_depth

    @property
    def held_by_cap(self) -> bool:
        """Its rate cap alone is the obstacle."""
        if not self.max_rate or self.channel_credit <= 0 or self.credit > 0:
            return False
        return self.allowance is None or self.allowance > 0  # else the peer has to be heard first

    def tokens_ready_at(self) -> float | None:
        """When a connection held back only by its rate cap may send again; None = the cap is not the obstacle."""
        if not self.held_by_cap:
            return None
        missing = max(1.0, self.bucket_depth / 2 - self._tokens)
        return self._tokens_at + missing / self.max_rate

    # --- measuring  ---

    def take_sample(self, sample: TransportSample, now: float) -> bool:
        """Take the transport's own figures; return True when its peer made progress."""
        self.has_samples, self.sampled_at = True, now
        self._sampled_bytes = self.bytes_sent + self.bytes_received
        self.heard(now - sample.received_ago)
        self._hears_parts = self._hears_parts or sample.received_ago < inf
        if sample.rtt:
            self._take_mean(sample.rtt, now)
            self.rtt_variation = sample.rtt_variation
        self._take_least(sample.min_rtt)
        if sample.rate and not (sample.app_limited and sample.rate < self.rate):
            self.accelerates = self.accelerates or not self.rate_told  # whether it does shows from now on
            self.rate, self.rate_told = self._capped(max(sample.rate, self.rate * SLOWDOWN)), True
        self._take_peak(sample.rate, now)
        self._limited = sample.app_limited and self.rate_told and not self.accelerates
        self._look_whether_slowed()
        if self.accelerates and self.rate and self.in_flight and now >= self._rate_looked_at + self.min_rtt:
            self.accelerates = self.rate >= ACCELERATION * self._rate_before
            self._rate_before, self._rate_looked_at = self.rate, now
        if not self.rate_told:
            self._look_at_backlog(sample, now)
        self.congestion_window = sample.congestion_window
        self.not_sent, self._not_sent_at = sample.not_sent, now
        progressed = sample.bytes_acked > self.sampled_acked
        self.sampled_acked = sample.bytes_acked
        if not sample.unacked:
            self.progress_at = self.acked_at = now
        elif progressed:
            self.progress_at = max(self.progress_at, now - sample.silent_for)
            self.acked_at = now
        elif not self.unacked:
            self.progress_at = max(self.progress_at, self._clock_starts(now))
            self.acked_at = max(self.acked_at, self._clock_starts(now))
        self.unacked, self.unsampled_at, self._carried_datagrams = sample.unacked, None, False
        self._arrived, self._unsampled = sample.arrived, 0
        if now >= self._came[0][0] + RECENT:
            self._came = (now, self.sampled_acked + self._arrived), self._came[0]
        if self.overtaken:
            self.overtaken = min(self.overtaken, max(0, self._on_the_way - self.in_flight))
        self._take_loss(sample, now)
        return progressed

    @property
    def peak_rate(self) -> float:
        """The largest rate of late, what the path has shown that it carries; less in flight makes a lower one."""
        return self._capped(max(self._peaks))

    def most_before_urgent(self, now: float) -> float:
        """Bytes in the network from which on more urgent ones would wait too long."""
        room = self._urgent_room = self._urgent_room or Room(URGENT_WAIT)
        return room.most(self.peak_rate, self.min_rtt, self.rtt, self.rtt_variation, self.in_network, now)

    @property
    def in_network(self) -> int:
        """Of `in_flight`, what may still be on its way.

        The rest has come, and waits at the peer for something that was lost or overtaken: it holds up nothing.
        """
        return min(self.in_flight, self._on_the_way)

    @property
    def _on_the_way(self) -> int:
        """Bytes that its transport delivers before what it is given now, though all of it may have come elsewhere."""
        return max(0, self.unacked - self._arrived) + self._unsampled if self.has_samples else self.in_flight

    def comes_in(self, size: int) -> float:
        """Seconds until the first `size` bytes of `in_flight` have come, behind what was overtaken, as fast as now."""
        rate = self._rate_of_now
        return max(0, size - self.in_flight + self._on_the_way) / rate if rate else inf

    def holds_up(self, seconds: float) -> bool:
        """Where it is `slowed`: that was seen while the peer owed all the time, and what it carries takes longer."""
        return self._came[1][0] >= self._begun_at + self.min_rtt and self.comes_in(self.in_flight) > seconds

    @property
    def _rate_of_now(self) -> float:
        """Bytes per second: what came of late, where that is less than its rate, which may be of before."""
        since, before = self._came[1]
        return min(self.rate, (self.sampled_acked + self._arrived - before) / max(self.sampled_at - since, RECENT))

    def full(self, now: float) -> bool:
        """What is on its way fills the path, and its queue for FULL_WAIT: more would only wait there.

        So does what has come on another connection and is not taken back here. A transport that bounds the queue by
        itself does not know at once that its path has become slower. While what it sends still doubles, or no rate is
        told yet, the queue has to show.
        """
        if not self.rate:
            return False
        begins = self.accelerates or not self.rate_told
        if begins and (not self.facts.fills_queues or self.rtt < self.min_rtt + FULL_WAIT):
            return False
        if not begins and self.overtaken > self.rate * FULL_WAIT:
            return True
        rate, on_the_way = max(self.peak_rate, self.rate), self._on_the_way
        if not self.facts.fills_queues:
            return on_the_way > rate * (BOUNDED_TRIPS * self.min_rtt + FULL_WAIT)
        room = self._full_room = self._full_room or Room(FULL_WAIT)
        return on_the_way >= room.most(rate, self.min_rtt, self.rtt, self.rtt_variation, on_the_way, now)

    def _take_peak(self, rate: float, now: float) -> None:
        newest, _ = self._peaks
        if now >= self._peak_since + PEAK_TIME:
            self._peak_since, self._peaks = now, (rate, newest)
        elif rate > newest:
            self._peaks = rate, self._peaks[1]

    @property
    def may_be_kept_in_startup(self) -> bool:
        """Whether it is worth asking: most never get too little, and some do not leave their startup by that."""
        return (self._limited or self._startup is not None) and not self.facts.fills_queues

    def kept_in_startup(self, *, waits: bool) -> bool:
        """Its transport sends far more than the path carries, and does not notice; `waits`: it would be given more."""
        startup = self._startup = self._startup or Startup()
        rate = self.peak_rate
        queues = self.in_network > STANDING * rate * self.min_rtt
        return startup.kept(self.sampled_at, rate, self.rtt, limited=self._limited, queues=queues, waits=waits)

    def _look_whether_slowed(self) -> None:
        """It is for as long as something is on its way, however slowly that now comes."""
        before, self.slowed = 0.0, False
        if self.in_flight > DOUBTED and not self.accelerates:
            before = max(self._rate_before_slowed, self.peak_rate)
            self.slowed = self._rate_of_now * SLOWED < before
        self._rate_before_slowed = before if self.slowed else 0.0

    def _clock_starts(self, otherwise: float) -> float:
        """From when on a transport that had nothing on its way before has to make progress."""
        return otherwise if self.unsampled_at is None else self.unsampled_at + SAMPLE_INTERVAL

    def under_way(self) -> bool:
        """Something is on its way, as far as is known, in whichever direction."""
        return (
            self.in_flight > 0
            or self.unsampled_at is not None
            or self.unacked > 0
            or bool(self.carried_control)
            or (self.decoders[0].partial and self.awaits_rest)
        ) and self.alive

    def awaits_peer(self) -> bool:
        """Of what is on its way, more than acknowledgements and answers, of which the peer waits to hear."""
        waits = self.in_flight > 0 or self.ping_sent_at > 0.0 or self._carried_datagrams or bool(self.carried_control)
        return waits and self.alive

    def sample_due(self, now: float, interval: float) -> bool:
        """The transport's figures are of use now, `interval` seconds after the last ones.

        Where little is on its way they tell nothing of the path but its round trip, and whether it lives is asked only
        when its time is over (`suspect_at`): looking costs more than a small message.
        """
        since = now - self.sampled_at
        if since < interval:
            return False
        if (
            since < SAMPLE_REFRESH
            and self.bytes_sent + self.bytes_received - self._sampled_bytes <= LITTLE
            and self.has_samples
            and self.active
            and not self._carried_datagrams  # nothing else tells soon enough that they do not get through
        ):
            return False
        return self.under_way()

    def _take_loss(self, sample: TransportSample, now: float) -> None:
        """Losses are rare and come together: they are counted over LOSS_WINDOW bytes, and smoothed as round trips."""
        if sample.bytes_lost > self._transport_lost:
            self.repeated_at = now
        self._transport_sent, self._transport_lost = sample.bytes_sent, sample.bytes_lost
        sent = sample.bytes_sent - self._loss_mark[0]
        if sent >= LOSS_WINDOW:
            self.loss += LOSS_WEIGHT * (min(1.0, (sample.bytes_lost - self._loss_mark[1]) / sent) - self.loss)
            self._loss_mark = (sample.bytes_sent, sample.bytes_lost)

    def _capped(self, rate: float) -> float:
        """What schedulers may count on: the network may be faster than the cap, this connection never is."""
        return min(rate, self.max_rate) if self.max_rate else rate

    def _take_mean(self, mean: float, now: float) -> None:
        """An answer that came sooner counts as long as what else comes does not make the transport's mean longer."""
        if mean > self._mean_rtt:
            self._answer = (0.0, -inf)
        self._mean_rtt = mean
        answer, until = self._answer
        self.rtt = min(mean, answer) if now < until else mean

    def take_rtt(self, rtt: float, now: float) -> None:
        """A keep-alive came back (RFC 6298 section 2). Where the transport tells, only if it came sooner: see above."""
        if self.has_samples and self.rtt:
            if rtt < self.rtt:
                self.rtt, self._answer = rtt, (rtt, now + ANSWER_KEPT)
            self._take_least(rtt)
            return
        if self.rtt:
            self.rtt_variation += (abs(self.rtt - rtt) - self.rtt_variation) / 4
            self.rtt += (rtt - self.rtt) / 8
        else:
            self.rtt, self.rtt_variation = rtt, rtt / 2
        self._take_least(rtt)

    def _take_least(self, rtt: float) -> None:
        """The smallest round trip of a sample or an answer, 0.0 = unknown; `rtt` is up to date."""
        if rtt and (not self.least_rtt or rtt < self.least_rtt):
            self.least_rtt = rtt
        if self._lags and (self.in_flight > LITTLE or self.rtt <= self.least_rtt * NEAR_AGAIN + NEAR_SLACK):
            self._lags = False  # with more under way, its own queue explains a long round trip
        self.min_rtt = max(self.least_rtt, self.rtt) if self._lags else self.least_rtt

    def late(self, now: float) -> None:
        """Something that only this one carries would have arrived sooner elsewhere, and is sent there as well."""
        self._late_since = min(self._late_since, now)
        if now >= self._late_since + LAGS_AFTER and self.in_flight <= LITTLE:
            self._lags = True
            self._take_least(0.0)

    def delivered(self, size: int, now: float) -> None:
        """Session bytes that only this connection carried were acknowledged."""
        self.session_progress_at, self._late_since = now, inf
        if self.in_flight <= 0 and not self.carried_control:
            # The peer has it all: nothing need be asked of the transport.
            self.unacked, self.not_sent, self.unsampled_at = 0, 0, None
        self._rate_bytes += size
        elapsed = now - self._rate_since
        if elapsed >= RATE_WINDOW and elapsed >= self.rtt:
            measured = self._rate_bytes / elapsed
            if not self.congestion_window and (not self.has_samples or not self.rate):
                self.rate = self._capped(measured if not self.rate else self.rate + (measured - self.rate) / 2)
                self.accelerates = False  # it is an average already
            self._rate_bytes, self._rate_since = 0, now
        self._returned += size
        if not self.rate_told and self.in_flight >= DOUBTED and (rate := self._early_rate(now)):
            self.rate, self.accelerates = self._capped(rate), False

    def _early_rate(self, now: float) -> float:
        """Bytes per second of what has come back, if that is less than any window lets through; else 0.0.

        Transports tell a rate late, and until then a window that doubles with every round trip is all that is known
        of a path. One that does not even return its first windows in time, though it was given more, shows what it
        carries.
        """
        if not self.congestion_window or self.in_flight < self._returned:
            return 0.0  # it was given no more
        return self._slower_than_a_window(self._returned, now - self._begun_at - (self.min_rtt or self.rtt))

    def _look_at_backlog(self, sample: TransportSample, now: float) -> None:
        """The same of what the transport itself has had acknowledged, since it has more than it may send.

        What it holds is soon of no use to the session, which has sent it elsewhere as well and had it acknowledged
        there; a slow path, of which nothing was known, was then given as much again. Of other paths it would tell too
        little: what a small window or a loss holds up for a moment.
        """
        if not sample.not_sent:
            self._backlog_since = inf
        elif self._backlog_since == inf:
            self._backlog_since, self._backlog_acked = now, sample.bytes_acked
        else:
            returned, took = sample.bytes_acked - self._backlog_acked, now - self._backlog_since
            rate = self._slower_than_a_window(returned, took)
            if 0.0 < rate < INITIAL_WINDOW / SLOW_WINDOW:
                self.rate, self.accelerates = self._capped(rate), False

    def _slower_than_a_window(self, returned: int, took: float) -> float:
        trip = self.min_rtt or self.rtt
        if not trip or took < trip + ACK_WAITS:
            return 0.0
        flights = min((took - ACK_WAITS) / trip, 10.0)
        return returned / took if returned < INITIAL_WINDOW * (2.0**flights - 1.0) else 0.0

    @property
    def doubtful(self) -> bool:
        """It carries more than a moment's bytes, and nothing is known of its rate but its window."""
        return not self.rate and self.in_flight > DOUBTED and self.congestion_window > 0

    def _begin(self, now: float) -> None:
        """From now on the peer owes an acknowledgement."""
        self.session_progress_at = self.progress_at = self._rate_since = now
        self._rate_bytes = 0
        self._begun_at, self._returned = now, 0

    def estimate_not_sent(self, now: float) -> None:
        """Since the last sample the transport has sent some of what it had."""
        self.not_sent = max(0, self.not_sent - int(self.rate * (now - self._not_sent_at)))
        self._not_sent_at = now

    def owe_sign(self, now: float) -> None:
        """The peer sends: it is to hear something here before it wonders. Measure how fast it comes, now and then."""
        self.ack_keepalive_due = now + max(MIN_ACK_KEEPALIVE, self.suspect_after / 2)
        since, before = self._incoming_mark
        if now >= since + RATE_WINDOW:
            self._incoming_rate = (self.bytes_received - before) / (now - since)
            self._incoming_mark = (now, self.bytes_received)

    def heard(self, at: float) -> None:
        """Something of the peer has come, at this time or since."""
        self.heard_at = max(self.heard_at, at)
        self.progress_at = max(self.progress_at, at)
        self.session_progress_at = max(self.session_progress_at, at)

    # --- silence  ---

    @property
    def suspect_after(self) -> float:
        """Seconds without progress after which it is SUSPECT: srtt + 4 rttvar + SUSPECT_SLACK.

        A busy process makes round trips look varied, and waits long for that. When the peer, which may be less busy,
        waits in vain as well, the variation does not count.
        """
        variation = 0.0 if self.peer_suspect_at > self.progress_at else 4 * self.rtt_variation
        return (self.rtt + variation if self.rtt else UNKNOWN_RTT) + SUSPECT_SLACK

    @property
    def overdue_after(self) -> float:
        """Seconds without a session acknowledgement after which even an acknowledging transport is SUSPECT.

        A middlebox that ends TCP itself acknowledges bytes it may never deliver.
        """
        rate = self.rate or SLOW_SEGMENT / 0.1
        return self.patience + self.in_flight / rate

    @property
    def patience(self) -> float:
        """Seconds that a reliable transport may take for what was lost: its timeout, and a round trip."""
        return max(0.3, 2 * self.suspect_after)

    def stuck_at(self) -> float | None:
        """When it is stuck unless its transport makes progress, whatever is heard; None = nothing is expected.

        Once it is, when another is dialled beside, and then when it is given up: unless all that its transport has
        waits for the peer to read.
        """
        if self.delivers:
            return self.acked_at + self.patience if self.unacked else None
        if self.unacked <= self.not_sent:
            return None
        return self.stuck_since + (STUCK_FOR if self.stuck_long else STUCK_BESIDE)

    def in_time(self, now: float) -> bool:
        """The peer owes an answer, but not for longer than its acknowledgements may take."""
        return self.outstanding and now < self.session_progress_at + self.overdue_after

    @property
    def outstanding(self) -> bool:
        return self.in_flight > 0 or bool(self.carried_control)

    @property
    def awaits_rest(self) -> bool:
        """A part of a segment has come, and all else that the peer says comes behind its rest.

        Segments are given to the transport whole, so a peer with nothing more to say owes none: what cuts them is a
        network that swallows packets, or is slow, or a peer that is stopped in the midst. Not where control has a lane
        of its own, for there the peer says that it lives.
        """
        return self._hears_parts and self.lanes == 1 and self.decoders[0].partial and not self.held

    @property
    def rest_patience(self) -> float:
        """Seconds that the rest of a segment may take, besides what a transport takes for what was lost.

        After a pause the rate of late is low, which only makes it longer.
        """
        since, before = self._incoming_mark
        rate = (self.bytes_received - before) / max(self.heard_at - since, RATE_WINDOW)
        if self.heard_at < since + RATE_WINDOW:
            rate = max(rate, self._incoming_rate)
        return min(max(REST_BYTES / rate, MIN_REST), MAX_REST) if rate else MAX_REST

    def rest_at(self, least: float = 0.0) -> float | None:
        """When the rest of a segment is late, after `least` seconds or more; None = none is expected."""
        if not self.awaits_rest:
            return None
        return self.heard_at + self.patience + max(self.rest_patience, least)

    def suspect_at(self, least: float = 0.0) -> float | None:
        """When it becomes SUSPECT unless something happens; None = nothing is expected from it. `least`: `rest_at`."""
        sent, rest = self._sent_suspect_at(), self.rest_at(least)
        return sent if rest is None or (sent is not None and sent < rest) else rest

    def _sent_suspect_at(self) -> float | None:
        """The same for what has been sent on it."""
        outstanding = self.in_flight > 0 or bool(self.carried_control)
        silent: float | None = None
        if self.has_samples:
            if self.unacked > 0:
                silent = self.progress_at + self.suspect_after
            elif self.unsampled_at is not None:
                silent = max(self.progress_at, self.unsampled_at + SAMPLE_INTERVAL) + self.suspect_after
        elif outstanding:
            silent = self.progress_at + self.suspect_after
        if not outstanding:
            return silent
        overdue = self.session_progress_at + self.overdue_after
        return overdue if silent is None or overdue < silent else silent


class Connections(dict[ConnectionId, Connection]):
    """All connections of a session, and which of them take what leaves it."""

    __slots__ = ("_rtt", "_rtt_until")

    def __init__(self) -> None:
        self._rtt = 0.1
        self._rtt_until = -inf

    def smoothed_rtt(self, now: float) -> float:
        """The longest round trip of the usable connections: the pace at which windows can matter."""
        if now >= self._rtt_until:
            self._rtt_until = now + RTT_KEPT
            longest = -inf
            for connection in self.values():
                if connection.active and connection.rtt > longest:
                    longest = connection.rtt
            self._rtt = longest if longest >= 0.0 else 0.1
        return self._rtt

    def alive(self) -> list[Connection]:
        return [c for c in self.values() if c.alive]

    def authenticated(self) -> list[Connection]:
        return [c for c in self.values() if c.authenticated]

    def active(self) -> list[Connection]:
        return [c for c in self.values() if c.active]

    def for_data(self) -> list[Connection]:
        """Those that may carry data now: active roles first, then secondary ones, backups when there are none.

        When neither is there, a connection that drains is still better than none, and one that is suspect or stuck
        better than that.
        """
        ready: list[Connection] = []
        active: list[Connection] = []
        for connection in self.values():
            if connection.active and connection.delivers:
                ready.append(connection)
                if connection.role is Role.ACTIVE:
                    active.append(connection)
        if active:
            return active
        if ready:
            return [c for c in ready if c.role is Role.SECONDARY] or ready
        left = [c for c in self.values() if c.sends]
        early = [c for c in left if not c.authenticated]
        if early:
            return [c for c in early if c.role is Role.ACTIVE] or early
        return [c for c in left if c.draining] or left

    def capped(self) -> list[Connection]:
        """Those that may carry data now and have a rate cap: of the others tokens are not counted."""
        for connection in self.values():
            if connection.max_rate:
                return [c for c in self.for_data() if c.max_rate]
        return []

    def with_secondary(self, usable: list[Connection]) -> list[Connection]:
        """`usable` and those that help where it does not cope, in order of id."""
        return [c for c in self.active() if c in usable or (c.role is Role.SECONDARY and c.delivers)]

    def for_control(self) -> list[Connection]:
        """Those that may carry acknowledgements and control now, whatever their role: the best there are."""
        active: list[Connection] = []
        for connection in self.values():
            if connection.active and connection.delivers:
                active.append(connection)
        return active or [c for c in self.values() if c.draining] or [c for c in self.values() if c.authenticated]
