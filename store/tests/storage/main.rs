//! What the node keeps on disk: it is restored, damage is noticed, and the
//! consensus library's own suite passes.

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
