//! Jobs whose ranks are real processes and record what they call and get,
//! while ranks, their hosts and the nodes of the cluster are killed, paused and
//! started again, from a seed. What was recorded is judged afterwards.

mod faults;
mod host;
mod nodes;
pub mod plan;
mod run;
mod slot;

use holdfast_chaos::check::Kind;

pub use self::run::{Lap, lap};

/// What has to be among the closings for a proof.
pub const PROVEN: [Kind; 6] = [
    Kind::Arrival,
    Kind::ProcessDeath,
    Kind::LeaseExpiry,
    Kind::Eviction,
    Kind::Promotion,
    Kind::Supersession,
];
