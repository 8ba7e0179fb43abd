//! Hosts on one machine: each has a network stack with a loopback of its own,
//! an address, a name and processes of its own, on a network that a test can
//! cut.
//!
//! Entry points: [`Network::test`], which runs a test on a network, and
//! [`Network::host`].
//!
//! Made of Linux's namespaces, so it needs root; where `tests/prepare hosts` found that
//! it does not work, a test says `SKIPPED`, and passes. No name is used that another
//! network or the machine could have, too, and nothing is made outside the test's own
//! namespaces. A namespace lasts as long as its processes: those of a host end with its
//! first one, and that one ends when the test's end of a pipe is closed, however the test
//! ends. So nothing is left over.

mod host;
mod namespaces;
mod network;

pub use host::{Host, Mount};
pub use network::{Names, Network};
