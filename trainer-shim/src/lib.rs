//! What stands next to a trainer: who is alive, the next iteration, votes and
//! atomic blocks, agreed on by the cluster and by nobody else.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use holdfast_api::Scope;
//! use holdfast_client::{Client, Deadline, Options, parse_endpoints};
//! use holdfast_trainer_shim::{Advance, Host, HostOptions, Join};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(Options::new(parse_endpoints("127.0.0.1:21001")?));
//! let host = Host::grant(client, Scope::default(), HostOptions::default()).await?;
//! let process = host.join(Join { process: Some(0), ..Join::default() }).await?;
//!
//! loop {
//!     // Returns when everybody who is alive has arrived, and tells all the same.
//!     let advance = Advance { world: 4, members_min: 2, ..Advance::default() };
//!     let iteration = process.advance(advance, Deadline::never()).await?;
//!     println!("iteration {} with {:?}", iteration.iteration, iteration.rank);
//! }
//! # }
//! ```
//!
//! Entry points: [`Host`] (holds the lease of a host, or of one program),
//! [`Process`] (one incarnation, with the verbs `live_processes`, `advance`,
//! `vote`, `atomic` and [`Process::arrive`] under all of them).
//!
//! | module | holds |
//! | --- | --- |
//! | [`host`] | the lease: renewed, self-fenced, its feed read and handed out |
//! | [`process`] | one incarnation and its calls |
//! | [`verbs`] | what trainers say, made of rounds |
//! | [`fence`] | proof that a life is alive, and files that only the living replace |
//! | `pending` | pure: calls that wait, and what the feed says of them |
//! | `validity` | pure: how long the lease certainly holds |
//! | [`error`] | why a verb failed |
//!
//! # Architecture invariants
//!
//! * Nothing is decided here: a verb is one arrival at a round, and its answer
//!   is the outcome that the log fixed. A lost connection means that the
//!   outcome is not known yet, and it is asked for again with the same call.
//! * No local timer answers a caller. At its deadline a call is withdrawn, and
//!   what the log says of that is the answer: also that the round had closed.
//! * Once the lease may have expired, nothing is delivered any more:
//!   not an outcome, not a token. It is counted from the sending of the last
//!   renewal that was acknowledged, on the clock that goes on while the host
//!   sleeps.
//! * Ends and outcomes reach a process in the order of the log.

pub mod error;
pub mod fence;
pub mod host;
mod pending;
pub mod process;
mod validity;
pub mod verbs;

pub use error::Error;
pub use holdfast_api::Fence;
pub use host::{Host, HostOptions, Join};
pub use process::Process;
pub use verbs::{Advance, Atomic, Iteration, LiveProcesses, Verdict};
