//! `holdfast-chaos`: breaks clusters, and judges whether they kept their
//! promises.

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::commands::{attach, check, heal, list, run};

/// What a program ends with that could not do what it was asked for: no verdict.
const TROUBLE: u8 = 2;

/// Breaks a cluster and says whether it kept its promises.
///
/// Ends with 0: pass; 1: fail; 3: unknown (it was not decided); 2: it could not
/// be done, and nothing is said of the cluster.
#[derive(Debug, Parser)]
#[command(version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Arguments),
    Attach(attach::Arguments),
    Check(check::Arguments),
    Heal(heal::Arguments),
    List(list::Arguments),
}

fn main() -> ExitCode {
    let done = match CommandLine::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Attach(arguments) => attach::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Heal(arguments) => heal::run(&arguments),
        Command::List(arguments) => list::run(&arguments),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("holdfast-chaos: {error:#}");
            ExitCode::from(TROUBLE)
        }
    }
}
