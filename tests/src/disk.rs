//! Disks that stall: no error, no end, no answer. Copies of folders.

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

    /// Where the disk is mounted.
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

/// Copies a folder with all that is in it.
///
/// # Panics
///
/// If something of it cannot be read or written.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a temporary folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            fs::copy(&path, &target).expect("a file of a stopped node");
        }
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
