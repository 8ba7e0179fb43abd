//! `holdfast-chaos`: breaks clusters, and judges whether they kept their
//! promises.

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::commands::{attach, check, compose, heal, list, run, sim};
#[cfg(feature = "planted")]
use self::commands::{crash, planted};

/// Exit code of a program that could not do its task: no verdict.
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
    Compose(compose::Arguments),
    Check(check::Arguments),
    Heal(heal::Arguments),
    List(list::Arguments),
    Sim(sim::Arguments),
    #[cfg(feature = "planted")]
    Planted(planted::Arguments),
    #[cfg(feature = "planted")]
    Crash(crash::Arguments),
}

fn main() -> ExitCode {
    let done = match CommandLine::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Attach(arguments) => attach::run(&arguments),
        Command::Compose(arguments) => compose::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Heal(arguments) => heal::run(&arguments),
        Command::List(arguments) => list::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
        #[cfg(feature = "planted")]
        Command::Planted(arguments) => planted::run(&arguments),
        #[cfg(feature = "planted")]
        Command::Crash(arguments) => crash::run(&arguments),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("holdfast-chaos: {error:#}");
            ExitCode::from(TROUBLE)
        }
    }
}
