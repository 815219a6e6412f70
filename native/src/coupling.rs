//! Coupled congestion control: the paths of one connection take together no more of a bottleneck than one flow would.
//!
//! LIA is RFC 6356, OLIA is draft-khalili-mptcp-congestion-control; the same as `multi/multipath/coupling.py`. Both
//! change how windows grow in congestion avoidance; slow start and the halving after losses are Reno's (RFC 9002
//! section 7.3). Each connection has a group of its own.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

/// Datagrams (RFC 9002 section 7.2).
const MINIMUM_WINDOW: f64 = 2.0;
const LOSS_FACTOR: f64 = 0.5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coupling {
    Lia,
    Olia,
}

/// What a path shows the others.
#[derive(Debug, Clone, Copy)]
struct Member {
    window: f64,
    /// Smoothed, seconds; 0 = not measured.
    rtt: f64,
    since_loss: f64,
    before_loss: f64,
}

impl Member {
    /// Bytes acknowledged since the last loss, or between the last two if that was more.
    fn between_losses(&self) -> f64 {
        self.since_loss.max(self.before_loss)
    }

    fn promise(&self) -> f64 {
        self.between_losses().powi(2) / self.rtt
    }
}

#[derive(Debug, Default)]
struct Group {
    members: BTreeMap<u64, Member>,
    next: u64,
}

impl Group {
    /// Bytes by which a window grows in congestion avoidance for `acked` bytes on its path.
    fn increase(&self, coupling: Coupling, own: u64, acked: f64, datagram: f64) -> f64 {
        let window = self.members[&own];
        let measured = || self.members.iter().filter(|(_, each)| each.rtt > 0.0);
        let alone = acked * datagram / window.window;
        if window.rtt <= 0.0 {
            return alone;
        }
        let total_rate: f64 = measured().map(|(_, each)| each.window / each.rtt).sum();
        if coupling == Coupling::Lia {
            let total: f64 = measured().map(|(_, each)| each.window).sum();
            let best = measured().map(|(_, each)| each.window / each.rtt.powi(2)).fold(0.0, f64::max);
            return (total * best / total_rate.powi(2) * acked * datagram / total).min(alone);
        }
        let share = window.window / window.rtt.powi(2) / total_rate.powi(2);
        // Moves windows from the largest to those of paths that would bear more.
        let largest = measured().map(|(_, each)| each.window).fold(0.0, f64::max);
        let best = measured().map(|(_, each)| each.promise()).fold(0.0, f64::max);
        let count = measured().count() as f64;
        let is_collected = |each: &Member| each.promise() == best && each.window < largest;
        let collected = measured().filter(|(_, each)| is_collected(each)).count() as f64;
        let shift = if collected == 0.0 {
            0.0
        } else if is_collected(&window) {
            1.0 / (count * collected)
        } else if window.window == largest {
            -1.0 / (count * measured().filter(|(_, each)| each.window == largest).count() as f64)
        } else {
            0.0
        };
        acked * datagram * (share + shift / window.window)
    }
}

/// Makes the controllers of one connection's paths.
#[derive(Debug)]
pub struct Coupled {
    coupling: Coupling,
    initial_window: u64,
    group: Arc<Mutex<Group>>,
}

impl Coupled {
    pub fn new(coupling: Coupling, initial_window: u64) -> Self {
        Self { coupling, initial_window, group: Arc::default() }
    }
}

impl ControllerFactory for Coupled {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let member = Member { window: self.initial_window as f64, rtt: 0.0, since_loss: 0.0, before_loss: 0.0 };
        Box::new(PathWindow {
            id: join(&self.group, member),
            group: self.group.clone(),
            coupling: self.coupling,
            datagram: current_mtu.into(),
            threshold: f64::INFINITY,
            recovery_since: now,
            initial_window: self.initial_window,
        })
    }
}

fn join(group: &Mutex<Group>, member: Member) -> u64 {
    let mut group = group.lock().unwrap();
    group.next += 1;
    let id = group.next;
    group.members.insert(id, member);
    id
}

/// The window of one path.
#[derive(Debug)]
struct PathWindow {
    id: u64,
    group: Arc<Mutex<Group>>,
    coupling: Coupling,
    datagram: f64,
    threshold: f64,
    recovery_since: Instant,
    initial_window: u64,
}

impl PathWindow {
    fn least(&self) -> f64 {
        MINIMUM_WINDOW * self.datagram
    }
}

impl Drop for PathWindow {
    fn drop(&mut self) {
        self.group.lock().unwrap().members.remove(&self.id);
    }
}

impl Controller for PathWindow {
    fn on_ack(&mut self, _now: Instant, sent: Instant, bytes: u64, _pn: u64, app_limited: bool, rtt: &RttEstimator) {
        let mut group = self.group.lock().unwrap();
        let acked = bytes as f64;
        let member = group.members.get_mut(&self.id).expect("a member until it is dropped");
        member.rtt = rtt.get().as_secs_f64();
        member.since_loss += acked;
        if app_limited || sent <= self.recovery_since {
            return;
        }
        if member.window < self.threshold {
            member.window += acked;
            return;
        }
        let more = group.increase(self.coupling, self.id, acked, self.datagram);
        let least = self.least();
        let member = group.members.get_mut(&self.id).expect("a member until it is dropped");
        member.window = (member.window + more).max(least);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        _is_ecn: bool,
        _lost_bytes: u64,
        _largest_lost_pn: u64,
    ) {
        if sent <= self.recovery_since && !is_persistent_congestion {
            return;
        }
        let least = self.least();
        let mut group = self.group.lock().unwrap();
        let member = group.members.get_mut(&self.id).expect("a member until it is dropped");
        if sent > self.recovery_since {
            self.recovery_since = now;
            member.before_loss = member.since_loss;
            member.since_loss = 0.0;
            member.window = (member.window * LOSS_FACTOR).max(least);
            self.threshold = member.window;
        }
        if is_persistent_congestion {
            member.window = least;
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.datagram = new_mtu.into();
    }

    fn window(&self) -> u64 {
        self.group.lock().unwrap().members[&self.id].window as u64
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        let member = self.group.lock().unwrap().members[&self.id];
        Box::new(Self {
            id: join(&self.group, member),
            group: self.group.clone(),
            coupling: self.coupling,
            datagram: self.datagram,
            threshold: self.threshold,
            recovery_since: self.recovery_since,
            initial_window: self.initial_window,
        })
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.ssthresh = Some(if self.threshold.is_finite() { self.threshold as u64 } else { u64::MAX });
        metrics
    }

    fn initial_window(&self) -> u64 {
        self.initial_window
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
