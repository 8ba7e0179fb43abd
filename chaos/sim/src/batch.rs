//! Many seeds, each in a process of its own: per-process counters, such as Tokio's for
//! the seeds of its runtimes, start anew for each.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Context;

/// The seeds to run, and how.
pub struct Batch {
    /// The first and the last.
    pub seeds: (u64, u64),
    /// Arguments of each run besides its seed.
    pub arguments: Vec<String>,
    /// How many at a time.
    pub jobs: Option<usize>,
    /// Whether the batch stops at the first failure.
    pub until_found: bool,
    /// Folder that keeps which seeds were tried.
    pub out: Option<PathBuf>,
}

/// How the seeds of a batch ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Seeds that kept every promise.
    pub passed: u64,
    /// Seeds that broke a promise.
    pub failed: u64,
    /// Seeds that ended without a verdict.
    pub unknown: u64,
    /// Passed before, by this very program.
    pub skipped: u64,
}

/// The result of one seed.
struct SeedResult {
    seed: u64,
    code: Option<i32>,
    said: String,
}

struct Progress {
    next: u64,
    over: bool,
    totals: Totals,
    kept: Option<File>,
}

/// Reads `A..B`, both included, or one number.
pub fn seeds(text: &str) -> Result<(u64, u64), String> {
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text:?}: {error}"));
    let (first, last) = match text.split_once("..") {
        Some((first, last)) => (number(first)?, number(last.trim_start_matches('='))?),
        None => (number(text)?, number(text)?),
    };
    if first > last { Err(format!("{first} is above {last}")) } else { Ok((first, last)) }
}

impl Batch {
    /// Runs the seeds, each in its process.
    pub fn run(&self) -> anyhow::Result<Totals> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let (tried, kept) = match &self.out {
            Some(out) => kept(out, &program, &self.arguments)?,
            None => (BTreeSet::new(), None),
        };
        let totals = Totals::default();
        let progress = Progress { next: self.seeds.0, over: false, totals, kept };
        let (progress, begun) = (Mutex::new(progress), Instant::now());
        let usual = std::thread::available_parallelism().map_or(1, usize::from);
        let jobs = self.jobs.unwrap_or(usual).max(1);
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    while let Some(seed) = self.next(&progress, &tried) {
                        let verdict = self.one(&program, seed);
                        self.note(&progress, &verdict, begun);
                    }
                });
            }
        });
        let progress = progress.into_inner().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
        let Totals { passed, failed, unknown, skipped } = progress.totals;
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        println!(
            "seeds {}..{}: {passed} passed, {failed} failed, {unknown} unknown, {skipped} passed before; {:.0} s",
            self.seeds.0,
            self.seeds.1,
            begun.elapsed().as_secs_f64()
        );
        Ok(progress.totals)
    }

    fn next(&self, progress: &Mutex<Progress>, tried: &BTreeSet<u64>) -> Option<u64> {
        let mut progress = progress.lock().ok()?;
        while !progress.over && progress.next <= self.seeds.1 {
            let seed = progress.next;
            progress.next += 1;
            if !tried.contains(&seed) {
                return Some(seed);
            }
            progress.totals.skipped += 1;
        }
        None
    }

    fn one(&self, program: &Path, seed: u64) -> SeedResult {
        let mut command = Command::new(program);
        command.args(["--quiet", "--seed", &seed.to_string()]).args(&self.arguments);
        command.stdin(Stdio::null());
        match command.output() {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout).into_owned()
                    + &String::from_utf8_lossy(&output.stderr);
                SeedResult { seed, code: output.status.code(), said }
            }
            Err(error) => SeedResult { seed, code: None, said: error.to_string() },
        }
    }

    fn note(&self, progress: &Mutex<Progress>, verdict: &SeedResult, begun: Instant) {
        let Ok(mut progress) = progress.lock() else { return };
        let SeedResult { seed, code, said } = verdict;
        let totals = &mut progress.totals;
        let word = match code {
            Some(0) => {
                totals.passed += 1;
                "pass"
            }
            Some(1) => {
                totals.failed += 1;
                "fail"
            }
            _ => {
                totals.unknown += 1;
                "unknown"
            }
        };
        let Totals { passed, failed, unknown, .. } = *totals;
        progress.over |= self.until_found && *code == Some(1);
        if let Some(kept) = &mut progress.kept {
            let line = said.lines().next().unwrap_or_default();
            if let Err(error) = writeln!(kept, "{seed}\t{word}\t{line}") {
                eprintln!("cannot keep seed {seed}: {error}");
            }
        }
        let live = std::io::stderr().is_terminal();
        if word != "pass" {
            let clear = if live { "\r" } else { "" };
            println!("{clear}{}", said.trim_end());
        }
        if live {
            let done = passed + failed + unknown;
            let each = begun.elapsed().as_secs_f64() / done.max(1) as f64;
            eprint!(
                "\rseed {seed}: {passed} passed, {failed} failed, {unknown} unknown, {each:.2} s each "
            );
        }
    }
}

/// Which seeds this very program has passed with these arguments, and where to note more.
fn kept(
    out: &Path,
    program: &Path,
    arguments: &[String],
) -> anyhow::Result<(BTreeSet<u64>, Option<File>)> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let words: Vec<&str> = arguments.iter().map(|word| word.trim_start_matches('-')).collect();
    let build = build(program)?;
    let path = out.join(format!("{}-{build:016x}.tsv", words.join("-")));
    let text = fs::read_to_string(&path).unwrap_or_default();
    let tried = text.lines().filter_map(passed).collect();
    let file = File::options().append(true).create(true).open(&path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    Ok((tried, Some(file)))
}

/// The seed of a line, if it passed: others are tried again.
fn passed(line: &str) -> Option<u64> {
    let mut fields = line.split('\t');
    let seed = fields.next()?.parse().ok()?;
    (fields.next() == Some("pass")).then_some(seed)
}

/// Tells a program from others, and from itself after a change.
fn build(program: &Path) -> anyhow::Result<u64> {
    let bytes = fs::read(program).with_context(|| program.display().to_string())?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_that_did_not_pass_are_tried_again() {
        assert_eq!(passed("7\tpass\tseed 7: pass; 12 lines"), Some(7));
        assert_eq!(passed("8\tfail\tseed 8: fail; 12 lines"), None);
        assert_eq!(passed("9\tunknown\t"), None);
        assert_eq!(passed("1"), None);
    }

    #[test]
    fn seeds_are_a_range_with_both_ends_or_one_number() {
        assert_eq!(seeds("1..1000"), Ok((1, 1_000)));
        assert_eq!(seeds("7"), Ok((7, 7)));
        assert_eq!(seeds("3..=4"), Ok((3, 4)));
        assert!(seeds("9..1").is_err() && seeds("a..b").is_err());
    }
}
