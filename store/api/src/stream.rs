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
use crate::lease::LeaseId;
use crate::name::{Name, NodeId, Scope};
use crate::outcome::Answer;
use crate::problem::{LeaderHint, Problem};
use crate::read::{Condition, Read, ReadAnswer};
use crate::round::Generation;
use crate::status::{Admin, Status};
use crate::watch::WatchBatch;

/// Value of the `Upgrade` header.
pub const UPGRADE: &str = "holdfast-stream/1";

/// Longest frame in bytes; a longer one closes the connection.
pub const FRAME_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// Longest frame in bytes that a node reads without asking for room, which all clients share. The
/// first frame with calls to a leader is no longer, if a job is named in any that are open: from it
/// the node learns whose connection this is. Clients of 0.1.0 may begin with a longer one.
pub const SMALL_FRAME_BYTES_MAX: u32 = 256 * 1024;

/// The node's first frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Id of the cluster; empty before it is founded.
    pub cluster_id: String,
    /// The node that answers.
    pub node: NodeId,
    /// Version of the node.
    pub version: String,
    /// What it understands beyond the first version of this protocol.
    #[serde(default)]
    pub minor: u32,
    /// Feature level of the cluster as far as the node has seen; 0 = it does not say.
    #[serde(default)]
    pub level: u32,
    /// The leader, if it knows one.
    pub leader: Option<LeaderHint>,
    /// The term that this is of; 0 = a node that does not say it.
    #[serde(default)]
    pub term: u64,
    /// All nodes of the cluster: where else to ask.
    pub nodes: Vec<LeaderHint>,
}

/// One question or command on a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the client, unique among its open requests on this stream.
    pub id: u64,
    /// The question or the command.
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
        /// The question to the state.
        read: Read,
        /// Answer from this node's own state, however old.
        #[serde(default)]
        stale: bool,
    },
    /// Answered with `Waiting` at once if something is missing, and with
    /// `Released` when all conditions were met.
    Wait {
        /// Job and run that the keys belong to.
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
        /// Job and run that the keys belong to.
        scope: Scope,
        /// Only keys that start with this.
        prefix: Blob,
        /// The first revision wanted; none = from now on.
        #[serde(default)]
        from: Option<Revision>,
        /// Its progress may come in [`ReplyBody::Progress`]. An older node does
        /// not know this, and sends the progress of each watch by itself.
        #[serde(default)]
        progress_together: bool,
    },
    /// Answered with `Read` as soon as something was decided for the lease
    /// after `since`, and again whenever there is more after the last answer,
    /// until it is cancelled; the last answer says that the lease has ended.
    /// Members that the reader has by its own answers (see
    /// [`Feed::note_rosters`](crate::Feed::note_rosters)) are left out. From
    /// [`MINOR_COORDINATION`](crate::version::MINOR_COORDINATION) on.
    Feed {
        /// Id of the lease.
        lease: LeaseId,
        /// Only what was decided after this revision.
        since: Revision,
        /// Generations whose members the reader has.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        have: Vec<Generation>,
    },
    /// Answered with `Read` as soon as the job's event log has anything after
    /// `after`, and again whenever there is more after the last answer, until it
    /// is cancelled. A job that is not there yet has no events. From
    /// [`MINOR_EVENTS`](crate::version::MINOR_EVENTS) on.
    Events {
        /// Name of the job.
        job: Name,
        /// Only events after this revision.
        after: Revision,
    },
    /// Answered with `LeaderChanged` as soon as the node knows a leader, and again
    /// whenever it learns of another one, until it is cancelled. Any node answers
    /// it. From [`MINOR_LEADER`](crate::version::MINOR_LEADER) on.
    WatchLeader,
    /// Ends a wait, a watch, a feed or a subscription of this stream. Not
    /// answered.
    Cancel {
        /// Id of the request to end.
        request: u64,
    },
    /// An agent's report; replaces the one before on this stream. Not answered;
    /// from [`MINOR_REPORTS`](crate::version::MINOR_REPORTS) on.
    Report(AgentReport),
    /// The status document, from any node.
    Status,
    /// An operator's request, to the leader.
    Admin(Admin),
}

/// An answer on a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Id of the request that this answers.
    pub id: u64,
    /// The answer, or a part of it.
    pub body: ReplyBody,
}

/// Watches to which everything up to a revision was delivered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchProgress {
    /// The revision. These watches resume from the next one.
    pub revision: Revision,
    /// The first and the last request id of each unbroken run of them, in
    /// growing order.
    pub watches: Vec<(u64, u64)>,
}

impl WatchProgress {
    /// The progress of these watches; their ids in growing order.
    pub fn new(revision: Revision, ids: impl IntoIterator<Item = u64>) -> WatchProgress {
        let mut watches: Vec<(u64, u64)> = Vec::new();
        for id in ids {
            match watches.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(id) => *last = id,
                _ => watches.push((id, id)),
            }
        }
        WatchProgress { revision, watches }
    }
}

/// What a node can answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyBody {
    /// To `Propose`; a refusal of the state machine is an answer too.
    Answer(Answer),
    /// Answers `Read`, and each event of `Feed` and `Events`.
    Read(ReadAnswer),
    /// To `Wait`: registered at this revision.
    Waiting {
        /// Give it as `since` when resuming.
        revision: Revision,
    },
    /// To `Wait`: all conditions were met by this revision.
    Released {
        /// Revision of the whole cluster, +1 for each change.
        revision: Revision,
    },
    /// To `Watch`: the changes of one revision; without changes, progress: all
    /// revisions up to this one were delivered.
    Changes(WatchBatch),
    /// To all watches of this stream that asked for it and are named, in a
    /// reply with id 0.
    Progress(WatchProgress),
    /// To `WatchLeader`: who leads, as far as this node knows.
    LeaderChanged {
        /// The term in which it leads.
        term: u64,
        /// The node that leads, and its address.
        leader: LeaderHint,
    },
    /// Answers `Status` with the document, from any node.
    Status(Box<Status>),
    /// Answers `Admin`: the request was carried out.
    Done,
    /// The request failed; a wait or watch is over.
    Problem(Problem),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch as the first version of the protocol has it.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum FirstVersion {
        Watch {
            scope: Scope,
            prefix: Blob,
            #[serde(default)]
            from: Option<Revision>,
        },
    }

    #[test]
    fn a_watch_is_understood_one_version_either_way() {
        let (scope, prefix, from) = (Scope::default(), Blob::from("p/"), Some(7));
        let old = FirstVersion::Watch { scope: scope.clone(), prefix: prefix.clone(), from };
        let watch =
            |progress_together| RequestBody::Watch { scope, prefix, from, progress_together };
        let bytes = rmp_serde::to_vec_named(&old).unwrap();
        assert_eq!(rmp_serde::from_slice::<RequestBody>(&bytes).unwrap(), watch.clone()(false));
        let bytes = rmp_serde::to_vec_named(&watch(true)).unwrap();
        assert_eq!(rmp_serde::from_slice::<FirstVersion>(&bytes).unwrap(), old);
    }

    #[test]
    fn progress_names_unbroken_runs_of_ids() {
        let progress = WatchProgress::new(9, [1, 2, 3, 5, 7, 8, u64::MAX]);
        assert_eq!(progress.watches, [(1, 3), (5, 5), (7, 8), (u64::MAX, u64::MAX)]);
        assert!(WatchProgress::new(9, []).watches.is_empty());
    }
}
