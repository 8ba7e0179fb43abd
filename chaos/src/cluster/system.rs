//! The system that the nodes of a run are of: Holdfast, or another one to compare it with.

use std::fmt;

/// What the nodes of a run are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum System {
    /// Nodes of Holdfast.
    #[default]
    Holdfast,
    /// Nodes of etcd, as the package of the distribution has it.
    Etcd,
}

/// What a node says of its place in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seat {
    /// Whether it leads.
    pub(crate) leads: bool,
    pub(crate) term: u64,
    pub(crate) version: Option<String>,
}

impl System {
    /// Name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            System::Holdfast => "holdfast",
            System::Etcd => "etcd",
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
