//! What an application may know of the paths of a connection, and decide for them.
//!
//! This file becomes `connection/hooks.rs` of noq-proto; `hooks.py` beside it puts the calls where they belong.

use super::*;
use crate::FxHashSet;

/// Which path carries the acknowledgements of which, once multipath is negotiated.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum AckPath {
    /// Whichever path sends first.
    #[default]
    Any,
    /// That on which the packets came; of a suspect path, any other.
    Same,
    /// The path with the smallest round-trip time that is not suspect.
    Best,
}

/// Facts of a path that is open.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct PathFacts {
    /// What its round trips were; `None` before the first sample.
    pub rtt: Option<RttEstimator>,
    /// The variation of its round-trip time.
    pub rtt_variation: Duration,
    /// Bytes in flight.
    pub in_flight: u64,
    /// The congestion window, bytes.
    pub window: u64,
    /// Whether it grows with every byte that arrives, as it does until something was lost.
    pub slow_start: bool,
    /// Probe timeouts since it was last acknowledged something.
    pub probe_count: u32,
    /// Whether the peer answers there.
    pub validated: bool,
    /// Whether it was abandoned, and only lingers.
    pub abandoned: bool,
    /// Whether nothing new is given to it until it answers.
    pub suspect: bool,
    /// Where it goes.
    pub network_path: FourTuple,
}

/// What was decided, and what is remembered for it.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    /// The path of what is being sent, or was last.
    pub(super) sending: PathId,
    order: Vec<PathId>,
    /// Those that carry data of streams; `None` = all.
    carriers: Option<Vec<PathId>>,
    /// Bytes in flight that are enough, whatever congestion control allows.
    enough: FxHashMap<PathId, u64>,
    ack_path: AckPath,
    /// The first packet that was sent after a path became suspect.
    suspected_at: FxHashMap<PathId, u64>,
    /// The path of the packet that is being read, or was last.
    pub(super) hearing: PathId,
    /// The path that brought the last acknowledgements of another, or of itself.
    acked_on: FxHashMap<PathId, PathId>,
    /// Authenticated packets there were when a path that only acknowledges last asked for an answer.
    asked_at: FxHashMap<PathId, u64>,
    /// Paths whose address was challenged in a small datagram: what they carry at full size is not known yet.
    pub(super) small_challenges: FxHashSet<PathId>,
    /// How far packets of a path overtake each other.
    pub(super) reordering: FxHashMap<PathId, Reordering>,
    /// The packet that is made contains acknowledgements and nothing else.
    pub(super) acks_alone: bool,
}

impl Hooks {
    /// A path is gone.
    pub(super) fn forget(&mut self, path: PathId) {
        self.enough.remove(&path);
        self.suspected_at.remove(&path);
        self.acked_on.remove(&path);
        self.asked_at.remove(&path);
        self.small_challenges.remove(&path);
        self.reordering.remove(&path);
    }
}

/// What packets that were taken for lost and arrived all the same have told of a path.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Reordering {
    /// Packets that have overtaken another.
    packets: u64,
    /// How often it was seen, of which each adds an eighth to the round trip that is waited for.
    times: u32,
}

impl Reordering {
    /// A packet arrived though one that was sent so many later had been acknowledged before.
    pub(super) fn seen(&mut self, packets: u64) {
        self.packets = self.packets.max(packets).min(MAX_OVERTAKING);
        self.times = (self.times + 1).min(MAX_EIGHTHS);
    }
}

impl SentPacket {
    /// What it carries of streams, to be sent again: not once more when it is lost, and acknowledged when it arrives.
    fn frames_to_repeat(&mut self) -> frame::StreamMetaVec {
        let frames = mem::take(&mut self.stream_frames);
        self.repeated.extend(frames.iter().cloned());
        frames
    }
}

/// Packets that may overtake one that is not lost, and eighths that a round trip may take longer for that.
const MAX_OVERTAKING: u64 = 1024;
const MAX_EIGHTHS: u32 = 7;

/// Which acknowledgements a path carries.
pub(super) enum Acks {
    All,
    None,
    Of(Vec<PathId>),
}

impl Acks {
    pub(super) fn of(&self, path: PathId) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Of(paths) => paths.contains(&path),
        }
    }
}

/// Packets from the peer after which a path that only acknowledges asks whether anybody hears it.
const ASK_AFTER: u64 = 16;

/// For how long a packet waits for others to be acknowledged with it, where round trips are longer by more than data of
/// a bounded queue makes them: on a slow way back acknowledgements wait for each other (RFC 9000 section 13.2.2).
const PATIENCE: Duration = Duration::from_micros(2500);
const QUEUE_OF_DATA: Duration = Duration::from_millis(16);

impl Connection {
    /// How long packets wait to be acknowledged together: what one acknowledgement lets go leaves in one burst.
    pub(super) fn ack_patience(&self, path: PathId) -> Option<Duration> {
        let rtt = &self.paths.get(&path)?.data.rtt;
        let queues = rtt.has_sample() && rtt.get().saturating_sub(rtt.min()) >= QUEUE_OF_DATA;
        queues.then_some(PATIENCE.min(self.ack_frequency.max_ack_delay))
    }

    /// The paths in the order in which they are given what is to be sent; others follow by their ids.
    pub fn set_path_order(&mut self, order: &[PathId]) {
        self.hooks.order.clear();
        self.hooks.order.extend_from_slice(order);
    }

    /// The paths that carry data of streams, `None` for all; everything else goes on any.
    pub fn set_carriers(&mut self, carriers: Option<&[PathId]>) {
        self.hooks.carriers = carriers.map(<[PathId]>::to_vec);
    }

    /// How many bytes in flight on a path are enough, `u64::MAX` for what congestion control allows.
    pub fn set_enough_in_flight(&mut self, path: PathId, bytes: u64) {
        if bytes == u64::MAX {
            self.hooks.enough.remove(&path);
        } else if self.paths.contains_key(&path) {
            self.hooks.enough.insert(path, bytes);
        }
    }

    /// Which path carries acknowledgements.
    pub fn set_ack_path(&mut self, ack_path: AckPath) {
        self.hooks.ack_path = ack_path;
    }

    /// Take a path for silent now, as if its probe timeout had come.
    ///
    /// What is in flight there is sent on other paths, and it is given nothing until it has answered a PING.
    pub fn suspect_path(&mut self, path: PathId, now: Instant) -> Result<(), ClosedPath> {
        if self.abandoned_paths.contains(&path) {
            return Err(ClosedPath { _private: () });
        }
        let data = self.path_mut(path).ok_or(ClosedPath { _private: () })?;
        data.pto_count = data.pto_count.saturating_add(1).min(MAX_BACKOFF_EXPONENT); // noq counts up to it each time
        let pns = self.spaces[SpaceId::Data].for_path(path);
        pns.loss_probes = pns.loss_probes.max(1);
        self.repeat_elsewhere(path);
        self.set_loss_detection_timer(now, path);
        Ok(())
    }

    /// When the oldest packet on its way on a path that carries data of streams was sent, and its size.
    pub fn oldest_data(&self, path: PathId) -> Option<(Instant, u64)> {
        let pns = self.spaces[SpaceId::Data].number_spaces.get(&path)?;
        let oldest = pns.sent_packets.values().find(|packet| !packet.stream_frames.is_empty())?;
        Some((oldest.time_sent, oldest.size.into()))
    }

    /// Send again what packets of up to so many bytes on their way on a path carry of streams, the oldest first.
    ///
    /// They may yet arrive, which counts as if nothing had been sent again.
    pub fn repeat_data(&mut self, path: PathId, most: u64) {
        let Some(pns) = self.spaces[SpaceId::Data].number_spaces.get_mut(&path) else {
            return;
        };
        let mut left = most;
        for packet in pns.sent_packets.values_mut().filter(|packet| !packet.stream_frames.is_empty()) {
            let Some(rest) = left.checked_sub(packet.size.into()) else {
                return;
            };
            left = rest;
            for frame in packet.frames_to_repeat() {
                self.streams.retransmit(frame);
            }
        }
    }

    /// The path of what `poll_transmit` returned last.
    pub fn last_path(&self) -> PathId {
        self.hooks.sending
    }

    /// Facts of a path, `None` where there is none with this id.
    pub fn path_facts(&self, path: PathId) -> Option<PathFacts> {
        let data = self.path(path)?;
        Some(PathFacts {
            rtt: data.rtt.has_sample().then_some(data.rtt),
            rtt_variation: data.rtt.variation(),
            in_flight: data.in_flight.bytes,
            window: data.congestion.window(),
            slow_start: data.congestion.metrics().ssthresh.is_some_and(|at| data.congestion.window() < at),
            probe_count: data.pto_count,
            validated: data.validated,
            abandoned: self.abandoned_paths.contains(&path),
            suspect: self.is_suspect(path),
            network_path: data.network_path,
        })
    }

    /// Bytes of all streams that are not acknowledged, and how many of them wait to be sent, once more or first.
    pub fn unacknowledged_and_unsent(&self) -> (u64, u64) {
        self.streams.unacknowledged_and_unsent()
    }

    /// Streams of which not all has arrived: bytes acknowledged in order, and bytes sent.
    pub fn in_order(&self) -> Vec<(StreamId, u64, u64)> {
        self.streams.in_order()
    }

    /// Streams with something to send in their turns, and how many bytes.
    pub fn unsent_in_turn(&self) -> Vec<(StreamId, u64)> {
        self.streams.unsent_in_turn()
    }

    /// Send nothing of these streams until this is called again.
    pub fn hide_streams(&mut self, streams: &[StreamId]) {
        self.streams.hide(streams);
    }

    /// The path after this one in the order of sending, the first of all after `None`.
    pub(super) fn path_after(&self, path: Option<PathId>) -> Option<PathId> {
        let order = &self.hooks.order;
        let listed = order.iter().filter(|id| self.paths.contains_key(id));
        let mut all = listed.chain(self.paths.keys().filter(|id| !order.contains(id)));
        if let Some(path) = path {
            all.find(|id| **id == path);
        }
        all.next().copied()
    }

    /// Whether data of streams goes on it.
    pub(super) fn is_carrier(&self, path: PathId) -> bool {
        self.hooks.carriers.as_ref().is_none_or(|carriers| carriers.contains(&path))
    }

    /// Bytes that may be in flight there.
    pub(super) fn most_in_flight(&self, path: PathId) -> u64 {
        let window = self.path_data(path).congestion.window();
        self.hooks.enough.get(&path).map_or(window, |enough| window.min(*enough))
    }

    /// What a path that may send no data now may send all the same: acknowledgements, if there are any.
    ///
    /// Two that send to each other, each with a full window, would else wait for each other's until a probe timeout. And
    /// who only receives is paced by what it has sent itself, which is next to nothing. On a path that takes nothing but
    /// what is its own, as one that is abandoned, they do not go: packets with nothing in them would, without end.
    pub(super) fn blocked(
        &mut self,
        blocked: PathBlocked,
        space_id: SpaceId,
        path_id: PathId,
        transmit: &TransmitBuf<'_>,
        can_send: &SendableFrames,
    ) -> PathBlocked {
        self.hooks.acks_alone = can_send.acks
            && space_id == SpaceId::Data
            && transmit.num_datagrams() == 0
            && self.scheduling_info(path_id).may_send_data;
        if self.hooks.acks_alone { PathBlocked::No } else { blocked }
    }

    /// Whether what is made has such a packet already: all datagrams that leave together are as small as the first.
    pub(super) fn after_acks_alone(&mut self, transmit: &TransmitBuf<'_>) -> bool {
        self.hooks.acks_alone &= transmit.num_datagrams() > 0;
        self.hooks.acks_alone
    }

    /// Whether probe timeouts say that nobody hears it.
    pub(super) fn is_silent(&self, path: &PathId) -> bool {
        self.paths.get(path).is_some_and(|found| found.data.pto_count > 0)
    }

    fn is_healthy(&self, path: &PathId) -> bool {
        self.remote_cids.contains_key(path)
            && !self.abandoned_paths.contains(path)
            && self.paths.get(path).is_some_and(|found| found.data.validated && found.data.pto_count == 0)
    }

    /// Whether it is a backup and another path is none: nothing is sent there, acknowledgements neither.
    fn is_spare(&self, path: &PathId) -> bool {
        let is_backup = |id: &PathId| {
            self.paths.get(id).is_some_and(|found| found.data.local_status() == PathStatus::Backup)
        };
        is_backup(path) && self.paths.keys().any(|other| self.is_healthy(other) && !is_backup(other))
    }

    /// Whether it is silent and another is not: it is given nothing but probes.
    pub(super) fn is_suspect(&self, path: PathId) -> bool {
        self.is_silent(&path) && self.paths.keys().any(|other| *other != path && self.is_healthy(other))
    }

    /// A probe timeout: what is in flight on a suspect path goes again on others, though it may yet arrive.
    pub(super) fn repeat_elsewhere(&mut self, path: PathId) {
        if !self.is_multipath_negotiated() || !self.is_suspect(path) {
            return;
        }
        let space = &mut self.spaces[SpaceId::Data];
        let Some(pns) = space.number_spaces.get_mut(&path) else {
            return;
        };
        self.hooks.suspected_at.entry(path).or_insert(pns.next_packet_number);
        for packet in pns.sent_packets.values_mut() {
            for frame in packet.frames_to_repeat() {
                self.streams.retransmit(frame);
            }
            space.pending |= mem::take(&mut packet.retransmits);
        }
    }

    /// Whether an acknowledgement on this path ends the suspicion: of what was sent before, it tells nothing new.
    pub(super) fn is_answer(&mut self, path: PathId, largest: u64) -> bool {
        match self.hooks.suspected_at.get(&path) {
            Some(first) if largest < *first && self.is_suspect(path) => false,
            _ => {
                self.hooks.suspected_at.remove(&path);
                true
            }
        }
    }

    /// Packets by which a path's latest acknowledgement is ahead of one that is lost.
    pub(super) fn packet_threshold(&self, path: PathId) -> u64 {
        let seen = self.hooks.reordering.get(&path).map_or(0, |seen| seen.packets + 1);
        seen.max(self.config.packet_threshold.into())
    }

    /// Round trips after which a packet of a path is lost, once a later one has arrived.
    pub(super) fn time_threshold(&self, path: PathId) -> f32 {
        let seen = self.hooks.reordering.get(&path).map_or(0, |seen| seen.times);
        self.config.time_threshold + seen as f32 / 8.0
    }

    /// Whether acknowledgements of this path came on another one until now: the two ways have different smallest times.
    pub(super) fn acks_come_another_way(&mut self, path: PathId) -> bool {
        let on = self.hooks.hearing;
        self.hooks.acked_on.insert(path, on).is_some_and(|before| before != on)
    }

    /// A probe of a suspect path needs something of its own: the data that would be the probe goes elsewhere.
    pub(super) fn probe_with_ping(&mut self, space: SpaceId, path: PathId) {
        if self.is_suspect(path) {
            self.spaces[space].for_path(path).pending_ping = true;
        }
    }

    /// Which acknowledgements this path carries now.
    pub(super) fn acks_on(&self, path: PathId) -> Acks {
        if self.paths.len() < 2 || !self.is_multipath_negotiated() {
            return Acks::All;
        }
        match self.hooks.ack_path {
            AckPath::Any => Acks::All,
            AckPath::Same => {
                // Where no path is healthy none is trusted with another's: it may be the dead one that is served first.
                let trusted = self.is_healthy(&path) && !self.is_spare(&path);
                let silent = |of: &PathId| !self.is_healthy(of) || self.is_spare(of);
                let spaces = &self.spaces[SpaceId::Data].number_spaces;
                let carried = spaces.keys().filter(|of| **of == path || (trusted && silent(of)));
                Acks::Of(carried.copied().collect())
            }
            AckPath::Best => {
                let healthy = self.paths.iter().filter(|(id, _)| self.is_healthy(id));
                let best = healthy.min_by_key(|(_, found)| {
                    (found.data.local_status() == PathStatus::Backup, found.data.rtt.get())
                });
                match best {
                    Some((best, _)) if *best != path => Acks::None,
                    _ => Acks::All,
                }
            }
        }
    }

    /// Leave to a path the acknowledgements that it carries, and let it ask now and then whether they arrive.
    ///
    /// Who only receives has no probe timeout, and would never notice that its acknowledgements go nowhere.
    pub(super) fn choose_acks(&mut self, path: PathId, can_send: &mut SendableFrames) {
        if !can_send.acks || self.paths.len() < 2 || !self.is_multipath_negotiated() {
            return;
        }
        let acks = self.acks_on(path);
        let space = &self.spaces[SpaceId::Data];
        can_send.acks = space.number_spaces.iter().any(|(of, pns)| acks.of(*of) && pns.pending_acks.can_send());
        if !can_send.acks || can_send.other || can_send.space_specific || !self.is_healthy(&path) {
            return;
        }
        let heard = self.total_authed_packets;
        if self.path_data(path).in_flight.ack_eliciting == 0
            && heard >= self.hooks.asked_at.get(&path).map_or(0, |at| at + ASK_AFTER)
        {
            self.hooks.asked_at.insert(path, heard);
            self.spaces[SpaceId::Data].for_path(path).pending_ping = true;
            can_send.space_specific = true;
        }
    }

    /// A frame about a path with an id this end never agreed to ends the connection (draft-ietf-quic-multipath-21).
    pub(super) fn check_agreed(&self, frame: &Frame) -> Result<(), TransportError> {
        let path = match frame {
            Frame::PathAbandon(abandon) => abandon.path_id,
            Frame::PathStatusAvailable(status) => status.path_id,
            Frame::PathStatusBackup(status) => status.path_id,
            Frame::RetireConnectionId(frame::RetireConnectionId { path_id: Some(path), .. }) => *path,
            _ => return Ok(()),
        };
        if !self.is_multipath_negotiated() {
            return Err(TransportError::PROTOCOL_VIOLATION("a path id when multipath was not negotiated"));
        }
        if path > self.local_max_path_id {
            return Err(TransportError::PROTOCOL_VIOLATION("a path id above the maximum"));
        }
        Ok(())
    }

    /// Whether more than twice of what congestion control allows is in flight, as where the peer acknowledges nothing.
    pub(super) fn is_overfull(&self, path: PathId) -> bool {
        let data = self.path_data(path);
        data.in_flight.bytes > 2 * data.congestion.window()
    }

    /// Bytes that may still be sent to the address of a path before it has answered; `None` without a limit.
    pub(super) fn left_for(&self, path: PathId) -> Option<u64> {
        let data = self.path_data(path);
        let left = (3 * data.total_recvd).saturating_sub(data.total_sent);
        (self.side.is_server() && !data.validated).then_some(left)
    }

    /// Challenge an address that may not be sent a datagram of the full size yet, and answer its own challenge.
    ///
    /// This validates the address; the challenge of full size that follows, the path (RFC 9000 section 8.2.1).
    pub(super) fn send_small_challenge(
        &mut self,
        now: Instant,
        buf: &mut Vec<u8>,
        path_id: PathId,
        left: u64,
    ) -> Option<Transmit> {
        const TAG: usize = 16;
        let cid = self.remote_cids.get(&path_id)?.active();
        let smallest = 1 + cid.len() + 4 + frame::PathChallenge::SIZE_BOUND + frame::PathResponse::SIZE_BOUND + TAG;
        let closing = self.state.is_closed() || self.abandoned_paths.contains(&path_id);
        if self.highest_space != SpaceKind::Data || closing || left < smallest as u64 {
            return None;
        }
        let network_path = self.path_data(path_id).network_path;
        let challenges = self.path_data(path_id).pending_challenge;
        let responses = &mut self.spaces[SpaceId::Data].for_path(path_id).pending_path_responses;
        let response = responses.pop_on_path(network_path);
        if !challenges && response.is_none() {
            return None;
        }
        let mut transmit = TransmitBuf::new(buf, NonZeroUsize::MIN, smallest);
        transmit.start_new_datagram();
        let mut builder = PacketBuilder::new(now, SpaceId::Data, path_id, cid, &mut transmit, self)?;
        let packet_number = builder.packet_number;
        let stats = &mut self.path_stats.get_mut(path_id).frame_tx;
        if challenges {
            let token = self.rng.random();
            builder.write_frame(frame::PathChallenge(token), stats);
            let data = &mut self.paths.get_mut(&path_id)?.data;
            data.pending_challenge = false;
            data.record_path_challenge_sent(now, token, network_path);
            self.hooks.small_challenges.insert(path_id);
            self.timers.set(
                Timer::PerPath(path_id, PathTimer::PathChallengeLost),
                now + data.on_path_challenge_pto(),
                self.qlog.with_time(now),
            );
        }
        if let Some(token) = response {
            builder.write_frame(frame::PathResponse(token), stats);
        }
        builder.finish_and_track(now, self, path_id, PadDatagram::No);
        self.path_data_mut(path_id).congestion.on_sent(now, transmit.len() as u64, packet_number);
        Some(self.build_transmit(path_id, transmit))
    }

    /// The peer says that a path has ended on which nothing has come: it ends here as any other, and one more may be opened.
    ///
    /// A client whose networks let nothing through would soon have used up all ids. Who ends paths without end has no
    /// more of them linger than may be open.
    pub(super) fn note_unheard_path(&mut self, path: PathId, network_path: FourTuple, now: Instant) {
        let most = self.config.max_concurrent_multipath_paths.map_or(0, |most| most.get() as usize);
        let known = self.paths.contains_key(&path) || self.abandoned_paths.contains(&path);
        if known || self.max_path_id().is_none_or(|highest| path > highest) || self.paths.len() >= 2 * most {
            return;
        }
        self.create_path(path, network_path, now, None).pending_challenge = false;
    }

    /// Whether the peer has said `disable_active_migration`: it takes packets from no other address than the first.
    pub fn peer_stays(&self) -> bool {
        self.peer_params.disable_active_migration
    }

    /// A server's connection ids for further paths, as soon as it may send and before it has heard the client's Finished.
    pub(super) fn issue_path_cids_early(&mut self, now: Instant) {
        if self.config.max_concurrent_multipath_paths.is_none() || self.peer_params.initial_max_path_id.is_none() {
            return;
        }
        let most = self.remote_max_path_id.min(self.local_max_path_id);
        let mut path = self.max_path_id_with_cids.next();
        while path <= most {
            let count = self.peer_params.issue_cids_limit();
            self.endpoint_events.push_back(EndpointEventInner::NeedIdentifiers(path, now, count));
            path = path.next();
        }
        self.max_path_id_with_cids = most;
    }
}
