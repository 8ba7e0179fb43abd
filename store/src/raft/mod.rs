//! Consensus: everything that knows the consensus library. It stands on
//! [`crate::storage`], which does not.
//!
//! | module | holds |
//! | --- | --- |
//! | [`types`] | the types we give to the library |
//! | [`convert`] | between them and the records that are stored and sent |
//! | [`log_store`] | the log in memory, as the library sees it |
//! | [`state_machine`] | the state machine, as the library drives it |
//! | [`runtime`] | Tokio, with randomness that a simulation can seed |
//! | [`wire`] | messages between nodes |
//! | `transport` | the seam to the network |
//! | [`network`] | the library's network on that seam |
//! | `append_requests` | which appends are sent, and when |
//! | `open_appends` | which answers the library may get |
//! | [`evidence`] | what this node itself has seen of the others |
//! | [`peer`] | how nodes introduce themselves, and lost disks are found |
//! | `tcp`, [`server`] | both ends of the TCP transport |
//! | `receiving` | snapshots that are being received |
//! | [`consensus`] | the library in our own words |

mod append_requests;
pub mod consensus;
pub mod convert;
pub mod evidence;
pub mod log_store;
pub mod network;
mod open_appends;
pub mod peer;
mod receiving;
pub mod runtime;
pub mod server;
pub mod state_machine;
pub(crate) mod tcp;
pub(crate) mod transport;
pub mod types;
pub mod wire;

pub(crate) use consensus::Follows;
pub use consensus::{Consensus, ConsensusOptions, View};
pub use log_store::LogStore;
pub use state_machine::{AppliedState, EffectSink, SharedState, StateMachine};
