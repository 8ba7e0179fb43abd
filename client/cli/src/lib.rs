//! The `holdfast` command line: looks into a Holdfast cluster and changes it.
//!
//! Entry point: [`run`], which the binary calls with its arguments and its
//! environment and which returns the exit code.
//!
//! # Commands
//!
//! `holdfast --help` lists them; the help of each has examples and its JSON
//! document.
//!
//! Every command takes, before it or after it, `--store LIST`,
//! `--token-file FILE`, `--job J`, `--run R`, `-o table|json`, `--timeout D`,
//! `--color auto|always|never` and `--config FILE`. Flags go over
//! the environment (`HOLDFAST_STORE`, `HOLDFAST_TOKEN_FILE`, `HOLDFAST_JOB`,
//! `HOLDFAST_RUN`; empty counts as not set), which goes over a TOML file (`--config`,
//! `HOLDFAST_CONFIG`, or `$XDG_CONFIG_HOME/holdfast/config.toml`, with
//! `~/.config` for `$XDG_CONFIG_HOME`, if it exists; keys `store`, `token_file`, `tls_ca`, `tls_cert`, `tls_key`, `job`,
//! `run`, `output`, `timeout`), which goes over the defaults. `HOLDFAST_LOG`
//! is a filter for the client's log on standard error, off by default. Headings,
//! states and errors are coloured on a terminal, unless `NO_COLOR` is set.
//!
//! Keys and values are bytes, typed in the escape of
//! [`Blob::from_escaped`](holdfast_api::Blob::from_escaped); bytes that are not
//! UTF-8 may also be typed as they are. The value `-` is standard input, as it
//! is (write `\x2d` for a dash). A key or a value that begins with `-` goes after
//! `--`, unless it is a number: a mistyped option is never taken for a value.
//!
//! # Exit codes
//!
//! | code | means |
//! | --- | --- |
//! | 0 | ok; a watch that was interrupted; the reader of the output went away |
//! | 1 | refused: the cluster said no, the key is absent, the queue is empty, the swap did not happen, the comparisons did not hold, the wait timed out, the output could not be written |
//! | 2 | usage: the command line, the environment or the configuration file is wrong |
//! | 3 | unreachable: no node, or no leader, answered in time; nothing was changed |
//! | 4 | outcome unknown: the change may have been made |
//!
//! A delete of an absent key is ok and prints `deleted 0`. A wait that timed
//! out is 1 if the cluster can say what is missing, and 3 if no node can.
//!
//! # The JSON contract
//!
//! With `-o json` an answer is one line with one document on standard output.
//! Fields may be added, never removed or given another meaning. Bytes are
//! strings in the escape above. `revision` is the revision at which the answer
//! was true. A command's help shows its document.
//!
//! With `-o json` an error is one line on standard error: the
//! [`Problem`](holdfast_api::Problem) document `{"code", "detail", "retryable",
//! "outcome": none, applied or unknown, …}`, also for a command line, a variable
//! or a file that cannot be understood; lines that begin with `warning:` may stand before it. A document that is cut short comes with
//! an exit code other than 0.
//!
//! # Modules
//!
//! | module | holds |
//! | --- | --- |
//! | `cli` | the grammar of the command line, its help, and its usage errors |
//! | `colour` | when there is colour, and what is coloured |
//! | `argument` | keys and values as arguments |
//! | `config` | settings: merged from all places, each with its source |
//! | `commands` | what the commands do, a file for each family |
//! | `document` | answers: the JSON contract, and the forms for people |
//! | `output` | tables, bare values, standard output and error |
//! | `log_time` | durations of log time |
//! | `majority` | whether enough voters answer, in words |
//! | `nearest` | which word was probably meant |
//! | `pytorch` | what keys of PyTorch mean |
//! | `transaction` | transactions as text |
//! | `exit` | errors: exit code, problem document and text, in one place |
//!
//! # Architecture invariants
//!
//! * No retry, no failover and no protocol here: the client library does that.
//! * Answers go to standard output, everything else to standard error.
//! * Only `exit` decides exit codes. The environment is read through one function,
//!   which [`run`] is given.
//! * Memory does not grow with the store: lists are printed page by page,
//!   watches and events line by line. Processes and rounds of a run are
//!   gathered; the replicated limits bound them.
//!
//! # Modules that know each other
//!
//! * `commands`, `majority`: `why` and `waits` say whether the majority is lost. While
//!   any command waits, `majority` reports outages with that command's `Context`: its
//!   client and its output.

mod argument;
mod cli;
mod colour;
mod commands;
mod config;
mod document;
mod exit;
#[cfg(fuzzing)]
pub mod fuzzing;
mod log_time;
mod majority;
mod nearest;
mod output;
mod pytorch;
mod transaction;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use holdfast_api::variables::{self, Mistyped};
use serde::Serialize;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::cli::{ClusterCommand, Command, TokenCommand, UsageError};
use crate::colour::Colours;
use crate::commands::Context;
use crate::config::{ConfigError, Settings};
use crate::exit::{Exit, Failure};
use crate::output::{Document, Form, Output};

/// Runs one command line, the program's name first, with the environment as
/// this function gives it; `variables` are all of it, to tell mistyped ones.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: &dyn Fn(&str) -> Option<OsString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let asked = cli::asked(&arguments);
    let colours = Colours::of(
        asked.colour.unwrap_or_default(),
        environment,
        io::stdout().is_terminal(),
        io::stderr().is_terminal(),
    );
    // Until there are settings: the file may say how to answer even if
    // something else in it, or the command line, is wrong.
    let form = || {
        let of_file = || config::output_of_file(asked.config.as_deref(), environment);
        let output = asked.output.or_else(of_file).unwrap_or(Output::Table);
        Form { output, colours }
    };
    let mistyped = || variables::mistyped(variables);
    let cli = match cli::parse(&arguments, colours.help) {
        Ok(cli) => cli,
        Err(error) => {
            if !error.is_answer() {
                say(&mistyped(), colours);
            }
            return end_usage(&error, form);
        }
    };
    if !matches!(cli.command, Command::Version | Command::Completions { .. }) {
        say(&mistyped(), colours);
    }
    let load = || config::load(cli.global.layer(), cli.global.config.as_deref(), environment);
    match cli.command {
        Command::Version => {
            let form = Form { output: asked.output.unwrap_or(Output::Table), colours };
            end(print_version(form), form, None)
        }
        Command::Completions { shell } => end(print_completions(shell), form(), None),
        Command::Config => with(load(), colours, form, commands::config::run),
        Command::Token(command) => with(load(), colours, form, |settings, form| match command {
            TokenCommand::Cluster(command) => {
                start_log(environment)?;
                ask_cluster(settings.clone(), form, ClusterCommand::Token(command))
            }
            TokenCommand::Keygen { file } => commands::token::keygen(&file, form),
            TokenCommand::Create(arguments) => commands::token::create(arguments, form),
            TokenCommand::Show { file } => commands::token::show(&file, form),
        }),
        Command::Cluster(command) => with(load(), colours, form, |settings, form| {
            start_log(environment)?;
            ask_cluster(settings.clone(), form, command)
        }),
    }
}

/// Says which variables were meant by names with a slip in them.
fn say(mistyped: &[Mistyped], colours: Colours) {
    for mistyped in mistyped {
        output::talk(format!("{} {mistyped}", colours.warning()));
    }
}

/// Runs what needs settings; `form` is how an error in them is printed.
fn with(
    settings: Result<Settings, ConfigError>,
    colours: Colours,
    form: impl FnOnce() -> Form,
    act: impl FnOnce(&Settings, Form) -> Result<(), Failure>,
) -> ExitCode {
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) => return end(Err(error.into()), form(), None),
    };
    let form = Form { output: settings.output.value, colours };
    end(act(&settings, form), form, Some(&settings))
}

/// Help and the version also end here; they are answers.
fn end_usage(error: &UsageError, form: impl FnOnce() -> Form) -> ExitCode {
    if error.is_answer() {
        error.print();
        return Exit::Ok.into();
    }
    let form = form();
    if form.output == Output::Table {
        error.print();
        return Exit::Usage.into();
    }
    end(Err(Failure::Usage(error.message())), form, None)
}

fn ask_cluster(settings: Settings, form: Form, command: ClusterCommand) -> Result<(), Failure> {
    // The command itself runs on this thread and may block on its output; the
    // client's tasks go on in parallel.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Failure::System(format!("cannot start a thread: {error}")))?;
    runtime.block_on(async {
        let context = Context::new(settings, form)?;
        let result = tokio::select! {
            result = context.run(command) => result,
            never = majority::tell_while_lost(&context) => match never {},
        };
        let result = match result {
            Err(failure) => Err(explained(&context, failure).await),
            done => done,
        };
        context.client.close().await;
        result
    })
}

/// A command that no node could serve, or whose effect is unknown, may have met
/// a lost majority: any node that answers knows.
async fn explained(context: &Context, failure: Failure) -> Failure {
    let known = matches!(failure, Failure::Unreachable(_));
    if known || !matches!(failure.exit(), Exit::Unreachable | Exit::Unknown) {
        return failure;
    }
    match (majority::ask(&context.client).await, failure.exit()) {
        (Some(lost), Exit::Unreachable) => {
            Failure::Unreachable(format!("nothing was changed: {lost}"))
        }
        (Some(lost), _) => {
            context.talk(lost);
            failure
        }
        (None, _) => failure,
    }
}

/// The client's log, for diagnosing a connection that does not work.
fn start_log(environment: &dyn Fn(&str) -> Option<OsString>) -> Result<(), Failure> {
    let Some(filter) = environment("HOLDFAST_LOG").filter(|filter| !filter.is_empty()) else {
        return Ok(());
    };
    let filter = log_filter(&filter.to_string_lossy()).map_err(|why| {
        Failure::Usage(format!(
            "environment variable HOLDFAST_LOG: {why}; write a level (error, warn, info, debug, trace) or MODULE=LEVEL such as holdfast_client=debug"
        ))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .try_init()
        .map_err(|error| Failure::System(format!("cannot start the log: {error}")))
}

/// A filter as the log's library reads it, except for a word alone: that would
/// be a module, and a mistyped level would silence the log.
fn log_filter(text: &str) -> Result<EnvFilter, String> {
    let words = text.split(',').map(str::trim);
    let mut alone = words.filter(|word| !word.contains(['=', '[']) && !word.contains("::"));
    let strange = alone.find(|word| word.parse::<LevelFilter>().is_err());
    if let Some(word) = strange {
        return Err(format!("`{word}` is not a level"));
    }
    EnvFilter::try_new(text).map_err(|error| error.to_string())
}

/// Prints the error and turns it into the exit code.
fn end(result: Result<(), Failure>, form: Form, settings: Option<&Settings>) -> ExitCode {
    let Err(failure) = result else { return Exit::Ok.into() };
    match (&failure, form.output) {
        (Failure::PipeClosed, _) => {}
        (_, Output::Table) => {
            let label = match form.colours.error {
                true => colour::painted(colour::BAD, "error:"),
                false => "error:".to_owned(),
            };
            output::talk(format!("{label} {}", failure.message(settings)));
        }
        (_, Output::Json) => {
            let problem = failure.problem(settings);
            output::talk(
                serde_json::to_string(&problem).expect("a problem has text keys and no maps"),
            );
        }
    }
    failure.exit().into()
}

/// The answer of `version`.
#[derive(Debug, Serialize)]
struct Version {
    version: &'static str,
}

impl Document for Version {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "holdfast {}", self.version)
    }
}

fn print_version(form: Form) -> Result<(), Failure> {
    let version = Version { version: env!("CARGO_PKG_VERSION") };
    Ok(output::print(&output::render_as(&version, form)?)?)
}

fn print_completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    Ok(output::print(&cli::complete(shell))?)
}
