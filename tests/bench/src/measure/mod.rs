//! The measurements, one module each.

mod barrier;
mod bypass;
mod commit;
mod communicators;
mod deaths;
mod door;
mod failover;
mod groups;
mod idle;
mod isolation;
mod large;
mod matrix;
mod million;
mod overload;
mod peers;
mod polls;
mod restarts;
mod rounds;
mod snapshots;
mod storm;
mod throughput;
mod tls;
mod watchers;

use crate::arguments::Bench;
use crate::report::Section;

/// Operations in flight at once, wherever load is varied.
const LEVELS: [usize; 4] = [1, 16, 64, 256];

/// Something that can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measurement {
    /// Latency of one client's puts.
    Commit,
    /// Puts, gets and adds through the client.
    Throughput,
    /// The same through the TCPStore door.
    Door,
    /// Puts with TLS and without.
    Tls,
    /// Leader killed, or frozen, to the first acknowledged write.
    Failover,
    /// Seven faults of the leader, a follower and a client's link.
    Matrix,
    /// One job's puts while another does its worst.
    Isolation,
    /// Three times as many puts as the cluster answers best.
    Overload,
    /// Many TCPStore connections at once.
    Storm,
    /// Memory, restart and snapshots of a big state.
    Million,
    /// The cost of watchers that do not care.
    Watchers,
    /// Barriers through the TCPStore door.
    Barrier,
    /// Many process groups that are formed at once.
    Groups,
    /// Many hosts whose ranks poll one absent key.
    Polls,
    /// NVRx's in-process restart, on Holdfast's store and on its own.
    Restarts,
    /// A program that opens a store past its agent.
    Bypass,
    /// Rounds of up to 16 384 processes.
    Rounds,
    /// A rank or a host dies, until the last survivor was notified.
    Deaths,
    /// A rank of a communicator is killed, until the others go on.
    Communicators,
    /// One job of 16 384 processes: deaths, subscriptions, listings.
    Large,
    /// Many hosts on which nothing happens.
    Idle,
    /// Other stores under the same load, where they are installed.
    Peers,
}

/// All of them, in the order of the table.
pub const ALL: &[Measurement] = &[
    Measurement::Commit,
    Measurement::Throughput,
    Measurement::Door,
    Measurement::Tls,
    Measurement::Failover,
    Measurement::Matrix,
    Measurement::Isolation,
    Measurement::Overload,
    Measurement::Storm,
    Measurement::Million,
    Measurement::Watchers,
    Measurement::Barrier,
    Measurement::Groups,
    Measurement::Polls,
    Measurement::Restarts,
    Measurement::Bypass,
    Measurement::Rounds,
    Measurement::Deaths,
    Measurement::Communicators,
    Measurement::Large,
    Measurement::Idle,
    Measurement::Peers,
];

impl Measurement {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Measurement::Commit => "commit",
            Measurement::Throughput => "throughput",
            Measurement::Door => "door",
            Measurement::Tls => "tls",
            Measurement::Failover => "failover",
            Measurement::Matrix => "matrix",
            Measurement::Isolation => "isolation",
            Measurement::Overload => "overload",
            Measurement::Storm => "storm",
            Measurement::Million => "million",
            Measurement::Watchers => "watchers",
            Measurement::Barrier => "barrier",
            Measurement::Groups => "groups",
            Measurement::Polls => "polls",
            Measurement::Restarts => "restarts",
            Measurement::Bypass => "bypass",
            Measurement::Rounds => "rounds",
            Measurement::Deaths => "deaths",
            Measurement::Communicators => "communicators",
            Measurement::Large => "large",
            Measurement::Idle => "idle",
            Measurement::Peers => "peers",
        }
    }

    /// Heading of its section.
    pub fn title(self) -> &'static str {
        match self {
            Measurement::Commit => "Commit latency of one client",
            Measurement::Throughput => "Reads and writes through the client",
            Measurement::Door => "Reads and writes through the TCPStore door",
            Measurement::Tls => "Puts with TLS and without",
            Measurement::Failover => "Leader lost, to the first acknowledged write",
            Measurement::Matrix => "What each fault costs, by whose it is",
            Measurement::Isolation => "Puts of one job while another does its worst",
            Measurement::Overload => "Three times the load",
            Measurement::Storm => "Many TCPStore connections at once",
            Measurement::Million => "A big state: memory, restart, snapshots",
            Measurement::Watchers => "Puts beside unrelated watchers",
            Measurement::Barrier => "Barriers through the TCPStore door",
            Measurement::Groups => "64 process groups formed at once",
            Measurement::Polls => "Ranks of 2000 hosts poll an absent key",
            Measurement::Restarts => "NVRx's in-process restart",
            Measurement::Bypass => "A store that bypasses the agent is named",
            Measurement::Rounds => "Rounds of many processes",
            Measurement::Deaths => "Deaths, to the last survivor told",
            Measurement::Communicators => "A rank of a communicator is killed",
            Measurement::Large => "One job of 16 384 processes on 2048 hosts",
            Measurement::Idle => "2048 hosts on which nothing happens",
            Measurement::Peers => "Other stores",
        }
    }

    /// Makes the measurement, and answers its section of the report.
    pub async fn run(self, bench: &Bench) -> anyhow::Result<Section> {
        let title = self.title();
        match self {
            Measurement::Commit => Box::pin(commit::run(bench, title)).await,
            Measurement::Throughput => Box::pin(throughput::run(bench, title)).await,
            Measurement::Door => Box::pin(door::run(bench, title)).await,
            Measurement::Tls => Box::pin(tls::run(bench, title)).await,
            Measurement::Failover => Box::pin(failover::run(bench, title)).await,
            Measurement::Matrix => Box::pin(matrix::run(bench, title)).await,
            Measurement::Isolation => Box::pin(isolation::run(bench, title)).await,
            Measurement::Overload => Box::pin(overload::run(bench, title)).await,
            Measurement::Storm => Box::pin(storm::run(bench, title)).await,
            Measurement::Million => Box::pin(million::run(bench, title)).await,
            Measurement::Watchers => Box::pin(watchers::run(bench, title)).await,
            Measurement::Barrier => Box::pin(barrier::run(bench, title)).await,
            Measurement::Groups => Box::pin(groups::run(bench, title)).await,
            Measurement::Polls => Box::pin(polls::run(bench, title)).await,
            Measurement::Restarts => Box::pin(restarts::run(bench, title)).await,
            Measurement::Bypass => Box::pin(bypass::run(bench, title)).await,
            Measurement::Rounds => Box::pin(rounds::run(bench, title)).await,
            Measurement::Deaths => Box::pin(deaths::run(bench, title)).await,
            Measurement::Communicators => Box::pin(communicators::run(bench, title)).await,
            Measurement::Large => Box::pin(large::run(bench, title)).await,
            Measurement::Idle => Box::pin(idle::run(bench, title)).await,
            Measurement::Peers => Box::pin(peers::run(bench, title)).await,
        }
    }
}
