//! `kv watch`: changes as they happen, one line each.

use std::convert::Infallible;
use std::io::{self, Write};
use std::time::Duration;

use holdfast_api::{
    Blob, Code, LogTime, Name, Problem, Read, ReadAnswer, ReadOutcome, Refusal, Revision, RunInfo,
    Scope,
};
use holdfast_client::{Consistency, Deadline, Error, Watch};
use serde::Serialize;

use super::{Context, known, until_interrupted};
use crate::document::Changed;
use crate::exit::Failure;
use crate::log_time::span;
use crate::output::Document;

/// Pause between two looks for the job's next run.
const POLL_EVERY: Duration = Duration::from_millis(300);
/// Pause between two looks whether the run is about to end.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest time for one such look.
const LOOK_TIME_MAX: Duration = Duration::from_secs(1);

/// Which changes are wanted.
pub(crate) struct Wanted {
    /// Only keys that start with this.
    pub(crate) prefix: Blob,
    /// The first revision; none = from now on.
    pub(crate) from: Option<Revision>,
    /// Also changes of the runs that follow.
    pub(crate) follow_runs: bool,
}

/// Watches until it is interrupted, which is success, or the run ends.
pub(crate) async fn run(context: &Context, wanted: Wanted) -> Result<(), Failure> {
    let watching = async {
        // A watch survives every failover, so it would also wait for ever for a
        // cluster that never existed: ask once whether there is one.
        context.client.status(context.deadline()).await?;
        known::say_if_absent(context).await?;
        match wanted.follow_runs {
            true => follow_runs(context, &wanted).await,
            false => print_changes(context, context.scope(), &wanted.prefix, wanted.from).await,
        }
    };
    until_interrupted(watching).await
}

/// Ends only with an error.
async fn print_changes(
    context: &Context,
    scope: Scope,
    prefix: &Blob,
    from: Option<Revision>,
) -> Result<(), Failure> {
    let watch = context.client.watch(scope.clone(), prefix.clone(), from).await?;
    tokio::select! {
        biased;
        end = print_all(context, watch) => end,
        never = tell_ending(context, scope) => match never {},
    }
}

/// Reports when the last agent has left the run for good, which ends it: no process
/// enters it any more. A watch does not carry that: the node that it is on is
/// asked, which answers from memory.
async fn tell_ending(context: &Context, Scope { job, run }: Scope) -> Infallible {
    let mut watched = run;
    loop {
        let read = Read::Runs { job: job.clone() };
        let deadline = Deadline::after(LOOK_TIME_MAX);
        let asked = context.client.read(read, Consistency::Stale, deadline).await;
        if let Ok(ReadAnswer { outcome: ReadOutcome::Runs(runs), time_ms, .. }) = asked {
            let is_it = |info: &&RunInfo| match &watched {
                Some(run) => info.run == *run,
                // The open one is watched, or the next.
                None => info.open,
            };
            if let Some(info) = runs.iter().find(is_it) {
                if let Some(line) = ending(&job, info, time_ms) {
                    context.talk(line);
                    return std::future::pending().await;
                }
                watched = Some(info.run.clone());
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn ending(job: &Name, info: &RunInfo, now: LogTime) -> Option<String> {
    let left = span(info.ends_at_ms?.saturating_sub(now));
    Some(format!(
        "the last agent has left run {} of job {job} for good: it ends in {left}",
        info.run
    ))
}

async fn print_all(context: &Context, mut watch: Watch) -> Result<(), Failure> {
    while let Some(batch) = watch.next().await {
        let batch = batch.map_err(ended)?;
        for change in &batch.changes {
            context.emit(&Changed::new(batch.revision, change))?;
        }
    }
    Err(Failure::refused(Problem::retryable(
        Code::Unavailable,
        "the watch ended; start it again with --from the revision after the last one printed",
    )))
}

/// Why a watch ended; of a run that has ended, with what to do.
fn ended(error: Error) -> Failure {
    let Error::Refused(problem) = &error else { return error.into() };
    let Some(Refusal::Fenced { job, run, at, by }) = &problem.refusal else {
        return error.into();
    };
    let next = match by {
        Some(by) => format!(
            " (followed by {by}); watch that: `holdfast --job {job} --run {by} kv watch`, or all runs with --follow-runs"
        ),
        None => "; --follow-runs goes on with the job's next run".to_owned(),
    };
    let message = format!("run {run} of job {job} ended at revision {at}{next}");
    Failure::refused(Problem { message, ..problem.as_ref().clone() })
}

/// The changes of one run after the other, each from its opening.
async fn follow_runs(context: &Context, wanted: &Wanted) -> Result<(), Failure> {
    let job = &context.settings.job.value;
    let (mut at, mut from) = (first(context, job, wanted.from).await?, wanted.from);
    loop {
        let scope = Scope { job: job.clone(), run: Some(at.run.clone()) };
        let followed = match print_changes(context, scope, &wanted.prefix, from).await {
            Err(failure) => match over(&failure, &at.run) {
                Some(by) => by.cloned(),
                None => return Err(failure),
            },
            end => return end,
        };
        context.talk(format!("run {} of job {job} has ended; waiting for the next", at.run));
        at = next(context, job, at.opened).await?;
        context.emit(&RunChanged {
            deleted: followed.filter(|run| *run != at.run),
            revision: at.opened,
            job: job.clone(),
            run: at.run.clone(),
            kind: "run",
        })?;
        from = Some(at.opened);
    }
}

/// If the run has ended: which one followed it at once, if one did.
fn over<'f>(failure: &'f Failure, ended: &Name) -> Option<Option<&'f Name>> {
    match failure.refusal() {
        Some(Refusal::Fenced { run, by, .. }) if run == ended => Some(by.as_ref()),
        _ => None,
    }
}

/// The run to begin with: the one that was named, the one that holds the first
/// wanted revision, or the open or latest one; waits for a job that is not there
/// yet.
async fn first(context: &Context, job: &Name, from: Option<Revision>) -> Result<RunInfo, Failure> {
    loop {
        if let Some(mut runs) = known::find(context, job, false).await? {
            let place = match &context.settings.run.value {
                Some(run) => runs.iter().position(|info| info.run == *run),
                None => place_of(&runs, from),
            };
            return match place {
                Some(place) => Ok(runs.swap_remove(place)),
                None => Err(known::runs(context, job, false).await.err().unwrap_or_else(|| {
                    Failure::refused(Problem::retryable(Code::Conflict, "the run has just come"))
                })),
            };
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// Which of these runs, oldest first, holds this revision or later ones; the
/// open or latest one if none was named.
fn place_of(runs: &[RunInfo], from: Option<Revision>) -> Option<usize> {
    let goes_on = |run: &RunInfo| match from {
        Some(from) => run.ended.is_none_or(|ended| ended >= from),
        None => run.open,
    };
    runs.iter().position(goes_on).or(runs.len().checked_sub(1))
}

/// The first run of the job that was opened after this revision; waits for it.
async fn next(context: &Context, job: &Name, behind: Revision) -> Result<RunInfo, Failure> {
    loop {
        match known::find(context, job, false).await {
            Ok(runs) => {
                // Oldest first.
                let mut later = runs.into_iter().flatten().filter(|run| run.opened > behind);
                if let Some(next) = later.next() {
                    return Ok(next);
                }
            }
            // It goes on through failovers, as a watch does.
            Err(Failure::Client(error)) if error.is_retryable() => {}
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// The changes that follow are those of another run.
#[derive(Debug, Serialize)]
struct RunChanged {
    /// Revision of its opening.
    revision: Revision,
    job: Name,
    run: Name,
    #[serde(rename = "type")]
    kind: &'static str,
    /// A run before it that is deleted: its changes cannot be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted: Option<Name>,
}

impl Document for RunChanged {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let RunChanged { revision, job, run, .. } = self;
        if let Some(deleted) = &self.deleted {
            writeln!(
                out,
                "{revision} run {deleted} of job {job}, and any after it until run {run}, are deleted: their changes are missing here"
            )?;
        }
        writeln!(out, "{revision} run {run} of job {job} was opened")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_that_the_last_agent_has_left_and_when_the_run_ends() {
        let job: Name = "a".parse().unwrap();
        let mut run = RunInfo {
            run: "r1".parse().unwrap(),
            open: true,
            opened: 1,
            opened_at_ms: 0,
            ended: None,
            ended_at_ms: None,
            ends_at_ms: None,
            cause: None,
            keys: 0,
            bytes: 0,
        };
        assert_eq!(ending(&job, &run, 500), None);
        run.ends_at_ms = Some(10_000);
        let told = "the last agent has left run r1 of job a for good: it ends in 9s";
        assert_eq!(ending(&job, &run, 500).as_deref(), Some(told));
    }

    #[test]
    fn the_end_of_a_run_is_told_with_the_run_to_watch() {
        let told = |by: Option<&str>| {
            let refusal = Refusal::Fenced {
                job: "a".parse().unwrap(),
                run: "r1".parse().unwrap(),
                at: 42,
                by: by.map(|by| by.parse().unwrap()),
            };
            let failure = ended(Error::Refused(Box::new(refusal.into())));
            let by: Option<Name> = by.map(|by| by.parse().unwrap());
            assert_eq!(over(&failure, &"r1".parse().unwrap()), Some(by.as_ref()));
            assert_eq!(over(&failure, &"r2".parse().unwrap()), None);
            let problem = failure.problem(None);
            (problem.code, problem.message)
        };
        assert_eq!(
            told(Some("r2")),
            (
                Code::Fenced,
                "run r1 of job a ended at revision 42 (followed by r2); watch that: `holdfast --job a --run r2 kv watch`, or all runs with --follow-runs".to_owned()
            )
        );
        let (_, alone) = told(None);
        assert!(alone.contains("ended at revision 42; --follow-runs goes on"), "{alone}");
    }
}
