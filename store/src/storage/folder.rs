//! The data folder: opened and checked at each start.
//!
//! ```text
//! DIR/lock             held by the process that uses the folder
//! DIR/identity.json    whose folder it is; written last when it is made
//! DIR/watermark        how much of the log was made durable
//! DIR/log/             the log: a RocksDB database
//! DIR/snapshots/       the newest snapshot
//! ```

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_api::NodeId;
use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::backend::{Batch, LogBackend, LogImage, Operation};
use super::error::StorageError;
use super::identity::{self, Identity, sync_dir};
use super::log::Log;
use super::memory::MemoryDisk;
use super::offload::Offload;
use super::record::{LogIdRecord, SnapshotMetaRecord};
use super::rocks::RocksLog;
use super::snapshot::directory::Directory;
use super::snapshot::{SnapshotOptions, SnapshotStore};
use super::stats::WriteStats;
use super::watermark::Watermark;
use super::writer::Writer;

const LOCK: &str = "lock";
const WATERMARK: &str = "watermark";
const LOG: &str = "log";
const SNAPSHOTS: &str = "snapshots";
/// Name of a simulated disk in errors.
const MEMORY: &str = "memory";
/// What may be in a folder that is not Holdfast's yet: remains of an interrupted
/// creation, and what a fresh file system has.
const KNOWN: [&str; 7] =
    [LOCK, WATERMARK, LOG, SNAPSHOTS, identity::FILE, "identity.json.new", "lost+found"];

/// How a data folder is opened.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The cluster that the folder must belong to; none = any.
    pub cluster_id: Option<String>,
    /// How snapshots are made.
    pub snapshots: SnapshotOptions,
    /// Counters of the log writer.
    pub stats: Arc<WriteStats>,
}

/// State of a data folder.
pub enum Opened {
    /// Nothing was stored here before.
    Empty(EmptyStorage),
    /// A node's folder, checked.
    Existing(Storage),
}

/// A locked folder, ready for a node.
pub struct EmptyStorage {
    place: EmptyPlace,
    node_id: NodeId,
    options: Options,
}

enum EmptyPlace {
    Folder(Folder),
    Memory(MemoryDisk, Writer),
}

/// The opened storage of a node: its identity, its log and its snapshots.
pub struct Storage {
    identity: Identity,
    log: Log,
    /// What the log held when it was opened, until it is taken.
    image: Mutex<Option<LogImage>>,
    last_index: u64,
    snapshots: SnapshotStore,
    /// None on a simulated disk. Dropped last: the lock is held while anything is
    /// open.
    folder: Option<Folder>,
}

pub(super) struct Folder {
    dir: PathBuf,
    _lock: Flock<File>,
}

impl Folder {
    /// Makes the folder if there is none, and locks it.
    pub(crate) fn lock(dir: &Path) -> Result<Folder, StorageError> {
        fs::create_dir_all(dir).map_err(StorageError::io(dir, "making the data folder"))?;
        let path = dir.join(LOCK);
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(StorageError::io(&path, "opening the data folder's lock"))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Folder { dir: dir.to_owned(), _lock: lock }),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                Err(StorageError::InUse { dir: dir.to_owned() })
            }
            Err((_, error)) => Err(StorageError::io(path, "locking the data folder")(error.into())),
        }
    }

    /// Reads its log and its newest snapshot, and checks that they fit together.
    pub(crate) fn load(
        &self,
        identity: &Identity,
        options: SnapshotOptions,
    ) -> Result<(LogImage, SnapshotStore), StorageError> {
        let (dir, log) = (&self.dir, self.path(LOG));
        RocksLog::settle(&log, &self.path(WATERMARK))?;
        if !self.has(LOG)? {
            return Err(StorageError::LogMissing { dir: dir.clone(), node: identity.node_id });
        }
        let image = RocksLog::open(&log, &self.path(WATERMARK))?.load()?;
        let snapshots = SnapshotStore::open(
            Box::new(Directory::open(&self.path(SNAPSHOTS))?),
            identity.cluster_id.clone(),
            options,
            image.dispensable_upto(),
        )?;
        check_together(dir, identity, &image, snapshots.newest_meta())?;
        Ok((image, snapshots))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn has(&self, name: &str) -> Result<bool, StorageError> {
        let path = self.path(name);
        path.try_exists().map_err(StorageError::io(path, "looking for it"))
    }

    fn refuse_foreign(&self) -> Result<(), StorageError> {
        let list = || -> io::Result<Option<String>> {
            for entry in fs::read_dir(&self.dir)? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                if !KNOWN.contains(&name.as_str()) {
                    return Ok(Some(name));
                }
            }
            Ok(None)
        };
        match list().map_err(StorageError::io(&self.dir, "listing the data folder"))? {
            Some(found) => Err(StorageError::NotOurs { dir: self.dir.clone(), found }),
            None => Ok(()),
        }
    }

    /// Without an identity: fine if nothing was ever stored, or if the creation of
    /// the folder was interrupted.
    fn refuse_orphans(&self) -> Result<(), StorageError> {
        let orphan = || StorageError::IdentityMissing { dir: self.dir.clone() };
        if Directory::open(&self.path(SNAPSHOTS))?.has_any()? {
            return Err(orphan());
        }
        // RocksDB writes CURRENT last when it makes a database.
        if !self.has(LOG)? || !self.path(LOG).join("CURRENT").exists() {
            return Ok(());
        }
        let image =
            RocksLog::open(&self.path(LOG), &self.path(WATERMARK)).and_then(|mut log| log.load());
        match image {
            Ok(image) if image.is_pristine() => Ok(()),
            _ => Err(orphan()),
        }
    }

    fn remove_leftovers(&self) -> Result<(), StorageError> {
        let log = self.path(LOG);
        match fs::remove_dir_all(&log) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(StorageError::io(log, "clearing what a start left that was cut short")(error))
            }
            _ => Ok(()),
        }
    }
}

impl Storage {
    /// Opens the data folder of a node and checks all of it but the body of
    /// the snapshot. Blocks.
    pub fn open(dir: &Path, node_id: NodeId, options: Options) -> Result<Opened, StorageError> {
        let folder = Folder::lock(dir)?;
        match identity::read(dir)? {
            None => {
                folder.refuse_foreign()?;
                folder.refuse_orphans()?;
                let place = EmptyPlace::Folder(folder);
                Ok(Opened::Empty(EmptyStorage { place, node_id, options }))
            }
            Some(found) => {
                check_owner(dir, &found, node_id, options.cluster_id.as_deref())?;
                Storage::open_existing(folder, found, options).map(Opened::Existing)
            }
        }
    }

    fn open_existing(
        folder: Folder,
        mut identity: Identity,
        options: Options,
    ) -> Result<Storage, StorageError> {
        RocksLog::settle(&folder.path(LOG), &folder.path(WATERMARK))?;
        if !folder.has(LOG)? {
            let dir = folder.dir;
            return Err(StorageError::LogMissing { dir, node: identity.node_id });
        }
        let mut log = RocksLog::open(&folder.path(LOG), &folder.path(WATERMARK))?;
        let image = log.load()?;
        settle_identity(&folder.dir, &mut identity, &image, &mut log)?;
        let snapshots = Directory::open(&folder.path(SNAPSHOTS))?;
        let snapshots = SnapshotStore::open(
            Box::new(snapshots),
            identity.cluster_id.clone(),
            options.snapshots,
            image.dispensable_upto(),
        )?;
        check_together(&folder.dir, &identity, &image, snapshots.newest_meta())?;
        let log = Log::start(Box::new(log), &image, Writer::Thread, options.stats)?;
        Ok(Storage::new(identity, (log, image), snapshots, Some(folder)))
    }

    /// Opens a simulated disk, as [`Storage::open`] opens a folder.
    pub fn open_memory(
        disk: MemoryDisk,
        node_id: NodeId,
        options: Options,
        writer: Writer,
    ) -> Result<Opened, StorageError> {
        let mut log = disk.log();
        let image = log.load()?;
        let dir = Path::new(MEMORY);
        let Some(identity) = image.identity.clone() else {
            if !image.is_pristine() {
                return Err(StorageError::IdentityMissing { dir: dir.to_owned() });
            }
            let place = EmptyPlace::Memory(disk, writer);
            return Ok(Opened::Empty(EmptyStorage { place, node_id, options }));
        };
        check_owner(dir, &identity, node_id, options.cluster_id.as_deref())?;
        let snapshots = SnapshotStore::open(
            disk.snapshots(),
            identity.cluster_id.clone(),
            options.snapshots,
            image.dispensable_upto(),
        )?;
        check_together(dir, &identity, &image, snapshots.newest_meta())?;
        let log = Log::start(log, &image, writer, options.stats)?;
        Ok(Opened::Existing(Storage::new(identity, (log, image), snapshots, None)))
    }

    fn new(
        identity: Identity,
        (log, image): (Log, LogImage),
        snapshots: SnapshotStore,
        folder: Option<Folder>,
    ) -> Storage {
        let covered = snapshots.newest_meta().and_then(|meta| meta.last);
        let last = image.last_id().into_iter().chain(covered).map(|id| id.index).max();
        let (image, last_index) = (Mutex::new(Some(image)), last.unwrap_or(0));
        Storage { identity, log, image, last_index, snapshots, folder }
    }

    /// The identity that the folder holds: cluster and node.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Index of the last entry that was in the log or in the snapshot when it was opened.
    pub(crate) fn last_index(&self) -> u64 {
        self.last_index
    }

    /// Another handle to the log.
    pub fn log(&self) -> Log {
        self.log.clone()
    }

    /// What the log held when it was opened; none if it was taken before.
    pub(crate) fn take_image(&self) -> Option<LogImage> {
        self.image.lock().take()
    }

    /// Another handle to the snapshots.
    pub fn snapshots(&self) -> SnapshotStore {
        self.snapshots.clone()
    }

    /// Becomes `Some` when a write of the log fails; the node must exit then.
    pub fn failure(&self) -> watch::Receiver<Option<StorageError>> {
        self.log.failure()
    }

    /// Notes that the node takes part in its cluster: from now on an empty log
    /// means that the log was lost.
    pub async fn mark_formed(&mut self) -> Result<(), StorageError> {
        if self.identity.formed {
            return Ok(());
        }
        let formed = Identity { formed: true, ..self.identity.clone() };
        self.log.save_identity(formed.clone()).await?;
        if let Some(folder) = &self.folder {
            let (dir, written) = (folder.dir.clone(), formed.clone());
            self.snapshots.offload().run(move || identity::write(&dir, &written)).await??;
        }
        self.identity = formed;
        Ok(())
    }

    /// Finishes what is queued, closes the database and unlocks the folder.
    pub async fn close(self) {
        self.log.close().await;
    }
}

impl EmptyStorage {
    /// Where its blocking work runs.
    pub fn offload(&self) -> Offload {
        self.options.snapshots.offload
    }

    /// Makes the folder this node's. Blocks.
    pub fn create(self, cluster_id: String) -> Result<Storage, StorageError> {
        self.create_with(cluster_id, |_| Ok(()))
    }

    /// Makes the folder this node's, with a snapshot in it: if interrupted, the
    /// folder has no owner and is refused. Blocks for long.
    pub(crate) fn create_from(
        self,
        cluster_id: String,
        meta: &SnapshotMetaRecord,
        encode: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Storage, StorageError> {
        self.create_with(cluster_id, |snapshots| snapshots.write(meta, encode).map(drop))
    }

    fn create_with(
        self,
        cluster_id: String,
        begin: impl FnOnce(SnapshotStore) -> Result<(), StorageError>,
    ) -> Result<Storage, StorageError> {
        let EmptyStorage { place, node_id, options } = self;
        let folder = match place {
            EmptyPlace::Folder(folder) => folder,
            EmptyPlace::Memory(disk, writer) => {
                let identity = Identity::new(cluster_id, node_id, rand::random());
                let operations = vec![Operation::Identity(identity)];
                disk.log().write(Batch { operations, sync: true })?;
                return match Storage::open_memory(disk, node_id, options, writer)? {
                    Opened::Existing(storage) => Ok(storage),
                    Opened::Empty(_) => Err(StorageError::Stopped),
                };
            }
        };
        if let Some(wanted) = options.cluster_id.as_ref().filter(|wanted| **wanted != cluster_id) {
            let wanted = wanted.clone();
            return Err(StorageError::OtherCluster { dir: folder.dir, found: cluster_id, wanted });
        }
        folder.remove_leftovers()?;
        let identity = Identity::new(cluster_id, node_id, rand::random());
        let watermark = Watermark::create(&folder.path(WATERMARK))?;
        let mut log = RocksLog::create(&folder.path(LOG), watermark)?;
        let operations = vec![Operation::Identity(identity.clone())];
        log.write(Batch { operations, sync: true })?;
        sync_dir(&folder.dir).map_err(StorageError::io(&folder.dir, "making the data folder"))?;
        drop(log);
        let snapshots = Box::new(Directory::open(&folder.path(SNAPSHOTS))?);
        let cluster_id = identity.cluster_id.clone();
        begin(SnapshotStore::open(snapshots, cluster_id, options.snapshots, None)?)?;
        // From here on the folder is this node's.
        identity::write(&folder.dir, &identity)?;
        Storage::open_existing(folder, identity, options)
    }
}

fn check_owner(
    dir: &Path,
    found: &Identity,
    node_id: NodeId,
    cluster_id: Option<&str>,
) -> Result<(), StorageError> {
    let dir = dir.to_owned();
    if found.node_id != node_id {
        return Err(StorageError::OtherNode { dir, found: found.node_id, wanted: node_id });
    }
    match cluster_id {
        Some(wanted) if wanted != found.cluster_id => {
            let (found, wanted) = (found.cluster_id.clone(), wanted.to_owned());
            Err(StorageError::OtherCluster { dir, found, wanted })
        }
        _ => Ok(()),
    }
}

/// Compares the two copies of the identity, and finishes a change that was
/// interrupted between them.
fn settle_identity(
    dir: &Path,
    identity: &mut Identity,
    image: &LogImage,
    log: &mut RocksLog,
) -> Result<(), StorageError> {
    let mismatch = |log: String| StorageError::IdentityMismatch {
        dir: dir.to_owned(),
        file: identity.to_string(),
        log,
    };
    let copy = image.identity.as_ref().ok_or_else(|| {
        StorageError::damaged(dir.join(LOG), "its copy of the identity is missing")
    })?;
    if !copy.is_same_folder(identity) {
        return Err(mismatch(copy.to_string()));
    }
    let settled = Identity { formed: identity.formed || copy.formed, ..identity.clone() };
    if *copy != settled {
        let operations = vec![Operation::Identity(settled.clone())];
        log.write(Batch { operations, sync: true })?;
    }
    if *identity != settled {
        identity::write(dir, &settled)?;
        *identity = settled;
    }
    Ok(())
}

/// Refuses parts that are valid each but do not fit together.
fn check_together(
    dir: &Path,
    identity: &Identity,
    image: &LogImage,
    snapshot: Option<SnapshotMetaRecord>,
) -> Result<(), StorageError> {
    let snapshot = snapshot.and_then(|meta| meta.last);
    let log = |what: String| Err(StorageError::damaged(dir.join(LOG), what));
    if let Some(purged) = image.purged
        && snapshot.is_none_or(|last| last.index < purged.index)
    {
        let what = format!(
            "the log begins after entry {}, but no snapshot reaches that far",
            purged.index
        );
        return Err(StorageError::damaged(dir.join(SNAPSHOTS), what));
    }
    if let Some(last) = snapshot
        && let Some(entry) = image.id_at(last.index)
        && (entry.term, entry.node) != (last.term, last.node)
    {
        return log(format!(
            "entry {} is of term {}, in the snapshot it is of term {}",
            last.index, entry.term, last.term
        ));
    }
    let end = |id: &LogIdRecord| id.index;
    let reach = image.last_id().as_ref().map(end).max(snapshot.as_ref().map(end));
    if let Some(committed) = image.committed.as_ref().map(end)
        && reach.is_none_or(|reach| reach < committed)
    {
        return log(format!(
            "entries up to {committed} were committed, but it ends at {}",
            reach.map_or("nothing".into(), |reach| reach.to_string())
        ));
    }
    if identity.formed && image.is_pristine() && snapshot.is_none() {
        return log("it is empty, but the node has taken part in its cluster".into());
    }
    Ok(())
}
