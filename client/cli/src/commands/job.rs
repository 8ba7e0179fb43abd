//! Jobs.

use holdfast_api::{Command, Name, Outcome, Read, ReadOutcome, RunCommand, RunOutcome};

use super::{Context, known, plan, unexpected_answer, unexpected_outcome};
use crate::cli::JobCommand;
use crate::config::Source;
use crate::document::{JobDeleted, Jobs};
use crate::exit::Failure;

/// Carries a command on jobs out.
pub(crate) async fn run(context: &Context, command: JobCommand) -> Result<(), Failure> {
    match command {
        JobCommand::List => match context.read(Read::Jobs, false).await? {
            (ReadOutcome::Jobs(jobs), revision) => context.emit(&Jobs { jobs, revision }),
            (other, _) => Err(unexpected_answer("job list", &other)),
        },
        JobCommand::Delete { name } => delete(context, name).await,
        JobCommand::Plan { without, without_host } => {
            plan::run(context, without, without_host).await
        }
    }
}

/// The cluster deletes a bounded number of runs at a time.
async fn delete(context: &Context, job: Name) -> Result<(), Failure> {
    if context.settings.job.source == Source::Flag {
        let why = "`holdfast job delete` takes the job as its argument, not as --job";
        return Err(Failure::Usage(why.to_owned()));
    }
    let mut deleted = 0;
    loop {
        let command = Command::Run(RunCommand::DeleteJob { job: job.clone() });
        let (outcome, revision) = match context.propose(command).await {
            Ok(done) => done,
            Err(failure) if failure.is_not_found() => {
                // It names the one that was probably meant.
                let better = known::runs(context, &job, false).await.err();
                return Err(better.filter(Failure::is_not_found).unwrap_or(failure));
            }
            Err(failure) => return Err(failure),
        };
        match outcome {
            Outcome::Run(RunOutcome::JobDeleted { runs, left }) => {
                deleted += runs;
                if left == 0 {
                    return context.emit(&JobDeleted { runs: deleted, revision });
                }
            }
            other => return Err(unexpected_outcome("job delete", &other)),
        }
    }
}
