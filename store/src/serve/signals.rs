//! Signals that stop a node.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// A signal that stops a node.
pub enum Signals {
    /// SIGTERM and SIGINT from the operating system; either stops the node.
    System {
        /// Receives SIGTERM, which stops the node.
        terminate: tokio::signal::unix::Signal,
        /// Receives SIGINT, which stops the node.
        interrupt: tokio::signal::unix::Signal,
    },
    /// Those that a simulation sends.
    Channel(mpsc::Receiver<()>),
}

impl Signals {
    pub(super) fn new() -> std::io::Result<Signals> {
        Ok(Signals::System {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn received(&mut self) {
        match self {
            Signals::System { terminate, interrupt } => tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            },
            Signals::Channel(signals) => match signals.recv().await {
                Some(()) => {}
                None => std::future::pending().await,
            },
        }
    }
}

/// Thousands of agents hold a connection each: takes what the system allows.
pub(super) fn raise_file_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}
