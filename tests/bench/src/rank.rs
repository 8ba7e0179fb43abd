//! A rank of a job as a child: the tests' trainer, driven line by line.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::arguments::Bench;

const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// A rank that has joined the agent of its host; killed when dropped.
#[derive(Debug)]
pub struct Rank {
    /// Its process id in the job.
    pub process: u32,
    child: Child,
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Rank {
    /// Starts it, and waits until it has joined the agent at `control`.
    pub async fn join(bench: &Bench, control: &Path, process: u32) -> anyhow::Result<Rank> {
        let program = bench.binaries.join("holdfast-test-trainer");
        let mut child = Command::new(&program)
            .arg(process.to_string())
            .env("HOLDFAST_CONTROL", control)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let orders = child.stdin.take().context("its input is a pipe")?;
        let lines = BufReader::new(child.stdout.take().context("its output is a pipe")?).lines();
        let mut rank = Rank { process, child, orders, lines };
        rank.says("joined ").await?;
        Ok(rank)
    }

    /// It waits in this round from now on.
    pub async fn roll(&mut self, round: &str) -> anyhow::Result<()> {
        Ok(self.orders.write_all(format!("roll {round}\n").as_bytes()).await?)
    }

    /// Waits until it has the outcome of this round.
    pub async fn rolled(&mut self, round: &str) -> anyhow::Result<()> {
        self.says(&format!("rolled {round} ")).await
    }

    async fn says(&mut self, wanted: &str) -> anyhow::Result<()> {
        let line = tokio::time::timeout(ANSWER_TIME_MAX, self.lines.next_line()).await;
        match line.with_context(|| format!("a rank does not say {wanted:?}"))?? {
            Some(line) if line.starts_with(wanted) => Ok(()),
            other => bail!("a rank was to say {wanted:?}, and said {other:?}"),
        }
    }

    /// SIGKILL; it has ended when this answers.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}
