//! Path of a run's socket, and its access rules.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_api::Name;
use holdfast_client::read_regular_text;
use holdfast_trainer_shim::link::Users;

use super::lock::{Lock, SIGNATURE_BYTES_MAX};

/// Longest path of a socket on Linux, its end included.
const PATH_BYTES_MAX: usize = 108;
/// Time limit for the process that starts an agent to keep an ending agent from
/// removing its socket's file.
const CLEAR_TIME_MAX: Duration = Duration::from_secs(5);

/// Suffix that makes the name of an agent's log out of its socket's name.
const LOG_ENDING: &str = ".log";

/// Names another folder than the usual one.
const FOLDER_VARIABLE: &str = "HOLDFAST_RUNTIME_DIR";
/// Default folder, with the owner's number appended. Every process of a user
/// finds the same: `XDG_RUNTIME_DIR` and `TMPDIR` differ between a terminal, a
/// batch job and its steps, and each would get an agent of its own.
const FOLDER: &str = "/tmp/holdfast";

/// The files of one agent: its socket, and the locks and the log beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    socket: PathBuf,
    chosen_by: ChosenBy,
}

/// Setting that chose a place, and can choose another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChosenBy {
    /// The folder for all sockets of this user.
    Folder,
    /// A path on the command line.
    Flag,
}

impl fmt::Display for ChosenBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChosenBy::Folder => "name another folder with HOLDFAST_RUNTIME_DIR",
            ChosenBy::Flag => "name another path with --control",
        })
    }
}

/// Which file a path led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

/// Why there is no place for a socket.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The folder is not this user's alone.
    #[error(
        "{folder} must be a folder that you own and nobody else may list: close it to others \
         if it is yours (chmod 700 {folder}), or name another with HOLDFAST_RUNTIME_DIR"
    )]
    NotPrivate {
        /// Path of the folder.
        folder: PathBuf,
    },
    /// It cannot be used.
    #[error("{path}: {}; {chosen_by}", in_words(reason))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error that the system gave for the path.
        reason: io::Error,
        /// The setting that chose the path, and can choose another.
        chosen_by: ChosenBy,
    },
    /// Something else is there already. It belongs to another program, and stays.
    #[error("{path} is there already and is not a socket; {chosen_by}")]
    NotSocket {
        /// Path of the socket.
        path: PathBuf,
        /// The setting that chose the path, and can choose another.
        chosen_by: ChosenBy,
    },
    /// No socket can have so long a name.
    #[error("{path} is longer than a socket's path may be; {chosen_by}, which is shorter")]
    TooLong {
        /// Path of the socket.
        path: PathBuf,
        /// The setting that chose the path, and can choose another.
        chosen_by: ChosenBy,
    },
}

fn in_words(reason: &io::Error) -> String {
    match reason.kind() {
        io::ErrorKind::NotFound => "its folder does not exist; make it".to_owned(),
        _ => reason.to_string(),
    }
}

impl Place {
    /// The place of a run's agent on this host; the same for all processes that
    /// name the same run of the same store.
    pub fn of_run(folder: &Path, store: &[String], job: &Name, run: &Name) -> Place {
        let mut nodes: Vec<&str> = store.iter().map(String::as_str).collect();
        nodes.sort_unstable();
        let words = nodes.into_iter().chain([job.as_str(), run.as_str()]);
        Place::at(folder.join(format!("run-{:032x}.sock", digest(words))))
    }

    /// A place that no other process can name, for a run that has no name yet.
    pub fn of_nobody(folder: &Path) -> Place {
        let number: u64 = rand::random();
        Place::at(folder.join(format!("new-{number:016x}.sock")))
    }

    /// The place of an agent that serves by itself, at this first port.
    pub fn of_server(folder: &Path, store: &[String], job: &Name, port: SocketAddr) -> Place {
        let mut nodes: Vec<&str> = store.iter().map(String::as_str).collect();
        nodes.sort_unstable();
        let port = port.to_string();
        let words = nodes.into_iter().chain([job.as_str(), &port]);
        Place::at(folder.join(format!("serve-{:032x}.sock", digest(words))))
    }

    /// The place of a socket in the folder for them.
    pub fn at(socket: PathBuf) -> Place {
        Place { socket, chosen_by: ChosenBy::Folder }
    }

    /// The place of a socket that was named on the command line.
    pub fn named(socket: PathBuf) -> Place {
        Place { socket, chosen_by: ChosenBy::Flag }
    }

    /// Path of the control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Held by a process while it starts an agent.
    pub fn start_lock(&self) -> PathBuf {
        self.beside(".start")
    }

    /// Held by the agent for as long as it runs.
    pub fn participant_lock(&self) -> PathBuf {
        self.beside(".alive")
    }

    /// Path of the agent's log, if `run` started it.
    pub fn log(&self) -> PathBuf {
        self.beside(LOG_ENDING)
    }

    /// Path of the log before that, once it became too long.
    pub(super) fn older_log(&self) -> PathBuf {
        self.beside(".log.1")
    }

    /// Position up to which the log was shown; locked by the process that shows it.
    pub fn shown(&self) -> PathBuf {
        self.beside(".shown")
    }

    /// The place that a log belongs to; `None` if the file is no log.
    pub(super) fn of_log(log: &Path) -> Option<Place> {
        let socket = log.to_str()?.strip_suffix(LOG_ENDING)?;
        Some(Place::at(PathBuf::from(socket)))
    }

    /// A file whose name begins with all of the socket's: no other socket's is
    /// called so.
    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = OsString::from(&self.socket);
        name.push(ending);
        PathBuf::from(name)
    }

    /// The setting that chose it.
    pub fn chosen_by(&self) -> ChosenBy {
        self.chosen_by
    }

    /// Takes and marks the lock of the agent that runs here; `None` if another
    /// one still runs here after `within`.
    pub async fn live(&self, within: Duration) -> Result<Option<Lock>, PlaceError> {
        let path = self.participant_lock();
        let lock = match Lock::take(&path, within).await {
            Ok(Some(lock)) => lock.heartbeat().map(|()| Some(lock)),
            other => other,
        };
        lock.map_err(|reason| PlaceError::Io { path, reason, chosen_by: self.chosen_by })
    }

    /// The agent's process id, if it has come so far.
    pub fn process(&self) -> Option<u32> {
        read_regular_text(&self.participant_lock(), SIGNATURE_BYTES_MAX).ok()?.trim().parse().ok()
    }

    /// Makes the socket, replacing one without a listener. If others than this user are served they
    /// reach it, and the server asks each connection who it is.
    pub fn listen(&self, users: &Users) -> Result<UnixListener, PlaceError> {
        let Place { socket: path, chosen_by } = self;
        let chosen_by = *chosen_by;
        if path.as_os_str().len() >= PATH_BYTES_MAX {
            return Err(PlaceError::TooLong { path: path.clone(), chosen_by });
        }
        let error = |reason| PlaceError::Io { path: path.clone(), reason, chosen_by };
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => fs::remove_file(path).map_err(error)?,
            Ok(_) => return Err(PlaceError::NotSocket { path: path.clone(), chosen_by }),
            Err(reason) if reason.kind() == io::ErrorKind::NotFound => {}
            Err(reason) => return Err(error(reason)),
        }
        let listener = UnixListener::bind(path).map_err(error)?;
        let mode = if users.has_others() { 0o666 } else { 0o600 };
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(error)?;
        Ok(listener)
    }

    /// Which file the socket is, if it is there.
    pub fn file(&self) -> Option<FileId> {
        let found = fs::symlink_metadata(&self.socket).ok()?;
        Some(FileId { device: found.dev(), inode: found.ino() })
    }

    /// Takes the socket's file away if it is this one: another is that of the
    /// next agent.
    pub async fn clear(&self, own: Option<FileId>) {
        // A process that starts an agent replaces the file under this lock. A
        // file that stays is found to be stale.
        let Ok(Some(_lock)) = Lock::take(&self.start_lock(), CLEAR_TIME_MAX).await else { return };
        if own.is_some() && self.file() == own {
            let _ = fs::remove_file(&self.socket);
        }
    }
}

/// FNV-1a with 128 bits: the same in every version of the agent and on every
/// machine, which hashes of the standard library do not promise.
fn digest<'a>(words: impl Iterator<Item = &'a str>) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    /// In no name and no address.
    const END: u8 = 0;
    let bytes = words.flat_map(|word| word.bytes().chain([END]));
    bytes.fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

/// The folder for this user's sockets, made if it is not there. If others are served they may reach
/// what they know the name of.
pub fn folder(users: &Users) -> Result<PathBuf, PlaceError> {
    let uid = nix::unistd::getuid();
    let named = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
    let folder = named.map_or_else(|| PathBuf::from(format!("{FOLDER}-{uid}")), PathBuf::from);
    let folder = std::path::absolute(&folder).map_err(|reason| folder_error(&folder, reason))?;
    private(&folder, uid.as_raw(), users)?;
    Ok(folder)
}

/// Makes sure that no other user can write there or list it: in a folder for temporary files, any
/// user may have made one of this name.
fn private(folder: &Path, uid: u32, users: &Users) -> Result<(), PlaceError> {
    let error = |reason| folder_error(folder, reason);
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(reason) if reason.kind() != io::ErrorKind::AlreadyExists => return Err(error(reason)),
        _ => {}
    }
    let found = fs::symlink_metadata(folder).map_err(error)?;
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o066 != 0 {
        return Err(PlaceError::NotPrivate { folder: folder.to_owned() });
    }
    if users.has_others() {
        fs::set_permissions(folder, Permissions::from_mode(0o711)).map_err(error)?;
    }
    Ok(())
}

fn folder_error(folder: &Path, reason: io::Error) -> PlaceError {
    PlaceError::Io { path: folder.to_owned(), reason, chosen_by: ChosenBy::Folder }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> u32 {
        nix::unistd::getuid().as_raw()
    }

    #[test]
    fn the_folder_is_private_or_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("holdfast");
        private(&folder, own(), &Users::default()).unwrap();
        private(&folder, own(), &Users::default()).unwrap();
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
        assert!(
            private(&folder, own() + 1, &Users::default())
                .unwrap_err()
                .to_string()
                .contains("you own")
        );
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(
            private(&folder, own(), &Users::default()),
            Err(PlaceError::NotPrivate { .. })
        ));
        let link = root.path().join("link");
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(matches!(
            private(&link, own(), &Users::default()),
            Err(PlaceError::NotPrivate { .. })
        ));
    }

    #[test]
    fn others_who_are_served_reach_the_socket_and_list_nothing() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("holdfast");
        let others: Users = "1000".parse().unwrap();
        private(&folder, own(), &others).unwrap();
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o711);
        private(&folder, own(), &Users::default()).unwrap();
        let mode = |users: &Users| {
            let place = Place::of_nobody(&folder);
            let _listener = place.listen(users).unwrap();
            place.socket().metadata().unwrap().mode() & 0o777
        };
        assert_eq!((mode(&others), mode(&Users::default())), (0o666, 0o600));
    }

    #[test]
    fn a_run_has_one_place_whatever_the_order_of_its_nodes() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let store = |nodes: &[&str]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>();
        let place = |nodes: &[&str], job: &str, run: &str| {
            Place::of_run(Path::new("/x"), &store(nodes), &name(job), &name(run))
        };
        let one = place(&["a:1", "b:2"], "j", "r");
        assert_eq!(place(&["b:2", "a:1"], "j", "r"), one);
        for other in [
            place(&["a:1"], "j", "r"),
            place(&["a:1", "b:2"], "j", "r2"),
            place(&["a:1", "b:2"], "jr", "r"),
        ] {
            assert_ne!(other, one);
        }
    }

    #[test]
    fn the_place_of_a_run_is_the_same_in_every_version() {
        // The published values of FNV-1a.
        assert_eq!(digest([].into_iter()), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        let name = |text: &str| text.parse::<Name>().unwrap();
        let store = ["10.0.0.1:21001".to_owned()];
        let place = Place::of_run(Path::new("/x"), &store, &name("train"), &name("r1"));
        assert_eq!(place.socket(), Path::new("/x/run-e07ebbfd82c125f98a7bf3acfba455da.sock"));
    }

    #[tokio::test]
    async fn an_agent_that_ends_takes_only_its_own_socket_away() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::of_nobody(root.path());
        let _old = place.listen(&Users::default()).unwrap();
        let old = place.file();
        // Kept open, so that its inode is not given to the next.
        let _new = place.listen(&Users::default()).unwrap();
        assert_ne!(place.file(), old);
        place.clear(old).await;
        place.clear(None).await;
        assert!(place.socket().exists(), "the next agent's socket is left alone");
        let lock = Lock::take(&place.start_lock(), Duration::ZERO).await.unwrap().unwrap();
        let ((), ()) = tokio::join!(place.clear(place.file()), async {
            tokio::task::yield_now().await;
            assert!(place.socket().exists(), "not while an agent is started");
            drop(lock);
        });
        assert!(!place.socket().exists());
    }

    #[tokio::test]
    async fn what_is_no_socket_stays_where_it_is() {
        let root = tempfile::tempdir().unwrap();
        let [file, link, folder, nowhere] =
            ["file", "link", "folder", "nowhere/c.sock"].map(|name| root.path().join(name));
        fs::write(&file, "my thesis").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        fs::create_dir(&folder).unwrap();
        for path in [&file, &link, &folder] {
            let refused = Place::named(path.clone()).listen(&Users::default()).unwrap_err();
            assert!(matches!(refused, PlaceError::NotSocket { .. }), "{refused}");
            assert!(refused.to_string().contains("another path with --control"), "{refused}");
        }
        assert!(link.is_symlink() && folder.is_dir());
        assert_eq!(fs::read_to_string(&file).unwrap(), "my thesis");
        let refused = Place::named(nowhere).live(Duration::ZERO).await.unwrap_err().to_string();
        assert!(refused.contains("make it; name another path with --control"), "{refused}");
    }

    #[test]
    fn the_files_of_a_place_are_those_of_no_other() {
        let of = |name: &str| {
            let place = Place::named(Path::new("/x").join(name));
            let locks = [place.participant_lock(), place.start_lock(), place.shown()];
            [locks.to_vec(), vec![place.socket().to_owned(), place.log(), place.older_log()]]
                .concat()
        };
        let all: std::collections::BTreeSet<PathBuf> =
            ["c", "c.sock", "d.alive"].into_iter().flat_map(of).collect();
        assert_eq!(all.len(), 18, "{all:?}");
        assert!(all.contains(Path::new("/x/c.sock.alive")), "{all:?}");
        assert_eq!(Place::of_log(Path::new("/x/c.sock.log")), Some(Place::at("/x/c.sock".into())));
        assert_eq!(Place::of_log(Path::new("/x/c.sock.log.1")), None);
    }

    #[test]
    fn a_stale_socket_is_replaced_and_the_new_one_is_private() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::of_nobody(root.path());
        drop(place.listen(&Users::default()).unwrap());
        assert!(place.socket().exists(), "nobody takes a socket's file away");
        let _listener = place.listen(&Users::default()).unwrap();
        assert_eq!(place.socket().metadata().unwrap().mode() & 0o777, 0o600);
        let long = Place::at(root.path().join("x".repeat(PATH_BYTES_MAX)));
        assert!(
            long.listen(&Users::default())
                .unwrap_err()
                .to_string()
                .contains("HOLDFAST_RUNTIME_DIR")
        );
    }
}
