//! Why a verb failed.

use std::path::PathBuf;

use holdfast_api::{
    Blob, Code, Effectiveness, FailedWhy, Fence, Incarnation, LeaseId, ProcessId, ProcessState,
    Refusal, Role, RoundFailure, SpecMismatch,
};

/// Why a verb failed. Each text has the known facts and what to do next.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The cluster refused, or could not be reached in time.
    #[error(transparent)]
    Client(#[from] holdfast_client::Error),
    /// This incarnation is dead for the cluster, for ever. Stop, and join anew
    /// with a new incarnation.
    #[error("{refusal}")]
    Fenced {
        /// The decision, its revision and its cause.
        refusal: Box<Refusal>,
    },
    /// The lease has ended: all its processes are fenced.
    #[error("{} fenced: lease {lease} of this host has ended; join anew", whom(*whose))]
    LeaseLost {
        /// The process and its incarnation, if one asked.
        whose: Option<(ProcessId, Incarnation)>,
        /// Id of the lease.
        lease: LeaseId,
    },
    /// The store has not confirmed the lease for so long that it is unknown
    /// whether this incarnation is alive. It has not ended: the same call can succeed
    /// once the store answers.
    #[error(
        "the store has not confirmed for too long that process {process} (incarnation {incarnation}) is alive: \
         write nothing in its name until a later call succeeds"
    )]
    StoreLost {
        /// Number that the launch gave the process, such as its rank.
        process: ProcessId,
        /// Its incarnation: growing, given at registration, never reused.
        incarnation: Incarnation,
    },
    /// The agent of this host is gone, and with it the hold on its lease.
    #[error(
        "{} fenced: the agent of this host, which holds their lease {lease}, has gone: {reason}; \
         start it again if `holdfast-agent run` does not, and join anew",
        whom(*whose)
    )]
    AgentLost {
        /// The process and its incarnation, if one asked.
        whose: Option<(ProcessId, Incarnation)>,
        /// Id of the lease.
        lease: LeaseId,
        /// How the connection to the agent ended, in words.
        reason: String,
    },
    /// There is no agent, or it does not take this program.
    #[error(
        "the agent at {} cannot be joined: {reason}; start this program under `holdfast-agent run`, \
         or name the control socket of its agent in HOLDFAST_CONTROL",
        socket.display()
    )]
    NoAgent {
        /// Path of the agent's control socket.
        socket: PathBuf,
        /// Why the agent cannot be joined, in words.
        reason: String,
    },
    /// The round failed at its deadline. The call is void; a new call is a new
    /// try.
    #[error("round {round} failed at its deadline: {}", arrived(failure))]
    RoundFailed {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// The missing processes, since when, where, in which state.
        failure: Box<RoundFailure>,
    },
    /// The round cannot close without a process that waits in an advance, or the
    /// caller has gone to one itself. The call is void; call advance.
    #[error("round {round} cannot close without {}; call advance, too", advancing(failure))]
    Regroup {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// The processes that wait in the advance.
        failure: Box<RoundFailure>,
    },
    /// The held generation was revoked that the round builds on. The call is void;
    /// stop what runs on it, and arrive at its round again.
    #[error(
        "round {round} is void: the generation that it builds on was revoked{}; acquire the next one",
        revoked(failure)
    )]
    Revoked {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// When the generation was revoked, and why.
        failure: Box<RoundFailure>,
    },
    /// Processes arrived at a held round with different terms. The call is void.
    #[error(
        "round {round} cannot close: its processes arrived with different terms{}",
        specs(failure)
    )]
    SpecMismatch {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// What most want, and the processes that want something else.
        failure: Box<RoundFailure>,
    },
    /// The job of a standby is over: its last member has left in order. Leave.
    #[error(
        "the job is over: its last member has left in order, and no active process is alive; a standby need not wait in {round} any longer"
    )]
    Over {
        /// The round in which it waited.
        round: Blob,
    },
    /// The round closed with fewer members than this process requires by its
    /// registration. It has left.
    #[error(
        "round {round} closed with {members} members, and this process was registered with members_min {members_min}: it has left; give all processes of a job the same numbers"
    )]
    TooFewMembers {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// How many there are.
        members: u32,
        /// How many this process needs.
        members_min: u32,
    },
    /// The round closed with this process in it: the others have what it brought.
    /// It could not ask for what they brought.
    #[error(
        "round {round} closed with this process in it, but the payloads of the others cannot be read: {error}; \
         the call has counted: gather again only if the others do"
    )]
    ValuesLost {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// Why the payloads cannot be read.
        error: Box<Error>,
    },
    /// The caller's deadline passed and the call was withdrawn.
    #[error(
        "round {round} did not close before the deadline; the call was withdrawn{}",
        waited(waited_for)
    )]
    Withdrawn {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// Processes missing shortly before, if the cluster could be asked.
        waited_for: Option<Box<RoundFailure>>,
    },
    /// The caller's deadline passed, and the cluster could not be asked whether
    /// the round had closed.
    #[error(
        "round {round} did not close before the deadline, and the store cannot be asked whether it has closed by now"
    )]
    Unanswered {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
    },
    /// The token of an incarnation that is over, or never was.
    #[error("the fence {fence} is void: {why}; its holder must stop writing")]
    Void {
        /// Token that was checked.
        fence: Box<Fence>,
        /// Why the token is void, in words.
        why: String,
    },
    /// A file could not be put in its place.
    #[error("cannot replace {}: {reason}", path.display())]
    File {
        /// File that was to be replaced.
        path: PathBuf,
        /// The system's error, in words.
        reason: String,
    },
    /// The host's handle was closed.
    #[error("the host's lease was given back by this program")]
    Closed,
    /// The outcome is not one of the verb that was called.
    #[error(
        "round {round} ended with another kind of outcome than {expected}; let all callers use the same verb for this name"
    )]
    Unexpected {
        /// Name of the round: any bytes, up to `round_name_bytes_max`.
        round: Blob,
        /// Kind of round that the call needs.
        expected: &'static str,
    },
}

impl Error {
    /// Stable code of the error.
    pub fn code(&self) -> Code {
        match self {
            Error::Client(error) => error.code(),
            Error::ValuesLost { error, .. } => error.code(),
            Error::Fenced { .. } | Error::Void { .. } => Code::Fenced,
            Error::File { .. } => Code::InvalidRequest,
            Error::LeaseLost { .. } | Error::AgentLost { .. } | Error::Closed => Code::LeaseEnded,
            Error::RoundFailed { .. } | Error::Withdrawn { .. } => Code::Timeout,
            Error::NoAgent { .. } | Error::StoreLost { .. } | Error::Unanswered { .. } => {
                Code::Unavailable
            }
            Error::Regroup { .. } => Code::Regroup,
            Error::Revoked { .. } => Code::Revoked,
            Error::SpecMismatch { .. } => Code::SpecMismatch,
            Error::Over { .. } => Code::Over,
            Error::Unexpected { .. } | Error::TooFewMembers { .. } => Code::Conflict,
        }
    }

    /// Whether the same verb can succeed when called again by this
    /// incarnation.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Client(error) => error.is_retryable(),
            Error::RoundFailed { .. }
            | Error::Withdrawn { .. }
            | Error::Unanswered { .. }
            | Error::Regroup { .. }
            | Error::Revoked { .. }
            | Error::StoreLost { .. }
            | Error::NoAgent { .. } => true,
            Error::Fenced { .. }
            | Error::LeaseLost { .. }
            | Error::Void { .. }
            | Error::File { .. }
            | Error::AgentLost { .. }
            | Error::Closed
            | Error::Over { .. }
            | Error::SpecMismatch { .. }
            | Error::TooFewMembers { .. }
            | Error::ValuesLost { .. }
            | Error::Unexpected { .. } => false,
        }
    }

    /// Whether the call had an effect.
    pub fn outcome(&self) -> Effectiveness {
        match self {
            Error::Client(error) => error.outcome(),
            Error::LeaseLost { .. }
            | Error::File { .. }
            | Error::AgentLost { .. }
            | Error::Closed
            | Error::Unanswered { .. } => Effectiveness::Unknown,
            Error::Unexpected { .. } | Error::TooFewMembers { .. } | Error::ValuesLost { .. } => {
                Effectiveness::Applied
            }
            Error::Fenced { .. }
            | Error::Void { .. }
            | Error::RoundFailed { .. }
            | Error::Withdrawn { .. }
            | Error::Regroup { .. }
            | Error::Revoked { .. }
            | Error::SpecMismatch { .. }
            | Error::Over { .. }
            | Error::StoreLost { .. }
            | Error::NoAgent { .. } => Effectiveness::None,
        }
    }

    /// A round whose calls are void.
    pub(crate) fn from_failure(round: Blob, failure: RoundFailure) -> Error {
        let failure = Box::new(failure);
        match failure.why {
            FailedWhy::Deadline => Error::RoundFailed { round, failure },
            FailedWhy::Regroup => Error::Regroup { round, failure },
            FailedWhy::Over => Error::Over { round },
            FailedWhy::Revoked => Error::Revoked { round, failure },
            FailedWhy::SpecMismatch => Error::SpecMismatch { round, failure },
        }
    }

    /// A refusal of the state machine, in the words of this crate.
    pub(crate) fn from_refusal(refusal: Refusal) -> Error {
        match refusal {
            Refusal::ProcessFenced { .. } => Error::Fenced { refusal: Box::new(refusal) },
            other => Error::Client(holdfast_client::Error::Refused(Box::new(other.into()))),
        }
    }
}

fn whom(whose: Option<(ProcessId, Incarnation)>) -> String {
    match whose {
        Some((process, incarnation)) => format!("process {process} (incarnation {incarnation}) is"),
        None => "the processes of this program are".to_owned(),
    }
}

fn waited(failure: &Option<Box<RoundFailure>>) -> String {
    failure.as_ref().map_or_else(String::new, |failure| format!(": {}", arrived(failure)))
}

fn arrived(failure: &RoundFailure) -> String {
    match failure.missing_count {
        0 => format!("{} had arrived, and more have to register", failure.arrived),
        _ => format!("{} had arrived, missing {}", failure.arrived, missing(failure)),
    }
}

/// How many differing specs are named.
const SPECS_NAMED_MAX: usize = 4;

fn revoked(failure: &RoundFailure) -> String {
    let why = failure.revoked.as_ref();
    why.map_or_else(String::new, |why| format!(" at revision {}: {}", why.at, why.cause))
}

fn specs(failure: &RoundFailure) -> String {
    let Some(SpecMismatch { most, differing }) = &failure.specs else {
        return String::new();
    };
    let named = differing.iter().take(SPECS_NAMED_MAX);
    let named = named.map(|other| format!("process {} wants {:?}", other.process, other.spec));
    let named: Vec<String> = named.collect();
    let more = if differing.len() > named.len() { " and more" } else { "" };
    format!(": most want {most:?}, but {}{more}", named.join(", "))
}

/// The processes that wait in an advance, in words.
fn advancing(failure: &RoundFailure) -> String {
    match failure.missing_count {
        0 => "a process that waits in an advance".to_owned(),
        1 => format!("{}, which waits in an advance", missing(failure)),
        _ => format!("{}, which wait in an advance", missing(failure)),
    }
}

fn missing(failure: &RoundFailure) -> String {
    let named: Vec<String> = failure
        .missing
        .iter()
        .take(8)
        .map(|missing| {
            let host = match missing.host.as_str() {
                "" => String::new(),
                host => format!(" on {host}"),
            };
            let state = match &missing.state {
                ProcessState::Alive { role: Role::Active, .. } => "alive".to_owned(),
                ProcessState::Alive { role: Role::Standby, .. } => "standby".to_owned(),
                ProcessState::Ended { cause, .. } => cause.to_string(),
                ProcessState::NeverJoined => "never joined".to_owned(),
            };
            format!("process {}{host} ({state})", missing.process)
        })
        .collect();
    let more = (failure.missing_count as usize).saturating_sub(named.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", named.join(", "))
}
