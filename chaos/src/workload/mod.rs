//! Workloads of clients while a cluster is broken.
//!
//! | module | holds |
//! | --- | --- |
//! | [`door`] | how a client reaches the cluster |
//! | `etcd` | the same operations on keys of etcd, to compare |
//! | [`client`] | one client: its file, its pace, how it is killed |
//! | [`agents`] | the agents that clients of TCPStore are connected to |
//! | `data` | registers, counters, lists, sets, queues, transactions |
//! | `leases`, `locks`, `resends`, `waits`, `watches` | operations of several calls |
//! | [`tcpstore`] | TCPStore through agents |

pub mod agents;
pub mod client;
mod data;
pub mod door;
mod etcd;
mod leases;
mod locks;
mod resends;
pub mod tcpstore;
mod waits;
mod watches;

use crate::judge::Checker;

/// A workload of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// Reads, writes, compare-and-sets and deletes of some keys.
    Register,
    /// Additions to some counters.
    Counter,
    /// Appends to some lists.
    Append,
    /// Inserts into some sets.
    Set,
    /// Pushes and pops.
    Queue,
    /// Transactions over two keys that are always equal.
    Transaction,
    /// The same request sent again, through several nodes at once.
    Session,
    /// Writers, and watches that are cut and resumed.
    Watch,
    /// Waits for keys that are set a moment later.
    Wait,
    /// Leases that are renewed, and left to expire.
    Lease,
    /// A lock with fencing tokens, and a file that they guard.
    Fence,
    /// TCPStore's calls on some keys, through agents.
    Tcpstore,
    /// Additions to some counters, through agents.
    TcpstoreCounter,
    /// Roll calls, and rounds over sets and quorums, of jobs.
    Rounds,
    /// Advances of jobs.
    Advance,
    /// Votes and gathers of jobs.
    Vote,
    /// Atomic blocks of jobs.
    Block,
    /// Communicators of jobs, whose generations are held.
    Hold,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Workload; 18] = [
        Workload::Register,
        Workload::Counter,
        Workload::Append,
        Workload::Set,
        Workload::Queue,
        Workload::Transaction,
        Workload::Session,
        Workload::Watch,
        Workload::Wait,
        Workload::Lease,
        Workload::Fence,
        Workload::Tcpstore,
        Workload::TcpstoreCounter,
        Workload::Rounds,
        Workload::Advance,
        Workload::Vote,
        Workload::Block,
        Workload::Hold,
    ];

    /// Name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Workload::Register => "register",
            Workload::Counter => "counter",
            Workload::Append => "append",
            Workload::Set => "set",
            Workload::Queue => "queue",
            Workload::Transaction => "transaction",
            Workload::Session => "session",
            Workload::Watch => "watch",
            Workload::Wait => "wait",
            Workload::Lease => "lease",
            Workload::Fence => "fence",
            Workload::Tcpstore => "tcpstore",
            Workload::TcpstoreCounter => "tcpstore-counter",
            Workload::Rounds => "rounds",
            Workload::Advance => "advance",
            Workload::Vote => "vote",
            Workload::Block => "block",
            Workload::Hold => "hold",
        }
    }

    /// Description of its clients' work, for people.
    pub fn about(self) -> &'static str {
        match self {
            Workload::Register => "read, write, compare-and-set and delete of a few keys",
            Workload::Counter => "add to a few counters, and read them",
            Workload::Append => "append unique elements to lists, and read them",
            Workload::Set => "insert unique elements into sets, and list them",
            Workload::Queue => "push unique elements, and pop them",
            Workload::Transaction => "set two keys to one value at once, read both at once",
            Workload::Session => "send each numbered addition several times, through all nodes",
            Workload::Watch => {
                "write below a prefix; watch it, leave it, be cut off, resume (at least two clients)"
            }
            Workload::Wait => {
                "wait for keys that are set a moment later, and look at them (at least two clients)"
            }
            Workload::Lease => "renew leases with processes on them, let them expire",
            Workload::Fence => "take a lock from each other, write to a file with its token",
            Workload::Tcpstore => {
                "set, get, compare-and-set, check, delete and wait as PyTorch does, through two agents of one run"
            }
            Workload::TcpstoreCounter => {
                "add to a few counters as PyTorch does, through two agents"
            }
            Workload::Rounds => {
                "two jobs of four ranks, killed and paused: roll calls; rounds over sets, and quorums"
            }
            Workload::Advance => {
                "four such jobs: advances with agents, with evictions, with a spare, with new runs"
            }
            Workload::Vote => "such a job: votes by each rule, and gathers",
            Workload::Block => "such a job: atomic blocks",
            Workload::Hold => {
                "such a job: communicators of all, and of two halves that take turns: formed, run, revoked, released"
            }
        }
    }

    /// Checkers that judge it.
    pub fn checkers(self) -> &'static [Checker] {
        match self {
            Workload::Register | Workload::Transaction | Workload::Tcpstore => &[Checker::Exact],
            Workload::Counter | Workload::TcpstoreCounter => &[Checker::Exact, Checker::Counter],
            Workload::Append => &[Checker::Append],
            Workload::Set => &[Checker::Set],
            Workload::Queue => &[Checker::Queue],
            Workload::Session => &[Checker::Session],
            Workload::Watch => &[Checker::Watch],
            Workload::Wait => &[Checker::Wait],
            Workload::Lease => &[Checker::Lease],
            Workload::Fence => &[Checker::Fence],
            Workload::Rounds
            | Workload::Advance
            | Workload::Vote
            | Workload::Block
            | Workload::Hold => &[Checker::Rounds],
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Workload> {
        Workload::ALL.into_iter().find(|workload| workload.as_str() == name)
    }

    /// Whether its clients are connected to agents.
    pub fn is_through_agents(self) -> bool {
        matches!(self, Workload::Tcpstore | Workload::TcpstoreCounter)
    }

    /// Whether its calls are made by the ranks of jobs, and judged by [`mod@crate::check`].
    pub fn is_of_jobs(self) -> bool {
        self >= Workload::Rounds
    }

    /// Whether clients of it can be bound to one node.
    pub fn can_be_bound(self) -> bool {
        matches!(
            self,
            Workload::Register
                | Workload::Counter
                | Workload::Append
                | Workload::Set
                | Workload::Queue
        )
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
