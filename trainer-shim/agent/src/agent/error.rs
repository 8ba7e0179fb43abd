//! Why an agent does not start, or opens no port.

use std::io;
use std::net::SocketAddr;

use holdfast_api::{Code, Effectiveness, Name};

use super::PORTS_MAX;
use crate::door::tcpstore::presence::BeingCollected;

/// Why an agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The listen address cannot be had.
    #[error("cannot listen on {address}: {}", listen_advice(reason, address))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's.
        reason: io::Error,
    },
    /// The run could not be opened.
    #[error("cannot open a run of job {job}: {reason}")]
    Open {
        /// The job.
        job: Name,
        /// The client's, which names the nodes that it tried.
        reason: Box<holdfast_client::Error>,
    },
    /// The host's lease could not be had.
    #[error("cannot hold a run of job {job}: {reason}")]
    Hold {
        /// The job.
        job: Name,
        /// The library's, which names the nodes that it tried.
        reason: Box<holdfast_trainer_shim::Error>,
    },
    /// Loopback has no free port where one was to be chosen.
    #[error("{reason}")]
    NoFreePort {
        /// What was tried.
        reason: io::Error,
    },
    /// More ports than an agent serves.
    #[error(
        "an agent serves at most {PORTS_MAX} ports; name fewer with --tcpstore, \
         or give each job of the host an agent of its own"
    )]
    TooManyPorts,
    /// A port that other hosts reach was to be added to one that they do not.
    #[error(
        "{address} can be reached from other hosts, and this agent listens on loopback alone; \
         name 127.0.0.1:{}, or start its first command with --tcpstore {address}", address.port()
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// The agent is about to end.
    #[error("the agent stops and opens no port any more; start the command again")]
    Stopping,
    /// The run was to be joined, and is not open any more.
    #[error(
        "run {run} of job {job} {}, and is not opened anew: that would end the job's present run; \
         start the command again, with another --run", if *ended { "has ended" } else { "is gone" }
    )]
    NotOpen {
        /// The job.
        job: Name,
        /// The run.
        run: Name,
        /// It is there and has ended; otherwise nothing of it is left.
        ended: bool,
    },
    /// The namespace's keys are just being deleted.
    #[error(transparent)]
    Over(#[from] BeingCollected),
    /// The store answered something else than what was asked.
    #[error(
        "the store does not understand how a run is opened; its version and the agent's do not fit"
    )]
    OutOfTurn,
}

fn listen_advice(reason: &io::Error, address: &SocketAddr) -> String {
    match reason.kind() {
        io::ErrorKind::AddrInUse => format!(
            "port {} is in use; stop what holds it, or choose another with --tcpstore",
            address.port()
        ),
        io::ErrorKind::PermissionDenied => {
            format!("{reason}; ports below 1024 need privileges, choose another with --tcpstore")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("{reason}; this host does not have that address")
        }
        _ => reason.to_string(),
    }
}

impl Error {
    /// What kind of error; stable.
    pub fn code(&self) -> Code {
        match self {
            Error::Listen { .. } | Error::NoFreePort { .. } => Code::Conflict,
            Error::TooManyPorts => Code::LimitExceeded,
            Error::NotLoopback { .. } => Code::InvalidRequest,
            Error::Stopping => Code::Unavailable,
            Error::Open { reason, .. } => reason.code(),
            Error::Hold { reason, .. } => reason.code(),
            Error::NotOpen { ended: true, .. } => Code::Fenced,
            Error::NotOpen { ended: false, .. } => Code::RunNotFound,
            Error::Over(_) => Code::Unavailable,
            Error::OutOfTurn => Code::Internal,
        }
    }

    /// Whether starting again can succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Listen { .. } | Error::NoFreePort { .. } | Error::Stopping | Error::Over(_) => {
                true
            }
            Error::TooManyPorts | Error::NotLoopback { .. } | Error::NotOpen { .. } => false,
            Error::Open { reason, .. } => reason.is_retryable(),
            Error::Hold { reason, .. } => reason.is_retryable(),
            Error::OutOfTurn => false,
        }
    }

    /// Whether a run was opened nevertheless.
    pub fn outcome(&self) -> Effectiveness {
        match self {
            Error::Listen { .. }
            | Error::NoFreePort { .. }
            | Error::TooManyPorts
            | Error::NotLoopback { .. }
            | Error::NotOpen { .. }
            | Error::Over(_)
            | Error::Stopping => Effectiveness::None,
            Error::Open { reason, .. } => reason.outcome(),
            Error::Hold { reason, .. } => reason.outcome(),
            Error::OutOfTurn => Effectiveness::Unknown,
        }
    }
}
