//! Facts of all streams of a connection together.
//!
//! This file becomes `connection/streams/hooks.rs` of noq-proto.

use alloc::vec::Vec;
use core::mem;

use super::StreamsState;
use crate::StreamId;

impl StreamsState {
    pub(in crate::connection) fn unacknowledged_and_unsent(&self) -> (u64, u64) {
        let unsent = self.send.values().flatten().map(|stream| stream.pending.unsent_bytes()).sum();
        (self.unacked_data, unsent)
    }

    /// Streams of which not all has arrived: bytes acknowledged in order, and bytes sent.
    pub(in crate::connection) fn in_order(&self) -> Vec<(StreamId, u64, u64)> {
        let streams = self.send.iter().filter_map(|(id, stream)| Some((*id, stream.as_ref()?.pending.in_order())));
        streams.filter(|(_, (acked, sent))| acked < sent).map(|(id, (acked, sent))| (id, acked, sent)).collect()
    }

    /// Streams with something to send in the order in which they are served next, and how many bytes.
    pub(in crate::connection) fn unsent_in_turn(&self) -> Vec<(StreamId, u64)> {
        let mut turns: Vec<_> = self.pending.iter().chain(&self.hidden).collect();
        turns.sort_unstable_by(|one, other| other.cmp(one));
        let unsent = |id| self.send.get(&id).and_then(Option::as_ref).map_or(0, |stream| stream.pending.unsent_bytes());
        turns.into_iter().map(|turn| (turn.id, unsent(turn.id))).collect()
    }

    /// Send nothing of these streams, and of those that were hidden until now as before.
    pub(in crate::connection) fn hide(&mut self, streams: &[StreamId]) {
        let all = mem::take(&mut self.pending.streams).into_iter().chain(mem::take(&mut self.hidden));
        let (hidden, shown): (Vec<_>, Vec<_>) = all.partition(|each| streams.contains(&each.id));
        self.hidden = hidden;
        self.pending.streams = shown.into();
    }
}
