//! Log entries and the commands in them: the only way to change the state.
//!
//! | module | holds |
//! | --- | --- |
//! | [`facts`] | what a command says of itself |
//! | [`kv`], [`session`], [`run`], [`cluster`], [`lease`], [`process`], [`round`] | one family each: its commands, their outcomes and their facts |

pub mod cluster;
pub mod facts;
pub mod kv;
pub mod lease;
pub mod process;
pub mod round;
pub mod run;
pub mod session;

pub use cluster::{ClusterCommand, ClusterOutcome};
pub use facts::{Facts, Sender, Size, Subject, Turn};
pub use kv::{
    Compare, KeyValue, KvOp, KvOutcome, PIPELINE_BYTES_MAX, PIPELINE_OPS_MAX, Part, Pipelined,
    PipelinedOutcome, TransactionOp, TransactionOutcome,
};
pub use lease::{LeaseCommand, LeaseOutcome};
pub use process::{ProcessCommand, ProcessOutcome};
pub use round::{RoundCommand, RoundOutcome};
pub use run::{RunCommand, RunOutcome};
pub use session::{Nonce, SessionCommand, SessionOutcome};

use serde::{Deserialize, Serialize};

use crate::name::Scope;
use crate::process::{Incarnation, ProcessId};
use crate::secret_id::SecretId;
use crate::terms::Conclusion;

/// Milliseconds of log time: stamped by the leader, kept monotone by the
/// state machine, never compared with a wall clock.
pub type LogTime = u64;

/// Counts mutating commands, from 1. Every answer carries the revision at
/// which it was true.
pub type Revision = u64;

/// A client session, assigned by the state machine, never reused.
pub type SessionId = SecretId;

/// One Raft log entry: what the leader packed together, and when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The leader's stamp; the machine keeps max(previous, this).
    pub time: LogTime,
    /// Applied in order; each has its own outcome.
    pub commands: Vec<Proposal>,
}

/// A command and on whose behalf it is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// Makes a retry harmless. Without it the command is applied each time it
    /// is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionRef>,
    /// The change to make.
    pub command: Command,
}

/// The place of a command in its client's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionRef {
    /// Id of the session.
    pub id: SessionId,
    /// This command's number, from 1, chosen by the client, used once. A command
    /// on a lease may have 0: then it is no part of the session, and says whose
    /// session ends with the lease.
    pub sequence: u64,
    /// The lowest sequence whose answer the client still wants; answers below
    /// it are dropped, commands below it are stale.
    pub ack: u64,
}

/// Everything that can change the state, by family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A command on the keys and queues of a run.
    Kv {
        /// Job and run that the keys belong to.
        scope: Scope,
        /// What to do with them.
        op: KvOp,
    },
    /// Several key-value commands, applied in order as if each had come alone, each
    /// with its own revision and outcome. They are sent, logged and answered as one.
    /// From feature level 4 on.
    Pipeline {
        /// Job and run that the keys belong to.
        scope: Scope,
        /// The commands; from 1 to [`PIPELINE_OPS_MAX`]. Commands that [answer a
        /// value](KvOp::answers_a_value) are refused: the answers are sent as one, too.
        ops: Vec<KvOp>,
    },
    /// Opens, renews, ends or expires a client session.
    Session(SessionCommand),
    /// Opens, ends, deletes or purges a run, or deletes a job.
    Run(RunCommand),
    /// The cluster itself: time, limits, feature level, node ids.
    Cluster(ClusterCommand),
    /// Leases. From feature level 3 on, as the two below.
    Lease(LeaseCommand),
    /// A command on the processes of a run, such as to register them.
    Process(ProcessCommand),
    /// A command on rounds: arrivals, withdrawals, releases, revocations.
    Round(RoundCommand),
}

impl Command {
    /// Whether it may change which processes of a run are alive or in.
    pub fn may_change_members(&self) -> bool {
        match self {
            Command::Process(_) => true,
            Command::Lease(command) => {
                matches!(command, LeaseCommand::Revoke { .. } | LeaseCommand::Leave { .. })
            }
            Command::Round(RoundCommand::Arrive { terms, .. }) => {
                terms.conclusion == Conclusion::Advance
            }
            _ => false,
        }
    }

    /// What it says of itself; cheap.
    pub fn facts(&self) -> Facts<'_> {
        match self {
            Command::Kv { scope, op } => op.facts(scope),
            Command::Pipeline { scope, ops } => kv::pipeline_facts(scope, ops),
            Command::Session(command) => command.facts(),
            Command::Run(command) => command.facts(),
            Command::Cluster(command) => command.facts(),
            Command::Lease(command) => command.facts(),
            Command::Process(command) => command.facts(),
            Command::Round(command) => command.facts(),
        }
    }

    /// How large it is; takes as long as it has keys or processes.
    pub fn size(&self) -> Size {
        match self {
            Command::Kv { op, .. } => op.size(),
            Command::Pipeline { ops, .. } => kv::pipeline_size(ops),
            Command::Process(command) => command.size(),
            Command::Round(command) => command.size(),
            Command::Session(_) | Command::Run(_) | Command::Cluster(_) | Command::Lease(_) => {
                Size::of(0, 1)
            }
        }
    }

    /// The incarnations in whose name it is sent.
    pub fn participants(&self) -> Vec<(ProcessId, Incarnation)> {
        match self {
            Command::Process(command) => command.participants(),
            Command::Round(command) => command.participants(),
            _ => Vec::new(),
        }
    }
}
