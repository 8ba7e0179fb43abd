//! The replicated state machine of Holdfast: every decision is made here, in
//! log order, by a function of values.
//!
//! Entry points: [`Machine::apply`] (takes an entry, returns answers and
//! effects), [`Machine::read`], [`Machine::met`] and [`releases`] (questions and
//! waits), [`Machine::history`] (watches), [`Machine::encode`] and
//! [`Machine::decode`] (snapshots), [`encode_entry`] and [`decode_entry`] (the
//! log).
//!
//! | module | holds |
//! | --- | --- |
//! | `machine` | the fields of the state, and how it applies an entry |
//! | `applied` | the result of applying: answers, effects, garbage |
//! | `job` | jobs, runs, keys and queues, and their accounts |
//! | `forgotten` | jobs that are forgotten when all names are taken, and what remains of them |
//! | `run` | opening, ending and deleting runs |
//! | `kv`, `draft`, `transaction` | key-value commands, staged before they are applied |
//! | `queue` | queues |
//! | `session` | exactly-once answers, idle times |
//! | `cluster` | cluster id, limits, feature level, retired node ids |
//! | `lease` | leases of hosts |
//! | `share` | fair shares of sessions and leases |
//! | `deadlines`, `turns` | what comes due; jobs take turns |
//! | `process` | registrations and ends of processes |
//! | `coordination` | the processes, rounds and outcomes of a run, and how a command changes them |
//! | `round` | rounds: scope, arrivals, and the one rule that closes them |
//! | `outcome` | the conclusions of a closed round: ranks, votes, atomic blocks |
//! | `history` | the latest changes, for watches and waits that resume |
//! | `read` | reads, conditions of waits |
//! | `size`, `number` | limits of one command; numbers as TCPStore reads them |
//! | `restore` | restoring the state in another cluster |
//! | `codec`, `image` | entries and the whole state as bytes |
//!
//! # Architecture invariants
//!
//! * The state depends on the entries alone. There is no clock, no random
//!   number, no environment, no hash map, no floating point, no task and no
//!   I/O in this crate, and its manifest cannot bring any.
//! * Applying never fails and never panics: a refusal is an answer. A refused
//!   command changed nothing: everything is checked before anything changes.
//! * Time passing changes nothing by itself. Log time is the highest stamp
//!   seen; a session expires only by a command `Expire` that still holds, and a
//!   new leader restarts every idle time.
//! * The revision grows by one with each command that changed keys, queues, runs,
//!   leases, processes or rounds, and each revision is one batch of changes. Sessions, limits and
//!   time have no revision.
//! * A command costs no more than its own size and that of the values it touches;
//!   large values are returned as garbage, to be freed elsewhere.
//! * Every collection has a limit, most of them replicated in
//!   [`holdfast_api::Limits`], and every limit is checked while applying, so
//!   that all nodes refuse the same command.
//! * `decode(encode(state))` followed by the rest of the log gives the same state as
//!   all entries. Derived values are not encoded.
//! * The rules for a logged command never change: a changed rule needs a higher
//!   feature level.
//!
//! # Modules that know each other
//!
//! * `cluster`, `coordination`, `forgotten`, `job`, `lease`, `machine`, `restore`,
//!   `round`, `run`, `session`: they are one state. Each family adds its commands to
//!   `Machine`, which holds the state of all, and one command ends what others began: a
//!   lease that expires ends processes, and a process that ends closes rounds.
//!   `forgotten` and `restore` change the numbers that jobs, leases and sessions give
//!   out.
//! * `kv`, `transaction`: a transaction is staged as one key-value command, and compares
//!   revisions as `kv` does.

// The tests' generators name the crate as other crates do.
#[cfg(test)]
extern crate self as holdfast_machine;

mod applied;
mod cluster;
mod codec;
mod coordination;
mod deadlines;
mod draft;
mod forgotten;
mod history;
mod image;
mod job;
mod kv;
mod lease;
mod machine;
mod number;
mod outcome;
mod process;
mod queue;
mod read;
mod restore;
mod round;
mod run;
mod session;
mod share;
mod size;
mod transaction;
mod turns;

pub use applied::{Applied, Compacted, Counts, Effect, RunKey};
pub use cluster::{CLUSTER_ID_BYTES_MAX, RETIRED_NODES_MAX};
pub use codec::{DecodeError, decode_entry, encode_entry};
pub use holdfast_api::version::FEATURE_LEVEL;
pub use image::IMAGE_VERSION;
pub use machine::Machine;
pub use read::releases;
pub use restore::{EPOCH_ITERATIONS, EPOCH_NUMBERS, Restored};
