"""What noq-proto lacks for aggregation and for servers that validate addresses themselves, put into its source.

The crate comes from the registry, unchanged; `build.py` makes a copy and calls `apply` on it. Nothing of the crate is
kept here but the few words that say where something goes. Each change stands by itself, so that it can be offered to
the crate's authors. noq-proto is licensed "MIT OR Apache-2.0", as are these changes to it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

CRATE = "noq-proto"
VERSION = "1.4.0"
CHECKSUM = "c01a35be3ed37558c8db69554419f24eff8a63599b54f711bbe3863ec727c47d"
"""SHA-256 of the crate's archive, for which the places below were found."""

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Change:
    """`text` before, after or in place of words that occur `count` times; at one of them, the first is 0."""

    file: str
    where: str
    words: str
    text: str
    count: int = 1
    which: int = 0

    def made_in(self, source: str) -> str:
        found = source.split(self.words)
        if len(found) - 1 != self.count:
            raise SystemExit(f"{self.file}: {self.words!r} is there {len(found) - 1} times, not {self.count}")
        head = self.words.join(found[: self.which + 1])
        tail = self.words.join(found[self.which + 1 :])
        match self.where:
            case "before":
                return head + self.text + self.words + tail
            case "after":
                return head + self.words + self.text + tail
            case "instead":
                return head + self.text + tail
            case _:
                raise ValueError(self.where)


def before(file: str, words: str, text: str, *place: int) -> Change:
    return Change(file, "before", words, text, *place)


def after(file: str, words: str, text: str, *place: int) -> Change:
    return Change(file, "after", words, text, *place)


def instead(file: str, words: str, text: str, *place: int) -> Change:
    return Change(file, "instead", words, text, *place)


CONNECTION = "src/connection/mod.rs"
ASSEMBLER = "src/connection/assembler.rs"
MTU = "src/connection/mtud.rs"
PACING = "src/connection/pacing.rs"
BBR = "src/congestion/bbr3/mod.rs"
KEYS = "src/connection/packet_crypto.rs"
PATHS = "src/connection/paths.rs"
SEND_BUFFER = "src/connection/send_buffer.rs"
SPACES = "src/connection/spaces.rs"
STREAMS = "src/connection/streams/state.rs"
NEW_FILES = {
    "src/connection/hooks.rs": "hooks/connection.rs",
    "src/connection/streams/hooks.rs": "hooks/streams.rs",
}
BLOCKED = "path.anti_amplification_blocked(MIN_INITIAL_SIZE.into())"

CHANGES = (
    # The two files, their state, and their names.
    before(CONNECTION, "\nmod mtud;\n", "\nmod hooks;\npub use hooks::{AckPath, PathFacts};\n"),
    before(CONNECTION, "    n0_nat_traversal: n0_nat_traversal::State,\n", "    hooks: hooks::Hooks,\n"),
    before(
        CONNECTION,
        "            n0_nat_traversal: Default::default(),\n",
        "            hooks: Default::default(),\n",
    ),
    before("src/connection/streams/mod.rs", "\nmod recv;\n", "\nmod hooks;\n"),
    after(
        STREAMS,
        "    pub(super) pending: PendingStreamsQueue,\n",
        "    /// Those that are not sent for now\n    pub(super) hidden: Vec<super::PendingStream>,\n",
    ),
    after(
        STREAMS,
        "            pending: PendingStreamsQueue::new(),\n",
        "            hidden: Vec::new(),\n",
    ),
    before("src/lib.rs", "    Chunk, Chunks, ClosePathError,", "    AckPath, PathFacts,\n"),
    # Facts.
    before(
        PATHS,
        "    /// Minimum RTT registered so far for this estimator.\n",
        "    /// Whether anything was measured yet.\n"
        "    pub fn has_sample(&self) -> bool {\n        self.smoothed.is_some()\n    }\n\n"
        "    /// Forget the minimum: round trips come another way from now on\n"
        "    pub(crate) fn forget_min(&mut self) {\n        self.min = Duration::MAX;\n    }\n\n"
        "    /// How much it varies.\n"
        "    pub fn variation(&self) -> Duration {\n        self.var\n    }\n\n",
    ),
    before(
        SEND_BUFFER,
        "    /// Compute the amount of data that hasn't been acknowledged\n",
        "    /// Bytes acknowledged in order, and bytes sent, once at least\n"
        "    pub(super) fn in_order(&self) -> (u64, u64) {\n"
        "        (self.fully_acked_offset(), self.unsent)\n    }\n\n"
        "    /// Bytes that wait to be sent, for the first time or again\n"
        "    pub(super) fn unsent_bytes(&self) -> u64 {\n"
        "        let again: u64 = self.retransmits.iter().map(|range| range.end - range.start).sum();\n"
        "        self.offset() - self.unsent + again\n    }\n\n",
    ),
    # What was sent again on another path before it was lost may arrive all the same, and counts then.
    after(
        SPACES,
        "    pub(super) stream_frames: frame::StreamMetaVec,\n",
        "    /// Of those that have been sent again since: what is known once it arrives\n"
        "    pub(super) repeated: frame::StreamMetaVec,\n",
    ),
    after(
        "src/connection/packet_builder.rs",
        "            stream_frames: sent.stream_frames,\n",
        "            repeated: Default::default(),\n",
    ),
    instead(
        CONNECTION,
        "        for frame in info.stream_frames {\n            self.streams.received_ack_of(frame);\n",
        "        for frame in info.stream_frames.into_iter().chain(info.repeated) {\n"
        "            self.streams.received_ack_of(frame);\n",
    ),
    instead(
        STREAMS,
        "        self.unacked_data -= frame.offsets.end - frame.offsets.start;\n",
        "        self.unacked_data -= stream.pending.unacked_of(frame.offsets.clone());\n",
    ),
    before(
        SEND_BUFFER,
        "        self.acks.insert(range);\n",
        "        self.retransmits.remove(range.clone());\n",
    ),
    before(
        SEND_BUFFER,
        "    /// Discard a range of acknowledged stream data\n",
        "    /// Bytes of a range that was sent of which no acknowledgement has come\n"
        "    pub(super) fn unacked_of(&self, mut range: Range<u64>) -> u64 {\n"
        "        range.start = range.start.max(self.fully_acked_offset());\n"
        "        let acked: u64 = self.acks.iter_range(range.clone()).map(|part| part.end - part.start).sum();\n"
        "        range.end.saturating_sub(range.start) - acked\n    }\n\n",
    ),
    # An identifier that is no longer in use is told to whoever made it.
    before(
        "src/cid_generator.rs",
        "    /// Quickly determine whether `cid` could have",
        "    /// The peer has retired this CID, or its path is gone\n"
        "    fn retired(&mut self, _cid: ConnectionId) {}\n\n",
    ),
    after(
        "src/endpoint.rs",
        "                    self.index.retire(cid);\n",
        "                    self.local_cid_generator.retired(cid);\n",
    ),
    # A Retry that the application itself has sent.
    before(
        "src/endpoint.rs",
        "    /// Whether it is legal to respond with a retry packet\n",
        "    /// The application has validated the address with a Retry of its own\n"
        "    ///\n"
        "    /// `original` is the destination connection ID of the client's first packet.\n"
        "    pub fn validated_by_retry(&mut self, original: ConnectionId) {\n"
        "        self.token = IncomingToken {\n"
        "            retry_src_cid: Some(self.packet.header.dst_cid),\n"
        "            orig_dst_cid: original,\n"
        "            validated: true,\n        };\n    }\n\n",
    ),
    # Gaps: several unequal paths make as many as the window has datagrams. Bounded by what lies between the first
    # byte that is missing and the last that has come, which flow control bounds.
    instead(
        ASSEMBLER,
        "self.data.len() > COMPACT_THRESHOLD",
        "self.data.len() > 2 * self.most_chunks()",
    ),
    Change(ASSEMBLER, "instead", "self.data.len() > MAX_CHUNKS", "self.data.len() > self.most_chunks()"),
    before(
        ASSEMBLER,
        "    /// Number of bytes consumed by the application\n    pub(super) fn bytes_read",
        "    fn most_chunks(&self) -> usize {\n"
        "        const MIN_GAP: u64 = 512; // bytes on average of what is missing and what has come\n"
        "        MAX_CHUNKS.max(((self.end - self.bytes_read) / MIN_GAP) as usize)\n    }\n\n",
    ),
    before(ASSEMBLER, "const COMPACT_THRESHOLD", "#[cfg(test)]\n"),
    # The order of paths.
    instead(CONNECTION, "self.paths.first_entry().map(|e| *e.key());", "self.path_after(None);", 2, 0),
    instead(
        CONNECTION,
        "self.paths.keys().find(|i| **i > path_id).copied();",
        "self.path_after(Some(path_id));",
        2,
        0,
    ),
    after(
        CONNECTION,
        "while let Some(path_id) = next_path_id {\n",
        "            self.hooks.sending = path_id;\n",
        2,
        0,
    ),
    after(
        CONNECTION,
        "while let Some(path_id) = next_path_id {\n",
        "                self.hooks.sending = path_id;\n",
        2,
        1,
    ),
    before(
        PATHS,
        "    /// The number of bytes this [`PathId`] uses when encoded",
        "    /// The number itself\n    pub const fn into_inner(self) -> u32 {\n        self.0\n    }\n\n",
    ),
    # Networks that begin to swallow large packets: one loss makes datagrams small and has that asked at once, unless
    # one as large has arrived since.
    instead(MTU, "const BLACK_HOLE_THRESHOLD: usize = 3;", "const BLACK_HOLE_THRESHOLD: usize = 0;"),
    before(MTU, "    acked_mtu: u16,\n", "    newest_acked: (u64, u16),\n"),
    before(MTU, "            acked_mtu: min_mtu,\n", "            newest_acked: (0, min_mtu),\n"),
    before(
        MTU,
        "        if len < self.acked_mtu {\n",
        "        if len > self.min_mtu {\n"
        "            self.newest_acked = self.newest_acked.max((pn, len));\n        }\n",
    ),
    after(
        MTU,
        "        if burst.smallest_packet_size <= self.min_mtu\n",
        "            || (burst.latest_non_probe < self.newest_acked.0\n"
        "                && burst.smallest_packet_size <= self.newest_acked.1)\n",
    ),
    # Silent paths: nothing but probes while another path is healthy.
    after(
        CONNECTION,
        "                && path.data.local_status() == PathStatus::Available\n",
        "                && !self.is_silent(path_id)\n",
    ),
    after(CONNECTION, "        let may_send_data = has_cids\n", "            && !self.is_suspect(path_id)\n"),
    Change(
        CONNECTION, "after", "        let may_send_close = has_cids\n", "            && !self.is_suspect(path_id)\n"
    ),
    after(
        CONNECTION,
        "        path_data.pto_count = path_data.pto_count.saturating_add(1);\n",
        "        self.repeat_elsewhere(path_id);\n",
    ),
    instead(
        CONNECTION,
        "if self.peer_completed_handshake_address_validation() {\n            self.path_data_mut(path)",
        "if self.peer_completed_handshake_address_validation() && self.is_answer(path, ack.largest) {\n"
        "            self.path_data_mut(path)",
    ),
    before(
        CONNECTION,
        "                    self.spaces[space_id].queue_tail_loss_probe(\n",
        "                    self.probe_with_ping(space_id, path_id);\n",
    ),
    # What was taken for lost and arrives tells how far packets overtake each other (RFC 9002 section 6.1).
    before(
        CONNECTION,
        "            for pn in spurious_losses {\n",
        "            if let Some(first) = spurious_losses.first() {\n"
        "                self.hooks.reordering.entry(path).or_default().seen(ack.largest - first);\n"
        "            }\n",
    ),
    instead(
        CONNECTION,
        ".mul_f32(self.config.time_threshold)",
        ".mul_f32(self.time_threshold(path_id))",
    ),
    instead(
        CONNECTION,
        "let packet_threshold = self.config.packet_threshold as u64;",
        "let packet_threshold = self.packet_threshold(path_id);",
    ),
    # Who closes a connection and its socket cannot wait for the pacer.
    before(
        CONNECTION,
        "        // Pacing check.\n",
        "        if can_send.close {\n            return PathBlocked::No;\n        }\n\n",
    ),
    # The first flight of a path leaves at once, as large as the initial window may be (RFC 9002 section 7.7).
    instead(
        PACING,
        "            tokens: capacity,\n",
        "            tokens: capacity.max(MIN_BURST_SIZE * u64::from(mtu)),\n",
    ),
    instead(
        PACING,
        "            self.tokens = self.capacity.min(self.tokens);\n            self.last_window_inputs",
        "            self.tokens = self.capacity.max(MIN_BURST_SIZE * u64::from(mtu)).min(self.tokens);\n"
        "            self.last_window_inputs",
    ),
    # Who sends little for a while measures how little, and not the network: nothing that leaves meanwhile tells a rate.
    instead(
        BBR,
        "            if self.app_limited != 0 && self.delivered > self.app_limited {\n"
        "                self.app_limited = 0;\n"
        "            } else if app_limited {\n"
        "                self.app_limited = Ord::max(self.delivered + self.inflight, 1);\n            }\n",
        "            if app_limited {\n"
        "                self.app_limited = Ord::max(self.delivered + self.inflight, 1);\n"
        "            } else if self.delivered > self.app_limited {\n"
        "                self.app_limited = 0;\n            }\n",
    ),
    # What was measured is forgotten once a cycle and not with every round trip, but where a queue stands, as when the
    # path has become slower, or where more than it carries has been lost.
    instead(
        BBR,
        "        if self.ack_phase == AckPhase::ProbeStopping\n            && self.round_start\n",
        "        let stands = self.rs.is_some_and(|rs| rs.rtt * 2 / 3 > self.min_rtt);\n"
        "        if (stands || self.ack_phase == AckPhase::ProbeStopping)\n            && self.round_start\n",
    ),
    before(
        BBR,
        "            self.advance_max_bw_filter();\n",
        "            if self.inflight_longterm == u64::MAX {\n"
        "                self.ack_phase = AckPhase::ProbeFeedback;\n            }\n",
    ),
    # Until it has found how fast its path is, it doubles what it sends with every round trip, as others in slow start.
    instead(
        BBR,
        "            ssthresh: None,\n            pacing_rate: Some(self.pacing_rate.round() as u64),\n",
        "            ssthresh: (!self.full_bw_reached).then_some(u64::MAX),\n"
        "            pacing_rate: Some(self.pacing_rate.round() as u64),\n",
    ),
    # A rate that was measured is not paced below what the smallest window of BBR carries, four datagrams a round trip.
    instead(
        PACING,
        "            return self.delay_at_rate(pacing_rate, bytes_to_send, mtu, now);\n",
        "            let least = 4.0 * f64::from(mtu) / smoothed_rtt.as_secs_f64().max(0.001);\n"
        "            return self.delay_at_rate(pacing_rate.max(least as u64), bytes_to_send, mtu, now);\n",
    ),
    # Probe timeouts of the handshake say nothing of what follows (RFC 9002 appendix A.11).
    after(
        CONNECTION,
        "            path.data.remove_in_flight(&packet);\n        }\n",
        "        path.data.pto_count = 0;\n",
    ),
    # After an update of keys, the packet with new ones says of its own path alone which packets still have the old
    # ones: what is on its way on slower paths has them too, whatever its numbers are.
    instead(KEYS, "Option<(u64, Instant)>", "Option<(PathId, u64, Instant)>", 2, 0),
    instead(KEYS, "Option<(u64, Instant)>", "Option<(PathId, u64, Instant)>", 1, 0),
    instead(
        KEYS,
        "crypto.end_packet.is_none_or(|(pn, _)| packet_number < pn)",
        "crypto.end_packet.is_none_or(|(path, pn, _)| path != path_id || packet_number < pn)",
    ),
    instead(
        CONNECTION,
        '                .expect("update not acknowledged yet")\n                .1\n',
        '                .expect("update not acknowledged yet")\n                .2\n',
    ),
    instead(CONNECTION, "Some((result.packet_number, now))", "Some((path_id, result.packet_number, now))", 2, 0),
    instead(CONNECTION, "Some((result.packet_number, now))", "Some((path_id, result.packet_number, now))", 1, 0),
    # Keys are updated when they have to be (RFC 9001 section 6.6): some peers keep no old ones for what is overtaken.
    instead(KEYS, "rng.random_range(10..1000)", "(1 << 23) - KEY_UPDATE_MARGIN"),
    # Which paths carry data, and how much of it.
    instead(
        CONNECTION,
        "path.in_flight.bytes + bytes_to_send > path.congestion.window() {",
        "path.in_flight.bytes + bytes_to_send > self.most_in_flight(path_id) {",
    ),
    instead(
        CONNECTION,
        "            self.streams.can_send_stream_data() || self.datagrams",
        "            (self.is_carrier(path_id) && self.streams.can_send_stream_data()) || self.datagrams",
    ),
    after(
        CONNECTION,
        "        // STREAM\n        if !scheduling_info.is_abandoned\n",
        "            && carries\n",
    ),
    instead(
        CONNECTION,
        "        let path = self.path_data_mut(path_id);\n\n"
        "        path.app_limited = last_packet_number.is_none() && !send_blocked;\n",
        "        let carries = self.is_carrier(path_id);\n"
        "        let unused = self.most_in_flight(path_id) < self.path_data(path_id).congestion.window() / 2;\n"
        "        let path = self.path_data_mut(path_id);\n\n"
        "        if carries {\n"
        "            path.app_limited = unused || (last_packet_number.is_none() && !send_blocked);\n"
        "        } else if path.in_flight.bytes == 0 {\n"
        "            path.app_limited = true;\n        }\n",
    ),
    # Acknowledgements wait neither for congestion control nor for the pacer (RFC 9002 sections 2 and 7.7).
    instead(
        CONNECTION,
        "return PathBlocked::Congestion;",
        "return self.blocked(PathBlocked::Congestion, space_id, path_id, transmit, can_send);",
    ),
    instead(
        CONNECTION,
        "            return PathBlocked::Pacing;\n",
        "            if need_loss_probe {\n                return PathBlocked::Pacing;\n            }\n"
        "            return self.blocked(PathBlocked::Pacing, space_id, path_id, transmit, can_send);\n",
    ),
    before(
        CONNECTION,
        "        // Anti-amplification is only based on `total_sent`, which gets updated after\n",
        "        if self.after_acks_alone(transmit) {\n            return PathBlocked::Pacing;\n        }\n",
    ),
    before(
        CONNECTION,
        "        // ACK_FREQUENCY\n        if !scheduling_info.is_abandoned\n",
        "        if self.hooks.acks_alone {\n            return;\n        }\n\n",
    ),
    # Where a queue stands a packet waits a little for others to be acknowledged with it, but not on a path that is
    # given up.
    after(
        SPACES,
        "    reordering_threshold: u64,\n",
        "    /// For which what comes waits for more to be acknowledged with it, none = it does not\n"
        "    patience: Option<Duration>,\n",
    ),
    after(SPACES, "            reordering_threshold: 1,\n", "            patience: None,\n"),
    instead(
        SPACES,
        "            self.ack_eliciting_since_last_ack_sent > self.ack_eliciting_threshold;\n",
        "            self.is_enough() && self.due_together().is_none_or(|due| now >= due);\n",
    ),
    before(
        SPACES,
        "    fn is_out_of_order(\n",
        "    fn is_enough(&self) -> bool {\n"
        "        self.ack_eliciting_since_last_ack_sent > self.ack_eliciting_threshold\n    }\n\n"
        "    pub(super) fn set_patience(&mut self, patience: Option<Duration>) {\n"
        "        self.patience = patience;\n    }\n\n"
        "    fn due_together(&self) -> Option<Instant> {\n"
        "        Some(self.earliest_ack_eliciting_since_last_ack_sent? + self.patience?)\n    }\n\n"
        "    /// When the timer is to be armed for, once enough waits to be acknowledged together\n"
        "    pub(super) fn waits_until(&self) -> Option<Instant> {\n"
        "        let first = self.ack_eliciting_since_last_ack_sent == self.ack_eliciting_threshold + 1;\n"
        "        self.due_together().filter(|_| first && !self.immediate_ack_required)\n    }\n\n",
    ),
    instead(
        CONNECTION,
        "        let space = self.spaces[SpaceId::Data].for_path(path_id);\n"
        "        if space\n            .pending_acks\n            .packet_received(",
        "        let patience = self.ack_patience(path_id);\n"
        "        let space = self.spaces[SpaceId::Data].for_path(path_id);\n"
        "        space.pending_acks.set_patience(patience);\n"
        "        if space\n            .pending_acks\n            .packet_received(",
    ),
    before(
        CONNECTION,
        "        // Issue stream ID credit due to ACKs of outgoing finish/resets and",
        "        if let Some(due) = self.spaces[SpaceId::Data].for_path(path_id).pending_acks.waits_until() {\n"
        "            self.timers.set(\n"
        "                Timer::PerPath(path_id, PathTimer::MaxAckDelay),\n"
        "                due,\n"
        "                self.qlog.with_time(now),\n            );\n        }\n\n",
    ),
    before(
        CONNECTION,
        "        self.abandoned_paths.insert(path_id);\n",
        "        self.spaces[SpaceId::Data].for_path(path_id).pending_acks.on_max_ack_delay_timeout();\n",
    ),
    # The path of acknowledgements.
    before(
        CONNECTION,
        "        can_send.close = connection_close_pending && space_has_crypto;\n",
        "        if space_id == SpaceId::Data {\n            self.choose_acks(path_id, &mut can_send);\n        }\n",
    ),
    before(
        CONNECTION,
        "        let is_0rtt = space_id == SpaceId::Data && !space_has_keys;\n        let stats",
        "        let acks = self.acks_on(path_id);\n        let carries = self.is_carrier(path_id);\n",
    ),
    instead(
        CONNECTION,
        "                .filter(|(_, pns)| pns.pending_acks.can_send())\n",
        "                .filter(|(of, pns)| acks.of(**of) && pns.pending_acks.can_send())\n",
    ),
    # Smallest round trips are of one way there and back.
    after(
        CONNECTION,
        "        let payload = packet.payload.freeze();\n",
        "        self.hooks.hearing = path_id;\n",
    ),
    before(
        CONNECTION,
        "            let next_pn = self.spaces[space].for_path(path).next_packet_number;\n",
        "            let another_way = self.acks_come_another_way(path);\n",
    ),
    before(
        CONNECTION,
        "            // TODO(@divma): should be a method of path, should be contained in a single place\n",
        "            if another_way {\n                path_data.rtt.forget_min();\n            }\n",
    ),
    # An address that has not answered yet is sent at most three times what came from it, to the byte. Where that is
    # less than a datagram of full size it gets a small challenge.
    before(
        CONNECTION,
        "        let path = self.path_data(path_id);\n\n        // `C.send_quantum`",
        "        let left = self.left_for(path_id).unwrap_or(u64::MAX);\n"
        "        if left < MIN_INITIAL_SIZE.into() {\n"
        "            return self.send_small_challenge(now, buf, path_id, left);\n        }\n",
    ),
    instead(
        CONNECTION,
        "        let pmtu = path.current_mtu().into();\n        let mut transmit",
        "        let pmtu = usize::try_from(left).unwrap_or(usize::MAX).min(path.current_mtu().into());\n"
        "        let mut transmit",
    ),
    instead(
        CONNECTION,
        ".anti_amplification_blocked(transmit.len() as u64 + 1)",
        ".anti_amplification_blocked((transmit.len() + transmit.segment_size()) as u64)",
    ),
    instead(CONNECTION, "path.anti_amplification_blocked(1)", BLOCKED, 2, 0),
    instead(CONNECTION, "path.anti_amplification_blocked(1)", BLOCKED, 1, 0),
    before(
        CONNECTION,
        "                let pns = self.spaces[SpaceKind::Data].for_path(path_id);\n"
        "                if !matches!(pns.open_status, OpenStatus::Informed)",
        "                if self.hooks.small_challenges.remove(&path_id) {\n"
        "                    path.data.pending_challenge = true;\n                }\n",
    ),
    # So is one that asks from beside the path, for each question.
    instead(
        CONNECTION,
        ".push(number, challenge.0, network_path);",
        ".push(number, challenge.0, network_path, payload_len);",
    ),
    instead(
        CONNECTION,
        "let (token, network_path) = pns.pending_path_responses.pop_off_path(network_path)?;",
        "let (token, network_path, most) = pns.pending_path_responses.pop_off_path(network_path)?;",
    ),
    instead(
        CONNECTION,
        "        // different destination than path_id's network path.\n        builder.pad_to(MIN_INITIAL_SIZE);\n",
        "        // different destination than path_id's network path.\n        builder.pad_to(most);\n",
    ),
    instead(
        PATHS,
        "pub(crate) fn push(&mut self, packet: u64, token: u64, network_path: FourTuple) {",
        "pub(crate) fn push(&mut self, packet: u64, token: u64, network_path: FourTuple, size: usize) {\n"
        "        let most = (3 * size).min(crate::MIN_INITIAL_SIZE.into()) as u16;",
    ),
    after(PATHS, "            packet,\n            token,\n            network_path,\n", "            most,\n"),
    after(
        PATHS,
        "struct PathResponse {\n",
        "    /// How large the datagram with the response may be, bytes\n    most: u16,\n",
    ),
    instead(
        PATHS,
        "pub(crate) fn pop_off_path(&mut self, network_path: FourTuple) -> Option<(u64, FourTuple)> {",
        "pub(crate) fn pop_off_path(&mut self, network_path: FourTuple) -> Option<(u64, FourTuple, u16)> {",
    ),
    instead(
        PATHS,
        "Some((response.token, response.network_path))",
        "Some((response.token, response.network_path, response.most))",
    ),
    # The address before a rebinding is challenged, and returned to when the new one does not answer, where it had been
    # validated (RFC 9000 sections 9.3.2 and 9.3.3), not where it had not.
    instead(CONNECTION, "if !prev_path_data.validated\n", "if prev_path_data.validated\n"),
    # Ids above the maximum.
    before(
        CONNECTION,
        "            match frame {\n                Frame::Crypto(frame) => {\n"
        "                    self.read_crypto(SpaceId::Data",
        "            self.check_agreed(&frame)?;\n",
    ),
    # An answer to a challenge leaves whatever is in flight: a peer that acknowledges nothing could have them pile up.
    before(
        CONNECTION,
        "                Frame::PathChallenge(challenge) => {\n",
        "                Frame::PathChallenge(_) if self.is_overfull(path_id) => {}\n",
    ),
    # A client without connection IDs is not offered paths, which need them: one that knows of paths would have to take
    # the offer for an error.
    before(
        "src/endpoint.rs",
        "        params.original_dst_cid = Some(incoming.token.orig_dst_cid);\n",
        "        if src_cid.is_empty() {\n            params.initial_max_path_id = None;\n        }\n",
    ),
    # A path that the peer gives up before anything has come there: its id is used up as well.
    before(
        CONNECTION,
        "                    match self.close_path_inner(\n"
        "                        now,\n"
        "                        path_id,\n"
        "                        PathAbandonReason::RemoteAbandoned {\n",
        "                    self.note_unheard_path(path_id, network_path, now);\n",
    ),
    # What is remembered of a path goes with it: no id is used twice.
    after(
        CONNECTION,
        "        self.paths.remove(&path_id);\n        self.spaces[SpaceId::Data].number_spaces.remove(&path_id);\n",
        "        self.hooks.forget(path_id);\n",
    ),
    # Connection IDs for further paths in 0.5-RTT.
    after(
        CONNECTION,
        "                    self.issue_first_cids(now);\n",
        "                    self.issue_path_cids_early(now);\n",
        2,
        1,
    ),
    instead(
        CONNECTION,
        "cid_path_id = match is_multipath_negotiated {",
        "cid_path_id = match is_multipath_negotiated || issued.path_id != PathId::ZERO {",
    ),
    instead(CONNECTION, "size_bound(is_multipath_negotiated, cid_len)", "size_bound(true, cid_len)"),
)


def apply(crate: Path) -> None:
    """Change the source in this folder, as `cargo vendor` has put it there. SystemExit where it is another."""
    checksum_file = crate / ".cargo-checksum.json"
    package = json.loads(checksum_file.read_text())["package"]
    if package != CHECKSUM:
        raise SystemExit(f"{CRATE} has the checksum {package}, the hooks are for {CHECKSUM} ({VERSION})")
    for name, ours in NEW_FILES.items():
        (crate / name).write_text((HERE / ours).read_text())
    for file in dict.fromkeys(change.file for change in CHANGES):
        source = (crate / file).read_text()
        for change in CHANGES:
            if change.file == file:
                source = change.made_in(source)
        (crate / file).write_text(source)
    # Cargo compares files with these sums, and the package's own with Cargo.lock.
    checksum_file.write_text(json.dumps({"files": {}, "package": package}))
