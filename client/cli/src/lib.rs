//! The `holdfast` command line: looks into a Holdfast cluster and changes it.
//!
//! Entry point: [`run`], which the binary calls with its arguments and its
//! environment and which returns the exit code.
//!
//! # Commands
//!
//! ```text
//! holdfast status
//! holdfast node list | add ID ADDRESS | promote ID | remove ID | replace OLD NEW [ADDRESS]
//! holdfast leader show | transfer [ID]
//! holdfast agent list
//! holdfast waits | why
//! holdfast processes | rounds | iterations | events [--after REV] [--follow]
//! holdfast process remove PROCESS [INCARNATION] --reason TEXT
//! holdfast doctor [--python FILE]
//! holdfast job list | delete NAME | plan [--without HOST|PROCESS]... [--without-host HOST]...
//! holdfast run list | open [NAME] | end NAME | delete NAME
//! holdfast kv put K V [--if-revision REV] | get K [--stale] [--raw] | add K N | cas K EXPECTED NEW
//! holdfast kv delete K | append K V | list [PREFIX] | count [PREFIX] | watch [PREFIX] [--from REV]
//! holdfast kv wait K… [--at-least N] --timeout D
//! holdfast kv push K V | pop K [--raw] | length K
//! holdfast config | completions SHELL | version
//! ```
//!
//! Every command takes, before it or after it, `--store LIST`,
//! `--token-file FILE`, `--job J`, `--run R`, `-o table|json`, `--timeout D` and `--config FILE`. Flags go over
//! the environment (`HOLDFAST_STORE`, `HOLDFAST_TOKEN_FILE`, `HOLDFAST_JOB`,
//! `HOLDFAST_RUN`; empty counts as not set), which goes over a TOML file (`--config`,
//! `HOLDFAST_CONFIG`, or `$XDG_CONFIG_HOME/holdfast/config.toml`, with
//! `~/.config` for `$XDG_CONFIG_HOME`, if it exists; keys `store`, `token_file`, `job`,
//! `run`, `output`, `timeout`), which goes over the defaults. `HOLDFAST_LOG`
//! is a filter for the client's log on standard error, off by default.
//!
//! Keys and values are bytes, typed in the escape of
//! [`Blob::from_escaped`](holdfast_api::Blob::from_escaped); bytes that are not
//! UTF-8 may also be typed as they are. The value `-` is standard input, as it
//! is (write `\x2d` for a dash). A key that begins with `-` goes behind `--`.
//!
//! # Exit codes
//!
//! | code | means |
//! | --- | --- |
//! | 0 | ok; a watch that was interrupted; the reader of the output went away |
//! | 1 | refused: the cluster said no, the key is absent, the queue is empty, the swap did not happen, the wait timed out, the output could not be written |
//! | 2 | usage: the command line, the environment or the configuration file is wrong |
//! | 3 | unreachable: no node, or no leader, answered in time; nothing was changed |
//! | 4 | outcome unknown: the change may have been made |
//!
//! A delete of an absent key is ok and prints `deleted 0`. A wait that timed
//! out is 1 if the cluster can say what is missing, and 3 if nobody can.
//!
//! # The JSON contract
//!
//! With `-o json` an answer is one line with one document on standard output.
//! Fields may be added, never removed or given another meaning. Bytes are
//! strings in the escape above. `revision` is the revision at which the answer
//! was true.
//!
//! | command | document |
//! | --- | --- |
//! | `status` | [`Status`](holdfast_api::Status): with `agents`: `{"cluster_id", "leader": id or null, "term", "revision", "feature_level", "answered_by", "nodes": [{"id", "address", "role", "voter", "last_log", "applied", "snapshot", "version", "feature_level"}], "limits"}` |
//! | `agent list` | [`Agents`](holdfast_api::Agents): `{"agents": [{"job", "run", "host", "pid", "version", "listens", "draining", "clients": [{"pid", "rank", "from", "connections"}], "waits", "node", "told_ms_ago"}], "unreachable": [id], "older": [id], "left_out", "others": [{"job", "run", "keys", "keys_left_out", "at_least", "blocked_ms", "node"}], "others_left_out"}` |
//! | `waits` | `{"waits": [{"job", "run", "missing": in words or null, "keys", "at_least", "blocked_ms", "waiters": [{"host": or null, "pid", "rank", "blocked_ms"}], "waiters_left_out"}], "agents", "unreachable": [id]}` |
//! | `why` | `{"job", "run", "idle", "deadlocks": [{"steps": [{"round", "generation", "process", "host"}], "deadline_in_ms"}], "rounds": [{"round", "generation", "open_ms", "arrived", "missing_count", "unnamed", "deadline_in_ms", "then", "looks_again_in_ms", "missing": GROUPS}], "waits": as in `waits`, "iteration", "hosts": GROUPS, "unreachable": [id], "log_time_ms", "log_time_exact", "revision"}`; GROUPS are `[{"host", "state": alive, ended or never_joined, "cause": in words or null, "standby", "processes": [id], "ranks": [rank or null], "for_ms", "waits_in": [round]}]`; `hosts` are all processes of the run when nothing waits |
//! | `processes` | `{"processes": [`[`ProcessInfo`](holdfast_api::ProcessInfo)`], "log_time_ms", "log_time_exact", "revision"}` |
//! | `rounds` | `{"rounds": [`[`RoundInfo`](holdfast_api::RoundInfo)`], "log_time_ms", "log_time_exact", "revision"}` |
//! | `iterations` | `{"iteration", "generation", "members", "ranks", "world_size", "advances": [{"iteration", "generation", "members", "run", "revision", "at_ms"}], "compacted", "log_time_ms", "log_time_exact", "revision"}` |
//! | `events` | a line for each [`Event`](holdfast_api::Event): `{"revision", "at_ms", "run", "what": {kind: {…}}}` |
//! | `process remove` | `{"process", "incarnation", "ended": how many ended by it, "revision"}` |
//! | `job plan` | `{"iteration", "world_size", "members", "ranks", "dropped", "promoted", "stop": why nobody should go on or null, "revision"}` |
//! | `doctor` | `{"healthy", "checks": [{"check", "subject", "verdict": ok, warning or failed, "found", "next": what to do or null}]}`, whether or not it is healthy |
//! | `node list` | `{"leader", "nodes"}`, both as in `status` |
//! | `node add`, `promote`, `remove` | `{"node"}` |
//! | `node replace` | `{"node", "replaced"}` |
//! | `leader show` | `{"leader", "address", "term"}` |
//! | `leader transfer` | `{"to": id or null}` |
//! | `job list` | `{"jobs": [{"job", "open_run", "runs", "keys", "bytes"}], "revision"}` |
//! | `job delete` | `{"runs": how many were deleted, "revision"}` |
//! | `run list` | `{"runs": [{"run", "open", "opened", "opened_at_ms", "ended", "ended_at_ms", "keys", "bytes"}], "revision"}` |
//! | `run open` | `{"run", "created", "ended": name or null, "revision"}` |
//! | `run end`, `run delete` | `{"revision"}` |
//! | `kv put`, `append`, `wait` | `{"revision"}` |
//! | `kv get` | `{"key", "value", "created", "modified", "version", "revision"}` |
//! | `kv add` | `{"value", "revision"}` |
//! | `kv cas` | `{"swapped", "value": now, null if absent, "revision"}`, whether or not it swapped |
//! | `kv delete` | `{"deleted": bool, "revision"}` |
//! | `kv list` | `{"revision", "entries": [{"key", "value", "created", "modified", "version"}]}`; `revision` is the first page's: a watch from the next one misses nothing |
//! | `kv count` | `{"count", "revision"}` |
//! | `kv watch` | a line for each change: `{"revision", "job", "run", "type": put, delete, push or pop, "key", "value" and "version" of a put, "length" of a queue}` |
//! | `kv push`, `length` | `{"length", "revision"}` |
//! | `kv pop` | `{"value", "length": left behind it, "revision"}` |
//! | `config` | for each key `{"value", "source": flag, environment, file or default, "file"}` |
//! | `version` | `{"version"}` |
//!
//! With `-o json` an error is one line on standard error: the
//! [`Problem`](holdfast_api::Problem) document `{"code", "detail", "retryable",
//! "outcome": none, applied or unknown, …}`. Only errors in the grammar of the
//! command line (exit code 2) are always text. A document that is cut short
//! comes with an exit code other than 0.
//!
//! # Modules
//!
//! | module | holds |
//! | --- | --- |
//! | `cli` | the grammar of the command line |
//! | `argument` | keys and values as arguments |
//! | `config` | settings: merged from all places, each with its source |
//! | `commands` | what the commands do, a file for each family |
//! | `document` | answers: the JSON contract, and the forms for people |
//! | `output` | tables, bare values, standard output and error |
//! | `log_time` | durations of log time |
//! | `pytorch` | what keys of PyTorch stand for |
//! | `exit` | errors: exit code, problem document and text, in one place |
//!
//! # Architecture invariants
//!
//! * No retry, no failover and no protocol here: the client library does that.
//! * Answers go to standard output, everything else to standard error.
//! * Only `exit` decides exit codes, and only `config` reads the environment.
//! * Memory does not grow with the store: lists are printed page by page,
//!   watches and events line by line. Processes and rounds of a run are
//!   gathered; the replicated limits bound them.

mod argument;
mod cli;
mod commands;
mod config;
mod document;
mod exit;
mod log_time;
mod output;
mod pytorch;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use serde::Serialize;
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, ClusterCommand, Command};
use crate::commands::Context;
use crate::config::{ConfigError, Settings};
use crate::exit::{Exit, Failure};
use crate::output::{Document, Output};

/// Runs one command line, the program's name first, with the environment as
/// this function gives it.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too. Whoever closed the pipe did
            // not want to read them.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Ok }.into();
        }
    };
    let flags = cli.global.layer();
    let output = flags.output.unwrap_or(Output::Table);
    let load = || config::load(flags, cli.global.config.as_deref(), environment);
    match cli.command {
        Command::Version => end(print_version(output), output, None),
        Command::Completions { shell } => end(print_completions(shell), output, None),
        Command::Config => with(load(), output, commands::config::run),
        Command::Cluster(command) => with(load(), output, |settings| {
            start_log(environment)?;
            ask_cluster(settings.clone(), command)
        }),
    }
}

/// Does what needs settings; `output` is how it reads that there are none.
fn with(
    settings: Result<Settings, ConfigError>,
    output: Output,
    act: impl FnOnce(&Settings) -> Result<(), Failure>,
) -> ExitCode {
    match settings {
        Ok(settings) => end(act(&settings), settings.output.value, Some(&settings)),
        Err(error) => end(Err(error.into()), output, None),
    }
}

fn ask_cluster(settings: Settings, command: ClusterCommand) -> Result<(), Failure> {
    // The command itself runs on this thread and may block on its output; the
    // client's tasks go on beside it.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Failure::System(format!("cannot start a thread: {error}")))?;
    runtime.block_on(async {
        let context = Context::new(settings)?;
        let result = context.run(command).await;
        context.client.close().await;
        result
    })
}

/// The client's log, for whoever looks into a connection that does not work.
fn start_log(environment: &dyn Fn(&str) -> Option<OsString>) -> Result<(), Failure> {
    let Some(filter) = environment("HOLDFAST_LOG").filter(|filter| !filter.is_empty()) else {
        return Ok(());
    };
    let filter = EnvFilter::try_new(filter.to_string_lossy()).map_err(|error| {
        Failure::Usage(format!(
            "environment variable HOLDFAST_LOG: {error}; write a filter such as debug or holdfast_client=debug"
        ))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .try_init()
        .map_err(|error| Failure::System(format!("cannot start the log: {error}")))
}

/// Says what went wrong and turns it into the exit code.
fn end(result: Result<(), Failure>, output: Output, settings: Option<&Settings>) -> ExitCode {
    let Err(failure) = result else { return Exit::Ok.into() };
    match (&failure, output) {
        (Failure::PipeClosed, _) => {}
        (_, Output::Table) => output::talk(format!("error: {}", failure.message(settings))),
        (_, Output::Json) => {
            let problem = failure.problem(settings);
            output::talk(
                serde_json::to_string(&problem).expect("a problem has text keys and no maps"),
            );
        }
    }
    failure.exit().into()
}

/// `version`.
#[derive(Debug, Serialize)]
struct Version {
    version: &'static str,
}

impl Document for Version {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        writeln!(out, "holdfast {}", self.version)
    }
}

fn print_version(output: Output) -> Result<(), Failure> {
    let version = Version { version: env!("CARGO_PKG_VERSION") };
    Ok(output::print(&output::render(&version, output)?)?)
}

fn print_completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut script);
    Ok(output::print(&script)?)
}
