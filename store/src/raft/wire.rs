//! Messages between nodes: our own structs around the records of
//! [`crate::storage::record`], and their conversions to the consensus library's types.

use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderRequest, VoteRequest, VoteResponse,
};
use serde::{Deserialize, Serialize};

use super::types::{LogId, RaftEntry, TypeConfig, Vote};
use crate::foreign_text::shown;
use crate::storage::record::{LogIdRecord, LogRecord, RecordError, SnapshotMetaRecord, VoteRecord};

/// Which of a follower's connections a message uses. Each has its own, so that a
/// heartbeat never waits for entries or a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Entries, sent one after the other without waiting for the answers.
    Append,
    /// Heartbeats, each answered before the next.
    Heartbeat,
    /// Votes and leadership transfer.
    Control,
    /// Snapshots, each as an offer and then its bytes.
    Snapshot,
}

impl Channel {
    /// Its name in a path.
    pub fn as_str(self) -> &'static str {
        match self {
            Channel::Append => "append",
            Channel::Heartbeat => "heartbeat",
            Channel::Control => "control",
            Channel::Snapshot => "snapshot",
        }
    }

    /// The channel of that name.
    pub(crate) fn from_name(name: &str) -> Option<Channel> {
        [Channel::Append, Channel::Heartbeat, Channel::Control, Channel::Snapshot]
            .into_iter()
            .find(|channel| channel.as_str() == name)
    }
}

/// Entries, or a heartbeat without any.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Append {
    /// The leader's vote: its claim to lead in its term.
    pub vote: VoteRecord,
    /// The entry before these.
    pub(crate) prev: Option<LogIdRecord>,
    /// The last entry that the leader knows to be committed.
    pub commit: Option<LogIdRecord>,
    /// The entries to append; none in a heartbeat.
    pub entries: Vec<LogRecord>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ballot {
    /// The vote asked for.
    pub vote: VoteRecord,
    /// The end of the candidate's log.
    pub last: Option<LogIdRecord>,
    /// Whether the leader itself asked for this election.
    pub(crate) transfer: bool,
}

/// A request with one answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// Append, answered alone: heartbeats.
    Append(Append),
    Vote(Ballot),
    /// A pre-vote: whether it would vote.
    PreVote(Ballot),
    /// Whether the asked node has lost this leader, too: its channels are closed and
    /// its port refuses.
    Gone {
        /// Node id of the leader.
        leader: u64,
        term: u64,
    },
    /// The leader hands leadership over.
    Transfer {
        from: VoteRecord,
        /// Node that is to lead.
        to: u64,
        /// Last log entry that the successor must hold.
        last: Option<LogIdRecord>,
    },
}

/// Answer to an [`Ask`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PeerAnswer {
    Append(Appended),
    /// To a vote and a pre-vote.
    Vote {
        vote: VoteRecord,
        /// Whether it was granted.
        granted: bool,
        /// The end of the voter's log.
        last: Option<LogIdRecord>,
    },
    /// Answer to whether a leader is gone.
    Gone {
        /// Whether it is, by what this node has seen.
        gone: bool,
    },
    Transfer {
        /// Whether it was accepted.
        accepted: bool,
    },
    /// The node has stopped, with the reason.
    Failed(String),
}

/// Outcome of an append.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Appended {
    /// Flushed up to this entry.
    Matched(Option<LogIdRecord>),
    /// All of it flushed.
    All,
    /// The previous entry is missing.
    Conflict(Option<LogIdRecord>),
    /// A newer leader is known.
    HigherVote(VoteRecord),
    /// The node has stopped, with the reason.
    Failed(String),
}

/// The first frame of a snapshot transfer; the body follows in chunks, an
/// empty one ends it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotOffer {
    /// The leader's vote: its claim to lead in its term.
    pub vote: VoteRecord,
    /// What the snapshot covers.
    pub meta: SnapshotMetaRecord,
}

/// The answer to a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SnapshotTaken {
    /// Installed, or refused because of a newer leader: the follower's vote.
    Vote(VoteRecord),
    /// It could not be installed, with the reason.
    Failed(String),
}

fn log_id(record: Option<LogIdRecord>) -> Result<Option<LogId>, RecordError> {
    record.map(LogId::try_from).transpose()
}

impl From<&AppendEntriesRequest<TypeConfig>> for Append {
    fn from(request: &AppendEntriesRequest<TypeConfig>) -> Self {
        Append {
            vote: (&request.vote).into(),
            prev: request.prev_log_id.as_ref().map(Into::into),
            commit: request.leader_commit.as_ref().map(Into::into),
            entries: request.entries.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<Append> for AppendEntriesRequest<TypeConfig> {
    type Error = RecordError;

    fn try_from(append: Append) -> Result<Self, RecordError> {
        let entries: Result<Vec<RaftEntry>, _> =
            append.entries.into_iter().map(LogRecord::into_entry).collect();
        Ok(AppendEntriesRequest {
            vote: append.vote.try_into()?,
            prev_log_id: log_id(append.prev)?,
            leader_commit: log_id(append.commit)?,
            entries: entries?,
        })
    }
}

impl From<&VoteRequest<TypeConfig>> for Ballot {
    fn from(request: &VoteRequest<TypeConfig>) -> Self {
        Ballot {
            vote: (&request.vote).into(),
            last: request.last_log_id.as_ref().map(Into::into),
            transfer: request.leadership_transfer,
        }
    }
}

impl TryFrom<Ballot> for VoteRequest<TypeConfig> {
    type Error = RecordError;

    fn try_from(ballot: Ballot) -> Result<Self, RecordError> {
        let mut request = VoteRequest::new(ballot.vote.try_into()?, log_id(ballot.last)?);
        request.leadership_transfer = ballot.transfer;
        Ok(request)
    }
}

impl From<VoteResponse<TypeConfig>> for PeerAnswer {
    fn from(response: VoteResponse<TypeConfig>) -> Self {
        PeerAnswer::Vote {
            vote: (&response.vote).into(),
            granted: response.vote_granted,
            last: response.last_log_id.as_ref().map(Into::into),
        }
    }
}

impl From<&TransferLeaderRequest<TypeConfig>> for Ask {
    fn from(request: &TransferLeaderRequest<TypeConfig>) -> Self {
        Ask::Transfer {
            from: request.from_leader().into(),
            to: *request.to_node_id(),
            last: request.last_log_id().map(Into::into),
        }
    }
}

/// Reads the answer to a vote.
pub(crate) fn vote_response(told: PeerAnswer) -> Result<VoteResponse<TypeConfig>, RecordError> {
    match told {
        PeerAnswer::Vote { vote, granted, last } => {
            Ok(VoteResponse::new(Vote::try_from(vote)?, log_id(last)?, granted))
        }
        other => Err(unexpected(&other)),
    }
}

/// Reads the answer to an append.
pub(crate) fn append_response(
    told: PeerAnswer,
) -> Result<AppendEntriesResponse<TypeConfig>, RecordError> {
    Ok(match told {
        PeerAnswer::Append(Appended::All) => AppendEntriesResponse::Success,
        PeerAnswer::Append(Appended::Matched(id)) => {
            AppendEntriesResponse::PartialSuccess(log_id(id)?)
        }
        PeerAnswer::Append(Appended::Conflict(_)) => AppendEntriesResponse::Conflict,
        PeerAnswer::Append(Appended::HigherVote(vote)) => {
            AppendEntriesResponse::HigherVote(vote.try_into()?)
        }
        other => return Err(unexpected(&other)),
    })
}

/// Reads one answer of an append stream.
pub(crate) fn stream_result(
    appended: Appended,
) -> Result<StreamAppendResult<TypeConfig>, RecordError> {
    let missing = || RecordError::Impossible("an answer without its log id".to_owned());
    Ok(match appended {
        Appended::Matched(id) => Ok(log_id(id)?),
        Appended::Conflict(Some(id)) => Err(StreamAppendError::Conflict(id.try_into()?)),
        Appended::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote.try_into()?)),
        Appended::All | Appended::Conflict(None) => return Err(missing()),
        Appended::Failed(why) => return Err(RecordError::Impossible(shown(&why))),
    })
}

impl From<AppendEntriesResponse<TypeConfig>> for Appended {
    fn from(response: AppendEntriesResponse<TypeConfig>) -> Self {
        match response {
            AppendEntriesResponse::Success => Appended::All,
            AppendEntriesResponse::PartialSuccess(id) => {
                Appended::Matched(id.as_ref().map(Into::into))
            }
            AppendEntriesResponse::Conflict => Appended::Conflict(None),
            AppendEntriesResponse::HigherVote(vote) => Appended::HigherVote((&vote).into()),
        }
    }
}

impl From<StreamAppendResult<TypeConfig>> for Appended {
    fn from(result: StreamAppendResult<TypeConfig>) -> Self {
        match result {
            Ok(id) => Appended::Matched(id.as_ref().map(Into::into)),
            Err(StreamAppendError::Conflict(id)) => Appended::Conflict(Some((&id).into())),
            Err(StreamAppendError::HigherVote(vote)) => Appended::HigherVote((&vote).into()),
        }
    }
}

fn unexpected(told: &PeerAnswer) -> RecordError {
    match told {
        PeerAnswer::Failed(why) => {
            RecordError::Impossible(format!("the node has stopped: {}", shown(why)))
        }
        other => {
            let other = shown(&format_args!("{other:?}"));
            RecordError::Impossible(format!("an answer to another question: {other}"))
        }
    }
}
