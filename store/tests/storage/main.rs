//! What the node keeps on disk: that it comes back, that damage is noticed,
//! and that the consensus library's own suite is content.

mod conformance;
mod crash;
mod folder;
mod machine;
mod model;
mod records;
mod support;
mod writer;
