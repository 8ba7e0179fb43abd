//! Runs.

use holdfast_api::name::{RUN_AUTO, RUN_NEW};
use holdfast_api::{Command, Name, Outcome, Read, ReadOutcome, Revision, RunOutcome};

use super::{Context, unexpected_answer, unexpected_outcome};
use crate::cli::RunCommand;
use crate::config::Source;
use crate::document::{RunOpened, Runs, Written};
use crate::exit::Failure;

/// Carries a command on runs out.
pub(crate) async fn run(context: &Context, command: RunCommand) -> Result<(), Failure> {
    // A run given as a flag would be ignored silently; one in the
    // environment is meant for `kv`.
    if context.settings.run.source == Source::Flag {
        return Err(Failure::Usage(
            "`holdfast run` takes the run as its argument, not as --run: `holdfast run open NAME`"
                .to_owned(),
        ));
    }
    let job = context.settings.job.value.clone();
    match command {
        RunCommand::List => match context.read(Read::Runs { job }, false).await? {
            (ReadOutcome::Runs(runs), revision) => context.emit(&Runs { runs, revision }),
            (other, _) => Err(unexpected_answer("run list", &other)),
        },
        RunCommand::Open { name, takeover } => open(context, job, name, takeover).await,
        RunCommand::End { name } => {
            match propose(context, holdfast_api::RunCommand::End { job, run: name }).await? {
                (RunOutcome::Ended, revision) => context.emit(&Written { revision }),
                (other, _) => Err(unexpected_outcome("run end", &other)),
            }
        }
        RunCommand::Delete { name } => {
            match propose(context, holdfast_api::RunCommand::Delete { job, run: name }).await? {
                (RunOutcome::Deleted, revision) => context.emit(&Written { revision }),
                (other, _) => Err(unexpected_outcome("run delete", &other)),
            }
        }
    }
}

async fn open(
    context: &Context,
    job: Name,
    run: Option<Name>,
    takeover: bool,
) -> Result<(), Failure> {
    if let Some(word) = run.as_ref().filter(|run| [RUN_AUTO, RUN_NEW].contains(&run.as_str())) {
        let text =
            format!("`{word}` stands for a run with `holdfast-agent run`; name it otherwise");
        return Err(Failure::Usage(text));
    }
    let command = holdfast_api::RunCommand::Open { job: job.clone(), run, takeover };
    match propose(context, command).await? {
        (RunOutcome::Opened { run, created, ended }, revision) => {
            if !created {
                context.talk(format!("run {run} of job {job} was open already"));
            }
            if let Some(ended) = &ended {
                context.talk(format!("run {ended} of job {job} has ended"));
            }
            context.emit(&RunOpened { run, created, ended, revision })
        }
        (other, _) => Err(unexpected_outcome("run open", &other)),
    }
}

async fn propose(
    context: &Context,
    command: holdfast_api::RunCommand,
) -> Result<(RunOutcome, Revision), Failure> {
    match context.propose(Command::Run(command)).await? {
        (Outcome::Run(outcome), revision) => Ok((outcome, revision)),
        (other, _) => Err(unexpected_outcome("a command on runs", &other)),
    }
}
