//! Why an agent does not start, or opens no port.

use std::io;
use std::net::SocketAddr;

use holdfast_api::{Code, Effectiveness, Name, Refusal, RunHeld};
use serde::{Deserialize, Serialize};

use super::{PORTS_MAX, STORE_PORTS_MAX};
use crate::door::tcpstore::presence::BeingCollected;

/// Why an agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The listen address cannot be taken.
    #[error("cannot listen on {address}: {}", listen_advice(reason, address))]
    Listen {
        /// Address to listen at.
        address: SocketAddr,
        /// The system's error on listening there.
        reason: io::Error,
    },
    /// The run could not be opened.
    #[error("cannot open a run of job {job}: {reason}")]
    Open {
        /// Name of the job.
        job: Name,
        /// The library's, which names the nodes that it tried.
        reason: Box<holdfast_trainer_shim::Error>,
    },
    /// Other agents hold the job's open run, and another one would end it.
    #[error(
        "job {} is in use: {held}{}; another run would end that one", held.job, then(connected)
    )]
    InUse {
        /// Lease holders of the run.
        held: Box<RunHeld>,
        /// Connected clients, in words; empty if unknown.
        connected: String,
    },
    /// The run was named, and is over.
    #[error("{}", over_in_short(refusal))]
    RunOver {
        /// The refusal by the state machine: [`Refusal::RunOver`], which says when and why the run
        /// ended.
        refusal: Box<Refusal>,
    },
    /// Loopback has no free port where one was to be chosen.
    #[error("{reason}")]
    NoFreePort {
        /// Error of the attempt.
        reason: io::Error,
    },
    /// More ports than an agent serves.
    #[error(
        "an agent serves at most {PORTS_MAX} ports, those of `open` included until --attempts-kept \
         after their last use; name fewer with --tcpstore, open fewer names, or give each job of \
         the host an agent of its own"
    )]
    TooManyPorts,
    /// The programs of the host have too many stores of their own.
    #[error(
        "the programs of this host use {max} ports for stores of their own already, which is the \
         limit; close stores that are not used{}", more_ports(*max)
    )]
    TooManyStores {
        /// Most such ports.
        max: usize,
    },
    /// A port that other hosts reach was to be added to one that they do not.
    #[error(
        "{address} can be reached from other hosts, and this agent listens on loopback alone; \
         name 127.0.0.1:{}, or start its first command with --tcpstore {address}", address.port()
    )]
    NotLoopback {
        /// Address that was asked for.
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
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
        /// It is there and has ended; otherwise nothing of it is left.
        ended: bool,
    },
    /// The namespace's keys are just being deleted.
    #[error(transparent)]
    Over(#[from] BeingCollected),
}

/// The command line to use instead, as far as the error knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Another job, or a takeover.
    AnotherJob {
        /// The job that is in use.
        job: Name,
        /// Name of the run that is open now.
        run: Name,
    },
    /// A run that is new.
    AnotherRun {
        /// Name of the job.
        job: Name,
    },
}

fn then(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!("; {words}") }
}

/// The remedy is in the command line to type.
fn over_in_short(refusal: &Refusal) -> String {
    match refusal {
        Refusal::RunOver { job, run, cause, ms_ago } => {
            format!("run {run} of job {job} is over: {}", cause.since(*ms_ago))
        }
        other => other.to_string(),
    }
}

/// What else to do where descriptors lower the limit.
fn more_ports(max: usize) -> &'static str {
    if max < STORE_PORTS_MAX {
        ", or raise the hard limit of open files (`ulimit -Hn`)"
    } else {
        ""
    }
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
    /// The command line to use instead, if known.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Error::InUse { held, .. } => {
                Some(Remedy::AnotherJob { job: held.job.clone(), run: held.run.clone() })
            }
            Error::RunOver { refusal } => match refusal.as_ref() {
                Refusal::RunOver { job, .. } => Some(Remedy::AnotherRun { job: job.clone() }),
                _ => None,
            },
            _ => None,
        }
    }

    /// Stable code of the error.
    pub fn code(&self) -> Code {
        match self {
            Error::Listen { .. } | Error::NoFreePort { .. } | Error::InUse { .. } => Code::Conflict,
            Error::TooManyPorts | Error::TooManyStores { .. } => Code::LimitExceeded,
            Error::NotLoopback { .. } => Code::InvalidRequest,
            Error::Stopping => Code::Unavailable,
            Error::Open { reason, .. } => reason.code(),
            Error::NotOpen { ended: true, .. } | Error::RunOver { .. } => Code::Fenced,
            Error::NotOpen { ended: false, .. } => Code::RunNotFound,
            Error::Over(_) => Code::Unavailable,
        }
    }

    /// Whether starting again can succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Listen { .. } | Error::NoFreePort { .. } | Error::Stopping | Error::Over(_) => {
                true
            }
            Error::TooManyPorts
            | Error::TooManyStores { .. }
            | Error::NotLoopback { .. }
            | Error::InUse { .. }
            | Error::RunOver { .. }
            | Error::NotOpen { .. } => false,
            Error::Open { reason, .. } => reason.is_retryable(),
        }
    }

    /// Whether a run was opened nevertheless.
    pub fn outcome(&self) -> Effectiveness {
        match self {
            Error::Listen { .. }
            | Error::NoFreePort { .. }
            | Error::TooManyPorts
            | Error::TooManyStores { .. }
            | Error::NotLoopback { .. }
            | Error::NotOpen { .. }
            | Error::InUse { .. }
            | Error::RunOver { .. }
            | Error::Over(_)
            | Error::Stopping => Effectiveness::None,
            Error::Open { reason, .. } => reason.outcome(),
        }
    }
}
