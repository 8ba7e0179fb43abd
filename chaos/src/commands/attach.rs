//! `holdfast-chaos attach`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use holdfast_chaos::recording::Recording;
use holdfast_chaos::run::attached::{Attachment, attach};
use holdfast_chaos::run::plan::{self, Plan};
use holdfast_chaos::summary;
use holdfast_client::{check_token_file, parse_endpoints};

use super::run::{CLIENTS_MAX, DURATION_DEFAULT, conclude, describe, prepare};

/// Judge a cluster that is there, in a job of its own that is deleted afterwards
///
/// Harmless faults only: leadership is handed over, and clients of its own are
/// killed. With --i-own-this-cluster and --hook a program of yours breaks its
/// nodes: it is called `PROGRAM inject|verify|heal kill|pause|cut NODE` and ends
/// with 0 if it did, or saw, what it was asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Attach to the cluster of these nodes; one is enough.
    #[arg(long, value_name = "LIST", env = "HOLDFAST_STORE")]
    store: String,
    /// Show the token in this file to the nodes.
    #[arg(long, value_name = "FILE", env = "HOLDFAST_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Run these workloads, or all (see `list`).
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "all")]
    workload: Vec<String>,
    /// Go on for so long, such as 60s or 5min [default: 60s].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "ops")]
    duration: Option<Duration>,
    /// Go on until so many operations were made.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    ops: Option<u64>,
    /// Draw all random choices from this number [default: a random one].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Write the history and the report into this folder, which must be new or empty
    /// [default: chaos-report-SEED].
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Start so many clients for each workload.
    #[arg(long, value_name = "N", default_value_t = 4)]
    clients: usize,
    /// Make at most so many operations a second, all clients together.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Say that nodes of this cluster may be broken; takes --hook.
    #[arg(long, requires = "hook")]
    i_own_this_cluster: bool,
    /// Break nodes with this program; takes --i-own-this-cluster.
    #[arg(long, value_name = "PROGRAM", requires = "i_own_this_cluster")]
    hook: Option<PathBuf>,
}

/// Runs it; answers the exit code.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    if arguments.clients == 0 || arguments.clients > CLIENTS_MAX {
        bail!("--clients is 1 to {CLIENTS_MAX}");
    }
    if let Some(hook) = arguments.hook.as_deref().filter(|hook| !hook.is_file()) {
        bail!("--hook {}: there is no such program", hook.display());
    }
    if let Some(file) = &arguments.token_file {
        check_token_file(file).with_context(|| format!("--token-file {}", file.display()))?;
    }
    let attachment = Attachment {
        list: arguments.store.clone(),
        endpoints: parse_endpoints(&arguments.store).context("--store")?,
        token_file: arguments.token_file.clone(),
        hook: arguments.hook.clone(),
    };
    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let report = arguments.report.clone();
    let report = report.unwrap_or_else(|| PathBuf::from(format!("chaos-report-{seed}")));
    let duration = match (arguments.duration, arguments.ops) {
        (None, None) => Some(DURATION_DEFAULT),
        (duration, _) => duration,
    };
    let plan = Plan {
        workloads: plan::workloads(&arguments.workload)?,
        duration,
        operations: arguments.ops,
        seed,
        report,
        clients: arguments.clients,
        rate: arguments.rate,
        ..Plan::default()
    };
    prepare(&plan.report)?;
    let mut description = describe(&plan);
    description.command = command(arguments, &plan);
    eprintln!("seed {}, report in {}", plan.seed, plan.report.display());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(Box::pin(attach(&plan, &attachment, description)))?;
    drop(runtime);
    let summary = summary::summarize(Recording::read(&plan.report)?);
    conclude(&plan.report, &summary);
    Ok(summary.verdict.exit_code())
}

/// The command that does the same again.
fn command(arguments: &Arguments, plan: &Plan) -> String {
    let hook = arguments.hook.as_ref().map_or_else(String::new, |hook| {
        format!(" --i-own-this-cluster --hook {}", hook.display())
    });
    format!(
        "holdfast-chaos attach --store {} --workload {} {} --seed {} --clients {} --rate {}{hook}",
        arguments.store,
        plan.workload_names().join(","),
        plan.end_flag(),
        plan.seed,
        plan.clients,
        plan.rate
    )
}
