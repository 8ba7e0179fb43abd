//! What a run has to undo on a cluster that it did not start, and how `heal` does that.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use holdfast_api::{Code, Command, Name, NodeId, Outcome, RunCommand, RunOutcome};
use holdfast_client::{Client, Deadline, Error, Options, TlsFiles};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::hook;

/// How the jobs of runs begin.
pub(crate) const JOB_PREFIX: &str = "chaos-";
/// By then a node of a cluster has answered.
const LOOK_TIME_MAX: Duration = Duration::from_secs(10);
/// Bound on one change of a cluster that may have to recover first.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(60);
/// A call that waited in a node which was stopped may make the job again: how long the job has to
/// stay away after it was deleted, and by when.
const ABSENT: Duration = Duration::from_secs(3);
const ABSENT_TIME_MAX: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The run that a job's first write opens.
const RUN: &str = "default";

/// The cluster, how it is reached, and what is to be undone there.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Foreign {
    /// Addresses of its nodes.
    pub endpoints: Vec<String>,
    /// The file with the token that it asks for.
    pub token_file: Option<PathBuf>,
    /// The authority of its certificates, if it speaks TLS.
    pub tls_ca: Option<PathBuf>,
    /// The certificate of the run, if it shows one.
    pub tls_cert: Option<PathBuf>,
    /// The key of that certificate.
    pub tls_key: Option<PathBuf>,
    /// The job of the run; none once it is deleted.
    pub job: Option<Name>,
    /// The program that breaks nodes, and heals them.
    pub hook: Option<PathBuf>,
    /// Where it is called.
    #[serde(default)]
    pub folder: Option<PathBuf>,
    /// What it was asked to break; none once that is healed.
    pub broken: Option<Broken>,
}

/// A node that a hook was asked to break.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Broken {
    /// The fault, as the hook is called with it.
    pub fault: String,
    /// Id of the node.
    pub node: NodeId,
}

impl Foreign {
    /// Whether there is anything to undo.
    pub(super) fn is_left(&self) -> bool {
        self.job.is_some() || self.broken.is_some()
    }

    /// Heals the node and deletes the job, and forgets what is done. The error names what is
    /// left, and how it is undone by hand.
    pub(super) fn heal(&mut self, done: &mut Vec<String>) -> anyhow::Result<()> {
        let errors: Vec<String> = [self.heal_node(done), self.delete_job(done)]
            .into_iter()
            .filter_map(Result::err)
            .map(|error| format!("{error:#}"))
            .collect();
        ensure!(errors.is_empty(), errors.join("; "));
        Ok(())
    }

    fn heal_node(&mut self, done: &mut Vec<String>) -> anyhow::Result<()> {
        let Some(Broken { fault, node }) = self.broken.clone() else { return Ok(()) };
        let left = || format!("{fault} of node {node} may still be there; heal it by hand");
        let hook = self.hook.as_ref().context("its hook is not known").with_context(left)?;
        let mut command = std::process::Command::new(hook);
        command.args(["heal", &fault, &node.to_string()]);
        if let Some(folder) = self.folder.as_ref().filter(|folder| folder.is_dir()) {
            command.current_dir(folder);
        }
        let words = format!("{} heal {fault} {node}", hook.display());
        runtime()?.block_on(hook::call(command, &words, |_| Ok(()))).with_context(left)?;
        done.push(format!("healed {fault} of node {node} with {}", hook.display()));
        self.broken = None;
        Ok(())
    }

    fn delete_job(&mut self, done: &mut Vec<String>) -> anyhow::Result<()> {
        let Some(job) = self.job.clone() else { return Ok(()) };
        ensure!(
            job.as_str().starts_with(JOB_PREFIX),
            "job {job} is left alone: jobs of runs begin with {JOB_PREFIX}"
        );
        let deleted = runtime()?.block_on(Box::pin(self.delete(&job)));
        let endpoints = self.endpoints.join(",");
        deleted.with_context(|| {
            format!(
                "job {job} may still be there; end its run and delete it with `holdfast job delete {job} --store {endpoints}`"
            )
        })?;
        done.push(format!("deleted job {job} at {endpoints}"));
        // A node that is healed later may make it again.
        if self.broken.is_none() {
            self.job = None;
        }
        Ok(())
    }

    async fn delete(&self, job: &Name) -> anyhow::Result<()> {
        let files = TlsFiles {
            ca: self.tls_ca.clone(),
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
        };
        let (token_file, tls) = (self.token_file.clone(), files.read()?);
        let client =
            Client::new(Options { token_file, tls, ..Options::new(self.endpoints.clone()) });
        let deleted = match client.status(Deadline::after(LOOK_TIME_MAX)).await {
            Ok(_) if self.hook.is_some() => delete_for_good(&client, job).await,
            Ok(_) => delete_job(&client, job).await,
            Err(error) => Err(anyhow::Error::new(error).context("the cluster does not answer")),
        };
        client.close().await;
        deleted
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Deletes the job of a run until it stays away.
async fn delete_for_good(client: &Client, job: &Name) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut absent = began;
    while absent.elapsed() < ABSENT {
        if delete_if_there(client, job).await? {
            absent = Instant::now();
        }
        ensure!(
            began.elapsed() < ABSENT_TIME_MAX,
            "it was made again and again for {ABSENT_TIME_MAX:?}"
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Deletes the job of a run with everything in it. One that is gone is no error.
pub(crate) async fn delete_job(client: &Client, job: &Name) -> anyhow::Result<()> {
    delete_if_there(client, job).await.map(drop)
}

/// The same; answers whether it was there.
async fn delete_if_there(client: &Client, job: &Name) -> anyhow::Result<bool> {
    let propose = async |command| {
        client.propose(Command::Run(command), Deadline::after(CHANGE_TIME_MAX)).await
    };
    let gone = |error: &Error| matches!(error.code(), Code::JobNotFound | Code::RunNotFound);
    let end = RunCommand::End { job: job.clone(), run: RUN.parse()? };
    match propose(end).await {
        Ok(_) => {}
        // A job may be there without a run.
        Err(error) if gone(&error) => {}
        Err(error) => return Err(error.into()),
    }
    loop {
        match propose(RunCommand::DeleteJob { job: job.clone() }).await {
            Ok(answer) => match answer.outcome {
                Outcome::Run(RunOutcome::JobDeleted { left, .. }) if left > 0 => {}
                _ => return Ok(true),
            },
            Err(error) if gone(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster of which a node was broken by a hook that always answers in this way.
    fn broken_by(hook: &str) -> Foreign {
        let broken = Some(Broken { fault: "pause".to_owned(), node: 2 });
        Foreign { hook: Some(hook.into()), broken, ..Foreign::default() }
    }

    #[test]
    fn a_node_that_was_healed_is_not_healed_again() {
        let (mut foreign, mut done) = (broken_by("true"), Vec::new());
        foreign.heal(&mut done).unwrap();
        assert_eq!(done, ["healed pause of node 2 with true"]);
        assert!(!foreign.is_left());
        foreign.heal(&mut done).unwrap();
        assert_eq!(done.len(), 1);
    }

    #[test]
    fn what_a_hook_does_not_heal_is_named_and_kept() {
        let (mut foreign, mut done) = (broken_by("false"), Vec::new());
        let error = foreign.heal(&mut done).unwrap_err().to_string();
        let said = "pause of node 2 may still be there; heal it by hand: false heal pause 2 ended";
        assert!(error.starts_with(said), "{error}");
        assert!(foreign.is_left() && done.is_empty());
    }

    #[test]
    fn a_hook_is_called_where_the_run_was_started() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("heal"), "test $1 = pause && touch healed").unwrap();
        let folder_of_run = Some(folder.path().to_owned());
        let mut foreign = Foreign { folder: folder_of_run, ..broken_by("sh") };
        foreign.heal(&mut Vec::new()).unwrap();
        assert!(folder.path().join("healed").exists());
    }

    #[test]
    fn a_job_that_no_run_made_is_left_alone() {
        let job = Some("training".parse().unwrap());
        let mut foreign = Foreign { job, ..Foreign::default() };
        let error = foreign.heal(&mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("job training is left alone"), "{error}");
    }

    #[test]
    fn what_is_to_be_undone_is_read_as_it_was_written() {
        let job = Some("chaos-1".parse().unwrap());
        let foreign = Foreign { job, ..broken_by("hook") };
        let read: Foreign =
            serde_json::from_str(&serde_json::to_string(&foreign).unwrap()).unwrap();
        assert_eq!((read.job, read.broken), (foreign.job, foreign.broken));
    }
}
