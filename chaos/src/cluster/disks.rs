//! A file system of its own for each node's folder, so that one disk can be full,
//! or stall, while the others are well: an image in the folder of the run, mounted
//! through a loop device.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, ensure};
use holdfast_api::NodeId;
use nix::fcntl::posix_fallocate;
use nix::sys::statvfs::statvfs;

use super::state::StateFile;
use super::{Cluster, FOLDER_PREFIX};
use crate::programs;

/// How big they are, of which little is used: a node sets 64 MiB aside for its log.
const IMAGE_BYTES: u64 = 192 << 20;
/// How big the one is that is only tried.
const PROBE_BYTES: u64 = 16 << 20;
/// The file that takes all free space.
const FILLER: &str = "filler";
/// It is taken in pieces of at most and at least so many bytes.
const PIECES: std::ops::RangeInclusive<i64> = 4_096..=16 << 20;
/// Between two tries to unmount what is still in use, and how many.
const BUSY_LOOK_EVERY: Duration = Duration::from_millis(50);
const BUSY_LOOKS_MAX: u32 = 100;
/// Most copies of an image that changes while it is copied.
const COPIES_MAX: u32 = 5;
/// Bytes of two images that are compared and counted at once.
const CHUNK_BYTES: usize = 1 << 20;
const BLOCK_BYTES: usize = 4_096;
/// Mounts of the system.
const MOUNTS: &str = "/proc/self/mounts";

/// See the module. Unmounted when dropped.
#[derive(Debug)]
pub(super) struct Disk {
    mount: PathBuf,
}

impl Disk {
    /// Makes one, to be mounted on this folder.
    pub(super) fn make(mount: PathBuf, state: &mut StateFile) -> anyhow::Result<Disk> {
        Disk::of_size(mount, IMAGE_BYTES, state)
    }

    fn of_size(mount: PathBuf, bytes: u64, state: &mut StateFile) -> anyhow::Result<Disk> {
        fs::create_dir_all(&mount).with_context(|| mount.display().to_string())?;
        let image = image(&mount);
        let file = File::create(&image).with_context(|| image.display().to_string())?;
        file.set_len(bytes).with_context(|| image.display().to_string())?;
        run("mkfs.ext4", &["-q", "-F"], &[&image])?;
        state.mounts(&mount)?;
        attach(&image, &mount)?;
        Ok(Disk { mount })
    }

    /// Simulates a loss of power: the image as it is now, without what the kernel has not
    /// written to it yet. The file system must be unused. Answers how many blocks were lost.
    pub(super) fn lose_unsynced(&self) -> anyhow::Result<u64> {
        let image = image(&self.mount);
        let lost = image.with_extension("lost");
        copy_at_rest(&image, &lost)?;
        unmount(&self.mount)?;
        let blocks = differing_blocks(&image, &lost)?;
        fs::rename(&lost, &image).with_context(|| lost.display().to_string())?;
        attach(&image, &self.mount)?;
        Ok(blocks)
    }

    /// A folder on it.
    pub(super) fn folder(&self) -> PathBuf {
        self.mount.join("data")
    }

    /// Makes all writers wait from now on.
    pub(super) fn freeze(&self) -> anyhow::Result<()> {
        // Otherwise it would freeze the file system of the folder, and all that is on it.
        ensure!(device(&self.mount).is_some(), "{} is not mounted", self.mount.display());
        run("fsfreeze", &["-f"], &[&self.mount])
    }

    /// Lets waiting writes through.
    pub(super) fn thaw(&self) -> anyhow::Result<()> {
        thaw(&self.mount)
    }

    /// Takes all that is left; answers how many bytes are free then.
    pub(super) fn fill(&self) -> anyhow::Result<u64> {
        let path = self.mount.join(FILLER);
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let (mut taken, mut piece) = (0, *PIECES.end());
        while piece >= *PIECES.start() {
            match posix_fallocate(&file, taken, piece) {
                Ok(()) => taken += piece,
                Err(_) => piece /= 2,
            }
        }
        let left = statvfs(&self.mount).with_context(|| self.mount.display().to_string())?;
        Ok(left.blocks_available() * left.fragment_size())
    }

    /// Gives back what [`Disk::fill`] took.
    pub(super) fn clear(&self) -> anyhow::Result<()> {
        match fs::remove_file(self.mount.join(FILLER)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| self.mount.display().to_string())
            }
            _ => Ok(()),
        }
    }

    /// The kernel meets an error of it: from now on it can only be read.
    pub(super) fn fail(&self) -> anyhow::Result<()> {
        let device = device(&self.mount).context("it is not mounted")?;
        let trigger = PathBuf::from(format!("/sys/fs/ext4/{device}/trigger_fs_error"));
        fs::write(&trigger, "1").with_context(|| trigger.display().to_string())?;
        ensure!(is_read_only(&self.mount), "{} can still be written", self.mount.display());
        Ok(())
    }

    /// Whether it can only be read.
    pub(super) fn has_failed(&self) -> bool {
        is_read_only(&self.mount)
    }

    /// Checks it, and mounts it again. It must be unused.
    pub(super) fn repair(&self) -> anyhow::Result<()> {
        let image = image(&self.mount);
        unmount(&self.mount)?;
        // In a file of its own, since the kernel caches the other one.
        let checked = image.with_extension("checked");
        copy_at_rest(&image, &checked)?;
        let mut command = Command::new("e2fsck");
        let ended = programs::run(command.arg("-fy").arg(&checked), "", programs::TIME_MAX)?;
        // 1 says that errors were found and mended.
        let is_well = ended.status.code().is_some_and(|code| code <= 1);
        ensure!(is_well, "e2fsck: {}", ended.stdout.trim());
        fs::rename(&checked, &image).with_context(|| checked.display().to_string())?;
        attach(&image, &self.mount)
    }

    /// Deletes it with all that is on it. It must be unused.
    pub(super) fn delete(self) -> anyhow::Result<()> {
        unmount(&self.mount)?;
        let image = image(&self.mount);
        fs::remove_file(&image).with_context(|| image.display().to_string())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.mount) {
            eprintln!("{error:#}; `holdfast-chaos heal` tries again");
        }
    }
}

impl Cluster {
    pub(super) fn disk(&self, id: NodeId) -> anyhow::Result<&Disk> {
        let node = self.nodes.get(&id).with_context(|| format!("there is no node {id}"))?;
        node.disk.as_ref().with_context(|| format!("node {id} has no file system of its own"))
    }

    /// Fills the disk of a node, which may end of that; answers how much is left.
    pub fn fill_disk(&mut self, id: NodeId) -> anyhow::Result<u64> {
        self.node_mut(id)?.slot.may_end();
        self.disk(id)?.fill()
    }

    /// Frees the space again; a node that ended is restarted.
    pub fn clear_disk(&mut self, id: NodeId) -> anyhow::Result<()> {
        self.disk(id)?.clear()?;
        self.restart_if_ended(id)
    }

    /// Takes from the disk of a node, which has ended, what was not synced; answers how
    /// many blocks were lost.
    pub fn lose_unsynced(&self, id: NodeId) -> anyhow::Result<u64> {
        self.disk(id)?.lose_unsynced()
    }

    /// Makes the disk of a node fail, which may end of that.
    pub fn fail_disk(&mut self, id: NodeId) -> anyhow::Result<()> {
        self.node_mut(id)?.slot.may_end();
        self.disk(id)?.fail()
    }

    /// Checks the disk of a node, and starts it.
    pub async fn repair_disk(&mut self, id: NodeId) -> anyhow::Result<()> {
        self.check_disk(id).await?;
        self.launch(id)
    }

    /// Ends a node, and checks its disk.
    pub(super) async fn check_disk(&mut self, id: NodeId) -> anyhow::Result<()> {
        match self.end_of(id) {
            Some(end) => self.note_end(id, end),
            None if !self.node_mut(id)?.slot.is_empty() => drop(self.kill(id).await?),
            None => {}
        }
        self.disk(id)?.repair()
    }

    /// How a node ended, if it has.
    pub fn end_of(&mut self, id: NodeId) -> Option<ExitStatus> {
        self.nodes.get_mut(&id)?.slot.fallen()
    }

    /// Lets everything wait that uses the disk of a node.
    pub fn freeze_disk(&self, id: NodeId) -> anyhow::Result<()> {
        self.disk(id)?.freeze()
    }

    /// Ends the stall of a node's disk.
    pub fn thaw_disk(&self, id: NodeId) -> anyhow::Result<()> {
        self.disk(id)?.thaw()
    }
}

/// Mounts an image. Unsynced data reaches it late: that is lost with the power.
fn attach(image: &Path, mount: &Path) -> anyhow::Result<()> {
    run("mount", &["-o", "loop,commit=300,errors=remount-ro"], &[image, mount])
}

/// Copies an image that is mounted, whose users have all ended. The kernel may write
/// to it in between: then it is copied again.
fn copy_at_rest(image: &Path, to: &Path) -> anyhow::Result<()> {
    let changed = || fs::metadata(image).and_then(|it| it.modified());
    for _ in 0..COPIES_MAX {
        let before = changed()?;
        fs::copy(image, to).with_context(|| to.display().to_string())?;
        if changed()? == before {
            return Ok(());
        }
    }
    anyhow::bail!("{} changed during each of {COPIES_MAX} copies", image.display())
}

/// In how many blocks two images of one size differ.
fn differing_blocks(one: &Path, other: &Path) -> anyhow::Result<u64> {
    let open = |path: &Path| File::open(path).with_context(|| path.display().to_string());
    let (one, other) = (open(one)?, open(other)?);
    let (mut a, mut b) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let (mut at, mut count) = (0, 0);
    loop {
        let read = one.read_at(&mut a, at)?;
        if read == 0 {
            return Ok(count);
        }
        other.read_exact_at(&mut b[..read], at)?;
        let blocks = a[..read].chunks(BLOCK_BYTES).zip(b[..read].chunks(BLOCK_BYTES));
        count += blocks.filter(|(a, b)| a != b).count() as u64;
        at += read as u64;
    }
}

fn image(mount: &Path) -> PathBuf {
    mount.with_extension("image")
}

/// Whether a file system is mounted there.
pub(super) fn is_mounted(mount: &Path) -> bool {
    let mounts = fs::read_to_string(MOUNTS).unwrap_or_default();
    // The kernel names it without links, and blanks in it by their numbers.
    let named = mount.canonicalize().unwrap_or_else(|_| mount.to_owned());
    let mut places = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(unescaped);
    places.any(|place| Path::new(&place) == named)
}

/// Device and options of what is mounted there, as the kernel reports them.
fn mounted(mount: &Path) -> Option<(String, String)> {
    let mounts = fs::read_to_string(MOUNTS).ok()?;
    let named = mount.canonicalize().ok()?;
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let is_it = Path::new(&unescaped(fields.get(1)?)) == named;
        is_it.then(|| (fields[0].to_owned(), fields.get(3).copied().unwrap_or("").to_owned()))
    })
}

/// The name of the device that is mounted there.
fn device(mount: &Path) -> Option<String> {
    Some(mounted(mount)?.0.rsplit('/').next()?.to_owned())
}

/// Whether the file system mounted there is read-only.
fn is_read_only(mount: &Path) -> bool {
    let options = mounted(mount).map(|it| it.1).unwrap_or_default();
    options.split(',').any(|option| option == "ro" || option == "emergency_ro")
}

/// A field of the kernel's table of mounts.
fn unescaped(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(field.to_owned(), |text, (number, character)| text.replace(number, character))
}

/// Lets a file system go on that may be frozen.
pub(super) fn thaw(mount: &Path) -> anyhow::Result<()> {
    match run("fsfreeze", &["-u"], &[mount]) {
        // It was not frozen.
        Err(error) if error.to_string().contains("Invalid argument") => Ok(()),
        thawed => thawed,
    }
}

/// Unmounts what is mounted there; answers whether anything was.
pub(super) fn unmount(mount: &Path) -> anyhow::Result<bool> {
    let is_there = is_mounted(mount);
    let mut looks_left = BUSY_LOOKS_MAX;
    while is_mounted(mount) {
        thaw(mount)?;
        match run("umount", &[], &[mount]) {
            // Threads of a process that was killed may still be ending.
            Err(error) if looks_left > 0 && error.to_string().contains("busy") => {
                looks_left -= 1;
                std::thread::sleep(BUSY_LOOK_EVERY);
            }
            unmounted => unmounted?,
        }
    }
    Ok(is_there)
}

/// Why this machine has no such file systems; none if it has.
pub fn forbidden() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("mounting file systems takes root: run it with sudo".to_owned());
    }
    let tried = || {
        let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir()?;
        // Recorded, so that `heal` finds it if this process is killed.
        let mut state = StateFile::create(Some(folder.path()))?;
        let disk = Disk::of_size(folder.path().join("disk-0"), PROBE_BYTES, &mut state)?;
        disk.freeze()?;
        disk.thaw()?;
        disk.delete()
    };
    tried().err().map(|error| format!("this machine mounts no file system of a run: {error:#}"))
}

fn run(program: &str, arguments: &[&str], paths: &[&Path]) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    // Their output is parsed.
    command.args(arguments).args(paths).env("LC_ALL", "C");
    programs::output(&mut command).map(drop)
}
