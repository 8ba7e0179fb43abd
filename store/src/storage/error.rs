//! Errors of the data folder, and what to do about them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_api::NodeId;

/// What an operator should do about a damaged file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// The node's memory of what it voted for or acknowledged is in doubt.
    NewNode,
    /// The file only identifies the node.
    RestoreFile,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Advice::NewNode => {
                "restore the file if you have its exact bytes; otherwise this node must come back \
                 as a new one, because a node that forgot what it acknowledged can lose other \
                 nodes' data: on a healthy node run `holdfast node remove ID`, empty the data \
                 folder, start it with an id that was never used, and `holdfast node add` it"
            }
            Advice::RestoreFile => {
                "if a `holdfast-store restore` was cut short here, empty the folder and run it \
                 again; else restore the file from a copy of this data folder; without one, remove the node \
                 (`holdfast node remove ID`), empty the data folder and add it again under an id \
                 that was never used"
            }
        })
    }
}

/// Why the data folder cannot be used, or stopped being usable.
///
/// All of these end the process: none is retried silently, because a node that
/// goes on after a failed write does not know what its disk holds.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The bytes differ from what was written.
    #[error("{file} is damaged: {what}; {advice}", file = file.display())]
    Damaged {
        /// Path of the damaged file.
        file: PathBuf,
        /// What is wrong with it.
        what: String,
        /// What an operator should do about it.
        advice: Advice,
    },
    /// The disk is full.
    #[error(
        "no space left for {file} (while {doing}): free space on its file system and start the \
         node again; nothing acknowledged is lost", file = file.display()
    )]
    Full {
        /// The file or folder.
        file: PathBuf,
        /// What was being done.
        doing: &'static str,
    },
    /// The operating system refused.
    #[error("{file}: {source} (while {doing})", file = file.display())]
    Io {
        /// The file or folder.
        file: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// Another process has the folder open.
    #[error(
        "another holdfast-store is using {dir}: stop it first, or give this node a --data-dir of \
         its own", dir = dir.display()
    )]
    InUse {
        /// The data folder, or the log in it.
        dir: PathBuf,
    },
    /// The folder holds something else.
    #[error(
        "{dir} holds {found:?}, which is not Holdfast's, and no identity.json: choose an empty \
         folder as --data-dir", dir = dir.display()
    )]
    NotOurs {
        /// The folder that was to be a data folder.
        dir: PathBuf,
        /// One of the files in it.
        found: String,
    },
    /// The folder belongs to another node.
    #[error(
        "{dir} belongs to node {found}, this node is {wanted}: start it with --node-id {found}, \
         or give node {wanted} a --data-dir of its own", dir = dir.display()
    )]
    OtherNode {
        /// The data folder that was to be opened.
        dir: PathBuf,
        /// Id of the node that the folder belongs to.
        found: NodeId,
        /// Id of this node.
        wanted: NodeId,
    },
    /// The folder belongs to a node of another cluster.
    #[error(
        "{dir} belongs to cluster {found}, not to cluster {wanted}: check --data-dir and \
         --initial-cluster; a node never changes its cluster", dir = dir.display()
    )]
    OtherCluster {
        /// The data folder that was to be opened.
        dir: PathBuf,
        /// Id of the cluster that the folder belongs to.
        found: String,
        /// Id of the cluster that was asked for.
        wanted: String,
    },
    /// The folder has an identity but no log.
    #[error(
        "{dir} says it is node {node}, but its log folder is missing: {advice}",
        dir = dir.display(), advice = Advice::NewNode
    )]
    LogMissing {
        /// The data folder that was to be opened.
        dir: PathBuf,
        /// Id of the node that the folder belongs to.
        node: NodeId,
    },
    /// Files created in it would belong to another user than the node's.
    #[error(
        "{dir} belongs to user {owner}, and this program is run by another one; run it as that user: \
         `sudo -u '#{owner}' holdfast-store …`", dir = dir.display()
    )]
    NotOwner {
        /// The data folder that was to be opened.
        dir: PathBuf,
        /// Its owner's user id.
        owner: u32,
    },
    /// The folder has a log with entries or a vote, but no identity.
    #[error(
        "{dir} holds a node's log, but its identity.json is missing: {advice}",
        dir = dir.display(), advice = Advice::RestoreFile
    )]
    IdentityMissing {
        /// The data folder that was to be opened.
        dir: PathBuf,
    },
    /// The two copies of the identity differ: the folder mixes parts of two.
    #[error(
        "identity.json in {dir} says {file}, the log says {log}: the folder is put together from \
         two; {advice}", dir = dir.display(), advice = Advice::RestoreFile
    )]
    IdentityMismatch {
        /// The data folder that was to be opened.
        dir: PathBuf,
        /// The identity in the file.
        file: String,
        /// The identity in the log.
        log: String,
    },
    /// Written by a later version.
    #[error(
        "{file} has format {found}, this version of holdfast-store reads up to {known}: start the \
         version that wrote it, or a later one", file = file.display()
    )]
    UnknownFormat {
        /// The file, or the folder of the log.
        file: PathBuf,
        /// The format version that it has.
        found: u32,
        /// The highest that this version reads.
        known: u32,
    },
    /// Of a cluster whose rules this version does not know.
    #[error(
        "{file} is of feature level {found}, this version of holdfast-store knows levels up to \
         {known}: use the version that the other nodes run", file = file.display()
    )]
    UnknownLevel {
        /// The data folder, or a file in it.
        file: PathBuf,
        /// The level of the state in it.
        found: u32,
        /// The highest that this version knows.
        known: u32,
    },
    /// The writer stopped before it answered.
    #[error("the log writer has stopped")]
    Stopped,
}

impl StorageError {
    /// Damage after which the node's memory cannot be trusted.
    pub fn damaged(file: impl Into<PathBuf>, what: impl Into<String>) -> StorageError {
        StorageError::Damaged { file: file.into(), what: what.into(), advice: Advice::NewNode }
    }

    /// Converts an operating system error; used as `map_err(StorageError::io(path,
    /// "reading it"))`.
    pub fn io(
        file: impl Into<PathBuf>,
        doing: &'static str,
    ) -> impl FnOnce(io::Error) -> StorageError {
        let file = file.into();
        move |error| match unwrapped(error) {
            Ok(inner) => inner,
            Err(error) if is_full(&error) => StorageError::Full { file, doing },
            Err(error) => StorageError::Io { file, doing, source: Arc::new(error) },
        }
    }

    /// Whether bytes are damaged: reading them again changes nothing.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            StorageError::Damaged { .. }
                | StorageError::UnknownFormat { .. }
                | StorageError::UnknownLevel { .. }
                | StorageError::IdentityMismatch { .. }
        )
    }

    /// The error without its advice for a start.
    pub fn what(&self) -> String {
        match self {
            StorageError::Damaged { file, what, .. } => format!("{}: {what}", file.display()),
            other => other.to_string(),
        }
    }

    /// The file or folder concerned, if any.
    pub fn file(&self) -> Option<&Path> {
        use StorageError as E;
        match self {
            E::Damaged { file, .. }
            | E::Full { file, .. }
            | E::Io { file, .. }
            | E::UnknownFormat { file, .. }
            | E::UnknownLevel { file, .. } => Some(file),
            E::InUse { dir }
            | E::NotOurs { dir, .. }
            | E::NotOwner { dir, .. }
            | E::OtherNode { dir, .. }
            | E::OtherCluster { dir, .. }
            | E::LogMissing { dir, .. }
            | E::IdentityMissing { dir }
            | E::IdentityMismatch { dir, .. } => Some(dir),
            E::Stopped => None,
        }
    }
}

/// The typed error inside an [`io::Error`], if there is one.
fn unwrapped(error: io::Error) -> Result<StorageError, io::Error> {
    error.downcast::<StorageError>()
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The consensus library wants [`io::Error`]; the typed one is inside.
impl From<StorageError> for io::Error {
    fn from(error: StorageError) -> io::Error {
        io::Error::other(error)
    }
}
