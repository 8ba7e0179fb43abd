//! `holdfast-chaos crash`: a process ended before and after each durable step of a node.
//! Only in builds that have crash points.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use holdfast_api::crash::Point;
use holdfast_chaos::judge::Verdict;
use holdfast_chaos::recording::Recording;
use holdfast_chaos::summary::{self, Summary};

use super::print;

/// What clients do during the crash.
const WORKLOADS: &str = "counter,session";
/// Operations in a second.
const RATE: &str = "150";
/// Pause between two crashes of one run.
const PAUSE: &str = "50ms";
/// The run goes on until all crashes were there.
const DURATION: &str = "1s";
/// What a fault says whose node lost what it had not synced.
const POWER_LOST: &str = "had not been synced";
/// So many crashes are in one run: a cluster that was broken more often says less about one.
const CRASHES_MAX: usize = 20;
/// The points of `--quick`.
const QUICK: [&str; 4] =
    ["after-append", "before-vote", "before-snapshot-name", "after-watermark-raise"];

/// End nodes before and after each durable step, under load, and judge what clients saw
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// End them at these points alone (see `list`).
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// End a process so often at each point.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    times: u32,
    /// End them at a few points alone, twice at each.
    #[arg(long, conflicts_with_all = ["names", "times"])]
    quick: bool,
    /// Draw the choices of each run from this number.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

/// What came of the crashes at one point.
#[derive(Debug, Default)]
struct Counted {
    crashes: usize,
    power_lost: usize,
    operations: u64,
    /// The reasons that the summaries of its runs give.
    wrong: Vec<String>,
}

/// Does it; 1 if a checker found something, 3 if a point was not passed often enough.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let names: Vec<&str> = match arguments.quick {
        true => QUICK.to_vec(),
        false if arguments.names.is_empty() => Point::all().map(Point::as_str).collect(),
        false => arguments.names.iter().map(String::as_str).collect(),
    };
    for name in &names {
        if Point::named(name).is_none() {
            let known: Vec<&str> = Point::all().map(Point::as_str).collect();
            bail!("unknown crash point {name:?}; use one of {}", known.join(", "));
        }
    }
    let times = if arguments.quick { 2 } else { arguments.times as usize };
    print("| crash point | crashes | with loss of power | operations | took | verdict |");
    print("| --- | --- | --- | --- | --- | --- |");
    let mut verdict = Verdict::Pass;
    for name in names {
        let began = Instant::now();
        let (counted, of_point) = crash(name, times, arguments.seed)?;
        print(row(name, &counted, began.elapsed(), of_point));
        verdict = match (verdict, of_point) {
            (Verdict::Fail, _) | (_, Verdict::Fail) => Verdict::Fail,
            (Verdict::Unknown, _) | (_, Verdict::Unknown) => Verdict::Unknown,
            _ => Verdict::Pass,
        };
    }
    Ok(verdict.exit_code())
}

fn row(name: &str, counted: &Counted, took: Duration, verdict: Verdict) -> String {
    let Counted { crashes, power_lost, operations, wrong } = counted;
    let wrong = wrong.join("; ").replace('|', "/");
    let why = if wrong.is_empty() { String::new() } else { format!(": {wrong}") };
    let (took, verdict) = (took.as_secs(), verdict.as_str());
    format!("| `{name}` | {crashes} | {power_lost} | {operations} | {took} s | {verdict}{why} |")
}

/// Runs until a process was ended so often at a point.
fn crash(name: &str, times: usize, seed: u64) -> anyhow::Result<(Counted, Verdict)> {
    let (mut counted, mut verdict) = (Counted::default(), Verdict::Pass);
    let mut left = times;
    while left > 0 && verdict == Verdict::Pass {
        let some = left.min(CRASHES_MAX);
        let summary = crash_some(name, some, seed + (times - left) as u64)?;
        let seen = summary.description.faults.iter().filter_map(|fault| fault.evidence.as_ref());
        counted.crashes += seen.clone().count();
        counted.power_lost += seen.filter(|seen| seen.contains(POWER_LOST)).count();
        counted.operations += summary.counts.all();
        counted.wrong.extend(summary.reasons);
        verdict = summary.verdict;
        left -= some;
    }
    Ok((counted, verdict))
}

/// One run with so many crashes, each of which has to be there.
fn crash_some(name: &str, times: usize, seed: u64) -> anyhow::Result<Summary> {
    let own = std::env::current_exe().context("where this program is")?;
    let folder = tempfile::Builder::new().prefix("holdfast-crash-").tempdir()?;
    let report = folder.path().join("report");
    let mut command = Command::new(&own);
    command.args(["run", "--workload", WORKLOADS, "--nemesis", &vec![name; times].join(",")]);
    command.args(["--rate", RATE, "--fault-pause", PAUSE, "--duration", DURATION]);
    command.args(["--seed", &seed.to_string()]).arg("--report").arg(&report);
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    if !report.join(holdfast_chaos::recording::DESCRIPTION).is_file() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} ended with {}: {}", output.status, said.trim());
    }
    Ok(summary::summarize(Recording::read(&report)?))
}
