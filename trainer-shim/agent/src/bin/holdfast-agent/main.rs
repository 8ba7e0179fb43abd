//! The command line of the agent.
//!
//! | module | holds |
//! | --- | --- |
//! | `command_line` | flags |
//! | `help` | how they show themselves |
//! | `settings` | flags over environment over a file over defaults |
//! | `serve` | `holdfast-agent serve` |
//! | `launch` | `holdfast-agent run`: one command, attached to the agent of its run |
//! | `host` | the agent of one run on one host, as a process of its own |
//! | `open` | `holdfast-agent open`: a namespace at a port of its own |
//! | `program` | finding the command before anything is started |
//! | `remedy` | the lines to type in place of one that was refused |
//! | `usage` | what was probably meant; completion scripts |
//! | `signals` | signals, and whether they came from the terminal |

mod command_line;
mod help;
mod host;
mod launch;
mod masters;
mod open;
mod program;
mod remedy;
mod serve;
mod settings;
mod signals;
mod usage;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::FromArgMatches;
use command_line::{CommandLine, Mode, Task};
use holdfast_api::variables::mistyped;
use holdfast_client::check_token_file;
use settings::{LogFormat, Settings};
use tokio::runtime::{Builder, Runtime};
use tracing_subscriber::EnvFilter;

/// The agent's own failures, as opposed to the command's.
const FAILURE: u8 = 125;
/// Threads for all connections and the store's client: an agent shares its
/// host with trainers that want every core.
const THREADS_MAX: usize = 4;

fn main() -> ExitCode {
    let matches = help::command().try_get_matches();
    let parsed = matches.and_then(|mut matches| CommandLine::from_arg_matches_mut(&mut matches));
    let command_line = match parsed {
        Ok(command_line) => command_line,
        Err(error) => {
            let error = usage::with_hint(error, std::env::args().nth(1).as_deref());
            let asked_for = !error.use_stderr();
            // Nothing is left to tell somebody whose stderr is closed.
            let _ = error.print();
            if !asked_for {
                say_mistyped();
            }
            return if asked_for { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) };
        }
    };
    let command = command_line.command_words();
    match start(command_line) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("holdfast-agent: {error:#}");
            if let Some(lines) = remedy::of(&error, command) {
                eprintln!("{lines}");
            }
            ExitCode::from(FAILURE)
        }
    }
}

fn start(command_line: CommandLine) -> anyhow::Result<u8> {
    let (flags, mode) = match command_line.task() {
        Task::Configured(flags, mode) => (*flags, mode),
        Task::Open { name, control } => {
            return runtime(1)?.block_on(open::open(&control, name));
        }
        Task::Completions(shell) => {
            usage::complete(shell)?;
            return Ok(0);
        }
    };
    let settings = match Settings::resolve(flags) {
        Ok(settings) => settings,
        Err(error) => {
            say_mistyped();
            return Err(error);
        }
    };
    start_logging(&settings)?;
    // The agent's own process has the variables of the command that started it.
    if !matches!(mode, Mode::Host { .. }) {
        for mistyped in mistyped(std::env::vars_os()) {
            tracing::warn!("{mistyped}");
        }
    }
    let token_file = settings.token_file.as_deref();
    if let Some(warning) = token_file.map(check_token_file).transpose()?.flatten() {
        tracing::warn!("{warning}");
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (processors / 2).clamp(1, THREADS_MAX);
    let runtime = runtime(if matches!(mode, Mode::Run { .. }) { 1 } else { threads })?;
    match mode {
        Mode::Host { before } => runtime.block_on(host::host(settings, before)),
        Mode::Serve { drain, control } => runtime.block_on(serve::serve(settings, drain, control)),
        Mode::Run { run, command } => {
            let program = match program::find(&command[0]) {
                Ok(program) => program,
                Err(error) => {
                    eprintln!("holdfast-agent: {error}");
                    return Ok(error.exit_code());
                }
            };
            runtime.block_on(launch::launch(settings, run, program, &command))
        }
    }
}

/// Says which variables were meant by names with a slip in them, while there is
/// no log.
fn say_mistyped() {
    for mistyped in mistyped(std::env::vars_os()) {
        eprintln!("holdfast-agent: {mistyped}");
    }
}

fn runtime(threads: usize) -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}

fn start_logging(settings: &Settings) -> anyhow::Result<()> {
    let filter: EnvFilter = settings.log.parse().map_err(|error| {
        anyhow::anyhow!("{:?} is no log filter (--log, RUST_LOG): {error}", settings.log)
    })?;
    let layer = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Whoever read stderr may be gone before the agent.
    let layer = layer.log_internal_errors(false);
    match settings.log_format {
        LogFormat::Pretty => layer.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => layer.json().flatten_event(true).init(),
    }
    Ok(())
}
