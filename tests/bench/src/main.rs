//! `holdfast-bench`: how fast Holdfast is, and what it costs.
//!
//! It starts the real programs (`holdfast-store`, three times, and
//! `holdfast-agent`, with its keeper) as children on this machine, loads them
//! through the client library and through the TCPStore door, and writes a
//! table. Bare figures of one machine say little, so that each measurement has,
//! in the same run and interleaved with it, something to be compared with: the
//! disk's own sync, PyTorch's own TCPStore server, Redis or etcd where they are
//! installed, or the same cluster without the burden in question.
//!
//! Entry point: each module of [`measure`] is one measurement; `--list` names them, and
//! `--only NAME` runs one.
//!
//! | module | holds |
//! | --- | --- |
//! | [`arguments`] | the command line, and how much effort it asks for |
//! | [`measure`] | the measurements, one module each |
//! | [`cluster`], [`agent`], [`child`] | the programs under test as children |
//! | [`host`] | a host as its agent has it: a lease, and processes that wait in rounds |
//! | [`rank`] | a real rank: a program under an agent |
//! | [`load`] | closed-loop load, from workers that do one operation at a time |
//! | [`wire`] | a client of the TCPStore protocol |
//! | [`disk`] | the raw limit: append and fdatasync |
//! | [`peer`] | other servers to compare with |
//! | [`samples`] | percentiles and medians |
//! | [`machine`] | what the figures were taken on, and who else was using it |
//! | [`report`] | the tables, as Markdown |
//!
//! # Architecture invariants
//!
//! * It links the client library and the vocabulary, never the store: what is
//!   measured is what an operator runs.
//! * A measurement that fails says so in the table and in the exit code; it is
//!   never left out.
//! * Missing an aim is a result, not a failure of the program.

mod agent;
mod arguments;
mod child;
mod cluster;
mod disk;
mod host;
mod load;
mod machine;
mod measure;
mod peer;
mod rank;
mod report;
mod samples;
mod wire;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::{Arguments, Bench};
use crate::machine::Usage;
use crate::report::{Report, Section};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        for measurement in measure::ALL {
            println!("{:<12} {}", measurement.name(), measurement.title());
        }
        return ExitCode::SUCCESS;
    }
    let interrupted = async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            done = tokio::signal::ctrl_c() => done,
            _ = terminate.recv() => Ok(()),
        }
    };
    let ended = tokio::select! {
        ended = run(&arguments) => ended,
        _ = interrupted => Err(anyhow::anyhow!("interrupted")),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("holdfast-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every measurement could be made.
async fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raising the limit of open files")?;
    let bench = Bench::prepare(arguments)?;
    let mut report = Report::begin(&bench)?;
    for measurement in arguments.chosen() {
        let name = measurement.name();
        eprintln!("holdfast-bench: {name}: {}", measurement.title());
        let usage = Usage::now()?;
        let mut section = match measurement.run(&bench).await {
            Ok(section) => section,
            Err(error) => {
                eprintln!("holdfast-bench: {name} failed: {error:#}");
                Section::failed(measurement.title(), &error)
            }
        };
        section.usage = Some(Usage::now()?.since(&usage));
        eprintln!("{}", section.markdown());
        report.push(section);
    }
    let text = report.markdown();
    match &arguments.write {
        Some(path) => {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)
                    .with_context(|| format!("making {}", folder.display()))?;
            }
            std::fs::write(path, &text).with_context(|| format!("writing {}", path.display()))?;
            eprintln!("holdfast-bench: wrote {}", path.display());
        }
        None => println!("{text}"),
    }
    Ok(report.is_complete())
}
