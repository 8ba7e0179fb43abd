//! `holdfast-chaos compose`.

use std::path::PathBuf;

use holdfast_chaos::cluster::containers::{Breaker, Containers};
use holdfast_chaos::judge::Verdict;
use holdfast_chaos::run::attached::Attachment;
use holdfast_chaos::run::plan::{self, Plan};

use super::attach;
use super::load::{self, Load};

/// Default operations per second.
const RATE_DEFAULT: u32 = 100;

/// Start the containers of a compose file, break them under load, and judge them
///
/// Containers of nodes are killed, paused, and cut off from their network, in turn.
/// They have a project name and ports of their own, and are removed at the end.
/// Takes Docker and its image (see store/docs/deploy.md).
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Start the services of this file, of which node1, node2 and node3 are the nodes.
    #[arg(long, value_name = "FILE", default_value = "docker-compose.yml")]
    file: PathBuf,
    #[command(flatten)]
    load: Load,
}

/// Runs it; answers the exit code.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let (workloads, left_out) = plan::workloads_without_agents(&arguments.load.workload)?;
    let plan = Plan { workloads, left_out, ..arguments.load.plan(RATE_DEFAULT)? };
    load::prepare(&plan.report)?;
    eprintln!("starting the containers of {}", arguments.file.display());
    let containers = Containers::up(&arguments.file)?;
    let endpoints = containers.endpoints().to_vec();
    let attachment = Attachment {
        list: endpoints.join(","),
        endpoints,
        credentials: Default::default(),
        files: Default::default(),
        hook: Some(Breaker::Containers(Box::new(containers))),
    };
    let file = arguments.file.display();
    let command = format!("holdfast-chaos compose --file {file} {}", load::flags(&plan));
    attach::judged(&plan, &attachment, command).map(Verdict::exit_code)
}
