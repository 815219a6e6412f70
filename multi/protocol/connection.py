"""One connection as the core sees it: its codec, its keys, what it carries, how fast it is, whether it lives.

It decides how large segments are and when silence means suspicion. What is sent on it is decided by the sender, what
happens to it by the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from multi.events import ConnectionChanged
from multi.protocol.payloads import DrainStep
from multi.protocol.sealing import Cipher, Opener, Sealer
from multi.protocol.segment import HEADER_LENGTH, TAG_LENGTH, SegmentDecoder, SegmentType, encode_header
from multi.protocol.state import TRAITS, Phase, Step, next_phase
from multi.reasons import Cause, Reason
from multi.types import ConnectionFacts, ConnectionId, SessionId, StreamId, TransportSample

SLOW_SEGMENT = 16 * 1024  # bytes, below 200 Mbit/s; one write may exceed TCP_NOTSENT_LOWAT by its size, and waits there
FAST_SEGMENT = 64 * 1024
FASTEST_SEGMENT = 256 * 1024  # above 2 Gbit/s the cost per segment matters most
SLOW_RATE = 25e6  # bytes/s
FAST_RATE = 250e6
SUSPECT_SLACK = 0.050  # seconds of silence beyond srtt + 4 rttvar (RFC 6298 section 2), for a busy peer
UNKNOWN_RTT = 0.200
BUCKET_SECONDS = 0.010  # depth of the token bucket of a capped connection
RATE_WINDOW = 0.100  # seconds over which the session's own rate estimate averages

CONNECTED = Reason(Cause.CONNECTED, "connected")

DATA = int(SegmentType.DATA)
Buffer = bytes | bytearray | memoryview


class Connection:
    """Implements `ConnectionView` for schedulers; everything else is for the core."""

    __slots__ = (
        "_not_sent_at",
        "_rate_bytes",
        "_rate_since",
        "_sealers",
        "_session_id",
        "_tokens",
        "_tokens_at",
        "ack_keepalive_due",
        "ack_wanted",
        "alive",
        "allowance",
        "answered",
        "ask_after",
        "authenticated",
        "bytes_received",
        "bytes_sent",
        "carried_control",
        "channel_credit",
        "congestion_window",
        "control_backlog",
        "cost",
        "created_at",
        "credit",
        "data_lane",
        "decoders",
        "delivers",
        "drain_pending",
        "early_data_moved",
        "facts",
        "has_samples",
        "heard_at",
        "held",
        "held_size",
        "id",
        "in_flight",
        "interface",
        "lanes",
        "max_rate",
        "min_rtt",
        "not_sent",
        "number",
        "openers",
        "output",
        "payload_received",
        "peer_suspect_at",
        "phase",
        "ping_sent_at",
        "ping_token",
        "progress_at",
        "rate",
        "reason",
        "receives",
        "reinjected",
        "role",
        "role_pending",
        "role_sequence",
        "rtt",
        "rtt_variation",
        "sampled_acked",
        "sends",
        "sent_at",
        "session_progress_at",
        "state",
        "streams_to_ack",
        "suspect_since",
        "transport",
        "unacked",
        "unsampled",
        "weight",
    )

    def __init__(self, connection: ConnectionId, session_id: SessionId, facts: ConnectionFacts, now: float) -> None:
        self._session_id = session_id
        self.id = connection
        self.facts = facts
        self.transport = facts.transport
        self.interface = facts.interface
        self.role = facts.role
        self.weight = facts.weight
        self.cost = facts.cost
        self.max_rate = facts.max_rate
        self.lanes = facts.lanes
        self.data_lane = 1 if facts.lanes > 1 else 0
        self._enter(Phase.HANDSHAKE)
        self.reason = CONNECTED
        self.number = -1
        """Number the server gave it; enters keys and control segments. -1 = not yet."""
        self.answered = False
        """The peer has sent what only a MULTI server sends."""
        self.held_size = 0
        self.held: deque[tuple[int, bytes]] = deque()
        """(lane, bytes) that came before the handshake was far enough, or before there was time."""
        self.decoders = [SegmentDecoder() for _ in range(facts.lanes)]
        self._sealers: list[Sealer] | None = None
        self.openers: list[Opener] | None = None
        self.output: list[list[Buffer]] = [[] for _ in range(facts.lanes)]

        self.created_at = self.heard_at = self.sent_at = now
        self.progress_at = self.session_progress_at = now
        self.suspect_since = -inf
        self.ask_after = 0.0
        """Seconds between questions while it is SUSPECT."""
        self.peer_suspect_at = -inf
        """When the peer said last that it hears nothing of what it waits for."""
        self.ping_sent_at = 0.0
        self.ping_token = 0
        self.ack_keepalive_due = 0.0
        self.ack_wanted = False
        self.streams_to_ack: set[StreamId] = set()
        """Streams it brought bytes of since the last ACK that went back on it."""
        self.early_data_moved = False
        """It did not authenticate in time: all that was sent on it so far has been queued for rescue."""
        self.drain_pending: DrainStep | None = None
        """How far the peer has drained it, said before it had proved itself here."""
        self.role_sequence = -1
        """Number of the newest ROLE taken."""
        self.role_pending = False
        """This side has set the role before the peer had proved itself here."""
        self.carried_control: set[int] = set()

        self.in_flight = 0
        self.allowance: int | None = None
        """Data bytes that may leave before the peer has been heard; None = no bound."""
        self.bytes_sent = self.bytes_received = self.payload_received = self.reinjected = 0
        self.control_backlog = 0
        """Bytes other than data written since the transport last took any; a peer decides how many it asks for."""
        self.has_samples = False
        self.unsampled = False
        """Something was written since the transport was last asked."""
        self.sampled_acked = 0
        self.unacked = self.not_sent = self.congestion_window = 0
        self._not_sent_at = now
        self.rtt = facts.rtt
        self.rtt_variation = facts.rtt / 2
        self.min_rtt = facts.rtt
        self.rate = 0.0
        self._rate_bytes = 0
        self._rate_since = now
        self.channel_credit = 0
        self._tokens = self.bucket_depth
        self._tokens_at = now
        self.credit = 0

    # --- codec  ---

    def protect(self, outgoing: bytes, incoming: bytes, cipher: Cipher) -> None:
        """From now on every segment in both directions is sealed."""
        self._sealers = [Sealer(outgoing, cipher, lane) for lane in range(self.lanes)]
        self.openers = [Opener(incoming, cipher, lane) for lane in range(self.lanes)]

    def protect_incoming(self, incoming: bytes, cipher: Cipher) -> None:
        self.openers = [Opener(incoming, cipher, lane) for lane in range(self.lanes)]

    def protect_outgoing(self, outgoing: bytes, cipher: Cipher) -> None:
        self._sealers = [Sealer(outgoing, cipher, lane) for lane in range(self.lanes)]

    def unprotect(self) -> None:
        """The peer does not have these keys: what follows is not sealed until there are others."""
        self._sealers = self.openers = None

    @property
    def opens(self) -> bool:
        """Incoming segments are sealed."""
        return self.openers is not None

    def send(
        self,
        type_: int,
        payload: Sequence[Buffer],
        length: int,
        *,
        sequence: int = 0,
        stream: StreamId = StreamId(0),
        lane: int = 0,
    ) -> None:
        """Queue one segment for the next SendBytes; `length` is the payload's."""
        output = self.output[lane]
        if type_ != SegmentType.DATA:
            self.control_backlog += length + HEADER_LENGTH
        if self._sealers is not None:
            header = encode_header(type_, self._session_id, sequence, stream, length + TAG_LENGTH)
            output.append(header)
            output.append(self._sealers[lane].seal(header, payload or (b"",)))
        else:
            output.append(encode_header(type_, self._session_id, sequence, stream, length))
            output.extend(payload)

    def send_data(self, buffers: Sequence[Buffer], size: int, start: int, stream: StreamId, now: float) -> None:
        """Queue `size` bytes of `stream` from offset `start`, and account for them."""
        if not self.in_flight:
            self.session_progress_at = self.progress_at = now
            self._rate_bytes, self._rate_since = 0, now
        self.early_data_moved = False
        self.in_flight += size
        self.not_sent += size  # until a sample knows better, or many segments given at once would all seem to leave now
        self.channel_credit -= size
        self.credit = self.credit - size if self.credit > size else 0
        if self.max_rate:
            self._tokens -= size
        if self.allowance is not None:
            self.allowance -= size
        self.bytes_sent += size
        self.sent_at = now
        output = self.output[self.data_lane]
        if self._sealers is None:
            output.append(encode_header(DATA, self._session_id, start, stream, size))
            output.extend(buffers)
        else:
            header = encode_header(DATA, self._session_id, start, stream, size + TAG_LENGTH)
            output.append(header)
            output.append(self._sealers[self.data_lane].seal(header, buffers))

    # --- state  ---

    @property
    def behind(self) -> bool:
        """Some of what has come could be taken and was not: there was no time."""
        return bool(self.held) and self.receives

    def step(self, step: Step, reason: Reason) -> None:
        """Enter the next phase, for `reason`."""
        self._enter(next_phase(self.phase, step))
        self.reason = reason

    def advance(self, step: Step) -> None:
        """Enter the next phase, of which nobody need be told."""
        self._enter(next_phase(self.phase, step))

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        # Looked at for every segment: attributes, though the phase says it all.
        self.state, self.sends, self.receives, self.authenticated, self.delivers, self.alive = TRAITS[phase]

    def changed(self) -> ConnectionChanged:
        """The event that tells of its state."""
        return ConnectionChanged(self.id, self.state, self.reason, self.facts)

    # --- sending  ---

    @property
    def segment_size(self) -> int:
        """Payload bytes of a full DATA segment here and now."""
        rate = self.rate
        if rate < SLOW_RATE:
            return SLOW_SEGMENT
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
        self.credit = max(0, credit)

    def set_max_rate(self, max_rate: float) -> None:
        self.max_rate = max_rate
        self.rate = self._capped(self.rate)
        self._tokens = min(self._tokens, self.bucket_depth) if max_rate else self.bucket_depth

    def tokens_ready_at(self) -> float | None:
        """When a connection held back only by its rate cap may send again; None = the cap is not the obstacle."""
        if not self.max_rate or self.channel_credit <= 0 or self.credit > 0:
            return None
        if self.allowance is not None and self.allowance <= 0:
            return None  # the peer has to be heard first
        missing = max(1.0, self.bucket_depth / 2 - self._tokens)
        return self._tokens_at + missing / self.max_rate

    # --- measuring  ---

    def take_sample(self, sample: TransportSample, now: float) -> bool:
        """Take the transport's own figures; return True when its peer made progress."""
        self.has_samples, self.unsampled = True, False
        if sample.rtt:
            self.rtt, self.rtt_variation = sample.rtt, sample.rtt_variation
        if sample.min_rtt and (not self.min_rtt or sample.min_rtt < self.min_rtt):
            self.min_rtt = sample.min_rtt
        if sample.rate and not (sample.app_limited and sample.rate < self.rate):
            self.rate = self._capped(sample.rate)
        self.congestion_window = sample.congestion_window
        self.not_sent, self._not_sent_at = sample.not_sent, now
        progressed = sample.bytes_acked > self.sampled_acked
        self.sampled_acked = sample.bytes_acked
        if progressed or not sample.unacked or not self.unacked:
            self.progress_at = now
        self.unacked = sample.unacked
        return progressed

    def _capped(self, rate: float) -> float:
        """What schedulers may count on: the network may be faster than the cap, this connection never is."""
        return min(rate, self.max_rate) if self.max_rate else rate

    def take_rtt(self, rtt: float) -> None:
        """A keep-alive came back; used while the transport itself does not tell (RFC 6298 section 2)."""
        if not self.min_rtt or rtt < self.min_rtt:
            self.min_rtt = rtt
        if self.has_samples and self.rtt:
            return
        if self.rtt:
            self.rtt_variation += (abs(self.rtt - rtt) - self.rtt_variation) / 4
            self.rtt += (rtt - self.rtt) / 8
        else:
            self.rtt, self.rtt_variation = rtt, rtt / 2

    def delivered(self, size: int, now: float) -> None:
        """Session bytes that only this connection carried were acknowledged."""
        self.session_progress_at = now
        self._rate_bytes += size
        elapsed = now - self._rate_since
        if elapsed >= max(RATE_WINDOW, self.rtt):
            measured = self._rate_bytes / elapsed
            if not self.has_samples or not self.rate:
                self.rate = self._capped(measured if not self.rate else self.rate + (measured - self.rate) / 2)
            self._rate_bytes, self._rate_since = 0, now

    def carries_control(self, number: int, now: float) -> None:
        """A control segment is on its way here."""
        if not self.in_flight and not self.carried_control:
            self.session_progress_at = self.progress_at = now
            self._rate_bytes, self._rate_since = 0, now
            self.early_data_moved = False
        self.carried_control.add(number)
        self.sent_at = now

    def estimate_not_sent(self, now: float) -> None:
        """Since the last sample the transport has sent some of what it had."""
        if self.not_sent:
            self.not_sent = max(0, self.not_sent - int(self.rate * (now - self._not_sent_at)))
        self._not_sent_at = now

    def heard(self, now: float) -> None:
        self.heard_at = self.progress_at = self.session_progress_at = now

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
        return max(0.3, 2 * self.suspect_after) + self.in_flight / rate

    def in_time(self, now: float) -> bool:
        """The peer owes an answer, but not for longer than its acknowledgements may take."""
        return self.outstanding and now < self.session_progress_at + self.overdue_after

    @property
    def outstanding(self) -> bool:
        return self.in_flight > 0 or bool(self.carried_control)

    def suspect_at(self) -> float | None:
        """When it becomes SUSPECT unless something happens; None = nothing is expected from it."""
        deadlines = []
        if (self.unacked > 0) if self.has_samples else self.outstanding:
            deadlines.append(self.progress_at + self.suspect_after)
        if self.outstanding:
            deadlines.append(self.session_progress_at + self.overdue_after)
        return min(deadlines, default=None)
