//! `holdfast-chaos run`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use holdfast_chaos::cluster::system::System;
use holdfast_chaos::judge::Verdict;
use holdfast_chaos::network::Permitted;
use holdfast_chaos::run::drive::drive;
use holdfast_chaos::run::plan::{self, Chosen, Plan};

use super::load::{self, Load};
use super::verdict;

/// Default operations per second.
const RATE_DEFAULT: u32 = 300;

/// Start a cluster on this machine, break it under load, and judge it
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Break a cluster of this system: etcd, to compare, has some of the workloads and faults
    /// (Debian: apt install etcd-server).
    #[arg(long, value_name = "NAME", value_enum, default_value_t = System::Holdfast)]
    system: System,
    /// Start this many nodes: 3 or 5.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(3..=5))]
    nodes: u64,
    /// Inject these faults, one after the other in a random order, or all that this
    /// machine allows, or none (see `list`); NAME+NAME are there at the same time.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "all")]
    nemesis: Vec<String>,
    /// Inject faults in pairs: those pairs of `list` that this machine allows.
    #[arg(long, conflicts_with = "nemesis")]
    pairs: bool,
    /// Wait so long between two faults [default: drawn, 0.6 s to 1.8 s].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    fault_pause: Option<Duration>,
    /// Undo a fault that is still there after this time [default: a minute after the time of
    /// the run; ten minutes after it began if it is named with --nemesis].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    fault_time_max: Option<Duration>,
    #[command(flatten)]
    load: Load,
    /// Find the binaries in this folder [default: beside this program].
    #[arg(long, value_name = "DIR", env = "HOLDFAST_BINARIES")]
    binaries: Option<PathBuf>,
}

/// Runs it; answers the exit code.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let (plan, is_missed) = planned(arguments)?;
    load::say_left_out(&plan);
    if is_missed {
        eprintln!(
            "verdict unknown: a fault named with --nemesis cannot be injected on this machine (see \"left out\" above)"
        );
        return Ok(Verdict::Unknown.exit_code());
    }
    load::prepare(&plan.report)?;
    let description = load::describe(&plan, command(&plan));
    eprintln!("seed {}, report in {}", plan.seed, plan.report.display());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(Box::pin(drive(&plan, description)))?;
    drop(runtime);
    Ok(verdict::judge(&plan.report)?.exit_code())
}

fn planned(arguments: &Arguments) -> anyhow::Result<(Plan, bool)> {
    if arguments.nodes == 4 {
        bail!("--nodes is 3 or 5: four nodes survive no more than three do");
    }
    let workloads = plan::workloads(&arguments.load.workload)?;
    if arguments.load.ops.is_some() && workloads.iter().all(|it| it.is_of_jobs()) {
        bail!("--ops counts calls of clients, and these workloads have none; use --duration");
    }
    let pairs = [plan::PAIRS.to_owned()];
    let nemesis = if arguments.pairs { &pairs[..] } else { &arguments.nemesis };
    let Chosen { nemeses, left_out, is_missed } =
        plan::nemeses(nemesis, &workloads, Permitted::find)?;
    let mut plan = Plan {
        system: arguments.system,
        nodes: arguments.nodes,
        workloads,
        nemeses,
        left_out,
        fault_pause: arguments.fault_pause,
        fault_time_max: arguments.fault_time_max,
        binaries: arguments.binaries.clone(),
        ..arguments.load.plan(RATE_DEFAULT)?
    };
    plan.suit_its_system(&arguments.load.workload)?;
    Ok((plan, is_missed))
}

/// The command that makes the same run again.
fn command(plan: &Plan) -> String {
    let nemeses = match plan.nemeses.first() {
        None => "none".to_owned(),
        Some((group, false)) if group.is_several() => plan::PAIRS.to_owned(),
        Some((_, false)) => "all".to_owned(),
        Some(_) => {
            let names: Vec<String> = plan.nemeses.iter().map(|(it, _)| it.to_string()).collect();
            names.join(",")
        }
    };
    let (nodes, load) = (plan.nodes, load::flags(plan));
    let time = |flag: &str, time: Option<Duration>| {
        time.map_or(String::new(), |time| {
            let text = humantime::format_duration(time).to_string();
            format!("{flag} {} ", text.replace(' ', ""))
        })
    };
    let pause = time("--fault-pause", plan.fault_pause);
    let time_max = time("--fault-time-max", plan.fault_time_max);
    let system = match plan.system {
        System::Holdfast => String::new(),
        other => format!("--system {other} "),
    };
    format!(
        "holdfast-chaos run {system}--nodes {nodes} --nemesis {nemeses} {pause}{time_max}{load}"
    )
}
