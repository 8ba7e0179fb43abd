//! The client against scripted nodes: real sockets and frames, and a test in
//! the place of the cluster.

mod bad_peers;
mod exactly_once;
mod finding_the_leader;
mod scripted;
mod waits_and_watches;
