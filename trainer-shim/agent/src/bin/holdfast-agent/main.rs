//! The command line of the agent.
//!
//! | module | holds |
//! | --- | --- |
//! | `command_line` | flags and `--help` |
//! | `settings` | flags over environment over a file over defaults |
//! | `serve` | `holdfast-agent serve` |
//! | `launch` | `holdfast-agent run`: one command, attached to the agent of its run |
//! | `host` | the agent of one run on one host, as a process of its own |
//! | `open` | `holdfast-agent open`: a namespace at a port of its own |
//! | `program` | finding the command before anything is started |
//! | `signals` | signals, and whether they came from the terminal |

mod command_line;
mod host;
mod launch;
mod open;
mod program;
mod serve;
mod settings;
mod signals;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use command_line::{CommandLine, Mode, Task};
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
    let command_line = match CommandLine::try_parse() {
        Ok(command_line) => command_line,
        Err(error) => {
            let asked_for = !error.use_stderr();
            // Nothing is left to tell somebody whose stderr is closed.
            let _ = error.print();
            return if asked_for { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) };
        }
    };
    match start(command_line) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("holdfast-agent: {error:#}");
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
    };
    let settings = Settings::resolve(flags)?;
    start_logging(&settings)?;
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
