//! Snapshots as files of one folder: `<term>-<node>-<index>.snap`, and
//! `<number>.part` while they are written.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_api::crash_point;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::statvfs::statvfs;

use super::{SnapshotBackend, SnapshotDraft, SnapshotImage};
use crate::storage::error::StorageError;
use crate::storage::identity::sync_dir;

/// Bytes after which a draft is synced while it is written: a big one must not
/// fill the page cache and delay the log's syncs.
const SYNC_EVERY_BYTES: u64 = 4 << 20;
/// What a draft leaves of the disk, at most the share below: the log needs room
/// beside it, and a node whose log finds none stops.
const LEFT_BYTES: u64 = 64 << 20;
const LEFT_PARTS: u64 = 20;
const DRAFT_EXTENSION: &str = "part";

/// Snapshots in a folder of the file system.
pub(crate) struct Directory {
    dir: PathBuf,
    drafts: AtomicU64,
}

impl Directory {
    /// Uses a folder, created if missing; drafts that a crash left are deleted.
    pub(crate) fn open(dir: &Path) -> Result<Directory, StorageError> {
        fs::create_dir_all(dir).map_err(StorageError::io(dir, "making the folder"))?;
        let directory = Directory { dir: dir.to_owned(), drafts: AtomicU64::new(0) };
        for name in directory.names(DRAFT_EXTENSION)? {
            directory.remove(&name)?;
        }
        Ok(directory)
    }

    /// Whether there is a snapshot, damaged or not.
    pub(crate) fn has_any(&self) -> Result<bool, StorageError> {
        Ok(!self.names(super::EXTENSION)?.is_empty())
    }

    fn names(&self, extension: &str) -> Result<Vec<String>, StorageError> {
        let list = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(&self.dir)? {
                let path = entry?.path();
                if path.extension().is_some_and(|e| e == extension)
                    && let Some(name) = path.file_name().and_then(|name| name.to_str())
                {
                    names.push(name.to_owned());
                }
            }
            names.sort();
            Ok(names)
        };
        list().map_err(StorageError::io(&self.dir, "listing snapshots"))
    }
}

impl SnapshotBackend for Directory {
    fn create(&self) -> Result<Box<dyn SnapshotDraft>, StorageError> {
        let number = self.drafts.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("{number}.{DRAFT_EXTENSION}"));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(StorageError::io(&path, "beginning a snapshot"))?;
        Ok(Box::new(Draft { file: Arc::new(file), path, bytes: 0, synced: 0, published: false }))
    }

    fn list(&self) -> Result<Vec<String>, StorageError> {
        self.names(super::EXTENSION)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn SnapshotImage>, StorageError> {
        let path = self.place(name);
        let open = || -> io::Result<Image> {
            let file = File::open(&path)?;
            // Read from the disk, not from the page cache.
            let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
            let length = file.metadata()?.len();
            Ok(Image { file: Arc::new(file), length })
        };
        Ok(Arc::new(open().map_err(StorageError::io(&path, "opening it"))?))
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        let path = self.place(name);
        fs::remove_file(&path).map_err(StorageError::io(&path, "deleting it"))
    }

    fn set_aside(&self, name: &str) -> Result<(), StorageError> {
        let path = self.place(name);
        crash_point!(before SnapshotSetAside);
        fs::rename(&path, path.with_extension("damaged"))
            .and_then(|()| sync_dir(&self.dir))
            .map_err(StorageError::io(&path, "setting it aside"))?;
        crash_point!(after SnapshotSetAside);
        Ok(())
    }

    fn place(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

struct Draft {
    file: Arc<File>,
    path: PathBuf,
    bytes: u64,
    synced: u64,
    published: bool,
}

impl Write for Draft {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = (&*self.file).write(data)?;
        self.bytes += count as u64;
        if self.bytes - self.synced >= SYNC_EVERY_BYTES {
            self.file.sync_data()?;
            self.synced = self.bytes;
            leaves_room(&self.path)?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Fails like a full disk while some of it is still free.
fn leaves_room(path: &Path) -> io::Result<()> {
    let disk = statvfs(path)?;
    let left = LEFT_BYTES.min(disk.blocks() * disk.fragment_size() / LEFT_PARTS);
    if disk.blocks_available() * disk.fragment_size() >= left {
        return Ok(());
    }
    Err(io::ErrorKind::StorageFull.into())
}

impl SnapshotDraft for Draft {
    fn image(&self) -> Arc<dyn SnapshotImage> {
        Arc::new(Image { file: Arc::clone(&self.file), length: self.bytes })
    }

    fn publish(&mut self, name: &str) -> io::Result<()> {
        crash_point!(before SnapshotSync);
        self.file.sync_all()?;
        crash_point!(after SnapshotSync);
        let dir = self.path.parent().expect("a draft lies in the snapshot folder");
        fs::rename(&self.path, dir.join(name))?;
        self.published = true;
        crash_point!(before SnapshotName);
        sync_dir(dir)?;
        crash_point!(after SnapshotName);
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published
            && let Err(error) = fs::remove_file(&self.path)
        {
            // It is deleted at the next start.
            tracing::debug!(%error, path = %self.path.display(), "a draft was left behind");
        }
    }
}

/// An open file: it stays readable when its name is gone.
struct Image {
    file: Arc<File>,
    length: u64,
}

impl SnapshotImage for Image {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
}
