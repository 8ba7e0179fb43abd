//! `holdfast-chaos`: judges recorded histories.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use holdfast_chaos::{History, Report, check};

/// Says whether a cluster kept its promises.
#[derive(Debug, Parser)]
#[command(version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Judge recorded histories of rounds: each folder that of one job.
    Check {
        /// The folders.
        #[arg(required = true)]
        folders: Vec<PathBuf>,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let Command::Check { folders } = CommandLine::parse().command;
    let mut report = Report::default();
    for folder in folders {
        let mut one = check(&History::read(&folder)?);
        for violation in &mut one.violations {
            violation.text = format!("{}: {}", folder.display(), violation.text);
        }
        report.add(one);
    }
    println!("{report}");
    Ok(ExitCode::from(u8::from(!report.violations.is_empty())))
}
