//! The client against scripted nodes: real sockets and frames, and a test in
//! the place of the cluster.

#![allow(clippy::unwrap_used, reason = "all of this crate is a test; a script that fails is one")]

mod bad_peers;
mod exactly_once;
mod finding_the_leader;
mod reports;
mod room;
mod scripted;
mod waits_and_watches;
