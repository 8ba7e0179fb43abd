//! The door for programs that use the library
//! ([`holdfast_trainer_shim::Host::attach`]): one lease for all processes of the
//! host, and their deaths reported at once.
//!
//! A program's connection is the incarnation of the processes that it registers
//! there. When it closes, or the program ends although another process (a forked
//! child) holds its end of the socket, the cluster is notified that they are
//! gone: survivors hear of it after one commit, not after the lease's TTL.
//!
//! | module | holds |
//! | --- | --- |
//! | `serve` | the door itself: the lease, taken when the first program comes |
//! | `lease_holder` | serves one lease: its feed read, deaths reported |
//! | `connection` | the socket loop of one program |
//! | `writing` | what is written to it: answers, feeds, refusals |
//! | `events` | what happens in the job: one subscription for all programs |
//! | `connection_table` | pure: which connection owns a process, and what it gets of the feed |
//! | `relay` | pure: what a program may say, and for which processes |
//! | `arrivals` | arrivals of several programs at one round go together |
//! | `begin` | the first step of a call, in the order of the program's calls |
//! | `watchdog` | pure: what becomes of a process that falls silent |
//! | `room` | what programs hold together |
//! | `lasting` | what waits, watches and subscriptions hold |
//! | `outbox` | what waits for a program that reads slowly |
//! | `peer` | the program at the other end: its end, and signals to it |
//!
//! # What holds
//!
//! * A connection speaks only for the processes that were registered on it.
//! * What a program had sent before its end is handled before its end is
//!   reported: a process that has left stays left. Several ends that wait
//!   together are one command.
//! * Outcomes and ends reach a program in the order of the log, on one stream.
//! * No program holds more of what all programs share than it leaves free, on however many
//!   connections.
//! * A program that does not read, asks for too much, or sends what cannot be
//!   understood is cut off, with the reason in the log; no other program notices.

mod arrivals;
mod begin;
mod connection;
mod connection_table;
mod events;
mod lasting;
mod lease_holder;
mod outbox;
pub(crate) mod peer;
mod relay;
mod room;
mod serve;
mod watchdog;
mod writing;

pub use serve::{Door, Options};
