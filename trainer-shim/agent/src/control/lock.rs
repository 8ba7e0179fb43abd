//! One process at a time: a lock that the system gives back however its holder
//! ends.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use tokio::time::{Instant, sleep};

const TRY_INTERVAL: Duration = Duration::from_millis(20);
/// A process id with the end of its line, and more than that.
pub(super) const SIGNATURE_BYTES_MAX: u64 = 32;

/// A file that is locked, and taken away with the lock.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: Flock<File>,
    is_left: bool,
}

impl Lock {
    /// Takes the lock; `None` if another holds it until the deadline. A file of
    /// another owner is left as it is: [`io::ErrorKind::InvalidData`].
    pub async fn take(path: &Path, within: Duration) -> io::Result<Option<Lock>> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(lock) = Lock::try_take(path)? {
                return Ok(Some(lock));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            sleep(TRY_INTERVAL).await;
        }
    }

    /// Whether the holder before was killed: one that ends takes the file away.
    pub fn is_left(&self) -> bool {
        self.is_left
    }

    /// Writes the holder's process id into the file, for people.
    pub(super) fn heartbeat(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0)
    }

    fn try_take(path: &Path) -> io::Result<Option<Lock>> {
        let mut options = File::options();
        let options = options.create(true).truncate(false).read(true).write(true).mode(0o600);
        // A link may lead to any file of its user's.
        let file = options.custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
        if !is_signed_or_new(&file)? {
            let text = "this file exists already and is not an agent's lock";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, error)) => return Err(error.into()),
        };
        // The holder before may have removed the file: a lock on a removed file
        // excludes no process.
        let (found, own) = (fs::metadata(path), file.metadata()?);
        let same = found.is_ok_and(|found| own.ino() == found.ino());
        let is_left = own.len() > 0;
        Ok(same.then(|| Lock { path: path.to_owned(), file, is_left }))
    }
}

/// Whether only holders of the lock have written into the file.
fn is_signed_or_new(file: &File) -> io::Result<bool> {
    if !file.metadata()?.is_file() {
        return Ok(false);
    }
    let mut text = Vec::new();
    file.take(SIGNATURE_BYTES_MAX).read_to_end(&mut text)?;
    let number = std::str::from_utf8(&text).ok().and_then(|text| text.strip_suffix('\n'));
    Ok(text.is_empty() || number.is_some_and(|number| number.parse::<u32>().is_ok()))
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A file that stays can be locked like a new one.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lock_has_one_holder_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = Lock::take(&path, Duration::ZERO).await.unwrap().expect("it is free");
        assert!(Lock::take(&path, Duration::ZERO).await.unwrap().is_none());
        let waiting = Lock::take(&path, Duration::from_secs(60));
        let (second, ()) = tokio::join!(waiting, async {
            tokio::task::yield_now().await;
            drop(first);
        });
        assert!(path.exists() && Lock::take(&path, Duration::ZERO).await.unwrap().is_none());
        drop(second.unwrap().expect("it was given back"));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_file_that_somebody_left_is_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        for left in ["", "4711\n"] {
            fs::write(&path, left).unwrap();
            let lock = Lock::take(&path, Duration::ZERO).await.unwrap().expect("it is free");
            lock.heartbeat().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        }
    }

    #[tokio::test]
    async fn a_file_of_somebody_else_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        for words in ["my thesis", "17 lines\n", "1234567890123456789012345678901234567890\n"] {
            fs::write(&path, words).unwrap();
            let refused = Lock::take(&path, Duration::ZERO).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), words);
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        Lock::take(&link, Duration::ZERO).await.unwrap_err();
        assert!(link.is_symlink() && path.exists());
    }
}
