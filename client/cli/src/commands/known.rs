//! Whether the job and the run that were named are there, and which name was
//! meant if not.

use holdfast_api::{Code, Name, Problem, Read, ReadOutcome, Refusal, RunInfo};

use super::{Context, unexpected_answer};
use crate::config::Source;
use crate::exit::Failure;

/// Refuses a job or a run that was named and is not there. A job that was not
/// named is not looked for: it may be empty.
pub(super) async fn check(context: &Context, stale: bool) -> Result<(), Failure> {
    let settings = &context.settings;
    if settings.job.source == Source::Default && settings.run.value.is_none() {
        return Ok(());
    }
    runs(context, &settings.job.value, stale).await.map(drop)
}

/// The same failure, with the name that was probably meant, if it says that the
/// job or the run of the settings is not there.
pub(super) async fn explain(context: &Context, failure: Failure) -> Failure {
    let scope = context.scope();
    let is_of_settings = match failure.refusal() {
        Some(Refusal::JobNotFound { job }) => *job == scope.job,
        Some(Refusal::RunNotFound { job, run }) => {
            *job == scope.job && Some(run) == scope.run.as_ref()
        }
        _ => false,
    };
    if !is_of_settings {
        return failure;
    }
    match runs(context, &scope.job, false).await {
        // For a run deleted with its job, the cluster's own error names the next step.
        Err(better) if better.is_not_found() && better.code() == failure.code() => better,
        _ => failure,
    }
}

/// The runs of a job, oldest first; one at least, and the one that was named
/// among them.
pub(super) async fn runs(
    context: &Context,
    job: &Name,
    stale: bool,
) -> Result<Vec<RunInfo>, Failure> {
    let Some(runs) = find(context, job, stale).await? else {
        let nearest = nearest_job(context, job, stale).await?;
        let message = format!(
            "job {job} does not exist;{} `holdfast job list` shows all jobs",
            meant(nearest.as_ref())
        );
        return Err(Failure::refused(Problem::refused(Code::JobNotFound, message)));
    };
    match &context.settings.run.value {
        Some(run) if !runs.iter().any(|info| info.run == *run) => {
            let nearest = nearest(run, runs.iter().map(|info| &info.run));
            let message = format!(
                "job {job} has no run {run};{} `holdfast --job {job} run list` shows its runs",
                meant(nearest.as_ref())
            );
            Err(Failure::refused(Problem::refused(Code::RunNotFound, message)))
        }
        _ => Ok(runs),
    }
}

/// The runs of a job; none if there is no such job, or nothing is left of it.
pub(super) async fn find(
    context: &Context,
    job: &Name,
    stale: bool,
) -> Result<Option<Vec<RunInfo>>, Failure> {
    match context.read(Read::Runs { job: job.clone() }, stale).await {
        Ok((ReadOutcome::Runs(runs), _)) => Ok(Some(runs).filter(|runs| !runs.is_empty())),
        Ok((other, _)) => Err(unexpected_answer("run list", &other)),
        Err(failure) if failure.code() == Some(Code::JobNotFound) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Reports that the job is not there yet, before a wait for it.
pub(super) async fn say_if_absent(context: &Context) -> Result<(), Failure> {
    let job = &context.settings.job.value;
    if find(context, job, false).await?.is_none() {
        let nearest = nearest_job(context, job, false).await?;
        let meant = nearest.map(|name| format!(" (is {name} meant?)")).unwrap_or_default();
        context.talk(format!("job {job} does not exist yet; waiting for it{meant}"));
    }
    Ok(())
}

/// The job whose name is nearest, if one is near.
pub(super) async fn nearest_job(
    context: &Context,
    job: &Name,
    stale: bool,
) -> Result<Option<Name>, Failure> {
    match context.read(Read::Jobs, stale).await? {
        (ReadOutcome::Jobs(jobs), _) => Ok(nearest(job, jobs.iter().map(|info| &info.job))),
        (other, _) => Err(unexpected_answer("job list", &other)),
    }
}

/// ` is train meant?`, if a name is near.
pub(super) fn meant(nearest: Option<&Name>) -> String {
    nearest.map(|name| format!(" is {name} meant?")).unwrap_or_default()
}

fn nearest<'a>(wanted: &Name, all: impl Iterator<Item = &'a Name>) -> Option<Name> {
    let found = crate::nearest::nearest(wanted.as_str(), all.map(Name::as_str));
    found.and_then(|name| name.parse().ok())
}
