//! Disks that stall: no error, no end, no answer.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How big the file systems are: RocksDB sets 64 MiB aside for its log.
const IMAGE_BYTES: u64 = 192 << 20;

/// A file system of its own that can be made to stall. Unmounted in the end.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    /// At this folder; none where this user may not mount.
    ///
    /// # Panics
    ///
    /// If the folder or the image cannot be made.
    pub fn new(at: PathBuf) -> Option<Disk> {
        fs::create_dir_all(&at).expect("a temporary folder");
        let image = at.with_extension("image");
        let file = File::create(&image).expect("a file for the image");
        file.set_len(IMAGE_BYTES).expect("a sparse file");
        let image = image.to_str().expect("a path that is text");
        let mounted = run(&["mkfs.ext4", "-q", "-F", image], None)
            && run(&["mount", "-o", "loop", image], Some(&at));
        mounted.then(|| Disk(at))
    }

    /// Its mount point.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes all writers wait from now on.
    ///
    /// # Panics
    ///
    /// If it is unmounted.
    pub fn stall(&self) {
        assert!(run(&["fsfreeze", "-f"], Some(&self.0)), "what is mounted can be frozen");
    }

    /// Lets waiting writes through.
    ///
    /// # Panics
    ///
    /// If it did not stall.
    pub fn go_on(&self) {
        assert!(run(&["fsfreeze", "-u"], Some(&self.0)), "what is frozen can thaw");
    }
}

fn run(program: &[&str], at: Option<&Path>) -> bool {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).args(at);
    command.output().is_ok_and(|output| output.status.success())
}

impl Drop for Disk {
    fn drop(&mut self) {
        run(&["fsfreeze", "-u"], Some(&self.0));
        run(&["umount", "-l"], Some(&self.0));
    }
}
