//! Why a program gets no store.

use super::address::HOST_BYTES_MAX;
use crate::agent::Error as AgentError;

/// Why a program gets no store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another program is its master.
    #[error(
        "the store {store} is open already (EADDRINUSE, address already in use): {by} opened it as \
         its master and is still connected; end that first, or use another port"
    )]
    InUse {
        /// Address of the store.
        store: String,
        /// The program that opened it, in words.
        by: String,
    },
    /// No program opened it in time.
    #[error(
        "no program of this run has opened the store {store} as its master in {seconds} s; start \
         the one that does (is_master=True, rank 0)"
    )]
    NotOpened {
        /// Address of the store.
        store: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// Not all of its workers came in time.
    #[error("not all {workers} workers have connected in {seconds} s")]
    WorkersMissing {
        /// How many clients should have connected.
        workers: u64,
        /// How long they were waited for.
        seconds: u64,
    },
    /// One program has too many stores open.
    #[error(
        "process {pid} has {max} stores open already, which is the limit of one program; \
         close those that it does not use"
    )]
    TooManyOfOne {
        /// Pid of the program.
        pid: i32,
        /// Most stores of one.
        max: usize,
    },
    /// The programs whose ids are unknown have too many stores open.
    #[error(
        "programs in other process namespaces, as of other containers, have {max} stores open \
         already, which is the limit of all these together; close those that are not used"
    )]
    TooManyOfUnknown {
        /// Most stores of them together.
        max: usize,
    },
    /// The host cannot be a host.
    #[error("the host of a store has {bytes} bytes, and may have {HOST_BYTES_MAX}")]
    LongHost {
        /// Length of the host, in bytes.
        bytes: usize,
    },
    /// Others open it again and again.
    #[error("the store {store} is opened by others again and again; use another port")]
    Contended {
        /// Address of the store.
        store: String,
    },
    /// A port cannot be taken, or the agent stops.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The cluster cannot be asked.
    #[error("cannot ask the cluster for the store: {0}")]
    Cluster(#[from] holdfast_client::Error),
}
