//! Jobs.

use holdfast_api::{Read, ReadOutcome};

use super::{Context, unexpected_answer};
use crate::cli::JobCommand;
use crate::document::Jobs;
use crate::exit::Failure;

/// Carries a command on jobs out.
pub(crate) async fn run(context: &Context, command: JobCommand) -> Result<(), Failure> {
    match command {
        JobCommand::List => match context.read(Read::Jobs, false).await? {
            (ReadOutcome::Jobs(jobs), revision) => context.emit(&Jobs { jobs, revision }),
            (other, _) => Err(unexpected_answer("job list", &other)),
        },
    }
}
