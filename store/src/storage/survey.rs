//! Reads everything in the data folder of a stopped node.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use holdfast_api::NodeId;
use holdfast_machine::{Machine, decode_entry};

use super::backend::LogImage;
use super::error::StorageError;
use super::folder::Folder;
use super::identity::{self, Identity};
use super::record::{LogIdRecord, MembershipRecord, PayloadRecord, SnapshotMetaRecord};
use super::snapshot::{SnapshotFile, SnapshotOptions, check_level};

/// A folder, read and checked completely.
pub(crate) struct Survey {
    /// The identity that the folder holds: cluster and node.
    pub identity: Identity,
    /// Everything that its log holds.
    pub log: LogImage,
    /// What its snapshot covers, and its bytes.
    pub snapshot: Option<(SnapshotMetaRecord, u64)>,
    /// The last membership in it.
    pub membership: MembershipRecord,
    /// The state after the last entry in it, acknowledged or not.
    pub machine: Machine,
    /// Locked while this is in use, so that no node starts.
    _folder: Folder,
}

impl Survey {
    /// Reads a folder. Blocks for long.
    pub(crate) fn of(dir: &Path) -> Result<Survey, StorageError> {
        if !dir.is_dir() {
            let missing = std::io::ErrorKind::NotFound.into();
            return Err(StorageError::io(dir, "looking for the data folder")(missing));
        }
        let metadata = std::fs::metadata(dir);
        let metadata = metadata.map_err(StorageError::io(dir, "looking at the data folder"))?;
        if metadata.uid() != nix::unistd::geteuid().as_raw() {
            return Err(StorageError::NotOwner { dir: dir.to_owned(), owner: metadata.uid() });
        }
        let folder = Folder::lock(dir)?;
        let identity = identity::read(dir)?
            .ok_or_else(|| StorageError::IdentityMissing { dir: dir.to_owned() })?;
        let (log, snapshots) = folder.load(&identity, SnapshotOptions::default())?;
        let newest = snapshots.newest();
        let (mut machine, meta) = match &newest {
            Some(file) => (file.decode()?, file.meta().clone()),
            None => (Machine::new(), SnapshotMetaRecord::default()),
        };
        let mut membership = meta.membership.membership;
        let covered = meta.last.map(|last| last.index);
        let behind = log.entries.iter().filter(|entry| Some(entry.index) > covered);
        for entry in behind {
            match &entry.payload {
                PayloadRecord::Blank => {}
                PayloadRecord::Membership(record) => membership = record.clone(),
                PayloadRecord::Entry(bytes) => {
                    let decoded = decode_entry(bytes).map_err(|error| {
                        let what = format!("entry {}: {error}", entry.index);
                        StorageError::damaged(dir.join("log"), what)
                    })?;
                    machine.apply(&decoded);
                    check_level(dir, &machine)?;
                }
            }
        }
        let snapshot = newest.map(|file: SnapshotFile| (file.meta().clone(), file.length()));
        Ok(Survey { identity, log, snapshot, membership, machine, _folder: folder })
    }

    /// The last entry in it.
    pub(crate) fn last(&self) -> Option<LogIdRecord> {
        let covered = self.snapshot.as_ref().and_then(|(meta, _)| meta.last);
        self.log.last_id().into_iter().chain(covered).max_by_key(|id| id.index)
    }

    /// The voters of the last membership in it.
    pub(crate) fn voters(&self) -> BTreeSet<NodeId> {
        self.membership.voters.iter().flatten().copied().collect()
    }
}
