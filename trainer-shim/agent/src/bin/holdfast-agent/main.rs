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
//! | `keeping` | the parent of that, which outlives it |
//! | `upgrade` | `holdfast-agent upgrade`: another agent in its place |
//! | `surroundings` | what that agent does not take over from its first command |
//! | `output` | lines for people, who may not read them |
//! | `open` | `holdfast-agent open`: a namespace at a port of its own |
//! | `program` | finding the command before anything is started |
//! | `remedy` | the lines to type in place of one that was refused |
//! | `usage` | what was probably meant; completion scripts |
//! | `signals` | signals, and whether they came from the terminal |

mod command_line;
mod help;
mod host;
mod keeping;
mod launch;
mod masters;
mod open;
mod output;
mod program;
mod remedy;
mod serve;
mod settings;
mod signals;
mod surroundings;
mod upgrade;
mod usage;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clap::FromArgMatches;
use command_line::{CommandLine, Flags, Mode, Process, Task};
use holdfast_api::variables::mistyped;
use holdfast_client::check_token_file;
use output::Lines;
use settings::{LogFormat, Settings};
use tokio::runtime::{Builder, Runtime};
use tracing_subscriber::EnvFilter;

/// The agent's own failures, as opposed to the command's.
const FAILURE: u8 = 125;
/// Threads for all connections and the store's client: an agent shares its
/// host with trainers that want every core.
const THREADS_MAX: usize = 4;

/// How long the end waits for what its threads still do for nobody.
const END_TIME_MAX: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let matches = help::command().try_get_matches();
    let parsed = matches.and_then(|mut matches| CommandLine::from_arg_matches_mut(&mut matches));
    let command_line = match parsed {
        Ok(command_line) => command_line,
        Err(error) => {
            let error = usage::with_hint(error, std::env::args().nth(1).as_deref());
            let asked_for = !error.use_stderr();
            // stderr is closed: the error cannot be reported.
            let _ = error.print();
            if !asked_for {
                mistyped_variables().for_each(|mistyped| eprintln!("holdfast-agent: {mistyped}"));
            }
            let code = if asked_for { 0 } else { keeping::unusable() };
            return ExitCode::from(code);
        }
    };
    let command = command_line.command_words();
    let output = match output(command_line.process()) {
        Ok(output) => output,
        Err(error) => {
            eprintln!("holdfast-agent: cannot start a thread: {error}");
            return ExitCode::from(FAILURE);
        }
    };
    let code = start(command_line, &output).unwrap_or_else(|error| {
        output.say(format_args!("holdfast-agent: {error:#}"));
        if let Some(lines) = remedy::of(&error, command) {
            output.say(lines);
        }
        keeping::code_of_error(&error)
    });
    output.flush();
    ExitCode::from(code)
}

/// Output for people: this process's standard error, which is a file of its own for the agent of
/// `run`. From here on nothing else writes there.
fn output(process: Process<'_>) -> io::Result<Lines> {
    if !matches!(process, Process::Other) {
        surroundings::give_up();
    }
    let log: Option<Box<dyn io::Write + Send>> = match process {
        Process::Host { kept } => host::own_log(kept).map(|log| Box::new(log) as _),
        Process::Keeper => host::keeper_log().map(|log| Box::new(log) as _),
        Process::Other => None,
    };
    let output = Lines::to(log.unwrap_or_else(|| Box::new(io::stderr())))?;
    let panics = output.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => panics.say(format_args!("{panic}\n{backtrace}")),
            _ => panics.say(panic),
        }
    }));
    Ok(output)
}

fn start(command_line: CommandLine, output: &Lines) -> anyhow::Result<u8> {
    let (flags, mode) = match command_line.task() {
        Task::Configured(flags, mode) => (*flags, mode),
        Task::Open { name, control } => {
            return runtime(1)?.block_on(open::open(&control, name));
        }
        Task::Upgrade { control } => return runtime(1)?.block_on(upgrade::upgrade(&control)),
        Task::Keeper(arguments) => {
            return keeping::of_host(arguments, output);
        }
        Task::Completions(shell) => {
            usage::complete(shell)?;
            return Ok(0);
        }
        Task::Witness => return launch::witness::witness(),
    };
    let settings = prepare(flags, &mode, output)?;
    if let Mode::Serve { keeper: true, is_kept: false, drain, .. } = mode {
        return keeping::of_server(drain, output);
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (processors / 2).clamp(1, THREADS_MAX);
    let runtime = runtime(if matches!(mode, Mode::Run { .. }) { 1 } else { threads })?;
    let ended = match mode {
        Mode::Host { before, kept } => {
            surroundings::leave_folder();
            runtime.block_on(host::host(settings, before, kept.is_some(), output))
        }
        Mode::Serve { drain, control, keeper: _, is_kept } => {
            runtime.block_on(serve::serve(settings, drain, control, is_kept))
        }
        Mode::Run { run, command } => {
            let program = match program::find(&command[0]) {
                Ok(program) => program,
                Err(error) => {
                    output.say(format_args!("holdfast-agent: {error}"));
                    return Ok(error.exit_code());
                }
            };
            runtime.block_on(launch::launch(settings, run, program, &command, output))
        }
    };
    // A look at a process can hang in the kernel.
    runtime.shutdown_timeout(END_TIME_MAX);
    ended
}

/// The settings, with all files that they name read once.
fn prepare(flags: Flags, mode: &Mode, output: &Lines) -> anyhow::Result<Settings> {
    let settings = match Settings::resolve(flags) {
        Ok(settings) => settings,
        Err(error) => {
            let say = |mistyped| output.say(format_args!("holdfast-agent: {mistyped}"));
            mistyped_variables().for_each(say);
            return Err(error);
        }
    };
    start_logging(&settings, output)?;
    let token_file = settings.token_file.as_deref();
    settings.tls.read()?;
    let token_warning = token_file.map(check_token_file).transpose()?.flatten();
    // The agent's own process got the same flags as the command that started it.
    if !matches!(mode, Mode::Host { .. } | Mode::Serve { is_kept: true, .. }) {
        let warnings = mistyped_variables().chain(token_warning).chain(settings.open_ports());
        warnings.for_each(|warning| tracing::warn!("{warning}"));
    }
    Ok(settings)
}

/// Which variables were meant by names with a slip in them.
fn mistyped_variables() -> impl Iterator<Item = String> {
    mistyped(std::env::vars_os()).into_iter().map(|mistyped| mistyped.to_string())
}

fn runtime(threads: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}

fn start_logging(settings: &Settings, output: &Lines) -> anyhow::Result<()> {
    let filter: EnvFilter = settings.log.parse().map_err(|error| {
        anyhow::anyhow!("{:?} is not a log filter (--log, RUST_LOG): {error}", settings.log)
    })?;
    let layer = tracing_subscriber::fmt().with_env_filter(filter).with_writer(output.clone());
    let layer = layer.log_internal_errors(false);
    match settings.log_format {
        LogFormat::Pretty => layer.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => {
            output.are_json();
            layer.json().flatten_event(true).init();
        }
    }
    Ok(())
}
