//! What the node keeps on disk: that it comes back, that damage is noticed,
//! and that the consensus library's own suite is content.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod conformance;
mod crash;
mod folder;
mod machine;
mod model;
mod records;
mod scrub;
mod support;
mod writer;
