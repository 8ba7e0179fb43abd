//! `holdfast-chaos planted`: whether defects are found, and how soon. Only in builds
//! that have them. What finds a defect has to pass without it.

mod signs;

use std::collections::BTreeMap;
use std::fmt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use holdfast_api::planted::{DEFECTS, VARIABLE};
use holdfast_chaos::judge::Verdict;
use holdfast_chaos::recording::Recording;
use holdfast_chaos::summary;

use self::signs::{are_laps_too_few, in_rounds, in_run, in_simulator, seeds_tried};
use super::print;

/// The check that finds a defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
/// The same with `--quick`.
const QUICK_TIME_MAX: &str = "60s";
/// So many runs are made, each from its own seed, while they fail without a sign of the defect.
const RUNS_MAX: u64 = 3;
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

/// How much is tried.
#[derive(Debug, Clone, Copy)]
struct Scale {
    /// The seed of a run, or the first of the simulator's.
    seed: u64,
    /// Duration of a run without findings.
    time_max: &'static str,
}

/// The result of one search.
struct Searched {
    /// What shows that there is a defect; none if nothing does.
    sign: Option<String>,
    /// Whether nothing was wrong at all.
    is_passed: bool,
    took: Duration,
    /// The seed of the last run, or the first of the simulator's.
    seed: u64,
    /// The last output.
    said: String,
}

/// The result of one program that looks for a defect.
struct Tried {
    sign: Option<String>,
    is_passed: bool,
    is_failed: bool,
    /// How many seeds it has tried.
    seeds: u64,
    said: String,
}

/// What is known of a defect once it was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Known {
    Found,
    /// The same search does not pass without it, for this reason.
    NotCounted(String),
    Missed,
}

/// Looks for them; 1 if one is not found, 3 if a find does not count.
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
    let time_max = if arguments.quick { QUICK_TIME_MAX } else { RUN_TIME_MAX };
    let scale = Scale { seed: arguments.seed, time_max };
    let (mut all, mut controls) = (Vec::new(), Vec::new());
    print("| defect | looked for with | found after | what was seen |\n| --- | --- | --- | --- |");
    for (name, finder) in sought {
        let Searched { sign, took, seed, said, .. } = search(Some(*name), *finder, scale)?;
        let seconds = took.as_secs_f64();
        let spoiled = match sign {
            Some(_) => control(*finder, Scale { seed, ..scale }, &mut controls)?,
            None => None,
        };
        let (after, seen, known) = match (sign, spoiled) {
            (Some(sign), None) => (format!("{seconds:.0} s"), sign, Known::Found),
            (Some(_), Some(why)) => {
                let seen = format!("without the defect: {why}");
                ("not counted".to_owned(), seen, Known::NotCounted(why))
            }
            (None, _) => (format!("not within {seconds:.0} s"), said, Known::Missed),
        };
        print(format!("| `{name}` | {finder} | {after} | {} |", seen.replace('|', "/")));
        all.push((*name, known));
    }
    let (mut missed, mut verdict) = (Vec::new(), Verdict::Pass);
    for (name, known) in together(all) {
        match known {
            Known::Found => {}
            Known::NotCounted(why) => {
                eprintln!("not counted: {name}: without the defect: {why}");
                verdict = Verdict::Unknown;
            }
            Known::Missed => missed.push(name),
        }
    }
    if !missed.is_empty() {
        eprintln!("not found: {}", missed.join(", "));
        verdict = Verdict::Fail;
    }
    Ok(verdict.exit_code())
}

/// What is known of each defect, of which one search may find what another one misses.
fn together(all: Vec<(&str, Known)>) -> BTreeMap<&str, Known> {
    let mut together = BTreeMap::new();
    for (name, known) in all {
        let best = together.entry(name).or_insert(Known::Missed);
        if known == Known::Found || *best == Known::Missed {
            *best = known;
        }
    }
    together
}

/// Why the same search finds something without a defect, too; none if all is well then. Each is
/// made once.
fn control(
    finder: Finder,
    scale: Scale,
    made: &mut Vec<(Finder, u64, Option<String>)>,
) -> anyhow::Result<Option<String>> {
    let of = |it: &&(Finder, u64, Option<String>)| (it.0, it.1) == (finder, scale.seed);
    if let Some((_, _, before)) = made.iter().find(of) {
        return Ok(before.clone());
    }
    let searched = search(None, finder, scale)?;
    let why = (!searched.is_passed).then(|| searched.sign.unwrap_or(searched.said));
    made.push((finder, scale.seed, why.clone()));
    Ok(why)
}

/// Looks for the defect of this name; none: for any, where there is none. What fails without a
/// sign of the defect ends early: then the search goes on with the next seeds.
fn search(name: Option<&str>, finder: Finder, scale: Scale) -> anyhow::Result<Searched> {
    let (began, mut first, mut seed) = (Instant::now(), scale.seed, scale.seed);
    let seeds = match finder {
        Run(..) => RUNS_MAX,
        Sim(seeds) => seeds,
        Rounds => 1,
    };
    let last = scale.seed + seeds - 1;
    loop {
        if let Run(..) = finder {
            seed = first;
        }
        let tried = attempt(name, finder, (first, last), scale.time_max)?;
        first += tried.seeds.max(1);
        let is_over = name.is_none() || tried.sign.is_some() || !tried.is_failed || first > last;
        if is_over {
            let Tried { sign, is_passed, said, .. } = tried;
            return Ok(Searched { sign, is_passed, took: began.elapsed(), seed, said });
        }
    }
}

/// Looks for it with one program: one run or lap from the first of these seeds, or the simulator
/// from all of them.
fn attempt(
    name: Option<&str>,
    finder: Finder,
    (seed, last): (u64, u64),
    time_max: &str,
) -> anyhow::Result<Tried> {
    let own = std::env::current_exe().context("where this program is")?;
    let folder = tempfile::Builder::new().prefix("holdfast-planted-").tempdir()?;
    let report = folder.path().join("report");
    let mut command = match finder {
        Run(workloads, nemeses) => {
            let mut command = Command::new(&own);
            command.args(["run", "--workload", workloads, "--nemesis", nemeses]);
            command.args(["--until-failure", "--duration", time_max, "--rate", RATE]);
            command.args(["--seed", &seed.to_string()]).arg("--report").arg(&report);
            command
        }
        Rounds => {
            let mut command = Command::new(own.with_file_name("chaos-rounds"));
            command.args(ROUNDS).args(["--seed", &seed.to_string()]);
            command
        }
        Sim(_) => {
            let mut command = Command::new(own.with_file_name("holdfast-sim"));
            command.args(["--until-found", "--seeds", &format!("{seed}..{last}")]);
            command.args(name.iter().flat_map(|name| ["--planted", *name]));
            command
        }
    };
    match (finder, name) {
        (Run(..) | Rounds, Some(name)) => command.env(VARIABLE, name),
        _ => command.env_remove(VARIABLE),
    };
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let is_failed = output.status.code() == Some(i32::from(Verdict::Fail.exit_code()));
    let name = name.unwrap_or_default();
    let (sign, said) = match finder {
        Run(..) => match Recording::read(&report) {
            Ok(recording) => {
                let summary = summary::summarize(recording);
                (in_run(name, &summary), summary.reasons.into_iter().next().unwrap_or_default())
            }
            // The cluster did not start.
            Err(_) => (None, stderr.trim().replace('\n', "; ")),
        },
        Sim(_) => (in_simulator(name, &stdout), last_line(&stdout)),
        Rounds => (in_rounds(&stdout), last_line(&stdout)),
    };
    let sign = sign.filter(|_| is_failed);
    // Laps that were too few for all kinds of rounds are no fault of any.
    let is_too_few = finder == Rounds && sign.is_none() && are_laps_too_few(&stdout);
    let is_passed = output.status.success() || (is_failed && is_too_few);
    let seeds = if let Sim(_) = finder { seeds_tried(&stdout) } else { 1 };
    Ok(Tried { sign, is_passed, is_failed, seeds, said })
}

fn last_line(said: &str) -> String {
    said.lines().last().unwrap_or_default().to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_is_found_if_one_of_its_searches_finds_it() {
        let why = || Known::NotCounted("the run was ended early".to_owned());
        let known = together(vec![
            ("stale-read", Known::Missed),
            ("new-number", Known::Found),
            ("stale-read", Known::Found),
            ("new-number", why()),
            ("lost-wake-up", why()),
            ("lost-wake-up", Known::Missed),
            ("late-resume", Known::Missed),
        ]);
        assert_eq!(known["stale-read"], Known::Found);
        assert_eq!(known["new-number"], Known::Found);
        assert_eq!(known["lost-wake-up"], why());
        assert_eq!(known["late-resume"], Known::Missed);
    }
}
