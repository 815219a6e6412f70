//! Facts of all streams of a connection together.
//!
//! This file becomes `connection/streams/hooks.rs` of noq-proto.

use super::StreamsState;

impl StreamsState {
    pub(in crate::connection) fn unacknowledged_and_unsent(&self) -> (u64, u64) {
        let unsent = self.send.values().flatten().map(|stream| stream.pending.unsent_bytes()).sum();
        (self.unacked_data, unsent)
    }
}
