//! The one error shape of the API: problem+json (RFC 9457) with a stable code.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::NodeId;
use crate::outcome::Refusal;

/// Pause before a request that found no room may be sent again, in milliseconds.
const OVERLOADED_RETRY_MS: u64 = 50;
const NO_SPACE_RETRY_MS: u64 = 1_000;

/// An error as it is sent. Its `code` is stable, its `message` is for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[error("{message}")]
pub struct Problem {
    /// What kind of error; stable.
    pub code: Code,
    /// What happened and what to do about it.
    #[serde(rename = "detail")]
    pub message: String,
    /// Whether the same request can succeed when sent again.
    pub retryable: bool,
    /// Whether the request had an effect.
    pub outcome: Effectiveness,
    /// How long to wait before the request is sent again, in milliseconds; none if
    /// the sender may choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The leader, if the answering node knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<LeaderHint>,
    /// The state machine's refusal, if it refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
}

/// Id and address of the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaderHint {
    /// Id of the node.
    pub node: NodeId,
    /// Where clients and other nodes reach this node, `host:port`.
    pub address: String,
}

/// Whether a failed request had an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Effectiveness {
    /// None: it was not applied and never will be.
    None,
    /// It was applied; only the answer is missing.
    Applied,
    /// Not known: it may have been applied, or may be later.
    Unknown,
}

/// The kinds of error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// This node is not the leader; `leader` names it.
    NotLeader,
    /// No leader, or no quorum, at present.
    Unavailable,
    /// The time limit passed before there was an answer.
    Timeout,
    /// The request cannot be understood.
    InvalidRequest,
    /// The token is missing, or is not accepted.
    Unauthorized,
    /// The caller's role does not allow it.
    Forbidden,
    /// A single thing is too big.
    LimitExceeded,
    /// A job, or the cluster, is full.
    QuotaExceeded,
    /// Too many requests at once; back off.
    Overloaded,
    /// The cluster's bytes are used up, or too many nodes run out of disk or memory:
    /// only what frees room is taken.
    NoSpace,
    /// The key is absent.
    KeyNotFound,
    /// The job is unknown.
    JobNotFound,
    /// The run is unknown, or none is open.
    RunNotFound,
    /// The run, or the process's incarnation, has ended.
    Fenced,
    /// The command does not fit the present state.
    Conflict,
    /// Add on something that is not a number.
    NotANumber,
    /// The session is gone.
    SessionExpired,
    /// The sequence was acknowledged before.
    Stale,
    /// The revision to watch from is no longer kept.
    Compacted,
    /// The node id is unknown.
    NodeNotFound,
    /// The change would leave the cluster without a quorum.
    QuorumWouldBeLost,
    /// A node of another cluster, or of an incompatible version.
    WrongCluster,
    /// A newer feature is not enabled yet.
    FeatureLevel,
    /// The lease has ended.
    LeaseEnded,
    /// The process, or that incarnation of it, is unknown.
    ProcessNotFound,
    /// Another incarnation than the one named is the latest.
    Superseded,
    /// The generation is not kept.
    GenerationUnknown,
    /// The round cannot close without a process that waits in an advance.
    Regroup,
    /// The held generation must not be used any more.
    Revoked,
    /// Arrivals at a held round have different specs.
    SpecMismatch,
    /// The job is over: a standby need not wait any longer.
    Over,
    /// A defect of Holdfast.
    Internal,
}

impl Code {
    /// The code as it is sent.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::NotLeader => "not_leader",
            Code::Unavailable => "unavailable",
            Code::Timeout => "timeout",
            Code::InvalidRequest => "invalid_request",
            Code::Unauthorized => "unauthorized",
            Code::Forbidden => "forbidden",
            Code::LimitExceeded => "limit_exceeded",
            Code::QuotaExceeded => "quota_exceeded",
            Code::Overloaded => "overloaded",
            Code::NoSpace => "no_space",
            Code::KeyNotFound => "key_not_found",
            Code::JobNotFound => "job_not_found",
            Code::RunNotFound => "run_not_found",
            Code::Fenced => "fenced",
            Code::Conflict => "conflict",
            Code::NotANumber => "not_a_number",
            Code::SessionExpired => "session_expired",
            Code::Stale => "stale",
            Code::Compacted => "compacted",
            Code::NodeNotFound => "node_not_found",
            Code::QuorumWouldBeLost => "quorum_would_be_lost",
            Code::WrongCluster => "wrong_cluster",
            Code::FeatureLevel => "feature_level",
            Code::LeaseEnded => "lease_ended",
            Code::ProcessNotFound => "process_not_found",
            Code::Superseded => "superseded",
            Code::GenerationUnknown => "generation_unknown",
            Code::Regroup => "regroup",
            Code::Revoked => "revoked",
            Code::SpecMismatch => "spec_mismatch",
            Code::Over => "over",
            Code::Internal => "internal",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Problem {
    /// A problem that had no effect and that repeating does not solve.
    pub fn refused(code: Code, message: impl Into<String>) -> Self {
        Problem {
            code,
            message: message.into(),
            retryable: false,
            outcome: Effectiveness::None,
            retry_after_ms: None,
            leader: None,
            refusal: None,
        }
    }

    /// A problem that had no effect and may pass.
    pub fn retryable(code: Code, message: impl Into<String>) -> Self {
        Problem { retryable: true, ..Problem::refused(code, message) }
    }

    /// There is more work than room: nothing was done, and the same request may find
    /// room after a moment.
    pub fn overloaded(message: impl Into<String>) -> Self {
        Problem::retryable(Code::Overloaded, message).after_ms(OVERLOADED_RETRY_MS)
    }

    /// The cluster has no room for additions: nothing was done.
    pub fn no_space(message: impl Into<String>) -> Self {
        Problem::retryable(Code::NoSpace, message).after_ms(NO_SPACE_RETRY_MS)
    }

    /// The same problem, which may have passed after this many milliseconds.
    pub fn after_ms(self, retry_after_ms: u64) -> Self {
        Problem { retry_after_ms: Some(retry_after_ms), ..self }
    }

    /// A problem after which it is unknown whether the request had an effect.
    /// Retrying it inside its session is safe.
    pub fn unknown(code: Code, message: impl Into<String>) -> Self {
        Problem {
            retryable: true,
            outcome: Effectiveness::Unknown,
            ..Problem::refused(code, message)
        }
    }

    /// This node is not the leader.
    pub fn not_leader(leader: Option<LeaderHint>) -> Self {
        match leader {
            Some(leader) => Problem {
                message: format!("the leader is node {} at {}", leader.node, leader.address),
                leader: Some(leader),
                ..Problem::retryable(Code::NotLeader, "")
            },
            None => Problem::retryable(Code::Unavailable, "there is no leader at present; retry"),
        }
    }

    /// `code()` of every public error.
    pub fn code(&self) -> Code {
        self.code
    }

    /// `is_retryable()` of every public error.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// `outcome()` of every public error.
    pub fn outcome(&self) -> Effectiveness {
        self.outcome
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::NotANumber { .. } => Code::NotANumber,
            Refusal::LimitExceeded { .. } => Code::LimitExceeded,
            Refusal::QuotaExceeded { .. }
            | Refusal::ClusterFull { .. }
            | Refusal::RunFull { .. } => Code::QuotaExceeded,
            Refusal::NoSpace { .. } => Code::NoSpace,
            Refusal::JobNotFound { .. } => Code::JobNotFound,
            Refusal::RunNotFound { .. } | Refusal::NoOpenRun { .. } => Code::RunNotFound,
            Refusal::Fenced { .. } | Refusal::ProcessFenced { .. } | Refusal::RunOver { .. } => {
                Code::Fenced
            }
            Refusal::RunOpen { .. }
            | Refusal::RunHeld { .. }
            | Refusal::AlreadyFounded { .. }
            | Refusal::NodeRetired { .. }
            | Refusal::AliveElsewhere { .. }
            | Refusal::NotAttached { .. }
            | Refusal::CallMismatch { .. }
            | Refusal::AlreadyWaiting { .. }
            | Refusal::NotAmong { .. }
            | Refusal::PartOver { .. } => Code::Conflict,
            Refusal::TermsInvalid { .. } => Code::InvalidRequest,
            Refusal::LeaseEnded { .. } => Code::LeaseEnded,
            Refusal::ProcessNotFound { .. } => Code::ProcessNotFound,
            Refusal::Superseded { .. } => Code::Superseded,
            Refusal::GenerationUnknown { .. } => Code::GenerationUnknown,
            Refusal::Revoked { .. } => Code::Revoked,
            Refusal::CallStale { .. } => Code::Stale,
            Refusal::SessionExpired { .. } => Code::SessionExpired,
            Refusal::Stale { .. } => Code::Stale,
            Refusal::SessionWindowFull { .. } => Code::Overloaded,
            Refusal::FeatureLevel { .. } => Code::FeatureLevel,
        };
        // An expired session forgot whether an earlier try was applied.
        let outcome = match code {
            Code::SessionExpired | Code::Stale => Effectiveness::Unknown,
            _ => Effectiveness::None,
        };
        let retryable = code == Code::Overloaded;
        Problem {
            code,
            message: refusal.to_string(),
            retryable,
            outcome,
            retry_after_ms: retryable.then_some(OVERLOADED_RETRY_MS),
            leader: None,
            refusal: Some(refusal),
        }
    }
}
