//! One follower's link to the leader flaps, again and again: no other may notice.

use std::fmt;
use std::ops::Range;

use rand::RngExt;
use rand::seq::IndexedRandom;

use crate::history::Call;
use crate::host::HostId;
use crate::node::host_of;
use crate::simulation::Simulation;
use crate::violation::Violation;

/// How a link flaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Flap {
    /// The follower's connections to the leader are reset, and new ones refused.
    Refused,
    /// The follower's connections to the leader are reset, and new ones are made.
    Reset,
    /// One of the two does not hear the other.
    OneWay,
    /// The follower stands still.
    Stall,
}

/// One follower whose link flaps so often.
#[derive(Debug, Clone, Copy)]
pub struct Flaps {
    /// How the link flaps.
    pub flap: Flap,
    /// How many times it flaps.
    pub times: u32,
}

/// How long a flap lasts, and the time between two: a heartbeat is given up, and no
/// election is due.
const FLAP_MS: u64 = 120;
const BETWEEN_MS: Range<u64> = 50..250;
/// How long calls are observed with that follower down: with two nodes left, each pause of
/// a disk is felt. And the time after that until the first flap.
const DOWN_MS: u64 = 8_000;
const BACK_MS: u64 = 3_000;
/// Calls that are answered within this time are as quick as any.
const QUICK_MS: u64 = 5;

impl fmt::Display for Flaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} times", self.flap, self.times)
    }
}

impl Simulation {
    /// Lets the link of one follower flap. A violation: the leader changes, or the calls
    /// of clients take more than twice as long as without that follower (p99).
    pub fn flap(&mut self, flaps: Flaps) {
        let Some(leader) = self.leader() else {
            return self.report(Violation::NoLeader);
        };
        let mut followers = self.members();
        followers.retain(|node| *node != leader.1);
        let follower = *followers.choose(&mut self.random).expect("there are others");
        let begun = self.calls();
        self.pause(host_of(follower));
        self.steps(DOWN_MS);
        let without = self.p99(begun..self.calls());
        self.put_right();
        self.steps(BACK_MS);
        let begun = self.calls();
        for flap in 1..=flaps.times {
            self.flap_once(flaps.flap, host_of(follower), host_of(leader.1));
            if let Some(to) = self.leader().filter(|to| *to != leader) {
                let by = format!("flap {flap} of {flaps} of node {follower}");
                return self.report(Violation::LeaderReplaced { by, from: leader, to });
            }
        }
        let during = self.p99(begun..self.calls());
        self.note_fault(format!(
            "{flaps} of node {follower}: node {} led on; p99 of {} calls {during} ms, without that node {without} ms",
            leader.1,
            self.calls() - begun,
        ));
        if during > 2 * without.max(QUICK_MS) {
            self.report(Violation::Slowed { by: flaps.to_string(), without, during });
        }
    }

    fn flap_once(&mut self, flap: Flap, follower: HostId, leader: HostId) {
        match flap {
            Flap::Refused => {
                self.network.change(follower, leader, |link| link.rejects = true);
                self.network.reset(follower, leader);
            }
            Flap::Reset => self.network.reset(follower, leader),
            Flap::OneWay => {
                let deaf = self.random.random_bool(0.5);
                let (from, to) = if deaf { (leader, follower) } else { (follower, leader) };
                self.network.change(from, to, |link| link.cut = true);
            }
            Flap::Stall => self.pause(follower),
        }
        self.steps(FLAP_MS);
        self.put_right();
        let between = self.random.random_range(BETWEEN_MS);
        self.steps(between);
    }

    fn calls(&self) -> usize {
        self.records.lock().calls.len()
    }

    /// 99th percentile of the latency of the answered calls among these, in milliseconds.
    fn p99(&self, calls: Range<usize>) -> u64 {
        let took = |call: &Call| Some(call.answered?.0 - call.invoked);
        let mut took: Vec<u64> = self.records.lock().calls[calls].iter().filter_map(took).collect();
        took.sort_unstable();
        took.get(took.len() * 99 / 100).copied().unwrap_or(0)
    }
}
