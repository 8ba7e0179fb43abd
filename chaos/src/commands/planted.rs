//! `holdfast-chaos planted`: whether defects are found, and how soon. Only in builds
//! that have them.

use std::fmt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use holdfast_api::planted::{DEFECTS, VARIABLE};
use holdfast_chaos::judge::Verdict;
use holdfast_chaos::recording::Recording;
use holdfast_chaos::summary;

use super::print;

/// The check that finds a defect.
#[derive(Debug, Clone, Copy)]
enum Finder {
    /// A run with these workloads and nemeses.
    Run(&'static str, &'static str),
    /// The simulator, within so many seeds.
    Sim(u64),
    /// Jobs whose rounds are judged.
    Rounds,
}

use Finder::{Rounds, Run, Sim};

/// How each is looked for. `--quick` takes the first of them.
const SOUGHT: &[(&str, Finder)] = &[
    ("doubled-retry", Run("session", "none")),
    ("unseen-set", Run("tcpstore", "none")),
    ("lost-wake-up", Run("wait", "none")),
    ("sessions-not-in-snapshot", Run("register,counter", "restored")),
    ("stale-read", Run("register", "leader-alone")),
    ("stale-read", Sim(40)),
    ("follower-read", Run("register", "pause-follower,minority")),
    ("ack-before-sync", Run("register,counter", "power-loss")),
    ("ack-before-sync", Sim(20)),
    ("leader-restored", Sim(20)),
    ("loss-of-one", Sim(20)),
    ("vote-not-synced", Sim(20)),
    ("short-loyalty", Sim(100)),
    ("sessions-not-in-snapshot", Sim(20)),
    ("new-number", Sim(20)),
    ("popped-twice", Run("queue", "none")),
    ("torn-transaction", Run("transaction", "none")),
    ("stale-compare", Run("register", "none")),
    ("renewal-lost", Run("lease", "none")),
    ("half-expiry", Run("lease", "none")),
    ("dropped-changes", Run("watch", "none")),
    ("late-resume", Run("watch", "none")),
    ("blind-scrub", Run("register", "bit-flip-log,bit-flip-snapshot")),
    ("broken-is-refused", Run("register,counter", "kill-leader,reset")),
    ("new-number", Run("counter,append", "kill-leader,reset")),
    ("unknown-is-refused", Run("register,counter", "kill-all")),
    ("tail-forgotten", Run("register,counter", "kill-all")),
    ("released-twice", Run("hold", "none")),
    ("timer-outside", Run("counter", "backup-restore")),
    ("first-set-stays", Run("tcpstore", "none")),
];

/// Defects that no check has found yet: looked for only by name.
const OPEN: &[(&str, Finder)] = &[
    ("dead-counted", Rounds),
    ("all-descriptors", Run("register,counter", "descriptors")),
    ("absence-is-death", Run("tcpstore", "agent-pause")),
    ("ended-lease", Run("tcpstore", "agent-pause")),
    ("first-back-alone", Run("advance", "none")),
    ("hasty-elections", Sim(100)),
    ("old-answers", Sim(100)),
    ("old-answers", Run("register", "pause-leader")),
];

/// So many of them are looked for with `--quick`.
const QUICK: usize = 4;
/// Duration of a run without findings, at least.
const RUN_TIME_MAX: &str = "120s";
/// The laps of jobs whose rounds are judged.
const ROUNDS: [&str; 6] = ["--jobs", "8", "--lap-seconds", "30", "--laps-max", "4"];
/// Operations in a second of such a run.
const RATE: &str = "400";

/// Find defects that are planted in this build, one after the other
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Look for these alone.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Look for those alone that are found within seconds.
    #[arg(long, conflicts_with = "names")]
    quick: bool,
    /// Draw the choices of each run from this number.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

/// The result of one search.
struct Searched {
    code: Option<i32>,
    took: Duration,
    /// The finding, or the last output.
    said: String,
}

/// Looks for them; 1 if one is not found.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let mut sought: Vec<&(&str, Finder)> = SOUGHT.iter().collect();
    if arguments.quick {
        sought.truncate(QUICK);
    } else if !arguments.names.is_empty() {
        for name in &arguments.names {
            if !DEFECTS.iter().any(|(known, _)| known == name) {
                let known: Vec<&str> = DEFECTS.iter().map(|(known, _)| *known).collect();
                bail!("unknown defect {name:?}; use one of {}", known.join(", "));
            }
        }
        sought.extend(OPEN);
        sought.retain(|(name, _)| arguments.names.iter().any(|wanted| wanted == name));
    }
    let mut missed = Vec::new();
    print("| defect | looked for with | found after | what was seen |\n| --- | --- | --- | --- |");
    for (name, finder) in sought {
        let searched = search(name, *finder, arguments.seed)?;
        let is_failed = searched.code == Some(i32::from(Verdict::Fail.exit_code()));
        let is_found = is_failed && !searched.said.is_empty();
        let took = match is_found {
            true => format!("{:.0} s", searched.took.as_secs_f64()),
            false => format!("not within {:.0} s", searched.took.as_secs_f64()),
        };
        print(format!("| `{name}` | {finder} | {took} | {} |", searched.said));
        if !is_found {
            missed.push(*name);
        }
    }
    if missed.is_empty() {
        return Ok(0);
    }
    eprintln!("not found: {}", missed.join(", "));
    Ok(1)
}

fn search(name: &str, finder: Finder, seed: u64) -> anyhow::Result<Searched> {
    let own = std::env::current_exe().context("where this program is")?;
    let folder = tempfile::Builder::new().prefix("holdfast-planted-").tempdir()?;
    let report = folder.path().join("report");
    let mut command = match finder {
        Run(workloads, nemeses) => {
            let mut command = Command::new(&own);
            command.args(["run", "--workload", workloads, "--nemesis", nemeses]);
            command.args(["--until-failure", "--duration", RUN_TIME_MAX, "--rate", RATE]);
            command.args(["--seed", &seed.to_string()]).arg("--report").arg(&report);
            command.env(VARIABLE, name);
            command
        }
        Rounds => {
            let mut command = Command::new(own.with_file_name("chaos-rounds"));
            command.args(ROUNDS).args(["--seed", &seed.to_string()]);
            command.env(VARIABLE, name);
            command
        }
        Sim(seeds) => {
            let mut command = Command::new(own.with_file_name("holdfast-sim"));
            let last = seed + seeds - 1;
            command.args(["--planted", name, "--until-found"]);
            command.args(["--seeds", &format!("{seed}..{last}")]);
            command
        }
    };
    let began = Instant::now();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    let took = began.elapsed();
    let code = output.status.code();
    let said = match finder {
        Run(..) if report.is_dir() => seen(&report)?,
        Run(..) => String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "),
        Sim(_) => of_simulator(&String::from_utf8_lossy(&output.stdout)),
        Rounds => of_rounds(&String::from_utf8_lossy(&output.stdout)),
    };
    Ok(Searched { code, took, said: said.replace('|', "/") })
}

/// The first reason of a run's verdict.
fn seen(report: &std::path::Path) -> anyhow::Result<String> {
    let summary = summary::summarize(Recording::read(report)?);
    Ok(summary.reasons.first().cloned().unwrap_or_default())
}

/// The first seed that failed, and why.
fn of_simulator(said: &str) -> String {
    let mut lines = said.lines();
    let failed = lines.find(|line| line.contains(": fail"));
    let Some(failed) = failed else { return said.lines().last().unwrap_or_default().to_owned() };
    let seed = failed.split(':').next().unwrap_or_default();
    format!("{seed}: {}", lines.next().unwrap_or_default().trim())
}

/// The first violation of a history of rounds.
fn of_rounds(said: &str) -> String {
    let is_end = |line: &str| line.starts_with("NOT VALID");
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    let end = lines.iter().position(|line| is_end(line)).and_then(|end| end.checked_sub(1));
    end.map_or_else(String::new, |last| lines[last].to_owned())
}

impl fmt::Display for Finder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Run(workloads, "none") => write!(f, "{workloads}"),
            Run(workloads, nemeses) => write!(f, "{workloads}; {nemeses}"),
            Sim(_) => f.write_str("the simulator"),
            Rounds => f.write_str("`chaos-rounds`"),
        }
    }
}
