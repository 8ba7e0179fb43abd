//! Consensus: everything that knows the consensus library, together with
//! [`crate::storage`].
//!
//! | module | holds |
//! | --- | --- |
//! | [`types`] | the types we give to the library |
//! | [`record`] | our own records of what is stored and sent |
//! | [`runtime`] | Tokio, with randomness that a simulation can seed |
//! | [`wire`] | messages between nodes |
//! | [`transport`] | the seam to the network |
//! | [`network`] | the library's network on that seam |
//! | [`append_requests`] | which appends are sent, and when |
//! | [`open_appends`] | which answers the library may get |
//! | [`evidence`] | what this node itself has seen of the others |
//! | [`peer`] | how nodes introduce themselves, and lost disks are found |
//! | [`tcp`], [`server`] | both ends of the TCP transport |
//! | [`consensus`] | the library in our own words |

pub mod append_requests;
pub mod consensus;
pub mod evidence;
pub mod network;
pub mod open_appends;
pub mod peer;
pub mod record;
pub mod runtime;
pub mod server;
pub mod tcp;
pub mod transport;
pub mod types;
pub mod wire;

pub use consensus::{Consensus, ConsensusOptions, Follows, View};
