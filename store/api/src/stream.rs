//! The multiplexed stream between a client and a node.
//!
//! A client opens it with an HTTP/1.1 `Upgrade` on [`crate::routes::STREAM`].
//! From then on both sides send frames: a little-endian `u32` length, then
//! that many bytes of MessagePack with named fields. The node's first frame is
//! one [`Hello`]; after it, client frames hold a list of [`Request`]s and node
//! frames a list of [`Reply`]s, as many as were waiting. Replies come in any
//! order; `id` pairs them.

use serde::{Deserialize, Serialize};

use crate::Blob;
use crate::agent::AgentReport;
use crate::command::{Proposal, Revision};
use crate::name::{NodeId, Scope};
use crate::outcome::Answer;
use crate::problem::{LeaderHint, Problem};
use crate::read::{Condition, Read, ReadAnswer};
use crate::status::{Admin, Status};
use crate::watch::WatchBatch;

/// Value of the `Upgrade` header.
pub const UPGRADE: &str = "holdfast-stream/1";

/// Longest frame in bytes; a longer one closes the connection.
pub const FRAME_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// What this version understands beyond the first one, in [`Hello::minor`].
pub const MINOR: u32 = MINOR_REPORTS;

/// From this minor version on a node takes [`RequestBody::Report`]; an older
/// one would take it for a broken frame.
pub const MINOR_REPORTS: u32 = 1;

/// The node's first frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The cluster.
    pub cluster_id: String,
    /// The node that answers.
    pub node: NodeId,
    /// Its version.
    pub version: String,
    /// What it understands beyond the first version of this protocol.
    #[serde(default)]
    pub minor: u32,
    /// The leader, if it knows one.
    pub leader: Option<LeaderHint>,
    /// All nodes of the cluster: where else to ask.
    pub nodes: Vec<LeaderHint>,
}

/// One question or command on a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the client, unique among its open requests on this stream.
    pub id: u64,
    /// What is asked.
    pub body: RequestBody,
}

/// What a client can ask.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestBody {
    /// Change the state. Answered with `Answer`, by the leader alone.
    Propose(Proposal),
    /// Ask the state. Answered with `Read`.
    Read {
        /// The question.
        read: Read,
        /// Answer from this node's own state, however old.
        #[serde(default)]
        stale: bool,
    },
    /// Answered with `Waiting` at once if something is missing, and with
    /// `Released` when all conditions were met.
    Wait {
        /// Where.
        scope: Scope,
        /// What must become true.
        conditions: Vec<Condition>,
        /// Count what happened after this revision: the `revision` of the
        /// first `Waiting`, when a wait is resumed on another node.
        #[serde(default)]
        since: Option<Revision>,
    },
    /// Answered with any number of `Changes`.
    Watch {
        /// Where.
        scope: Scope,
        /// Only keys that start with this.
        prefix: Blob,
        /// The first revision wanted; none = from now on.
        #[serde(default)]
        from: Option<Revision>,
    },
    /// Ends a wait or a watch of this stream. Not answered.
    Cancel {
        /// Its request id.
        request: u64,
    },
    /// What an agent tells of itself, in the place of what it told before on
    /// this stream. Not answered; from [`MINOR_REPORTS`] on.
    Report(AgentReport),
    /// The status document, from any node.
    Status,
    /// An operator's wish, to the leader.
    Admin(Admin),
}

/// An answer on a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's id.
    pub id: u64,
    /// The answer.
    pub body: ReplyBody,
}

/// The answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyBody {
    /// To `Propose`; a refusal of the state machine is an answer too.
    Answer(Answer),
    /// To `Read`.
    Read(ReadAnswer),
    /// To `Wait`: registered at this revision.
    Waiting {
        /// Give it as `since` when resuming.
        revision: Revision,
    },
    /// To `Wait`: all conditions were met by this revision.
    Released {
        /// The revision.
        revision: Revision,
    },
    /// To `Watch`: the changes of one revision; without changes, progress: all
    /// revisions up to this one were delivered.
    Changes(WatchBatch),
    /// To `Status`.
    Status(Status),
    /// To `Admin`.
    Done,
    /// The request failed; a wait or watch is over.
    Problem(Problem),
}
