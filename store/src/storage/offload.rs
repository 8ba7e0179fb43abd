//! Runs work that would block or starve the async runtime elsewhere.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use super::error::StorageError;
use crate::priority;

/// Where blocking work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offload {
    /// On other threads. For production.
    #[default]
    Threads,
    /// At once, in place: deterministic, for simulations.
    Inline,
}

/// Does work that takes long for a task: where another thread can take over, it
/// runs the other tasks during it.
pub(crate) fn at_length<T>(work: impl FnOnce() -> T) -> T {
    if may_block() { tokio::task::block_in_place(work) } else { work() }
}

/// Whether another thread can take over from one that blocks here.
pub(super) fn may_block() -> bool {
    Handle::try_current().is_ok_and(|at| at.runtime_flavor() == RuntimeFlavor::MultiThread)
}

impl Offload {
    /// Runs work that may block.
    pub async fn run<T, F>(self, work: F) -> Result<T, StorageError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        match self {
            Offload::Inline => Ok(work()),
            Offload::Threads => {
                tokio::task::spawn_blocking(work).await.map_err(|_| StorageError::Stopped)
            }
        }
    }

    /// Runs long work on a thread of its own with a low priority. Not on the
    /// runtime's blocking threads: a thread cannot raise its priority again.
    pub(crate) async fn run_slowly<T, F>(self, work: F) -> Result<T, StorageError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        if self == Offload::Inline {
            return Ok(work());
        }
        let (answer, answered) = oneshot::channel();
        std::thread::Builder::new()
            .name("snapshot".into())
            .spawn(move || {
                priority::last();
                // The caller is gone: the node is shutting down.
                drop(answer.send(work()));
            })
            .map_err(StorageError::io("snapshots", "starting a thread"))?;
        answered.await.map_err(|_| StorageError::Stopped)
    }

    /// Drops something big; with threads, on one that may block, and without waiting for it.
    pub(crate) fn discard<T: Send + 'static>(self, garbage: T) {
        match self {
            Offload::Inline => drop(garbage),
            Offload::Threads => drop(tokio::task::spawn_blocking(move || drop(garbage))),
        }
    }
}
