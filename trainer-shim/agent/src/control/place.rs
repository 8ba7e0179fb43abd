//! Where the socket of a run is, and who may use it.

use std::fs::{self, DirBuilder, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use holdfast_api::Name;

/// Longest path of a socket on Linux, its end included.
const PATH_BYTES_MAX: usize = 108;

/// The files of one agent: its socket, and the locks beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    socket: PathBuf,
}

/// Why there is no place for a socket.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The folder is not this user's alone.
    #[error(
        "{folder} must be a folder that you own and nobody else may enter: remove it \
         (rm -r {folder}), or name another with XDG_RUNTIME_DIR"
    )]
    NotPrivate {
        /// The folder.
        folder: PathBuf,
    },
    /// It cannot be used.
    #[error("{path}: {reason}; name another folder with XDG_RUNTIME_DIR")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's.
        reason: io::Error,
    },
    /// No socket can have so long a name.
    #[error(
        "{path} is longer than a socket's path may be; \
         name a shorter folder with XDG_RUNTIME_DIR"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
    },
}

impl Place {
    /// The place of a run's agent on this host; the same for all who name the
    /// same run of the same store.
    pub fn of_run(folder: &Path, store: &[String], job: &Name, run: &Name) -> Place {
        let mut nodes: Vec<&String> = store.iter().collect();
        nodes.sort();
        let mut hasher = DefaultHasher::new();
        (nodes, job.as_str(), run.as_str()).hash(&mut hasher);
        Place { socket: folder.join(format!("run-{:016x}.sock", hasher.finish())) }
    }

    /// A place that nobody else can name, for a run that has no name yet.
    pub fn of_nobody(folder: &Path) -> Place {
        let number: u64 = rand::random();
        Place { socket: folder.join(format!("new-{number:016x}.sock")) }
    }

    /// That of a socket.
    pub fn at(socket: PathBuf) -> Place {
        Place { socket }
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Locked by whoever starts an agent.
    pub fn start_lock(&self) -> PathBuf {
        self.socket.with_extension("start")
    }

    /// Locked by the agent for as long as it lives.
    pub fn life_lock(&self) -> PathBuf {
        self.socket.with_extension("alive")
    }

    /// The agent's process id, if it has come so far.
    pub fn process(&self) -> Option<u32> {
        fs::read_to_string(self.life_lock()).ok()?.trim().parse().ok()
    }

    /// Makes the socket, in the place of one that nobody listens to any more.
    pub fn listen(&self) -> Result<UnixListener, PlaceError> {
        let path = &self.socket;
        if path.as_os_str().len() >= PATH_BYTES_MAX {
            return Err(PlaceError::TooLong { path: path.clone() });
        }
        let error = |reason| PlaceError::Io { path: path.clone(), reason };
        match fs::remove_file(path) {
            Err(reason) if reason.kind() != io::ErrorKind::NotFound => return Err(error(reason)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(error)?;
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(error)?;
        Ok(listener)
    }

    /// Takes the socket's file away.
    pub fn clear(&self) {
        // One that stays is found to be stale.
        let _ = fs::remove_file(&self.socket);
    }
}

/// The folder for this user's sockets, made if it is not there.
pub fn folder() -> Result<PathBuf, PlaceError> {
    let uid = nix::unistd::getuid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // A launcher may have brought the variable from another host.
    let runtime = runtime.filter(|folder| folder.is_absolute() && folder.is_dir());
    let folder = match runtime {
        Some(runtime) => runtime.join("holdfast"),
        None => std::env::temp_dir().join(format!("holdfast-{uid}")),
    };
    private(&folder, uid.as_raw())?;
    Ok(folder)
}

/// Makes sure that nobody else can enter the folder: in a folder for temporary
/// files anybody may have made one of this name.
fn private(folder: &Path, uid: u32) -> Result<(), PlaceError> {
    let error = |reason| PlaceError::Io { path: folder.to_owned(), reason };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(reason) if reason.kind() != io::ErrorKind::AlreadyExists => return Err(error(reason)),
        _ => {}
    }
    let found = fs::symlink_metadata(folder).map_err(error)?;
    if found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0 {
        Ok(())
    } else {
        Err(PlaceError::NotPrivate { folder: folder.to_owned() })
    }
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
        private(&folder, own()).unwrap();
        private(&folder, own()).unwrap();
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
        assert!(private(&folder, own() + 1).unwrap_err().to_string().contains("you own"));
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(private(&folder, own()), Err(PlaceError::NotPrivate { .. })));
        let link = root.path().join("link");
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(matches!(private(&link, own()), Err(PlaceError::NotPrivate { .. })));
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
        for other in [place(&["a:1"], "j", "r"), place(&["a:1", "b:2"], "j", "r2")] {
            assert_ne!(other, one);
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_the_new_one_is_private() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::of_nobody(root.path());
        drop(place.listen().unwrap());
        assert!(place.socket().exists(), "nobody takes a socket's file away");
        let _listener = place.listen().unwrap();
        assert_eq!(place.socket().metadata().unwrap().mode() & 0o777, 0o600);
        let long = Place::at(root.path().join("x".repeat(PATH_BYTES_MAX)));
        assert!(long.listen().unwrap_err().to_string().contains("XDG_RUNTIME_DIR"));
        place.clear();
        assert!(!place.socket().exists());
    }
}
