//! Why a call failed, and what is known about its effect.

use std::fmt::Write as _;

use holdfast_api::{Code, Effectiveness, Problem, Refusal, SessionId};

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The cluster answered, and its answer is final.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// No node that could serve the call was found before its deadline. The
    /// call was never sent, so it had no effect.
    #[error(
        "no node could serve the call before its deadline, and it had no effect; tried {}. Check that the nodes run and that the list of endpoints is right",
        list(tried)
    )]
    Unreachable {
        /// Each node's address and its answer, or why it could not be asked.
        tried: Vec<(String, String)>,
    },
    /// The deadline passed without an answer.
    #[error("the deadline passed: {reason}{}", effect(*outcome))]
    Timeout {
        /// Whether the call had an effect.
        outcome: Effectiveness,
        /// What it was waiting for.
        reason: String,
    },
    /// The session expired while the command was under way.
    #[error(
        "session {session} expired while the command was under way, so it may or may not have been applied; read the state before repeating it"
    )]
    SessionExpired {
        /// Id of the session.
        session: SessionId,
    },
    /// The client was closed.
    #[error("the client was closed{}", effect(*outcome))]
    Closed {
        /// Whether the call had an effect.
        outcome: Effectiveness,
    },
}

impl Error {
    pub(crate) fn refused(problem: Problem) -> Self {
        Error::Refused(Box::new(problem))
    }

    /// A refusal of the state machine.
    pub(crate) fn from_refusal(refusal: Refusal) -> Self {
        Error::refused(Problem::from(refusal))
    }

    /// An answer of a kind that does not belong to the question: a defect of
    /// the node, or a node much newer than this client.
    pub(crate) fn unexpected(asked: &str) -> Self {
        Error::refused(Problem {
            retryable: false,
            ..Problem::unknown(
                Code::Internal,
                format!("the node's answer to {asked} is of another kind; do their versions fit?"),
            )
        })
    }

    /// What kind of error; stable.
    pub fn code(&self) -> Code {
        match self {
            Error::Refused(problem) => problem.code,
            Error::Unreachable { .. } | Error::Closed { .. } => Code::Unavailable,
            Error::Timeout { .. } => Code::Timeout,
            Error::SessionExpired { .. } => Code::SessionExpired,
        }
    }

    /// Whether the same call can succeed when made again. After an unknown
    /// outcome a new call is a new command: see [`Error::outcome`].
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Refused(problem) => problem.retryable,
            Error::Unreachable { .. } | Error::Timeout { .. } => true,
            Error::SessionExpired { .. } | Error::Closed { .. } => false,
        }
    }

    /// Whether the call had an effect.
    pub fn outcome(&self) -> Effectiveness {
        match self {
            Error::Refused(problem) => problem.outcome,
            Error::Unreachable { .. } => Effectiveness::None,
            Error::Timeout { outcome, .. } | Error::Closed { outcome } => *outcome,
            Error::SessionExpired { .. } => Effectiveness::Unknown,
        }
    }
}

fn list(tried: &[(String, String)]) -> String {
    if tried.is_empty() {
        return "nothing: the list of endpoints is empty".to_owned();
    }
    let mut out = String::new();
    for (address, why) in tried {
        let separator = if out.is_empty() { "" } else { "; " };
        let _ = write!(out, "{separator}{address} ({why})");
    }
    out
}

fn effect(outcome: Effectiveness) -> &'static str {
    match outcome {
        Effectiveness::None => "; the call had no effect",
        Effectiveness::Applied => "; the call was applied, only its answer is missing",
        Effectiveness::Unknown => "; the call may or may not have been applied",
    }
}
