//! Whether a fence token holds.

use std::io::{self, Write};

use holdfast_api::{Code, Fence, Problem};
use serde::Serialize;

use super::{Context, processes};
use crate::cli::FenceCommand;
use crate::exit::Failure;
use crate::output::{Document, printable};

/// Carries a command on tokens out.
pub(crate) async fn run(context: &Context, command: FenceCommand) -> Result<(), Failure> {
    let FenceCommand::Check { token } = command;
    let (scope, after) = (token.scope(), token.process.checked_sub(1));
    let (found, _, revision) = processes::page(context, &scope, after, 1, false).await?;
    match token.void(found.first()) {
        None => context.emit(&Holds { token, revision }),
        Some(why) => {
            let message = format!("{token} is void: {}", printable(&why));
            Err(Failure::refused(Problem::refused(Code::Fenced, message)))
        }
    }
}

/// The answer of `fence check`.
#[derive(Debug, Serialize)]
struct Holds {
    token: Fence,
    revision: u64,
}

impl Document for Holds {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let Holds { token: Fence { process, incarnation, .. }, revision } = self;
        writeln!(
            out,
            "holds: process {process} (incarnation {incarnation}) is alive at revision {revision}"
        )
    }
}
