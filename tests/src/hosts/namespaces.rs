//! Namespaces that are held open, and entered by threads.

use std::fs::File;
use std::io;
use std::panic::resume_unwind;
use std::path::Path;

use nix::sched::{CloneFlags, setns, unshare};

/// Namespaces of a process: they stay as long as this does.
#[derive(Debug)]
pub struct Namespaces {
    /// In the order in which they are entered.
    files: Vec<(File, CloneFlags)>,
}

/// Linux's names, in the order in which a thread can enter them: with the mounts its view
/// of `/proc` changes.
const KINDS: [(&str, CloneFlags); 4] = [
    ("net", CloneFlags::CLONE_NEWNET),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("pid_for_children", CloneFlags::CLONE_NEWPID),
    ("mnt", CloneFlags::CLONE_NEWNS),
];

impl Namespaces {
    /// All namespaces of a process, or of its future children.
    pub fn of(pid: u32) -> io::Result<Namespaces> {
        Namespaces::open(&Path::new("/proc").join(pid.to_string()), &KINDS)
    }

    /// The network of this thread.
    pub fn network_of_this_thread() -> io::Result<Namespaces> {
        Namespaces::open(Path::new("/proc/thread-self"), &KINDS[..1])
    }

    fn open(process: &Path, kinds: &[(&str, CloneFlags)]) -> io::Result<Namespaces> {
        let open = |(name, kind): &(&str, CloneFlags)| {
            Ok((File::open(process.join("ns").join(name))?, *kind))
        };
        Ok(Namespaces { files: kinds.iter().map(open).collect::<io::Result<_>>()? })
    }

    /// Moves this thread into them, for good.
    ///
    /// # Panics
    ///
    /// If it may not.
    pub fn enter(&self) {
        // A thread that shares its working directory with others cannot have
        // other mounts than they.
        unshare(CloneFlags::CLONE_FS).expect("a thread can have a working directory of its own");
        for (file, kind) in &self.files {
            if let Err(error) = setns(file, *kind) {
                panic!("cannot enter a namespace ({kind:?}): {error}");
            }
        }
    }

    /// Runs a closure on a thread that has entered them: processes that it starts are in them.
    pub fn inside<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        let runtime = tokio::runtime::Handle::try_current().ok();
        let ran = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                let _runtime = runtime.as_ref().map(tokio::runtime::Handle::enter);
                run()
            });
            thread.join()
        });
        ran.unwrap_or_else(|panic| resume_unwind(panic))
    }
}
