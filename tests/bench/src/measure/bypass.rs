//! A program that serves a store of its own: how long until `holdfast-agent run` says that it
//! bypasses the agent.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader, Lines};
use tokio::process::Command;
use tokio::time::timeout;

use crate::arguments::Bench;
use crate::child::free_ports;
use crate::cluster::Cluster;
use crate::peer::torch::Torch;
use crate::report::{Aim, Section, spread};
use crate::samples::{Samples, ms};

/// Serves a store beside that of the agent, until its input ends.
const PROGRAM: &str = "\
import sys
from torch.distributed import TCPStore
print('opens', flush=True)
store = TCPStore('localhost', int(sys.argv[1]), is_master=True, wait_for_workers=False)
sys.stdin.read()
";
/// Part of the line that names it.
const NAMED: &str = "bypasses Holdfast: it serves a TCPStore itself";
/// Time in which each is to be named.
const NAMED_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest time for a line, and for the end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Reads up to a line that holds these words.
async fn says(lines: &mut Lines<impl AsyncBufRead + Unpin>, words: &str) -> anyhow::Result<()> {
    let mut said = Vec::new();
    let reading = async {
        while let Some(line) = lines.next_line().await? {
            if line.contains(words) {
                return anyhow::Ok(true);
            }
            said.push(line);
        }
        Ok(false)
    };
    let found = timeout(PATIENCE, reading).await;
    ensure!(matches!(found, Ok(Ok(true))), "a program was to say {words:?}, and said {said:?}");
    Ok(())
}

async fn until_named(bench: &Bench, cluster: &Cluster) -> anyhow::Result<Duration> {
    let program = bench.binaries.join("holdfast-agent");
    let (store, port) = (cluster.endpoints().join(","), free_ports(1)?[0].to_string());
    let mut command = Command::new(&program);
    command.args(["run", "--store", &store, "--job", "bypass", "--"]);
    command.arg(&bench.python).args(["-c", PROGRAM, &port]);
    // Its Python may have Holdfast's wheel, which would put that store on Holdfast.
    command.env("HOLDFAST_CAPTURE", "off");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = command.kill_on_drop(true).spawn();
    let mut run = started.with_context(|| format!("starting {}", program.display()))?;
    let input = run.stdin.take().context("its input is a pipe")?;
    let mut output = BufReader::new(run.stdout.take().context("its output is a pipe")?).lines();
    let mut log = BufReader::new(run.stderr.take().context("its log is a pipe")?).lines();
    says(&mut output, "opens").await?;
    let opened = Instant::now();
    says(&mut log, NAMED).await?;
    let took = opened.elapsed();
    drop(input);
    let ended = timeout(PATIENCE, run.wait()).await;
    let status = ended.context("the program does not end with its input")??;
    ensure!(status.success(), "{} run ended with {status}", program.display());
    Ok(took)
}

pub async fn run(bench: &Bench, title: &str) -> anyhow::Result<Section> {
    let mut section = Section::new(title, &["store", "times", "named after ms"]);
    if !Torch::is_importable(bench).await {
        let python = bench.python.display();
        section.remark(format!("Not measured: {python} cannot import torch."));
        return Ok(section);
    }
    let cluster = Cluster::start(bench, &[]).await?;
    let mut took = Vec::new();
    for _ in 0..bench.effort.rounds {
        took.push(until_named(bench, &cluster).await?);
    }
    section.row([
        "a TCPStore that the program serves itself".to_owned(),
        took.len().to_string(),
        spread(&took.iter().copied().map(ms).collect::<Vec<_>>()),
    ]);
    let what = "a program that serves its own store, until it is named, the slowest";
    section.aims.push(Aim::time_at_most(what, Samples::from(took).max(), NAMED_TIME_MAX));
    section.remark(
        "PyTorch without Holdfast's wheel, under `holdfast-agent run`: from before the program opens the store, to the line on \
         stderr that says that it bypasses Holdfast and how to mend it. `run` looks at the programs of its command from time to \
         time, so that most of it is the wait for the next look.",
    );
    cluster.remark_elections(&mut section).await?;
    Ok(section)
}
