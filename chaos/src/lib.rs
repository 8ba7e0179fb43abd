//! Checks whether a cluster kept its promises: it records the calls and answers of
//! real programs, and judges by these records, not by the store's own account.
//!
//! Entry points: [`run::drive`] (a cluster is started, broken and judged) and
//! [`run::attached`] (one that is there), [`Recording`](recording::Recording) and
//! [`summary::summarize`] (the verdict on what was recorded), [`report::write`].
//! For rounds: [`Recorder`] (a program writes down what it does), [`History`] (all
//! of that, read again), [`check`](check::check) (the verdict).
//!
//! | module | holds |
//! | --- | --- |
//! | [`operation`], [`recording`] | what clients of keys call and get, and the files of it |
//! | [`mod@judge`] | pure: a checker for each kind of data, with models of their own |
//! | [`summary`] | pure: the verdict on a run, and why |
//! | [`report`] | pure but for two files: the page, and the same for programs |
//! | [`run`] | a run from its first process to its last |
//! | [`workload`] | what clients do during a run |
//! | [`nemesis`] | what breaks the cluster: injected, held, verified, healed |
//! | [`cluster`], [`network`] | nodes as processes, and a network of their own; how it is undone |
//! | [`history`] | what is recorded of rounds, and the files of it |
//! | [`json_lines`] | the form of all these files |
//! | [`clock`] | the one clock of a history |
//! | [`story`] | pure: incarnations, calls and closings, put together from the records |
//! | `programs` | programs of the system, run to their end within a time |
//! | [`order`] | pure: points in time of which only bounds and orders are known |
//! | [`mod@check`] | pure: the rules of rounds, and the verdict |
//!
//! # Architecture invariants
//!
//! * Nothing of the store is linked but its vocabulary and the client: a model
//!   copied from the code cannot find its bugs.
//! * The verdict rests on what programs called and got and on when they were
//!   killed. What the store says (revisions, events) is compared with that and
//!   must fit; it excuses nothing.
//! * An undecided check is never a pass: for rounds it is a failure, for a run unknown.
//! * A fault that was not observed proves nothing.
//! * A run writes down each thing before it makes it on the machine, and undoes it at
//!   its end or at Ctrl-C; `heal` does so after a kill.
//! * A kill, a registration, a closing: the time of each is known only as an interval,
//!   and every rule allows for all moments in it.
//!
//! # Modules that know each other
//!
//! * `cluster`, `nemesis`, `network`, `recording`, `run`, `summary`, `workload`: a run
//!   starts the cluster, its workloads and the faults. Faults act on the cluster and on
//!   its network, and workloads and clusters name each other's parts. Record and summary
//!   hold the description of the run and its workloads.
//! * `clock`, `history`: `history` defines what a moment is. The clock answers one, and
//!   each line of a history gets it.

pub mod check;
pub mod clock;
pub mod cluster;
pub mod history;
pub mod json_lines;
pub mod judge;
pub mod nemesis;
pub mod network;
pub mod operation;
pub mod order;
pub(crate) mod programs;
pub mod recording;
pub mod report;
pub mod run;
pub mod story;
pub mod summary;
pub mod workload;

pub use check::{Report, check};
pub use history::{History, Recorder};
