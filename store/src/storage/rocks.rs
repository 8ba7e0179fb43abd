//! The log in RocksDB: what a node uses in production.
//!
//! | column family | key | value |
//! | --- | --- | --- |
//! | `log` | index, big-endian u64 | a sealed [`LogRecord`] |
//! | `meta` | `vote`, `committed`, `purged`, `identity`, `witness/` + node id | sealed records |
//!
//! RocksDB's write-ahead log alone cannot tell a torn tail, which a crash
//! leaves and which was never acknowledged, from a tail that was acknowledged
//! and then damaged or cut off: it drops both in silence. So after each synced
//! write the database's sequence number goes into a small file, the
//! [watermark](super::watermark). A database that comes back with less than its
//! watermark has lost what was acknowledged, and the node refuses to start.
//! The check runs on a read-only view, because opening for writing replaces
//! the files that somebody may want to look at or repair.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use rocksdb::{
    ColumnFamily, ColumnFamilyDescriptor, DB, DBRecoveryMode, ErrorKind, IteratorMode, LogLevel,
    Options, ReadOptions, WriteBatch, WriteOptions,
};
use serde::de::DeserializeOwned;

use super::backend::{Batch, LogBackend, LogImage, Operation, WitnessRecord};
use super::error::StorageError;
use super::seal::{SealError, seal, unseal};
use super::watermark::Watermark;
use crate::raft::record::LogRecord;

const LOG: &str = "log";
const META: &str = "meta";

const VOTE: &[u8] = b"vote";
const COMMITTED: &[u8] = b"committed";
const PURGED: &[u8] = b"purged";
const IDENTITY: &[u8] = b"identity";
const WITNESS: &[u8] = b"witness/";

/// Memory for entries that are not in a sorted file yet, and the size of such
/// a file.
const LOG_BUFFER_BYTES: usize = 8 << 20;
/// The same for the few other records.
const META_BUFFER_BYTES: usize = 1 << 20;
/// Write-ahead logs are replayed at each start, so they stay small.
const WAL_BYTES_MAX: u64 = 32 << 20;
/// RocksDB's own text logs.
const TEXT_LOG_BYTES_MAX: usize = 1 << 20;
const TEXT_LOGS_MAX: usize = 4;
const MANIFEST_BYTES_MAX: usize = 1 << 20;
/// What a whole read of the log asks the disk for at once.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// The log in a RocksDB database.
pub struct RocksLog {
    db: DB,
    dir: PathBuf,
    watermark: Watermark,
    /// Entries below this were purged; their files can go once the purge is
    /// durable.
    purge_pending: Option<u64>,
}

fn index_key(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

fn witness_key(node: u64) -> Vec<u8> {
    [WITNESS, &node.to_be_bytes()].concat()
}

fn database_options() -> Options {
    let mut options = Options::default();
    // Stops at the first record that is not whole; the watermark then tells
    // whether anything acknowledged lay behind it.
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_paranoid_checks(true);
    options.set_max_total_wal_size(WAL_BYTES_MAX);
    options.set_max_manifest_file_size(MANIFEST_BYTES_MAX);
    options.set_manifest_preallocation_size(64 << 10);
    options.set_keep_log_file_num(TEXT_LOGS_MAX);
    options.set_max_log_file_size(TEXT_LOG_BYTES_MAX);
    options.set_log_level(LogLevel::Warn);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.set_max_background_jobs(2);
    options
}

fn family_options(buffer_bytes: usize) -> Options {
    let mut options = Options::default();
    options.set_write_buffer_size(buffer_bytes);
    options.set_max_write_buffer_number(3);
    options.set_target_file_size_base(buffer_bytes as u64);
    options
}

fn families() -> [ColumnFamilyDescriptor; 2] {
    [
        ColumnFamilyDescriptor::new(LOG, family_options(LOG_BUFFER_BYTES)),
        ColumnFamilyDescriptor::new(META, family_options(META_BUFFER_BYTES)),
    ]
}

impl RocksLog {
    /// Makes an empty database in a folder that does not exist yet.
    pub fn create(dir: &Path, watermark: Watermark) -> Result<RocksLog, StorageError> {
        let mut options = database_options();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_error_if_exists(true);
        RocksLog::open_with(&options, dir, watermark)
    }

    /// Opens an existing database, and refuses one that has lost something.
    pub fn open(dir: &Path, watermark: Watermark) -> Result<RocksLog, StorageError> {
        check_nothing_lost(dir, &watermark)?;
        RocksLog::open_with(&database_options(), dir, watermark)
    }

    fn open_with(
        options: &Options,
        dir: &Path,
        watermark: Watermark,
    ) -> Result<RocksLog, StorageError> {
        let db = DB::open_cf_descriptors(options, dir, families())
            .map_err(|error| opening_failed(dir, &error))?;
        Ok(RocksLog { db, dir: dir.to_owned(), watermark, purge_pending: None })
    }

    fn family(&self, name: &str) -> &ColumnFamily {
        self.db.cf_handle(name).expect("the database was opened with its column families")
    }

    fn damaged(&self, what: String) -> StorageError {
        StorageError::damaged(&self.dir, what)
    }

    fn unsealed<T: DeserializeOwned>(
        &self,
        name: &str,
        key: &[u8],
        bytes: &[u8],
    ) -> Result<T, StorageError> {
        unseal(key, bytes).map_err(|error| match error {
            SealError::Format(found) => StorageError::UnknownFormat {
                file: self.dir.clone(),
                found: found.into(),
                known: crate::raft::record::FORMAT.into(),
            },
            error => self.damaged(format!("{name}: {error}")),
        })
    }

    fn meta<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>, StorageError> {
        let bytes = self
            .db
            .get_cf(self.family(META), key)
            .map_err(|error| reading_failed(&self.dir, &error))?;
        bytes.map(|bytes| self.unsealed(&String::from_utf8_lossy(key), key, &bytes)).transpose()
    }

    fn entries(&self, from: u64) -> Result<Vec<LogRecord>, StorageError> {
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(index_key(from));
        options.fill_cache(false);
        options.set_readahead_size(READ_AHEAD_BYTES);
        let mut entries = Vec::new();
        for row in self.db.iterator_cf_opt(self.family(LOG), options, IteratorMode::Start) {
            let (key, value) = row.map_err(|error| reading_failed(&self.dir, &error))?;
            let index = <[u8; 8]>::try_from(&*key).map(u64::from_be_bytes);
            let index = index.map_err(|_| self.damaged(format!("a log key of {key:?}")))?;
            let record: LogRecord = self.unsealed(&format!("log entry {index}"), &key, &value)?;
            if record.index != index {
                return Err(self.damaged(format!("entry {} is stored as {index}", record.index)));
            }
            entries.push(record);
        }
        Ok(entries)
    }

    fn witnesses(&self) -> Result<BTreeMap<u64, WitnessRecord>, StorageError> {
        let mut options = ReadOptions::default();
        options.set_iterate_range(rocksdb::PrefixRange(WITNESS));
        let mut witnesses = BTreeMap::new();
        for row in self.db.iterator_cf_opt(self.family(META), options, IteratorMode::Start) {
            let (key, value) = row.map_err(|error| reading_failed(&self.dir, &error))?;
            let node = key[WITNESS.len()..].try_into().map(u64::from_be_bytes);
            let node = node.map_err(|_| self.damaged(format!("a witness key of {key:?}")))?;
            witnesses.insert(node, self.unsealed("witness", &key, &value)?);
        }
        Ok(witnesses)
    }

    fn add(&mut self, batch: &mut WriteBatch, operation: Operation) {
        let (log, meta) = (self.family(LOG), self.family(META));
        match operation {
            Operation::Append(record) => {
                let key = index_key(record.index);
                batch.put_cf(log, key, seal(&key, &record));
            }
            Operation::Truncate { from } => {
                batch.delete_range_cf(log, index_key(from), index_key(u64::MAX));
            }
            Operation::Purge { upto } => {
                let end = upto.index + 1;
                batch.delete_range_cf(log, index_key(0), index_key(end));
                batch.put_cf(meta, PURGED, seal(PURGED, &upto));
                self.purge_pending = Some(end);
            }
            Operation::Vote(vote) => batch.put_cf(meta, VOTE, seal(VOTE, &vote)),
            Operation::Committed(id) => batch.put_cf(meta, COMMITTED, seal(COMMITTED, &id)),
            Operation::Witness { node, witness } => {
                let key = witness_key(node);
                batch.put_cf(meta, &key, seal(&key, &witness));
            }
            Operation::Identity(identity) => {
                batch.put_cf(meta, IDENTITY, seal(IDENTITY, &identity));
            }
        }
    }

    /// Gives back the files that hold only purged entries. Not before the
    /// purge is durable: a power failure would bring the entries' absence
    /// back without the record that explains it.
    fn drop_purged_files(&mut self) -> Result<(), StorageError> {
        let Some(end) = self.purge_pending.take() else { return Ok(()) };
        self.db
            .delete_file_in_range_cf(self.family(LOG), index_key(0), index_key(end))
            .map_err(|error| failed(&self.dir, "dropping purged entries", &error))
    }
}

impl LogBackend for RocksLog {
    fn load(&mut self) -> Result<LogImage, StorageError> {
        let purged: Option<crate::raft::record::LogIdRecord> = self.meta(PURGED)?;
        let image = LogImage {
            entries: self.entries(purged.map_or(0, |purged| purged.index.saturating_add(1)))?,
            vote: self.meta(VOTE)?,
            committed: self.meta(COMMITTED)?,
            purged,
            witnesses: self.witnesses()?,
            identity: self.meta(IDENTITY)?,
        };
        image.check().map_err(|what| self.damaged(what))?;
        Ok(image)
    }

    fn write(&mut self, batch: Batch) -> Result<(), StorageError> {
        let Batch { operations, sync } = batch;
        let mut writes = WriteBatch::default();
        for operation in operations {
            self.add(&mut writes, operation);
        }
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        self.db
            .write_opt(writes, &options)
            .map_err(|error| failed(&self.dir, "writing the log", &error))?;
        if sync {
            self.watermark.raise(self.db.latest_sequence_number())?;
            self.drop_purged_files()?;
        }
        Ok(())
    }
}

/// Compares a database with its watermark without changing it.
fn check_nothing_lost(dir: &Path, watermark: &Watermark) -> Result<(), StorageError> {
    let db = DB::open_cf_descriptors_read_only(&database_options(), dir, families(), false)
        .map_err(|error| opening_failed(dir, &error))?;
    let (found, known) = (db.latest_sequence_number(), watermark.value());
    if found >= known {
        return Ok(());
    }
    let what = format!(
        "it ends at write {found}, but write {known} was made durable: what was acknowledged \
         in between is gone"
    );
    Err(StorageError::damaged(newest_wal(dir).unwrap_or_else(|| dir.to_owned()), what))
}

/// The write-ahead log in which a lost tail would have been.
fn newest_wal(dir: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.filter(|path| path.extension().is_some_and(|e| e == "log")).max()
}

/// The file that RocksDB's message names.
fn named_file(dir: &Path, message: &str) -> PathBuf {
    let is_end = |c: char| c.is_whitespace() || ":,;\"'()".contains(c);
    let mut names = message.split(is_end).filter_map(|word| word.rsplit('/').next());
    let is_file = |name: &&str| {
        name.ends_with(".sst") || name.ends_with(".log") || name.starts_with("MANIFEST-")
    };
    // Later words are nearer to the cause.
    names.rfind(is_file).map_or_else(|| dir.to_owned(), |name| dir.join(name))
}

/// A failure while the database is opened: what is not there is damage too.
fn opening_failed(dir: &Path, error: &rocksdb::Error) -> StorageError {
    let missing = error.as_ref().contains("No such file or directory")
        || error.kind() == ErrorKind::InvalidArgument;
    if missing {
        return StorageError::damaged(named_file(dir, error.as_ref()), error.as_ref());
    }
    failed(dir, "opening the log", error)
}

fn reading_failed(dir: &Path, error: &rocksdb::Error) -> StorageError {
    failed(dir, "reading the log", error)
}

/// What RocksDB's error means; it has no codes, only texts.
fn failed(dir: &Path, doing: &'static str, error: &rocksdb::Error) -> StorageError {
    let message = error.as_ref();
    if message.contains("No space left on device") || message.contains("Disk quota exceeded") {
        return StorageError::Full { file: dir.to_owned(), doing };
    }
    if message.contains("lock file") || message.contains("lock hold by current process") {
        return StorageError::InUse { dir: dir.to_owned() };
    }
    match error.kind() {
        ErrorKind::Corruption => StorageError::damaged(named_file(dir, message), message),
        _ => StorageError::io(dir, doing)(io::Error::other(message.to_owned())),
    }
}
