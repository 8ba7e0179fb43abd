//! A Holdfast store node: one of three or more that hold the control plane of
//! training jobs.
//!
//! Entry points: [`serve::run`] (one node, from its empty folder to its clean
//! end) and [`dev::run`] (a whole cluster as child processes). The binary
//! `holdfast-store` is a thin shell around both.
//!
//! The path of a command: a connection ([`http`]) hands it to the node's one
//! proposer (`node::proposer`), which packs what is waiting into a log entry;
//! consensus ([`raft`]) replicates it; each node's log ([`storage`]) syncs it;
//! once a majority has, the pure state machine (`holdfast-machine`) applies it on
//! every node, its answers return the same way, and its effects wake waits and
//! watches ([`node::waits`], `node::watches`).
//!
//! | module | holds |
//! | --- | --- |
//! | [`access`] | tokens and keys: who is let in |
//! | `principal`, `permit` | who a request is from; who may do what |
//! | [`authority`] | `tls init`: authorities and their certificates |
//! | [`calendar`] | wall-clock time: for headers of files, and for signed tokens |
//! | [`cli`] | the grammar of the command line |
//! | [`config`] | settings: flags, environment, file, defaults |
//! | [`serve`], [`dev`] | one node, from start to exit; a cluster of child processes |
//! | [`formation`] | founding a cluster; a place for an empty disk |
//! | [`node`] | what connections ask, answered |
//! | [`raft`] | the consensus library, its network, our wire |
//! | [`offline`] | commands on a folder while no node uses it |
//! | [`storage`] | log, vote, snapshots, identity on disk |
//! | [`http`] | everything on the one port |
//! | [`dial`] | short HTTP conversations with other nodes |
//! | [`tls`] | certificates: what a node shows and trusts |
//! | `foreign_text` | text from outside, as it may be logged |
//! | `free_space` | free bytes of the disk and of memory |
//! | [`priority`] | which threads get a processor first |
//! | `recurring` | log lines about recurring trouble |
//!
//! # Architecture invariants
//!
//! * No rule about jobs, keys or sessions is decided here: the state machine
//!   decides all of them. This crate orders, stores, sends and wakes.
//! * Only `raft` names types of openraft, only `storage` those of RocksDB, and none of
//!   them reaches the disk or the wire.
//! * `http` uses `node`, `node` uses `raft`, `raft` uses `storage`: none knows the layers
//!   above it. `http::peers` accepts connections from other nodes and hands them to `raft`.
//! * A write is acknowledged only after a majority has synced it, also when
//!   the majority is one node.
//! * Reads are confirmed by a quorum (ReadIndex). No read relies on a clock or a
//!   lease.
//! * Consensus, its log, its timers and the proposer run on threads of their own.
//!   Client requests do not run there, and hold no lock for long that these threads
//!   need.
//! * A node whose log was lost or rolled back does not come back under its id.
//! * Every queue, buffer, frame and wait has a bound, and the bound has a name.
//! * A request from outside reaches the log and the state through
//!   `node::acting` alone, with its rights.
//! * Only the expiry of signed tokens depends on a wall clock; all other time comes
//!   from `tokio::time`.

// An item that only this crate uses is `pub(crate)`.
#![warn(unreachable_pub)]

pub mod access;
pub mod authority;
pub mod calendar;
pub mod cli;
pub mod config;
pub mod dev;
pub mod dial;
mod foreign_text;
pub mod formation;
mod free_space;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod http;
pub mod node;
pub mod offline;
mod permit;
mod principal;
pub mod priority;
pub mod raft;
mod recurring;
pub mod serve;
pub mod storage;
pub mod tls;
