//! The log of an agent that `run` started: a file beside its socket. It is of
//! bounded size, and stays when the agent has ended.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::fcntl::OFlag;
use nix::unistd::dup2_stderr;

use super::lock::Lock;
use super::place::Place;

/// A log that would become longer is replaced by a new one, and kept beside it.
const LOG_BYTES_MAX: u64 = 2 * 1024 * 1024;
/// Logs that are kept of agents that have ended: the newest.
const LOGS_KEPT: usize = 16;

/// Opens a log for appending.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).append(true).mode(0o600);
    // A link may lead to any file of its user's, and a pipe may have no reader.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = options.custom_flags(flags.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it exists and is not a file"));
    }
    // An older log is now among the newest.
    let _ = file.set_modified(SystemTime::now());
    Ok(file)
}

/// Takes away the oldest logs of agents that have ended, but for those beside the
/// one that is about to start.
pub async fn sweep(own: &Place) {
    let folder = own.socket().parent().unwrap_or(Path::new("."));
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut logs: Vec<(SystemTime, Place)> = entries
        .flatten()
        .filter_map(|entry| {
            Some((entry.metadata().ok()?.modified().ok()?, Place::of_log(&entry.path())?))
        })
        .collect();
    logs.sort_unstable_by_key(|(modified, _)| std::cmp::Reverse(*modified));
    let oldest = logs.into_iter().map(|(_, place)| place).skip(LOGS_KEPT);
    for place in oldest.filter(|place| place.socket() != own.socket()) {
        // An agent that is about to start has no other lock yet.
        let Ok(Some(_starting)) = Lock::take(&place.start_lock(), Duration::ZERO).await else {
            continue;
        };
        // A running agent may have logged nothing for long.
        if let Ok(Some(_ended)) = Lock::take(&place.participant_lock(), Duration::ZERO).await {
            for file in [place.log(), place.older_log(), place.shown()] {
                let _ = fs::remove_file(file);
            }
        }
    }
}

/// The log of this process, which is its standard error: what ends it abruptly is
/// written there, too.
#[derive(Debug)]
pub struct OwnLog {
    place: Place,
    file: File,
    bytes: u64,
}

impl OwnLog {
    /// The log of this place's agent, which this process is.
    pub fn of(place: Place) -> io::Result<OwnLog> {
        let file = open(&place.log())?;
        let mut log = OwnLog { place, bytes: file.metadata()?.len(), file };
        log.divert()?;
        Ok(log)
    }

    fn divert(&mut self) -> io::Result<()> {
        Ok(dup2_stderr(&self.file)?)
    }

    /// Begins a new file, and keeps the one that is full.
    fn rotate(&mut self) -> io::Result<()> {
        match fs::rename(self.place.log(), self.place.older_log()) {
            // A cleaner of temporary files may have removed it.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.file = open(&self.place.log())?;
        self.bytes = 0;
        self.divert()
    }
}

impl Write for OwnLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if self.bytes.saturating_add(count) > LOG_BYTES_MAX {
            self.rotate()?;
        }
        let written = self.file.write(bytes)?;
        self.bytes += u64::try_from(written).unwrap_or(0);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log of a place's agent, for its keeper: the file that is there now.
#[derive(Debug)]
pub struct KeeperLog {
    path: PathBuf,
    file: File,
}

impl KeeperLog {
    /// The log of this place's agent, which another process writes, too.
    pub fn of(place: &Place) -> io::Result<KeeperLog> {
        Ok(KeeperLog { path: place.log(), file: open(&place.log())? })
    }

    /// Goes on in a new file once the agent has begun one, and returns whether it has.
    fn follow(&mut self) -> io::Result<bool> {
        let (own, there) = (self.file.metadata()?, fs::symlink_metadata(&self.path));
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())) {
            return Ok(false);
        }
        self.file = open(&self.path)?;
        Ok(true)
    }
}

impl Write for KeeperLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Without its folder there is no other file than this one.
        if self.follow().unwrap_or(false) {
            // What the next agent says before it writes its log, as when it cannot be loaded.
            dup2_stderr(&self.file)?;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_logs_of_agents_that_have_ended_are_taken_away() {
        let root = tempfile::tempdir().unwrap();
        let places: Vec<Place> = (0..LOGS_KEPT + 3)
            .map(|n| Place::at(root.path().join(format!("run-{n}.sock"))))
            .collect();
        for (place, age) in places.iter().zip(1..) {
            let file = open(&place.log()).unwrap();
            fs::write(place.older_log(), "before").unwrap();
            fs::write(place.shown(), "1 2\n").unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(60 * age)).unwrap();
        }
        let oldest = places.last().unwrap();
        let own = places[LOGS_KEPT + 1].clone();
        let participants = oldest.live(Duration::ZERO).await.unwrap().unwrap();
        sweep(&own).await;
        let left = |place: &Place| {
            [place.log(), place.older_log(), place.shown()].map(|path| path.exists())
        };
        for place in &places[..LOGS_KEPT] {
            assert_eq!(left(place), [true; 3], "{place:?} is one of the newest");
        }
        let old = &places[LOGS_KEPT];
        assert_eq!(left(old), [false; 3], "{old:?} is one of the oldest");
        assert!(!old.participant_lock().exists());
        assert_eq!(left(&own), [true; 3], "it is about to start");
        assert_eq!(left(oldest), [true; 3], "its agent lives");
        drop(participants);
        sweep(&own).await;
        assert_eq!(left(oldest), [false; 3]);
    }

    #[test]
    fn a_keeper_goes_on_in_the_log_that_its_agent_has_begun() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::at(root.path().join("run.sock"));
        let mut log = KeeperLog { path: place.log(), file: open(&place.log()).unwrap() };
        log.file.write_all(b"first\n").unwrap();
        fs::rename(place.log(), place.older_log()).unwrap();
        let mut own = open(&place.log()).unwrap();
        own.write_all(b"the agent's\n").unwrap();
        assert!(log.follow().unwrap() && !log.follow().unwrap());
        log.file.write_all(b"the keeper's\n").unwrap();
        assert_eq!(fs::read_to_string(place.older_log()).unwrap(), "first\n");
        assert_eq!(fs::read_to_string(place.log()).unwrap(), "the agent's\nthe keeper's\n");
    }

    #[test]
    fn what_is_no_file_is_no_log() {
        let root = tempfile::tempdir().unwrap();
        let [pipe, link, other] = ["pipe", "link", "other"].map(|name| root.path().join(name));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        open(&pipe).unwrap_err();
        open(&link).unwrap_err();
        assert!(!other.exists());
    }
}
