//! Log entries and the commands in them: the only way to change the state.

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::lease::{LeaseCommand, LeaseId};
use crate::limits::Limits;
use crate::name::{Name, NodeId, Scope};
use crate::process::ProcessCommand;
use crate::round::RoundCommand;
use crate::secret_id::SecretId;

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

/// Most commands in one [`Command::Pipeline`].
pub const PIPELINE_OPS_MAX: usize = 512;

/// Most bytes of keys and values in one [`Command::Pipeline`].
pub const PIPELINE_BYTES_MAX: usize = 1024 * 1024;

/// Everything that can change the state, by family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Keys, values, queues.
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
        /// The commands; from 1 to [`PIPELINE_OPS_MAX`]. None that [answers a
        /// value](KvOp::answers_a_value): the answers are sent as one, too.
        ops: Vec<KvOp>,
    },
    /// Client sessions.
    Session(SessionCommand),
    /// Jobs and runs.
    Run(RunCommand),
    /// The cluster itself: time, limits, feature level, node ids.
    Cluster(ClusterCommand),
    /// Leases. From feature level 3 on, as the two below.
    Lease(LeaseCommand),
    /// Processes.
    Process(ProcessCommand),
    /// Rounds.
    Round(RoundCommand),
}

/// A command on the keys and queues of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum KvOp {
    /// Sets a key.
    Put {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Value from now on: any bytes, up to `value_bytes_max`; may be empty.
        value: Blob,
    },
    /// Sets several keys at one revision; a key named twice gets its last value.
    MultiPut {
        /// The keys and values.
        entries: Vec<KeyValue>,
    },
    /// Adds to a decimal number (absent = 0) with TCPStore's rules: the text is
    /// read as C's `strtoll` does, the sum wraps, plain decimal is stored.
    Add {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// What to add, maybe negative.
        delta: i64,
    },
    /// TCPStore's compare-and-set: an absent key matches an empty `expected`,
    /// and nothing else; a present one matches its exact value.
    CompareAndSet {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// The value that must be there.
        expected: Blob,
        /// The value to put in its place.
        desired: Blob,
    },
    /// Sets a key if it was last changed at exactly this revision.
    CompareRevisionAndSet {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Revision of its last change; 0 = the key is absent.
        revision: Revision,
        /// The value to put.
        value: Blob,
    },
    /// Appends to a key's value (absent = empty). Logged as the delta.
    Append {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Bytes to add at the end of the value.
        value: Blob,
    },
    /// Deletes a key.
    Delete {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
    /// Puts a value at the end of a queue. Queues and keys are separate spaces.
    QueuePush {
        /// Key of the queue: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Value: any bytes, up to `value_bytes_max`; may be empty.
        value: Blob,
    },
    /// Takes the value at the front of a queue.
    QueuePop {
        /// Key of the queue: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
    /// If all comparisons hold `then`, else `or_else`; one revision, all or
    /// nothing: if any part is refused, none of it happens.
    Transaction {
        /// Comparisons that must all hold.
        compare: Vec<Compare>,
        /// Steps if they do.
        then: Vec<TransactionOp>,
        /// Steps if they do not.
        #[serde(default)]
        or_else: Vec<TransactionOp>,
    },
}

impl KvOp {
    /// Bytes of its keys and values, and some for each further key.
    pub fn bytes(&self) -> usize {
        match self {
            KvOp::Put { key, value }
            | KvOp::Append { key, value }
            | KvOp::QueuePush { key, value }
            | KvOp::CompareRevisionAndSet { key, value, .. } => key.len() + value.len(),
            KvOp::CompareAndSet { key, expected, desired } => {
                key.len() + expected.len() + desired.len()
            }
            KvOp::MultiPut { entries } => {
                entries.iter().map(|entry| entry.key.len() + entry.value.len() + 16).sum()
            }
            KvOp::Add { key, .. } | KvOp::Delete { key } | KvOp::QueuePop { key } => key.len(),
            KvOp::Transaction { compare, then, or_else } => {
                compare.iter().map(Compare::bytes).sum::<usize>()
                    + then.iter().chain(or_else).map(TransactionOp::bytes).sum::<usize>()
            }
        }
    }

    /// Whether it can make the state larger, as far as the command itself shows.
    pub fn adds(&self) -> bool {
        match self {
            KvOp::Delete { .. } | KvOp::QueuePop { .. } => false,
            KvOp::Transaction { then, or_else, .. } => then.iter().chain(or_else).any(|step| {
                !matches!(step, TransactionOp::Get { .. } | TransactionOp::Delete { .. })
            }),
            _ => true,
        }
    }

    /// Whether it is answered with the value of a key, which may be much longer than
    /// the command.
    pub fn answers_a_value(&self) -> bool {
        match self {
            KvOp::CompareAndSet { .. }
            | KvOp::CompareRevisionAndSet { .. }
            | KvOp::QueuePop { .. } => true,
            KvOp::Transaction { then, or_else, .. } => {
                then.iter().chain(or_else).any(|step| matches!(step, TransactionOp::Get { .. }))
            }
            _ => false,
        }
    }

    /// How many keys it touches, about.
    pub fn steps(&self) -> usize {
        match self {
            KvOp::MultiPut { entries } => entries.len(),
            KvOp::Transaction { compare, then, or_else } => {
                compare.len() + then.len() + or_else.len()
            }
            _ => 1,
        }
    }
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyValue {
    /// Key: any bytes, up to `key_bytes_max`.
    pub key: Blob,
    /// Value: any bytes, up to `value_bytes_max`; may be empty.
    pub value: Blob,
}

/// One comparison of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Compare {
    /// The key exists with this value.
    Value {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Value that the key must have, byte for byte.
        value: Blob,
    },
    /// The key was last changed at this revision; 0 = absent.
    Revision {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Revision of the whole cluster, +1 for each change.
        revision: Revision,
    },
    /// The key exists, or does not.
    Exists {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Which of the two.
        exists: bool,
    },
}

impl Compare {
    fn bytes(&self) -> usize {
        16 + match self {
            Compare::Value { key, value } => key.len() + value.len(),
            Compare::Revision { key, .. } | Compare::Exists { key, .. } => key.len(),
        }
    }
}

/// One step of a transaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TransactionOp {
    /// Reads a key as the steps before left it.
    Get {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
    /// Sets a key.
    Put {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Value from now on: any bytes, up to `value_bytes_max`; may be empty.
        value: Blob,
    },
    /// Adds to a number, as [`KvOp::Add`].
    Add {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Number to add; wraps at the bounds of `i64` as TCPStore does.
        delta: i64,
    },
    /// Appends, as [`KvOp::Append`].
    Append {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
        /// Bytes to add at the end of the value.
        value: Blob,
    },
    /// Deletes a key.
    Delete {
        /// Key: any bytes, up to `key_bytes_max`.
        key: Blob,
    },
}

impl TransactionOp {
    fn bytes(&self) -> usize {
        16 + match self {
            TransactionOp::Put { key, value } | TransactionOp::Append { key, value } => {
                key.len() + value.len()
            }
            TransactionOp::Get { key }
            | TransactionOp::Add { key, .. }
            | TransactionOp::Delete { key } => key.len(),
        }
    }
}

/// A random number that makes opening a session retryable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Nonce(pub u64, pub u64);

/// A command on a client session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionCommand {
    /// Opens a session; the same nonce opens the same one.
    Open {
        /// Chosen at random by the client.
        nonce: Nonce,
        /// Idle time after which it may expire, in milliseconds of log time;
        /// clamped to the limits.
        ttl_ms: u64,
        /// The lease with which it ends: a process that is declared dead writes no
        /// more. From feature level 3 on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<LeaseId>,
    },
    /// Renews a session.
    KeepAlive {
        /// Id of the session.
        session: SessionId,
    },
    /// Ends a session at its client's request.
    Close {
        /// Id of the session.
        session: SessionId,
    },
    /// Ends an idle session: proposed by the leader, holds only if the
    /// deadline that the leader saw is still the session's deadline and has passed.
    Expire {
        /// Id of the session.
        session: SessionId,
        /// The deadline that the leader saw.
        deadline: LogTime,
    },
}

/// A command on jobs and runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunCommand {
    /// Opens a run, or joins it if it is the job's open run. Opening a new one
    /// ends the run before in the same entry; while leases are held in that, it
    /// takes a takeover.
    Open {
        /// The job, created if it is new.
        job: Name,
        /// The run's name; without one the next number of the job (`r1`, `r2`, …).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<Name>,
        /// The run before is ended even if leases are held in it. From feature
        /// level 3 on.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        takeover: bool,
    },
    /// Ends a run: it stays readable, writes are fenced.
    End {
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
    },
    /// Deletes an ended run with its keys.
    Delete {
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
    },
    /// The leader's own: deletes a run that ended at this log time, or ends one
    /// whose last agent was lost then; does nothing if that no longer holds. From
    /// feature level 2 on.
    Purge {
        /// Name of the job.
        job: Name,
        /// Name of the run, unique within its job.
        run: Name,
        /// When it ended, or was lost.
        ended_at: LogTime,
    },
    /// Deletes ended runs of a job that has no open one, the oldest first, a
    /// bounded number at a time. From feature level 2 on.
    DeleteJob {
        /// Name of the job.
        job: Name,
    },
}

/// A command on the cluster itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterCommand {
    /// The first command of every leader: from here all idle times count anew,
    /// so that a failover expires nothing.
    LeaderStarted {
        /// Id of the node that is to lead.
        node: NodeId,
    },
    /// Moves log time and nothing else.
    Tick,
    /// Gives the cluster its id; refused once it has one.
    Found {
        /// Id of the cluster; never changes.
        cluster_id: String,
    },
    /// Replaces the limits.
    SetLimits {
        /// The limits from now on.
        limits: Limits,
    },
    /// Raises the feature level; never lowers it.
    SetFeatureLevel {
        /// Feature level from now on.
        level: u32,
    },
    /// Notes that a node id was used and is gone for ever.
    RetireNode {
        /// Id of the node.
        node: NodeId,
    },
}
