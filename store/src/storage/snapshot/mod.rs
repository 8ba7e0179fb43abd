//! Whole-image snapshots: made, kept, sent, received.
//!
//! A snapshot is one file, see [`mod@format`], that is written under another
//! name, made durable and then renamed. Only the newest is kept. A handle keeps
//! its file open, so that a snapshot can be deleted while it is read.

pub(crate) mod directory;
pub mod format;

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream;
use holdfast_api::crash_point;
use holdfast_machine::{DecodeError, FEATURE_LEVEL, Machine};
use parking_lot::Mutex;
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

use self::format::{FormatError, SnapshotHeader};
use super::error::StorageError;
use super::offload::Offload;
use super::record::{LogIdRecord, SnapshotMetaRecord};
use crate::calendar;
use crate::foreign_text::shown;

/// Extension of a snapshot's name.
const EXTENSION: &str = "snap";
/// Bytes read at once, for sending and for decoding.
const CHUNK_BYTES: usize = 256 << 10;
/// The largest snapshot accepted from another node.
const SNAPSHOT_BYTES_MAX: u64 = 64 << 30;

/// A store for snapshots: the file system in production.
pub trait SnapshotBackend: Send + Sync + 'static {
    /// Begins a new draft without a name.
    fn create(&self) -> Result<Box<dyn SnapshotDraft>, StorageError>;
    /// Names of all snapshots.
    fn list(&self) -> Result<Vec<String>, StorageError>;
    /// Opens one by its name.
    fn open(&self, name: &str) -> Result<Arc<dyn SnapshotImage>, StorageError>;
    /// Deletes one. Open handles can read on.
    fn remove(&self, name: &str) -> Result<(), StorageError>;
    /// Renames a damaged one, so that it is not listed but people can inspect it.
    fn set_aside(&self, name: &str) -> Result<(), StorageError>;
    /// Its name in errors.
    fn place(&self, name: &str) -> PathBuf;
}

/// A snapshot being written; deleted when dropped before it has a name.
pub trait SnapshotDraft: Write + Send {
    /// What was written so far, for reading back.
    fn image(&self) -> Arc<dyn SnapshotImage>;
    /// Makes the bytes durable, then the name, replacing one of the same name.
    fn publish(&mut self, name: &str) -> io::Result<()>;
}

/// The bytes of a snapshot.
pub trait SnapshotImage: Send + Sync {
    /// Length of the whole file, in bytes.
    fn length(&self) -> u64;
    /// Reads some from `offset` on; 0 at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// How snapshots are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// Bytes a second that may be written, so that the log's syncs stay smooth; none
    /// = no limit, for simulations, since pauses use the real clock.
    pub bytes_per_second: Option<u64>,
    /// Where its blocking work runs.
    pub offload: Offload,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        SnapshotOptions { bytes_per_second: Some(64 << 20), offload: Offload::Threads }
    }
}

fn name_of(last: Option<&LogIdRecord>) -> String {
    match last {
        Some(LogIdRecord { term, node, index }) => format!("{term}-{node}-{index}.{EXTENSION}"),
        None => format!("empty.{EXTENSION}"),
    }
}

/// Order of snapshots: leader, then index.
type Rank = Option<(u64, u64, u64)>;

/// None if it is not the name of a snapshot.
fn rank_of(name: &str) -> Option<Rank> {
    let stem = name.strip_suffix(EXTENSION)?.strip_suffix('.')?;
    if stem == "empty" {
        return Some(None);
    }
    let mut numbers = stem.splitn(3, '-').map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    Some(Some((next()?, next()?, next()?)))
}

fn rank(last: Option<&LogIdRecord>) -> Rank {
    last.map(|LogIdRecord { term, node, index }| (*term, *node, *index))
}

/// The node's snapshots. Cheap to clone.
#[derive(Clone)]
pub struct SnapshotStore {
    shared: Arc<Shared>,
}

struct Shared {
    backend: Box<dyn SnapshotBackend>,
    cluster_id: String,
    options: SnapshotOptions,
    /// A damaged snapshot up to this index may be set aside: the log still
    /// holds all that is in it.
    dispensable_upto: Option<u64>,
    /// The one to send and to restart from. Locked while one is published, so that an
    /// older one never replaces a newer one.
    newest: Mutex<Option<SnapshotFile>>,
}

impl SnapshotStore {
    /// The snapshots that a backend holds. The newest one's header is read;
    /// its body is checked by [`SnapshotFile::decode`]. A damaged one is
    /// set aside if the log reaches from its beginning to `dispensable_upto`
    /// and the snapshot no further.
    pub fn open(
        backend: Box<dyn SnapshotBackend>,
        cluster_id: String,
        options: SnapshotOptions,
        dispensable_upto: Option<u64>,
    ) -> Result<SnapshotStore, StorageError> {
        let newest = Mutex::new(None);
        let shared = Shared { backend, cluster_id, options, dispensable_upto, newest };
        let store = SnapshotStore { shared: Arc::new(shared) };
        let names = store.shared.backend.list()?;
        let mut ranked: Vec<(Rank, String)> =
            names.into_iter().filter_map(|name| Some((rank_of(&name)?, name))).collect();
        ranked.sort();
        if let Some((rank, name)) = ranked.pop() {
            match store.named(&name) {
                Ok(file) => *store.shared.newest.lock() = Some(file),
                Err(error) => store.set_aside(rank, &name, error)?,
            }
        }
        for (_, name) in ranked {
            store.shared.backend.remove(&name)?;
        }
        Ok(store)
    }

    /// The newest snapshot, if there is one.
    pub fn newest(&self) -> Option<SnapshotFile> {
        self.shared.newest.lock().clone()
    }

    /// Reads the newest snapshot again, all of it. Blocks.
    pub fn check(&self) -> Result<(), StorageError> {
        let Some(meta) = self.newest_meta() else { return Ok(()) };
        let checked = self.named(&name_of(meta.last.as_ref())).and_then(|file| file.verify());
        // Another one may have taken its place by now.
        if self.newest_meta() == Some(meta) { checked } else { Ok(()) }
    }

    /// What the newest snapshot covers.
    pub(crate) fn newest_meta(&self) -> Option<SnapshotMetaRecord> {
        self.shared.newest.lock().as_ref().map(|file| file.meta.clone())
    }

    /// Where blocking work on snapshots runs.
    pub fn offload(&self) -> Offload {
        self.shared.options.offload
    }

    /// Sets the newest snapshot aside, because reading it failed with `error`;
    /// returns the error if the node cannot do without it.
    pub(crate) fn set_newest_aside(&self, error: StorageError) -> Result<(), StorageError> {
        let mut newest = self.shared.newest.lock();
        let Some(last) = newest.as_ref().map(|file| file.meta.last) else { return Err(error) };
        self.set_aside(rank(last.as_ref()), &name_of(last.as_ref()), error)?;
        *newest = None;
        Ok(())
    }

    fn set_aside(&self, rank: Rank, name: &str, error: StorageError) -> Result<(), StorageError> {
        let reach = rank.map(|(_, _, index)| index);
        let dispensable = self.shared.dispensable_upto.is_some_and(|upto| Some(upto) >= reach);
        if !dispensable || !matches!(error, StorageError::Damaged { .. }) {
            return Err(error);
        }
        tracing::warn!(%error, "a snapshot is set aside: the log still holds all that is in it");
        self.shared.backend.set_aside(name)
    }

    fn named(&self, name: &str) -> Result<SnapshotFile, StorageError> {
        let place = self.shared.backend.place(name);
        let file = self.opened(self.shared.backend.open(name)?, place)?;
        if name_of(file.meta.last.as_ref()) == name {
            return Ok(file);
        }
        Err(StorageError::damaged(&file.place, "it covers not what its name says"))
    }

    fn opened(
        &self,
        image: Arc<dyn SnapshotImage>,
        place: PathBuf,
    ) -> Result<SnapshotFile, StorageError> {
        let (header, _) = format::open(ImageReader::new(Arc::clone(&image)))
            .map_err(|error| unreadable(&place, error))?;
        let SnapshotHeader { cluster_id, meta, created_ms: _ } = header;
        if cluster_id != self.shared.cluster_id {
            let wanted = self.shared.cluster_id.clone();
            let found = shown(&cluster_id);
            return Err(StorageError::OtherCluster { dir: place, found, wanted });
        }
        let (offload, draft) = (self.offload(), Arc::default());
        Ok(SnapshotFile { image, meta, place, draft, offload })
    }

    /// Writes a snapshot of what `encode` writes and makes it the newest, unless a
    /// newer one has arrived since. Blocks for long.
    pub fn write(
        &self,
        meta: &SnapshotMetaRecord,
        encode: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<SnapshotFile, StorageError> {
        let file = self.draft(meta, encode)?;
        self.publish(&file)?;
        Ok(file)
    }

    /// Writes a snapshot without a name: it is deleted with its last handle.
    pub(crate) fn draft(
        &self,
        meta: &SnapshotMetaRecord,
        encode: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<SnapshotFile, StorageError> {
        let place = self.shared.backend.place(&name_of(meta.last.as_ref()));
        let failed = |error| StorageError::io(&place, "writing a snapshot")(error);
        let header = SnapshotHeader {
            cluster_id: self.shared.cluster_id.clone(),
            meta: meta.clone(),
            created_ms: calendar::now_ms(),
        };
        let draft = self.shared.backend.create()?;
        let paced = Paced::new(draft, self.shared.options.bytes_per_second);
        let mut writer = format::begin(paced, &header).map_err(failed)?;
        encode(&mut writer).map_err(failed)?;
        let draft = writer.finish().map_err(failed)?.inner;
        let mut file = self.opened(draft.image(), place)?;
        file.draft = Arc::new(Mutex::new(Some(draft)));
        Ok(file)
    }

    /// Makes a snapshot the newest, unless there is a newer one, and deletes
    /// the one before.
    pub(crate) fn publish(&self, file: &SnapshotFile) -> Result<(), StorageError> {
        let mut newest = self.shared.newest.lock();
        let mine = rank(file.meta.last.as_ref());
        let before = newest.as_ref().map(|newest| rank(newest.meta.last.as_ref()));
        let draft = file.draft.lock().take();
        let is_old =
            before.is_some_and(|before| before > mine || before == mine && draft.is_none());
        if is_old {
            return Ok(());
        }
        let mut draft = match draft {
            Some(draft) => draft,
            None => self.copied(file)?,
        };
        let name = name_of(file.meta.last.as_ref());
        let published = SnapshotFile { image: draft.image(), ..file.clone() };
        crash_point!(before SnapshotPublish);
        draft
            .publish(&name)
            .map_err(StorageError::io(&file.place, "giving a snapshot its name"))?;
        crash_point!(after SnapshotPublish);
        let old = newest.replace(published);
        let old = old.map(|old| name_of(old.meta.last.as_ref())).filter(|old| *old != name);
        let Some(old) = old else { return Ok(()) };
        crash_point!(before SnapshotRemove);
        self.shared.backend.remove(&old)?;
        crash_point!(after SnapshotRemove);
        Ok(())
    }

    /// A draft in this store with the bytes of a snapshot of another store.
    fn copied(&self, file: &SnapshotFile) -> Result<Box<dyn SnapshotDraft>, StorageError> {
        let mut draft = self.shared.backend.create()?;
        io::copy(&mut ImageReader::new(Arc::clone(&file.image)), &mut draft)
            .map_err(StorageError::io(&file.place, "copying a snapshot"))?;
        Ok(draft)
    }

    /// Begins to receive a snapshot that, by its sender, covers `meta`.
    pub fn receive(&self, meta: SnapshotMetaRecord) -> Result<SnapshotReceiver, StorageError> {
        let draft = self.shared.backend.create()?;
        Ok(SnapshotReceiver { store: self.clone(), meta, draft, bytes: 0 })
    }
}

fn unreadable(place: &Path, error: FormatError) -> StorageError {
    match error {
        FormatError::Io(error) => StorageError::io(place, "reading a snapshot")(error),
        FormatError::Version(found) => {
            StorageError::UnknownFormat { file: place.to_owned(), found, known: format::VERSION }
        }
        error => StorageError::damaged(place, error.to_string()),
    }
}

/// This version must not serve, or add to, a state of a higher feature level.
pub(super) fn check_level(file: &Path, machine: &Machine) -> Result<(), StorageError> {
    match machine.unsupported_level() {
        Some(found) => {
            Err(StorageError::UnknownLevel { file: file.to_owned(), found, known: FEATURE_LEVEL })
        }
        None => Ok(()),
    }
}

/// A handle to a snapshot's file. Cheap to clone.
#[derive(Clone)]
pub struct SnapshotFile {
    image: Arc<dyn SnapshotImage>,
    meta: SnapshotMetaRecord,
    place: PathBuf,
    /// Set until the file has its name.
    draft: Arc<Mutex<Option<Box<dyn SnapshotDraft>>>>,
    offload: Offload,
}

impl fmt::Debug for SnapshotFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.place.display(), self.length())
    }
}

impl SnapshotFile {
    /// The last entry and the membership that it covers.
    pub fn meta(&self) -> &SnapshotMetaRecord {
        &self.meta
    }

    /// Its size in bytes, header and trailer included.
    pub fn length(&self) -> u64 {
        self.image.length()
    }

    /// The file's bytes from the beginning, as they are sent to another node.
    pub async fn reader(&self) -> io::Result<Pin<Box<dyn AsyncRead + Send>>> {
        let (image, offload) = (Arc::clone(&self.image), self.offload);
        let chunks = stream::try_unfold(0, move |offset| {
            let image = Arc::clone(&image);
            async move {
                let chunk = offload.run(move || read_chunk(&*image, offset)).await??;
                let next = offset + chunk.len() as u64;
                Ok::<_, io::Error>((!chunk.is_empty()).then_some((chunk, next)))
            }
        });
        Ok(Box::pin(StreamReader::new(Box::pin(chunks))))
    }

    /// Decodes its state, and checks all of it. Blocks.
    pub fn decode(&self) -> Result<Machine, StorageError> {
        let input = ImageReader::new(Arc::clone(&self.image));
        let unreadable = |error| unreadable(&self.place, error);
        let (_, mut body) = format::open(input).map_err(unreadable)?;
        let error = match Machine::decode(&mut body) {
            Ok(machine) => {
                body.finish().map_err(unreadable)?;
                check_level(&self.place, &machine)?;
                return Ok(machine);
            }
            Err(error) => error,
        };
        // A bad checksum explains more than the decoder's error.
        self.verify()?;
        Err(match error {
            // Whole, and no reason to replace the node.
            DecodeError::Version { found, newest: known } => {
                StorageError::UnknownFormat { file: self.place.clone(), found, known }
            }
            error => StorageError::damaged(&self.place, error.to_string()),
        })
    }

    /// Checks all of it. Blocks.
    pub fn verify(&self) -> Result<(), StorageError> {
        format::open(ImageReader::new(Arc::clone(&self.image)))
            .and_then(|(_, body)| body.verify())
            .map_err(|error| unreadable(&self.place, error))
    }

    /// Its name in errors.
    pub fn place(&self) -> &Path {
        &self.place
    }
}

fn read_chunk(image: &dyn SnapshotImage, offset: u64) -> io::Result<Bytes> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let count = image.read_at(&mut chunk, offset)?;
    chunk.truncate(count);
    Ok(Bytes::from(chunk))
}

/// A buffered reader of an image from its beginning.
struct ImageReader {
    image: Arc<dyn SnapshotImage>,
    offset: u64,
    chunk: Vec<u8>,
    taken: usize,
}

impl ImageReader {
    fn new(image: Arc<dyn SnapshotImage>) -> ImageReader {
        ImageReader { image, offset: 0, chunk: Vec::new(), taken: 0 }
    }
}

impl Read for ImageReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.chunk.len() {
            self.chunk.resize(CHUNK_BYTES, 0);
            let count = self.image.read_at(&mut self.chunk, self.offset);
            self.chunk.truncate(*count.as_ref().unwrap_or(&0));
            self.taken = 0;
            self.offset += count? as u64;
        }
        let count = out.len().min(self.chunk.len() - self.taken);
        out[..count].copy_from_slice(&self.chunk[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

/// A snapshot being received.
pub struct SnapshotReceiver {
    store: SnapshotStore,
    meta: SnapshotMetaRecord,
    draft: Box<dyn SnapshotDraft>,
    bytes: u64,
}

impl SnapshotReceiver {
    /// Takes the next bytes of the file. Dropping the receiver, or an error, deletes
    /// what was received.
    pub async fn write(mut self, chunk: Bytes) -> Result<SnapshotReceiver, StorageError> {
        let place = self.place();
        self.bytes += chunk.len() as u64;
        if self.bytes > SNAPSHOT_BYTES_MAX {
            let what = format!("it is bigger than {SNAPSHOT_BYTES_MAX} bytes");
            return Err(StorageError::damaged(place, what));
        }
        let offload = self.store.offload();
        let write = move || {
            crash_point!(before SnapshotReceive);
            self.draft.write_all(&chunk)?;
            crash_point!(after SnapshotReceive);
            Ok(self)
        };
        offload.run(write).await?.map_err(StorageError::io(place, "receiving a snapshot"))
    }

    /// Checks every byte received. It is not the newest snapshot until the state
    /// machine has installed it.
    pub async fn finish(self) -> Result<SnapshotFile, StorageError> {
        let offload = self.store.offload();
        offload.run(move || self.check()).await?
    }

    fn place(&self) -> PathBuf {
        self.store.shared.backend.place(&name_of(self.meta.last.as_ref()))
    }

    fn check(self) -> Result<SnapshotFile, StorageError> {
        let place = self.place();
        let mut file = self.store.opened(self.draft.image(), place.clone())?;
        if file.meta != self.meta {
            return Err(StorageError::damaged(place, "it covers not what its sender says"));
        }
        file.verify()?;
        file.draft = Arc::new(Mutex::new(Some(self.draft)));
        Ok(file)
    }
}

/// Writes at most this many bytes a second.
struct Paced {
    inner: Box<dyn SnapshotDraft>,
    bytes_per_second: Option<u64>,
    start: Instant,
    bytes: u64,
}

impl Paced {
    fn new(inner: Box<dyn SnapshotDraft>, bytes_per_second: Option<u64>) -> Paced {
        Paced { inner, bytes_per_second, start: Instant::now(), bytes: 0 }
    }
}

/// Least time for this many bytes.
fn time_for(bytes: u64, rate: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl Write for Paced {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(data)?;
        self.bytes += count as u64;
        if let Some(rate) = self.bytes_per_second.filter(|rate| *rate > 0) {
            std::thread::sleep(time_for(self.bytes, rate).saturating_sub(self.start.elapsed()));
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_which_snapshot_is_newer() {
        let id = |term, node, index| Some(LogIdRecord { term, node, index });
        let names = [None, id(1, 3, 9), id(1, 3, 10), id(2, 1, 9), id(10, 1, 9)];
        let ranks: Vec<_> = names.iter().map(|id| rank_of(&name_of(id.as_ref()))).collect();
        assert!(ranks.iter().all(Option::is_some));
        assert!(ranks.is_sorted());
        for foreign in ["7.part", "1-2.snap", "1-2-x.snap", "1-2-3-4.snap", ".snap", "snap"] {
            assert_eq!(rank_of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn pacing_spreads_bytes_over_time() {
        assert_eq!(time_for(0, 5), Duration::ZERO);
        assert_eq!(time_for(10 << 20, 1 << 20), Duration::from_secs(10));
        assert_eq!(time_for(u64::MAX, 1), Duration::from_nanos(u64::MAX));
    }
}
