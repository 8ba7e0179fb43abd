//! An operator's commands on a process.

use std::io::{self, Write};

use holdfast_api::{Code, Command, Incarnation, Outcome, Problem, ProcessId, ProcessInfo};
use holdfast_api::{ProcessOutcome, Revision};
use serde::Serialize;

use super::{Context, place, processes, unexpected_outcome};
use crate::cli::ProcessCommand;
use crate::exit::Failure;
use crate::output::{Document, printable};

/// Carries a command on processes out.
pub(crate) async fn run(context: &Context, command: ProcessCommand) -> Result<(), Failure> {
    let ProcessCommand::Remove { process, incarnation, reason } = command;
    let incarnation = match incarnation {
        Some(incarnation) => incarnation,
        None => living(context, process).await?,
    };
    let scope = context.scope();
    let command = Command::Process(holdfast_api::ProcessCommand::Remove {
        scope,
        process,
        incarnation,
        reason,
    });
    match context.propose(command).await? {
        (Outcome::Process(ProcessOutcome::Ended { ended }), revision) => {
            context.emit(&Removed { process, incarnation, ended, revision })
        }
        (other, _) => Err(unexpected_outcome("process remove", &other)),
    }
}

/// The live incarnation. The cluster refuses the removal if another one has
/// taken its place since.
async fn living(context: &Context, process: ProcessId) -> Result<Incarnation, Failure> {
    let scope = context.scope();
    let (found, _, _) = processes::page(context, &scope, process.checked_sub(1), 1, false).await?;
    let found = found.into_iter().find(|found| found.process == process);
    choose(process, found).map_err(|why| {
        let list = "`holdfast processes` lists all";
        let message = format!("{}: {why}; {list}", place(&scope));
        Failure::refused(Problem::refused(Code::ProcessNotFound, message))
    })
}

fn choose(process: ProcessId, found: Option<ProcessInfo>) -> Result<Incarnation, String> {
    match found {
        None => Err(format!("there is no process {process}")),
        Some(ProcessInfo { end: Some(end), incarnation, .. }) => Err(format!(
            "process {process} is not alive: its incarnation {incarnation} {}",
            printable(&end.cause.to_string())
        )),
        Some(alive) => Ok(alive.incarnation),
    }
}

/// The answer of `process remove`.
#[derive(Debug, Serialize)]
struct Removed {
    process: ProcessId,
    incarnation: Incarnation,
    ended: u64,
    revision: Revision,
}

impl Document for Removed {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let Removed { process, incarnation, ended, revision: _ } = self;
        match ended {
            0 => writeln!(out, "process {process} (incarnation {incarnation}) had ended before"),
            _ => writeln!(out, "removed process {process} (incarnation {incarnation})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::{Cause, EndInfo};

    use super::*;
    use crate::commands::processes::tests::process;

    #[test]
    fn only_a_living_process_can_be_meant_without_its_incarnation() {
        assert_eq!(choose(4, Some(process(4, "a"))), Ok(5));
        assert_eq!(choose(4, None), Err("there is no process 4".to_owned()));
        let end = EndInfo { at: 9, at_ms: 9, cause: Cause::LeaseExpired };
        let dead = ProcessInfo { end: Some(end), ..process(4, "a") };
        let why = choose(4, Some(dead)).unwrap_err();
        assert!(why.contains("incarnation 5") && why.contains("lease expired"), "{why}");
    }
}
