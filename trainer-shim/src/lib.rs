//! Holdfast's library for trainers: live processes, the next iteration, votes and
//! atomic blocks, all agreed on by the cluster alone.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use holdfast_api::{Policy, Scope};
//! use holdfast_client::{Client, Deadline, Options, parse_endpoints};
//! use holdfast_trainer_shim::{Host, HostOptions, Join};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(Options::new(parse_endpoints("127.0.0.1:21001")?));
//! let host = Host::grant(client, Scope::default(), HostOptions::default()).await?;
//! let policy = Policy { world: 4, members_min: 2, ..Policy::default() };
//! let process = host.join(Join { process: Some(0), policy, ..Join::default() }).await?;
//!
//! loop {
//!     // Returns when every live process has arrived, with the same answer for all.
//!     let iteration = process.advance(None, Deadline::never()).await?;
//!     println!("iteration {} with {:?}", iteration.iteration, iteration.rank);
//! }
//! # }
//! ```
//!
//! Entry points: [`Host`] (what a program's processes are attached to: a lease
//! of its own with [`Host::grant`], or that of its host's agent with
//! [`Host::attach`]), [`Process`] (one incarnation, with the verbs
//! `live_processes`, `advance`, `vote`, `enter`, `exit` and [`Process::arrive`] under all of
//! them), [`Lease`] (for a process that holds one for others, as the agent).
//!
//! With the agent, the death of a program is reported to the others within
//! milliseconds; a lease of its own ends when it expires.
//!
//! | module | holds |
//! | --- | --- |
//! | [`lease`] | a lease: granted, renewed, self-fenced, its feed read |
//! | [`link`] | what a program and the agent of its host say to each other |
//! | [`host`] | where processes are attached, and what the feed says of them |
//! | [`process`] | one incarnation and its calls |
//! | [`verbs`] | the verbs of trainers, made of rounds |
//! | [`held`] | rounds that are held: communicators, locks |
//! | `holding` | what this program holds, by rounds |
//! | [`keys`] | the run's keys, and what happens in the job, pushed |
//! | [`exception`] | what a program failed by, as it is sent to the others |
//! | [`fence`] | proof that an incarnation is alive, and files that only a live one replaces |
//! | `outage` | what is known of a store that does not answer |
//! | `pending` | pure: calls that wait, and what the feed says of them |
//! | [`rosters`] | pure: memberships that need not be sent again |
//! | [`vitals`] | how a process is doing, for the agent that watches it |
//! | `self_fence` | a program that holds something stops, or dies, in time |
//! | `validity` | pure: how long the lease certainly holds |
//! | `waiting` | pure: what a call waits for, in words, and when that is logged |
//! | [`manager`] | communicators tied to generations that are held |
//! | [`communicator`] | what members exchange gradients through; knows nothing of the rest |
//! | [`error`] | why a verb failed |
//!
//! # Architecture invariants
//!
//! * Nothing is decided here: a verb is one arrival at a round, and its answer
//!   is the outcome that the log fixed. After a lost connection the
//!   outcome is not known yet, and the same call asks for it again.
//! * No local timer answers a caller. At its deadline a call is withdrawn, and
//!   the log's decision on that is the answer: also that the round had closed.
//! * Once the lease may have expired, nothing is delivered any more:
//!   not an outcome, not a token. It is counted from the sending of the last
//!   renewal that was acknowledged, on the clock that goes on while the host
//!   sleeps: the same one for the agent and its programs, so that an agent that
//!   is frozen fences all of them.
//! * Ends and outcomes reach a process in the order of the log.
//! * A process whose minimum an outcome does not meet leaves, and reports that.
//! * A call that waits logs the missing processes, within a second and then after
//!   growing pauses: as an event of `tracing`, at WARN.
//!
//! # Modules that know each other
//!
//! * `held`, `host`, `lease`, `link`, `outage`, `pending`, `process`, `self_fence`,
//!   `verbs`, `vitals`, `waiting`: a host holds its link (to the agent, or a lease of its
//!   own), its processes, the calls that are `pending`, and the thread that fences it.
//!   Processes, verbs and held rounds call through their host. `link` and `vitals` share
//!   the heartbeat, `pending` hands on the state of what is held, and `waiting` and
//!   `outage` put waits into words.

pub mod communicator;
pub mod error;
pub mod exception;
pub mod fence;
pub mod held;
mod holding;
pub mod host;
pub mod keys;
pub mod lease;
pub mod link;
pub mod manager;
mod outage;
mod pending;
pub mod process;
pub mod rosters;
mod self_fence;
mod validity;
pub mod verbs;
pub mod vitals;
mod waiting;

pub use error::Error;
pub use held::{Formed, HoldState, Holding};
pub use holdfast_api::Fence;
pub use host::{Host, Join};
pub use keys::{Changes, Keys, News};
pub use lease::{HostOptions, LEAVE_TIME_MAX, Lease, LeaseTerms, Met};
pub use link::{CONTROL_VARIABLE, Silence, Wanted};
pub use process::Process;
pub use rosters::Rosters;
pub use validity::boot_time;
pub use verbs::{BlockVerdict, Gathered, Iteration, LiveProcesses, Verdict};
pub use vitals::{Hook, MainThread, Section, Watchdog};
