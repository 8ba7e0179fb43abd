//! `holdfast-chaos run`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use holdfast_chaos::judge::Verdict;
use holdfast_chaos::network::Permitted;
use holdfast_chaos::recording::Recording;
use holdfast_chaos::report;
use holdfast_chaos::report::text::printable;
use holdfast_chaos::run::drive::drive;
use holdfast_chaos::run::plan::{self, Chosen, Plan};
use holdfast_chaos::run::{Description, LeftOut};
use holdfast_chaos::summary::{self, Summary};

use super::print;

/// What a run lasts if nobody says.
pub(super) const DURATION_DEFAULT: Duration = Duration::from_secs(60);
/// Most clients of one workload.
pub(super) const CLIENTS_MAX: usize = 64;

/// Start a cluster on this machine, break it under load, and judge it
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Start this many nodes: 3 or 5.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(3..=5))]
    nodes: u64,
    /// Run these workloads, or all (see `list`).
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "all")]
    workload: Vec<String>,
    /// Inject these faults, one after the other in a random order, or all that this
    /// machine allows, or none (see `list`).
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "all")]
    nemesis: Vec<String>,
    /// Break it for so long, such as 60s or 5min, and until each fault that was asked
    /// for by name was injected once [default: 60s].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "ops")]
    duration: Option<Duration>,
    /// Break it until so many operations were made.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    ops: Option<u64>,
    /// Draw all random choices from this number, to repeat a run [default: a random one].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Write the history, report.json and report.html into this folder, which must
    /// be new or empty [default: chaos-report-SEED].
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Start so many clients for each workload; every other one is bound to one node
    /// where the workload allows it.
    #[arg(long, value_name = "N", default_value_t = 4)]
    clients: usize,
    /// Make at most so many operations a second, all clients together.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Find holdfast-store in this folder [default: beside this program].
    #[arg(long, value_name = "DIR", env = "HOLDFAST_BINARIES")]
    binaries: Option<PathBuf>,
}

/// Runs it; answers the exit code.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let (plan, is_missed) = planned(arguments)?;
    for LeftOut { name, why } in &plan.left_out {
        eprintln!("left out: {name}: {why}");
    }
    if is_missed {
        eprintln!("unknown: what was asked for by name cannot be done here");
        return Ok(Verdict::Unknown.exit_code());
    }
    let description = describe(&plan);
    eprintln!("seed {}, report in {}", plan.seed, plan.report.display());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(Box::pin(drive(&plan, description)))?;
    drop(runtime);
    let summary = summary::summarize(Recording::read(&plan.report)?);
    conclude(&plan.report, &summary);
    Ok(summary.verdict.exit_code())
}

fn planned(arguments: &Arguments) -> anyhow::Result<(Plan, bool)> {
    let Arguments { nodes, clients, rate, .. } = *arguments;
    if nodes == 4 {
        bail!("--nodes is 3 or 5: four nodes survive no more than three do");
    }
    if clients == 0 || clients > CLIENTS_MAX {
        bail!("--clients is 1 to {CLIENTS_MAX}");
    }
    let workloads = plan::workloads(&arguments.workload)?;
    let Chosen { nemeses, left_out, is_missed } =
        plan::nemeses(&arguments.nemesis, Permitted::find)?;
    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let report = arguments.report.clone();
    let report = report.unwrap_or_else(|| PathBuf::from(format!("chaos-report-{seed}")));
    if !is_missed {
        prepare(&report)?;
    }
    let duration = match (arguments.duration, arguments.ops) {
        (None, None) => Some(DURATION_DEFAULT),
        (duration, _) => duration,
    };
    let plan = Plan {
        nodes,
        workloads,
        nemeses,
        left_out,
        duration,
        operations: arguments.ops,
        seed,
        report,
        clients,
        rate,
        binaries: arguments.binaries.clone(),
    };
    Ok((plan, is_missed))
}

/// The folder must not hold an older run.
pub(super) fn prepare(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    if entries.next().is_some() {
        bail!("{} is not empty; name a new folder with --report", folder.display());
    }
    Ok(())
}

pub(super) fn describe(plan: &Plan) -> Description {
    Description {
        seed: plan.seed,
        command: command(plan),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: commit(plan),
        workloads: plan.workloads.iter().map(|it| it.as_str().to_owned()).collect(),
        nemeses: plan
            .nemeses
            .iter()
            .filter(|(_, by_name)| *by_name)
            .map(|(nemesis, _)| nemesis.as_str().to_owned())
            .collect(),
        planned: plan.nemeses.iter().map(|(nemesis, _)| nemesis.as_str().to_owned()).collect(),
        left_out: plan.left_out.clone(),
        ..Description::default()
    }
}

/// The command that makes the same run again.
fn command(plan: &Plan) -> String {
    let nemeses = match plan.nemeses.first() {
        None => "none".to_owned(),
        Some((_, false)) => "all".to_owned(),
        Some(_) => {
            let names: Vec<&str> = plan.nemeses.iter().map(|(it, _)| it.as_str()).collect();
            names.join(",")
        }
    };
    format!(
        "holdfast-chaos run --nodes {} --workload {} --nemesis {nemeses} {} --seed {} --clients {} --rate {}",
        plan.nodes,
        plan.workload_names().join(","),
        plan.end_flag(),
        plan.seed,
        plan.clients,
        plan.rate
    )
}

/// The commit of the checkout that the binaries lie in, if it is one.
fn commit(plan: &Plan) -> Option<String> {
    let own = std::env::current_exe().ok()?;
    let folder = plan.binaries.as_deref().or(own.parent())?;
    let mut command = std::process::Command::new("git");
    let output = command.arg("-C").arg(folder).args(["rev-parse", "HEAD"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success()).then(|| text.trim().to_owned())
}

/// Prints the verdict, then writes the report: a folder that takes none costs
/// nobody the verdict.
pub(crate) fn conclude(folder: &Path, summary: &Summary) {
    print!("{}", said(summary));
    let verdict = summary.verdict.as_str();
    match report::write(folder, summary) {
        Ok(page) => print(format!("{verdict}: see {}", printable(&page.to_string_lossy()))),
        Err(error) => {
            print(verdict);
            eprintln!("warning: no report could be written: {}", printable(&format!("{error:#}")));
        }
    }
}

/// The verdict in words. What comes from a history is made safe for a terminal.
fn said(summary: &Summary) -> String {
    let mut lines = Vec::new();
    for (workload, judgement) in &summary.judgements {
        lines.push(format!(
            "{:<12} {:<8} {:<8} {} operations on {} keys, {} refused, {} unknown",
            printable(workload),
            judgement.checker.as_str(),
            judgement.verdict.as_str(),
            judgement.operations,
            judgement.keys,
            judgement.refused,
            judgement.unknown
        ));
    }
    let faults = &summary.description.faults;
    let seen = faults.iter().filter(|fault| fault.evidence.is_some()).count();
    lines.push(format!("{} faults, {seen} of them really injected", faults.len()));
    for fault in faults.iter().filter(|fault| fault.evidence.is_none()) {
        let why = fault.error.as_deref().unwrap_or("nothing shows that it was there");
        lines.push(printable(&format!("not really injected: {}: {why}", fault.nemesis)));
    }
    for reason in &summary.reasons {
        lines.push(printable(&format!("{}: {reason}", summary.verdict.as_str())));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A history whose moments, numbers and names do harm where nobody is careful.
    fn hostile() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let history = folder.path().join("history");
        std::fs::create_dir(&history).unwrap();
        let call = |id: u32, workload: &str, action: &str| {
            format!(
                "{{\"call\":{{\"id\":{id},\"at\":{},\"workload\":\"{workload}\",\"key\":\"\\u001b[2J\",\"action\":{action}}}}}\n",
                u64::MAX
            )
        };
        let answered = |id: u32, answer: &str| {
            let outcome = format!("{{\"ok\":{{\"answer\":{answer}}}}}");
            format!("{{\"return\":{{\"id\":{id},\"at\":{},\"outcome\":{outcome}}}}}\n", u64::MAX)
        };
        let lines = [
            call(1, "lease", "{\"grant\":{\"ttl_ms\":1,\"processes\":2}}"),
            answered(1, &format!("{{\"granted\":{{\"lease\":7,\"ttl_ms\":{}}}}}", u64::MAX)),
            call(2, "lease", "{\"keep_alive\":{\"lease\":7}}"),
            answered(2, "{\"alive\":false}"),
            call(3, "counter", &format!("{{\"add\":{{\"delta\":{}}}}}", i64::MAX)),
            answered(3, &format!("{{\"sum\":{}}}", i64::MAX)),
            call(4, "counter", &format!("{{\"add\":{{\"delta\":{}}}}}", i64::MAX)),
            answered(4, "{\"sum\":-2}"),
            call(5, "counter", "\"read\""),
            answered(5, &format!("{{\"value\":\"{}\"}}", i64::MIN)),
            call(6, "counter", &format!("{{\"add\":{{\"delta\":{}}}}}", i64::MAX)),
            call(7, "counter", &format!("{{\"add\":{{\"delta\":{}}}}}", i64::MAX - 1)),
        ];
        std::fs::write(history.join("a.jsonl"), lines.concat()).unwrap();
        folder
    }

    #[test]
    fn a_hostile_history_is_judged_and_commands_no_terminal() {
        let folder = hostile();
        let summary = summary::summarize(Recording::read(folder.path()).unwrap());
        assert_eq!(summary.verdict, Verdict::Fail, "{:?}", summary.reasons);
        let said = said(&summary);
        assert!(said.contains("\\u{1b}[2J") && !said.contains('\u{1b}'), "{said}");
        conclude(folder.path(), &summary);
        assert!(folder.path().join("report.html").is_file());
    }

    #[test]
    fn a_folder_that_takes_no_report_costs_nobody_the_verdict() {
        let folder = hostile();
        let summary = summary::summarize(Recording::read(folder.path()).unwrap());
        conclude(&folder.path().join("there-is-no-such-folder"), &summary);
    }
}
