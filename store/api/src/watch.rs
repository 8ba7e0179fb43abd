//! Changes, in the order in which they happened.

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::command::Revision;
use crate::name::Name;

/// All changes of one revision that a watch asked for. A watch delivers every
/// revision whole, in order, without a gap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WatchBatch {
    /// The revision. A watch that resumes asks from the next one.
    pub revision: Revision,
    /// What changed; empty in a batch that only reports progress.
    pub changes: Vec<Change>,
}

/// A change of one key or queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Change {
    /// Name of the job.
    pub job: Name,
    /// Name of the run, unique within its job.
    pub run: Name,
    /// The key or queue.
    pub key: Blob,
    /// What happened to it, with the new value or length.
    pub kind: ChangeKind,
}

/// How a key changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It has a new value.
    Put {
        /// Value after the change.
        value: Blob,
        /// Changes since the key's creation; 1 = created now.
        version: u64,
    },
    /// The key was deleted.
    Delete,
    /// A value was pushed to the queue.
    Push {
        /// Length after the push.
        length: u64,
    },
    /// A value was popped from the queue.
    Pop {
        /// Length after the pop.
        length: u64,
    },
}
