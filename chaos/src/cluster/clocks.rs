//! Clocks of one node that jump and drift while it runs, by a library that stands in for those
//! functions of libc that read a clock.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use holdfast_api::NodeId;
use rustix::time::{ClockId, clock_gettime};

use super::{Cluster, Start};
use crate::programs;

/// The library, as it is compiled for a run.
const SOURCE: &str = include_str!("clocks.c");
/// Where that looks for what clocks say.
const VARIABLE: &str = "CHAOS_CLOCKS";
/// Parts of a million.
const MILLION: i128 = 1_000_000;
/// Where in the file the library counts what it answered.
const READS_AT: u64 = 5 * 8;

/// How the clocks of a node go wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wrong {
    /// Added to its wall clock, in nanoseconds.
    pub wall: i64,
    /// How much faster its monotonic clock runs, in parts of a million.
    pub rate: i64,
}

/// The clocks of a node, as a file says.
#[derive(Debug)]
pub struct Clocks {
    file: File,
    sequence: u64,
    /// What lies between the monotonic clock of the node and that of the machine, at `since`.
    offset: i64,
    since: i64,
    rate: i64,
}

impl Clocks {
    /// Those of the machine, as yet.
    fn make(path: &Path) -> anyhow::Result<Clocks> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.with_context(|| path.display().to_string())?;
        let mut clocks = Clocks { file, sequence: 0, offset: 0, since: 0, rate: 0 };
        clocks.file.write_all_at(&[0], READS_AT + 7)?;
        clocks.set(Wrong::default())?;
        Ok(clocks)
    }

    /// From here on they go wrong in this way.
    pub fn set(&mut self, wrong: Wrong) -> anyhow::Result<()> {
        let now = clock_gettime(ClockId::Monotonic);
        let now = now.tv_sec * 1_000_000_000 + now.tv_nsec;
        self.offset += drifted(now - self.since, self.rate);
        (self.since, self.rate) = (now, wrong.rate);
        let values = [wrong.wall, self.offset, self.since, self.rate];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.file.write_all_at(&(self.sequence + 1).to_ne_bytes(), 0)?;
        self.file.write_all_at(&bytes, 8)?;
        self.sequence += 2;
        self.file.write_all_at(&self.sequence.to_ne_bytes(), 0)?;
        Ok(())
    }

    /// How often the node has read a clock that was wrong.
    pub fn reads(&self) -> anyhow::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, READS_AT)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

/// By how much a clock is ahead that ran wrong for so many nanoseconds.
fn drifted(elapsed: i64, rate: i64) -> i64 {
    i64::try_from(i128::from(elapsed) * i128::from(rate) / MILLION).unwrap_or(0)
}

/// Why no process can have such clocks; none if it can.
pub fn forbidden() -> Option<String> {
    let tried = programs::output(Command::new("cc").arg("--version"));
    tried.err().map(|error| format!("the library with the clocks cannot be compiled: {error:#}"))
}

/// Compiles the library; answers where it lies.
fn compile(folder: &Path) -> anyhow::Result<PathBuf> {
    let (source, library) = (folder.join("clocks.c"), folder.join("clocks.so"));
    if !library.exists() {
        fs::write(&source, SOURCE).with_context(|| source.display().to_string())?;
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(&source);
        programs::output(&mut compiler)?;
    }
    Ok(library)
}

impl Cluster {
    /// Starts a node with clocks of its own.
    pub fn launch_with_clocks(&mut self, id: NodeId) -> anyhow::Result<Clocks> {
        let folder = self.folder.path();
        let (library, path) = (compile(folder)?, folder.join(format!("clocks-{id}")));
        let clocks = Clocks::make(&path)?;
        let variables = vec![
            ("LD_PRELOAD", library.display().to_string()),
            (VARIABLE, path.display().to_string()),
        ];
        self.launch_with(id, Start { variables, ..Start::default() })?;
        Ok(clocks)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// What `date` says with these clocks.
    fn date(library: &Path, clocks: &Path) -> u64 {
        let mut date = Command::new("date");
        date.arg("+%s").env("LD_PRELOAD", library).env(VARIABLE, clocks).stderr(Stdio::inherit());
        String::from_utf8(date.output().unwrap().stdout).unwrap().trim().parse().unwrap()
    }

    #[test]
    fn a_process_sees_a_wall_clock_that_jumps_to_and_fro() {
        let folder = tempfile::tempdir().unwrap();
        let library = compile(folder.path()).unwrap();
        let path = folder.path().join("clocks");
        let mut clocks = Clocks::make(&path).unwrap();
        let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let before = now();
        assert!((before..=now()).contains(&date(&library, &path)));
        assert_eq!(clocks.reads().unwrap(), 0);
        for hours in [1, -1] {
            clocks.set(Wrong { wall: hours * 3_600_000_000_000, rate: 0 }).unwrap();
            let before = now();
            let seen = date(&library, &path).saturating_add_signed(-hours * 3_600);
            assert!((before..=now()).contains(&seen), "{hours}");
        }
        assert!(clocks.reads().unwrap() >= 2);
    }

    #[test]
    fn a_clock_keeps_what_it_has_lost() {
        let folder = tempfile::tempdir().unwrap();
        let mut clocks = Clocks::make(&folder.path().join("clocks")).unwrap();
        clocks.set(Wrong { wall: 0, rate: -500_000 }).unwrap();
        let began = clocks.since;
        std::thread::sleep(Duration::from_millis(20));
        clocks.set(Wrong::default()).unwrap();
        assert_eq!(clocks.offset, -(clocks.since - began) / 2);
        assert!(clocks.offset <= -10_000_000);
        assert_eq!(drifted(i64::MAX, i64::MAX), 0);
    }
}
