//! What a run has to undo on a cluster that it did not start, and how `heal` does that.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use holdfast_api::{Code, Command, Name, NodeId, Outcome, RunCommand, RunOutcome};
use holdfast_client::{Client, Deadline, Error, Options, TlsFiles};
use serde::{Deserialize, Serialize};

use crate::programs;

/// Bound on one call of a hook.
pub(crate) const HOOK_TIME_MAX: Duration = Duration::from_secs(60);
/// By then a node of a cluster has answered.
const LOOK_TIME_MAX: Duration = Duration::from_secs(10);
/// Bound on one change of a cluster that may have to recover first.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(60);
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
        programs::output_of(&mut command, "", HOOK_TIME_MAX).with_context(left)?;
        done.push(format!("healed {fault} of node {node} with {}", hook.display()));
        self.broken = None;
        Ok(())
    }

    fn delete_job(&mut self, done: &mut Vec<String>) -> anyhow::Result<()> {
        let Some(job) = self.job.clone() else { return Ok(()) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let deleted = runtime.block_on(Box::pin(self.delete(&job)));
        let endpoints = self.endpoints.join(",");
        deleted.with_context(|| {
            format!(
                "job {job} may still be there; end its run and delete it with `holdfast job delete {job} --store {endpoints}`"
            )
        })?;
        done.push(format!("deleted job {job} at {endpoints}"));
        self.job = None;
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
            Ok(_) => delete_job(&client, job).await,
            Err(error) => Err(anyhow::Error::new(error).context("the cluster does not answer")),
        };
        client.close().await;
        deleted
    }
}

/// Deletes the job of a run with everything in it. One that is gone is no error.
pub(crate) async fn delete_job(client: &Client, job: &Name) -> anyhow::Result<()> {
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
                _ => return Ok(()),
            },
            Err(error) if gone(&error) => return Ok(()),
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
        let said = "pause of node 2 may still be there; heal it by hand: `false heal pause 2`";
        assert!(error.starts_with(said), "{error}");
        assert!(foreign.is_left() && done.is_empty());
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
