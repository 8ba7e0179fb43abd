//! Jobs whose ranks are real processes and record their calls and answers, while ranks,
//! their hosts and the nodes of the cluster are killed, paused and started again, from a
//! seed. The records are judged afterwards.

pub mod attached;
mod faults;
mod host;
mod nodes;
pub mod plan;
mod run;
mod slot;

use holdfast_chaos::check::Kind;

pub use self::run::{Lap, lap};

/// Kinds of closings that a proof needs.
pub const PROVEN: [Kind; 6] = [
    Kind::Arrival,
    Kind::ProcessDeath,
    Kind::LeaseExpiry,
    Kind::Eviction,
    Kind::Promotion,
    Kind::Supersession,
];
