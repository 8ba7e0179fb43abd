//! The log in RocksDB: what a node uses in production.
//!
//! | key | value |
//! | --- | --- |
//! | `entry/` + index, big-endian u64 | a sealed [`LogRecord`] |
//! | `vote`, `committed`, `purged`, `identity` | sealed records |
//! | `witness/` + node id, big-endian u64 | a sealed [`WitnessRecord`] |
//!
//! All keys are in one column family, on purpose: several are flushed one by one,
//! and losing the last of these flushes could undo a vote but not the entries,
//! which the following check could not see.
//!
//! RocksDB's write-ahead log alone cannot tell a torn tail, which a crash leaves
//! and which was never acknowledged, from a tail that was acknowledged and then
//! damaged or cut off: it drops both silently. So after each synced write the
//! database's sequence number goes into a small file, the
//! [watermark](super::watermark). A database that holds less than its watermark
//! has lost acknowledged data, and the node refuses to start. The check runs on a
//! read-only view, because opening for writing replaces the files that an
//! operator may want to inspect or repair.
//!
//! A database that is found damaged while the node runs is written anew from
//! memory: into another folder, then moved to its place, with its own watermark.
//! Once the new watermark has its name the new database counts;
//! `RocksLog::settle` finishes what a crash interrupts after that.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_api::crash_point;
use parking_lot::Mutex;
use rocksdb::{
    DB, DBRecoveryMode, ErrorKind, IteratorMode, LogLevel, Options, PrefixRange, ReadOptions,
    WriteBatch, WriteOptions,
};
use serde::de::DeserializeOwned;

use super::backend::{Batch, Checker, LogBackend, LogImage, Operation, Reclaimer, WitnessRecord};
use super::error::StorageError;
use super::identity::sync_dir;
use super::record::{FORMAT, LogIdRecord, LogRecord};
use super::seal::{SealError, seal, unseal};
use super::wal;
use super::watermark::Watermark;

const ENTRY: &[u8] = b"entry/";
const VOTE: &[u8] = b"vote";
const COMMITTED: &[u8] = b"committed";
const PURGED: &[u8] = b"purged";
const IDENTITY: &[u8] = b"identity";
const WITNESS: &[u8] = b"witness/";

/// Memory for data not yet in a sorted file, and the size of such a file. A
/// write-ahead log stays until its buffer is in a sorted file.
const BUFFER_BYTES: usize = 8 << 20;
const BUFFERS_MAX: i32 = 3;
/// Sorted files after which they are merged: as many as hold a whole log (256 MiB), most of which
/// is purged by then. Merging them sooner writes each entry several times over, beside the syncs.
const FILES_UNMERGED_MAX: i32 = 32;
/// Size and number of RocksDB's own text logs.
const TEXT_LOG_BYTES_MAX: usize = 1 << 20;
const TEXT_LOGS_MAX: usize = 4;
const MANIFEST_BYTES_MAX: usize = 1 << 20;
/// Bytes of one disk read during a whole read of the log.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// Suffixes of the names of a database and a watermark that are to replace
/// others, and of the watermark until the database is complete.
const NEW: &str = "new";
const PART: &str = "part";
/// Bytes of entries in one write of a log that is written anew.
const REWRITE_BYTES: usize = 4 << 20;

/// The log in a RocksDB database.
pub struct RocksLog {
    /// None only while the database is being replaced.
    db: Option<Arc<DB>>,
    dir: PathBuf,
    watermark: Watermark,
    /// Held while space is reclaimed: that uses the database, too.
    reclaiming: Arc<Mutex<()>>,
}

/// A database that is only read, to load the log from it or to check it.
struct View<'a> {
    db: &'a DB,
    dir: &'a Path,
}

fn numbered(prefix: &[u8], number: u64) -> Vec<u8> {
    [prefix, &number.to_be_bytes()].concat()
}

fn number_of(prefix: &[u8], key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.strip_prefix(prefix)?.try_into().ok()?))
}

fn options() -> Options {
    let mut options = Options::default();
    // Stops at the first incomplete record; the watermark then tells whether anything
    // acknowledged came after it.
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_paranoid_checks(true);
    options.set_write_buffer_size(BUFFER_BYTES);
    options.set_max_write_buffer_number(BUFFERS_MAX);
    options.set_target_file_size_base(BUFFER_BYTES as u64);
    options.set_level_zero_file_num_compaction_trigger(FILES_UNMERGED_MAX);
    options.set_level_zero_slowdown_writes_trigger(2 * FILES_UNMERGED_MAX);
    options.set_level_zero_stop_writes_trigger(3 * FILES_UNMERGED_MAX);
    // A sorted file goes to the disk as it is written: a sync of the log does not wait for all of it.
    options.set_bytes_per_sync(1 << 20);
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

impl RocksLog {
    /// Makes an empty database in a folder that does not exist yet.
    pub fn create(dir: &Path, watermark: Watermark) -> Result<RocksLog, StorageError> {
        let mut options = options();
        options.create_if_missing(true);
        options.set_error_if_exists(true);
        crash_point!(before LogCreate);
        let log = RocksLog::open_with(&options, dir, watermark)?;
        crash_point!(after LogCreate);
        Ok(log)
    }

    /// Opens an existing database, and refuses one that has lost data.
    pub fn open(dir: &Path, watermark: &Path) -> Result<RocksLog, StorageError> {
        let watermark = Watermark::open(watermark)?;
        check_nothing_lost(dir, &watermark)?;
        RocksLog::open_with(&options(), dir, watermark)
    }

    /// Finishes a replacement of the database that a crash interrupted, and deletes
    /// one that was never complete.
    pub(crate) fn settle(dir: &Path, watermark: &Path) -> Result<(), StorageError> {
        replace(dir, watermark)
            .map_err(StorageError::io(dir, "putting a log in its place that was written anew"))
    }

    fn open_with(
        options: &Options,
        dir: &Path,
        watermark: Watermark,
    ) -> Result<RocksLog, StorageError> {
        let db = DB::open(options, dir).map_err(|error| opening_failed(dir, &error))?;
        let (db, reclaiming) = (Some(Arc::new(db)), Arc::default());
        Ok(RocksLog { db, dir: dir.to_owned(), watermark, reclaiming })
    }

    fn db(&self) -> Result<&DB, StorageError> {
        self.db.as_deref().ok_or(StorageError::Stopped)
    }

    /// Replaces the database with one that holds just this.
    fn rewrite(&mut self, image: LogImage) -> Result<(), StorageError> {
        let (dir, watermark) = (self.dir.clone(), self.watermark.path().to_owned());
        let failed = |error| StorageError::io(&dir, "writing the log anew")(error);
        RocksLog::settle(&dir, &watermark)?;
        let part = watermark.with_extension(PART);
        let mut new = RocksLog::create(&dir.with_extension(NEW), Watermark::create(&part)?)?;
        let mut operations = image.into_operations().peekable();
        while operations.peek().is_some() {
            let (mut bytes, mut some) = (0, Vec::new());
            while bytes < REWRITE_BYTES
                && let Some(operation) = operations.next()
            {
                bytes += operation.bytes();
                some.push(operation);
            }
            new.write(Batch { operations: some, sync: true })?;
        }
        new.watermark.sync()?;
        drop(new);
        crash_point!(before RewriteName);
        fs::rename(&part, watermark.with_extension(NEW)).map_err(failed)?;
        dir.parent().map_or(Ok(()), sync_dir).map_err(failed)?;
        crash_point!(after RewriteName);
        // The old one is not used any more.
        let reclaiming = Arc::clone(&self.reclaiming);
        let _reclaimed = reclaiming.lock();
        self.db = None;
        RocksLog::settle(&dir, &watermark)?;
        *self =
            RocksLog { reclaiming: Arc::clone(&reclaiming), ..RocksLog::open(&dir, &watermark)? };
        Ok(())
    }
}

impl View<'_> {
    fn damaged(&self, what: String) -> StorageError {
        StorageError::damaged(self.dir, what)
    }

    fn unsealed<T: DeserializeOwned>(
        &self,
        name: &str,
        key: &[u8],
        bytes: &[u8],
    ) -> Result<T, StorageError> {
        unseal(key, bytes).map_err(|error| match error {
            SealError::Format(found) => StorageError::UnknownFormat {
                file: self.dir.to_owned(),
                found: found.into(),
                known: FORMAT.into(),
            },
            error => self.damaged(format!("{name}: {error}")),
        })
    }

    fn one<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>, StorageError> {
        let bytes = self.db.get(key).map_err(|error| reading_failed(self.dir, &error))?;
        bytes.map(|bytes| self.unsealed(&String::from_utf8_lossy(key), key, &bytes)).transpose()
    }

    /// All records under a prefix whose number is at least `from`, in order.
    fn each<T: DeserializeOwned>(
        &self,
        prefix: &'static [u8],
        from: u64,
        mut found: impl FnMut(u64, T) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let mut options = ReadOptions::default();
        options.set_iterate_range(PrefixRange(prefix));
        options.set_iterate_lower_bound(numbered(prefix, from));
        options.fill_cache(false);
        options.set_readahead_size(READ_AHEAD_BYTES);
        for row in self.db.iterator_opt(IteratorMode::Start, options) {
            let (key, value) = row.map_err(|error| reading_failed(self.dir, &error))?;
            let number = number_of(prefix, &key)
                .ok_or_else(|| self.damaged(format!("it holds a key of {key:?}")))?;
            let name = format!("{}{number}", String::from_utf8_lossy(prefix));
            found(number, self.unsealed(&name, &key, &value)?)?;
        }
        Ok(())
    }

    fn each_entry(
        &self,
        from: u64,
        mut found: impl FnMut(LogRecord) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        self.each(ENTRY, from, |index, record: LogRecord| match record.index {
            stored if stored == index => found(record),
            stored => Err(self.damaged(format!("entry {stored} is stored as {index}"))),
        })
    }

    /// All but the entries, and the index where those begin.
    fn frame(&self) -> Result<(LogImage, u64), StorageError> {
        let mut witnesses = BTreeMap::new();
        self.each(WITNESS, 0, |node, witness: WitnessRecord| {
            witnesses.insert(node, witness);
            Ok(())
        })?;
        let purged: Option<LogIdRecord> = self.one(PURGED)?;
        let image = LogImage {
            entries: Vec::new(),
            vote: self.one(VOTE)?,
            committed: self.one(COMMITTED)?,
            purged,
            witnesses,
            identity: self.one(IDENTITY)?,
        };
        Ok((image, purged.map_or(0, |purged| purged.index.saturating_add(1))))
    }

    fn load(&self) -> Result<LogImage, StorageError> {
        let (mut image, from) = self.frame()?;
        self.each_entry(from, |entry| {
            image.entries.push(entry);
            Ok(())
        })?;
        image.check().map_err(|what| self.damaged(what))?;
        Ok(image)
    }

    /// As [`View::load`], without holding everything in memory at once.
    fn check(&self) -> Result<(), StorageError> {
        let (image, mut next) = self.frame()?;
        if image.identity.is_none() {
            return Err(self.damaged("its copy of the identity is missing".into()));
        }
        self.each_entry(next, |entry| {
            let expected = next;
            next = entry.index.saturating_add(1);
            if entry.index == expected {
                return Ok(());
            }
            Err(self.damaged(format!("entry {expected} is missing, {} follows", entry.index)))
        })
    }
}

fn add(batch: &mut WriteBatch, operation: Operation) {
    match operation {
        Operation::Append(record) => {
            let key = numbered(ENTRY, record.index);
            batch.put(&key, seal(&key, &record));
        }
        Operation::Truncate { from } => {
            batch.delete_range(numbered(ENTRY, from), numbered(ENTRY, u64::MAX));
        }
        Operation::Purge { upto } => {
            batch.delete_range(numbered(ENTRY, 0), numbered(ENTRY, upto.index + 1));
            batch.put(PURGED, seal(PURGED, &upto));
        }
        Operation::Vote(vote) => batch.put(VOTE, seal(VOTE, &vote)),
        Operation::Committed(id) => batch.put(COMMITTED, seal(COMMITTED, &id)),
        Operation::Witness { node, witness } => {
            let key = numbered(WITNESS, node);
            batch.put(&key, seal(&key, &witness));
        }
        Operation::Identity(identity) => batch.put(IDENTITY, seal(IDENTITY, &identity)),
        Operation::Rewrite(_) => unreachable!("it is no write of a database"),
    }
}

impl LogBackend for RocksLog {
    fn load(&mut self) -> Result<LogImage, StorageError> {
        View { db: self.db()?, dir: &self.dir }.load()
    }

    fn write(&mut self, batch: Batch) -> Result<(), StorageError> {
        let Batch { mut operations, sync } = batch;
        let is_rewrite = |operation: &Operation| matches!(operation, Operation::Rewrite(_));
        if let Some(place) = operations.iter().rposition(is_rewrite) {
            // What comes before it is in it.
            let behind = operations.split_off(place + 1);
            if let Some(Operation::Rewrite(image)) = operations.pop() {
                self.rewrite(*image)?;
            }
            operations = behind;
        }
        let mut writes = WriteBatch::default();
        for operation in operations {
            add(&mut writes, operation);
        }
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        let db = self.db()?;
        db.write_opt(writes, &options)
            .map_err(|error| failed(&self.dir, "writing the log", &error))?;
        if sync {
            let written = db.latest_sequence_number();
            self.watermark.raise(written)?;
        }
        Ok(())
    }

    fn reclaimer(&self) -> Option<Reclaimer> {
        // Weak: the database is closed with its writer.
        let db = self.db.as_ref().map(Arc::downgrade)?;
        let reclaiming = Arc::clone(&self.reclaiming);
        Some(Arc::new(move || {
            let _reclaiming = reclaiming.lock();
            if let Some(db) = db.upgrade() {
                db.compact_range(None::<&[u8]>, None::<&[u8]>);
            }
        }))
    }

    fn checker(&self) -> Option<Checker> {
        let (dir, watermark) = (self.dir.clone(), self.watermark.path().to_owned());
        Some(Arc::new(move || check_in_use(&dir, &watermark)))
    }
}

fn replace(dir: &Path, watermark: &Path) -> io::Result<()> {
    let (new, new_watermark) = (dir.with_extension(NEW), watermark.with_extension(NEW));
    let counts = new_watermark.try_exists()?;
    if new.try_exists()? {
        let goes = if counts { dir } else { &new };
        crash_point!(before RewriteRemove);
        match fs::remove_dir_all(goes) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        crash_point!(after RewriteRemove);
        if counts {
            crash_point!(before RewriteMove);
            fs::rename(&new, dir)?;
            crash_point!(after RewriteMove);
        }
    }
    if counts {
        crash_point!(before RewriteSettle);
        fs::rename(&new_watermark, watermark)?;
        dir.parent().map_or(Ok(()), sync_dir)?;
        crash_point!(after RewriteSettle);
    }
    Ok(())
}

/// Checks whether a database in use could be opened again with everything that
/// was made durable.
fn check_in_use(dir: &Path, watermark: &Path) -> Result<(), StorageError> {
    // Read first: later writes only add to it.
    let watermark = Watermark::open(watermark)?;
    if !hanging(dir, &watermark)?.is_empty() {
        // The end of a write under way.
        return Ok(());
    }
    // Read from the disk, not from the page cache, where possible.
    let mut direct = options();
    direct.set_use_direct_reads(true);
    let db = view_of(&direct, dir, &watermark).or_else(|_| view_of(&options(), dir, &watermark))?;
    View { db: &db, dir }.check()
}

/// A write-ahead log, and how much of it is complete.
struct Hanging {
    path: PathBuf,
    whole: usize,
}

/// Looks for records on which RocksDB's reader would hang. In its list of files
/// they are damage; in a write-ahead log they are damage too, unless everything
/// durable comes before them: then they are the rest of a torn write.
fn hanging(dir: &Path, watermark: &Watermark) -> Result<Vec<Hanging>, StorageError> {
    let (mut sequence, mut hanging) = (0, Vec::new());
    for path in log_files(dir).map_err(StorageError::io(dir, "listing the database"))? {
        let file = fs::read(&path).map_err(StorageError::io(&path, "reading it"))?;
        let found = wal::scan(&file);
        let is_wal = path.extension().is_some_and(|extension| extension == "log");
        if is_wal {
            sequence = found.sequence.max(sequence);
        }
        if !found.hangs {
            continue;
        }
        if !is_wal || sequence < watermark.value() {
            let what = format!("after byte {} is a record of no known kind", found.whole);
            return Err(StorageError::damaged(path, what));
        }
        hanging.push(Hanging { path, whole: found.whole });
    }
    Ok(hanging)
}

/// The write-ahead logs, oldest first, and the list of files in use.
fn log_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let current = fs::read_to_string(dir.join("CURRENT")).unwrap_or_default();
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let is_wal = path.extension().is_some_and(|extension| extension == "log");
        if is_wal || path.file_name().is_some_and(|name| name == current.trim_end()) {
            files.push(path);
        }
    }
    // Numbers have leading zeros.
    files.sort();
    Ok(files)
}

/// Compares a database with its watermark, after cutting off the rest of torn
/// writes.
fn check_nothing_lost(dir: &Path, watermark: &Watermark) -> Result<(), StorageError> {
    for Hanging { path, whole } in hanging(dir, watermark)? {
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(whole as u64).and_then(|()| file.sync_all()))
            .map_err(StorageError::io(&path, "cutting off a torn write"))?;
    }
    view_of(&options(), dir, watermark).map(drop)
}

/// Opens a database read-only, and compares it with its watermark.
fn view_of(options: &Options, dir: &Path, watermark: &Watermark) -> Result<DB, StorageError> {
    let db =
        DB::open_for_read_only(options, dir, false).map_err(|error| opening_failed(dir, &error))?;
    let (found, known) = (db.latest_sequence_number(), watermark.value());
    if found >= known {
        return Ok(db);
    }
    let what = format!(
        "it ends at write {found}, but write {known} was made durable: what was acknowledged \
         in between is gone"
    );
    Err(StorageError::damaged(newest_wal(dir).unwrap_or_else(|| dir.to_owned()), what))
}

/// The write-ahead log that would have held a lost tail.
fn newest_wal(dir: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.filter(|path| path.extension().is_some_and(|e| e == "log")).max()
}

/// The file that RocksDB's message names.
fn named_file(dir: &Path, message: &str) -> PathBuf {
    let is_end = |c: char| c.is_whitespace() || ":,;\"'()".contains(c);
    let mut names = message.split(is_end).filter_map(|word| word.rsplit('/').next());
    let is_file = |name: &&str| {
        name.ends_with(".sst") || name.ends_with(".log") || name.starts_with("MANIFEST-")
    };
    // Later words are closer to the cause.
    names.rfind(is_file).map_or_else(|| dir.to_owned(), |name| dir.join(name))
}

/// A failure to open the database: a missing file is damage too.
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

/// Classifies RocksDB's error; it has no codes, only texts.
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
