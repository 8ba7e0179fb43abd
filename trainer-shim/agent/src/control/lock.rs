//! One process at a time: a lock that the system gives back however its holder
//! ends.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tokio::time::{Instant, sleep};

/// Pause between two tries.
const TRY_INTERVAL: Duration = Duration::from_millis(20);

/// A file that is locked, and taken away with the lock.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: Flock<File>,
}

impl Lock {
    /// Takes the lock; none if another holds it until the deadline.
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

    /// Writes the holder's process id into the file, for people.
    pub fn sign(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        (&*self.file).write_all(format!("{}\n", std::process::id()).as_bytes())
    }

    fn try_take(path: &Path) -> io::Result<Option<Lock>> {
        let mut options = File::options();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(path)?;
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, error)) => return Err(error.into()),
        };
        // The holder before may have taken the file away meanwhile: a lock on
        // a file that nobody finds keeps nobody out.
        let same = fs::metadata(path)
            .is_ok_and(|found| file.metadata().is_ok_and(|own| own.ino() == found.ino()));
        Ok(same.then(|| Lock { path: path.to_owned(), file }))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // One that stays can be locked like a new one.
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
        File::create(&path).unwrap();
        assert!(Lock::take(&path, Duration::ZERO).await.unwrap().is_some());
    }
}
