//! Why a communicator is of no use, or a call on it failed.

use holdfast_api::{Code, Effectiveness};

/// Why a communicator failed. None of these is healed by the same generation:
/// what follows is quiesce, release, and another generation with another id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// This process called quiesce or release, or dropped it.
    #[error("aborted by this process")]
    Aborted,
    /// A connection to a neighbour ended.
    #[error("rank {rank} is lost: {reason}; quiesce, and build the next generation")]
    PeerLost {
        /// Rank at the other end.
        rank: u32,
        /// How the connection ended.
        reason: String,
    },
    /// Another member has gone on to the next generation.
    #[error(
        "the operation cannot complete: another member has moved on to the next generation; \
         quiesce, and build the next generation"
    )]
    LeftAlone,
    /// This process's own introduction is not what others expect.
    #[error("refused by {by}: {refusal}")]
    Refused {
        /// Member or root that refused.
        by: Refuser,
        /// How this process differs from what is expected.
        refusal: Refusal,
    },
    /// No process listens where the id was minted.
    #[error(
        "the unique id is used up or its minter has ended: nobody answers at {address} ({reason}); \
         mint another id for another generation"
    )]
    IdGone {
        /// Where it was minted.
        address: String,
        /// Error of the connection.
        reason: String,
    },
    /// The root of an id ended before all members had checked in.
    #[error("the root of the unique id ended: {reason}; mint another id for another generation")]
    RootEnded {
        /// How the root ended, as far as this process saw it.
        reason: String,
    },
    /// An argument is out of bounds.
    #[error("invalid {what}: {reason}")]
    Invalid {
        /// Name of the argument.
        what: &'static str,
        /// Rule that it breaks.
        reason: String,
    },
    /// Members called different operations.
    #[error(
        "this process called {ours}, and rank {rank} called {theirs}; \
         call the same operations in the same order on all ranks"
    )]
    Mismatch {
        /// The neighbour that called something else.
        rank: u32,
        /// The operation that this process called, in words.
        ours: String,
        /// The operation that the neighbour called, in words.
        theirs: String,
    },
    /// The communicator is still being built.
    #[error("the communicator is not ready; wait for its initialisation")]
    NotReady,
    /// Too many operations wait in this communicator.
    #[error("{limit} operations wait already; wait for some of them")]
    Overloaded {
        /// The most that may wait.
        limit: usize,
    },
    /// It was closed before.
    #[error("the communicator is closed")]
    Closed,
    /// Close was called on a communicator that was aborted or has failed.
    #[error(
        "cannot close after an abort or a failure ({cause}): the close might never end; quiesce and release it"
    )]
    CloseAfterAbort {
        /// Earlier failure or abort.
        cause: Box<Failure>,
    },
    /// A peer sent something that is not this protocol.
    #[error("{from} sent something that cannot be understood: {reason}")]
    Protocol {
        /// Member or root that sent it.
        from: Refuser,
        /// Rule that it breaks.
        reason: String,
    },
    /// The operating system refused, or a library that is called.
    #[error("{call} failed: {reason}")]
    System {
        /// The system call or the step that failed, in words.
        call: &'static str,
        /// The error of the system or the library, in words.
        reason: String,
    },
}

impl Failure {
    /// Stable code of the failure.
    pub fn code(&self) -> Code {
        match self {
            Failure::Aborted | Failure::Closed => Code::Fenced,
            Failure::PeerLost { .. }
            | Failure::LeftAlone
            | Failure::IdGone { .. }
            | Failure::RootEnded { .. }
            | Failure::NotReady
            | Failure::System { .. } => Code::Unavailable,
            Failure::Refused { .. }
            | Failure::Mismatch { .. }
            | Failure::CloseAfterAbort { .. } => Code::Conflict,
            Failure::Invalid { .. } | Failure::Protocol { .. } => Code::InvalidRequest,
            Failure::Overloaded { .. } => Code::Overloaded,
        }
    }

    /// Whether the same call on the same communicator can succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Failure::NotReady | Failure::Overloaded { .. })
    }

    /// Whether the call had an effect on other members.
    pub fn outcome(&self) -> Effectiveness {
        match self {
            Failure::Refused { .. }
            | Failure::IdGone { .. }
            | Failure::Invalid { .. }
            | Failure::NotReady
            | Failure::Overloaded { .. }
            | Failure::Closed
            | Failure::CloseAfterAbort { .. } => Effectiveness::None,
            Failure::Aborted
            | Failure::PeerLost { .. }
            | Failure::LeftAlone
            | Failure::RootEnded { .. }
            | Failure::Mismatch { .. }
            | Failure::Protocol { .. }
            | Failure::System { .. } => Effectiveness::Unknown,
        }
    }

    pub(crate) fn system(call: &'static str, error: &std::io::Error) -> Failure {
        Failure::System { call, reason: error.to_string() }
    }
}

/// Where a refusal or a wrong message came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refuser {
    /// This process, before it sent anything.
    Own,
    /// The root, in the process that minted the id.
    Root,
    /// The member with this rank.
    Rank(u32),
    /// A peer that has not introduced itself.
    Unknown,
}

impl std::fmt::Display for Refuser {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refuser::Own => formatter.write_str("this process"),
            Refuser::Root => formatter.write_str("the root of the unique id"),
            Refuser::Rank(rank) => write!(formatter, "rank {rank}"),
            Refuser::Unknown => formatter.write_str("an unknown peer"),
        }
    }
}

/// How a handshake differs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another id is in use there: this one is of another generation.
    #[error("the unique id is not the one of this generation")]
    Id,
    /// The id was used by this process before.
    #[error("the unique id was used before by rank {rank} of this process; an id serves once")]
    IdUsed {
        /// The rank that used it.
        rank: u32,
    },
    /// The group has another name there.
    #[error("the group is {expected:?}, not {actual:?}")]
    Group {
        /// Value of the root or neighbour.
        expected: String,
        /// Value that was sent.
        actual: String,
    },
    /// The generation has another number there.
    #[error("the generation is {expected}, not {actual}")]
    Generation {
        /// Value of the root or neighbour.
        expected: u64,
        /// Value that was sent.
        actual: u64,
    },
    /// Another number of members.
    #[error("the number of members is {expected}, not {actual}")]
    Members {
        /// Value of the root or neighbour.
        expected: u32,
        /// Value that was sent.
        actual: u32,
    },
    /// Another rank than the one that must come here, or one that cannot be.
    #[error("rank {actual} is not expected here, where {nranks} members are numbered from 0")]
    Rank {
        /// Rank that was sent.
        actual: u32,
        /// How many members there are.
        nranks: u32,
    },
    /// A rank that is here already.
    #[error("rank {rank} has checked in already, as incarnation {incarnation}")]
    RankTaken {
        /// Rank that was sent.
        rank: u32,
        /// Incarnation that has the rank.
        incarnation: u64,
    },
    /// Another incarnation of a rank than the one that checked in.
    #[error("rank {rank} has checked in as incarnation {expected}, not {actual}")]
    Incarnation {
        /// Rank that checked in.
        rank: u32,
        /// Incarnation that checked in.
        expected: u64,
        /// Incarnation that was sent.
        actual: u64,
    },
    /// The handshake cannot be understood.
    #[error("the handshake cannot be understood")]
    Malformed,
}
