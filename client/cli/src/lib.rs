//! The `holdfast` command line: looks into a Holdfast cluster and changes it.
//!
//! Entry point: [`run`], which the binary calls with its arguments and its
//! environment and which returns the exit code.
//!
//! # Commands
//!
//! ```text
//! holdfast status
//! holdfast node list | add ID ADDRESS | promote ID | remove ID | replace OLD NEW [ADDRESS] [--force]
//! holdfast leader show | transfer [ID]
//! holdfast backup FILE|- [--force] [--stale] | verify FILE|-
//! holdfast agent list
//! holdfast waits | why [--follow]
//! holdfast processes | rounds | iterations | events [--after REV] [--follow]
//! holdfast comm list | show GROUP | excuse GROUP PROCESS [--yes-it-is-gone] | revoke GROUP [--reason TEXT]
//! holdfast process remove PROCESS [INCARNATION] --reason TEXT
//! holdfast doctor [--python FILE]
//! holdfast job list | delete NAME | plan [--without HOST|PROCESS]... [--without-host HOST]...
//! holdfast run list | open [NAME] | end NAME | delete NAME
//! holdfast kv put K V [--if-revision REV] | get K [--stale] [--raw] | add K N | max K N | cas K EXPECTED NEW
//! holdfast kv delete K | --prefix P | --all; append K V | list [PREFIX] | count [PREFIX] | watch [PREFIX] [--from REV] [--follow-runs]
//! holdfast kv txn [--if COMPARE]… [--then STEP]… [--else STEP]…
//! holdfast kv wait K… [--at-least N] --timeout D
//! holdfast kv push K V | pop K [--raw] | length K
//! holdfast token keygen FILE | create --key FILE --role ROLE --name NAME --expires TIME
//!     [--jobs PATTERN,…] | show FILE | list | revoke ID [--keep TIME]
//! holdfast config | completions SHELL | version
//! ```
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
//! was true.
//!
//! | command | document |
//! | --- | --- |
//! | `status` | [`Status`](holdfast_api::Status): with `agents`: `{"cluster_id", "leader": id or null, "term", "revision", "feature_level", "answered_by", "nodes": [{"id", "address", "role", "voter", "last_log", "applied", "snapshot", "version", "feature_level", "disk" and "memory": {"free_bytes", "reserve_bytes", "low"} or null}], "limits", "joint": {"from", "to"} or null, "majority": {"of", "needed", "answering", "missing": [{"node", "address", "silent_ms"}], "lost_ms": null while enough answer} or null}` |
//! | `agent list` | [`Agents`](holdfast_api::Agents): `{"agents": [{"job", "run", "host", "pid", "version", "listens", "draining", "clients": [{"pid", "rank", "from", "connections"}], "waits", "node", "told_ms_ago"}], "unreachable": [id], "older": [id], "left_out", "others": [{"job", "run", "keys", "keys_left_out", "at_least", "blocked_ms", "node"}], "others_left_out"}` |
//! | `waits` | `{"majority_lost": in words or null, "waits": [{"job", "run", "missing": in words or null, "keys", "at_least", "blocked_ms", "waiters": [{"host": or null, "pid", "rank", "blocked_ms"}], "waiters_left_out"}], "agents", "unreachable": [id]}` |
//! | `why` of a job | `{"majority_lost": in words or null, "job", "run", "open", "over_ms", "agents", "ended": [{"host", "ranks", "pids", "exit": {"code"} or {"signal"} or null, "ended_ms_ago", "key": that others wait for or null, "waiting"}], "idle", "deadlocks": [{"steps": [{"round", "generation", "process", "host"}], "deadline_in_ms"}], "rounds": [{"round", "generation", "open_ms", "arrived", "missing_count", "unnamed", "among", "deadline_in_ms", "then", "looks_again_in_ms", "waits_for": [`WaitsFor`](holdfast_api::WaitsFor), "holding": HOLDING or null, "needs": what that is beside those missing, in words, or null, "differing": [{"process", "fields"}], "differences": in words, "missing": GROUPS}], "held": [HOLDING: revoked and still held, or forming for long, without an open round of theirs], "waits": as in `waits`, "iteration", "hosts": GROUPS, "outside": [{"host", "ranks", "pids", "programs", "quiet": {"last_call", "key", "called_ms_ago"} or null, "activity": ACTIVITY, "alike"}], "unreachable": [id], "log_time_ms", "log_time_exact", "revision"}`; GROUPS are `[{"host", "state": alive, ended or never_joined, "cause": in words or null, "standby", "processes": [id], "ranks": [rank or null], "for_ms", "waits_in": [round], "activity": ACTIVITY, "pid"}]`; ACTIVITY is `{"main": stopped, busy, working, blocked or sleeping, "place", "for_ms", "main_cpu_ms", "cpu_ms", "over_ms"}` or null; HOLDING is `{"round", "generation", "phase", "members", "for_ms", "cause": [`RevokeCause`](holdfast_api::RevokeCause) or null, "looks_again_in_ms", "unreleased", "unnamed", "holders": [{"host", "processes": [id], "incarnations", "ended": in words or null, "for_ms", "free_in_ms", "stop_in_ms"}], "not_ready": GROUPS, "ready_round"}`; `hosts` are all processes of the run when nothing waits |
//! | `why` | `{"majority_lost", "jobs": [as of a job: those with anything alive], "jobs_known", "jobs_looked_at", "jobs_left_out"}` |
//! | `processes` | `{"processes": [`[`ProcessInfo`](holdfast_api::ProcessInfo)`], "log_time_ms", "log_time_exact", "revision"}` |
//! | `rounds` | `{"rounds": [`[`RoundInfo`](holdfast_api::RoundInfo)`], "log_time_ms", "log_time_exact", "revision"}` |
//! | `comm list` | `{"groups": [`[`HeldInfo`](holdfast_api::HeldInfo)` without members], "log_time_ms", "log_time_exact", "revision"}` |
//! | `comm show` | [`HeldInfo`](holdfast_api::HeldInfo): with `"arrived"`: for the next generation, `"new": [id]`: those of them that are not members, `"next"`: in words, `"log_time_ms"`, `"log_time_exact"`, `"revision"` |
//! | `comm excuse` | `{"round", "generation", "process", "incarnation", "host": or null, "alive", "left": how many keep the next generation from closing or null, "revision"}` |
//! | `comm revoke` | `{"round", "generation", "revoked": false if it was before, "cause": `[`RevokeCause`](holdfast_api::RevokeCause)`, "holding", "revision"}` |
//! | `iterations` | `{"iteration", "generation", "members", "ranks", "world_size", "advances": [{"iteration", "generation", "members", "run", "revision", "at_ms"}], "compacted", "log_time_ms", "log_time_exact", "revision"}` |
//! | `events` | a line for each [`Event`](holdfast_api::Event): `{"revision", "at_ms", "run", "what": {kind: {…}}}` |
//! | `process remove` | `{"process", "incarnation", "ended": how many ended by it, "revision"}` |
//! | `job plan` | `{"waits_for": [`WaitsFor`](holdfast_api::WaitsFor) or null if it would begin at once, "iteration", "world_size", "members", "ranks", "dropped", "promoted", "stop": why no process should go on or null, "revision"}`; from `iteration` to `stop` only if it would begin without others |
//! | `doctor` | `{"healthy", "checks": [{"check", "subject", "verdict": ok, warning or failed, "found", "next": what to do or null}]}`, whether or not it is healthy |
//! | `node list` | `{"leader", "nodes"}`, both as in `status`; each node with `"behind"`: entries that the leader's log is ahead, or null |
//! | `node add`, `promote` | `{"node"}` |
//! | `node remove` | `{"node", "voters": how many remain, "may_fail": how many of them}`; null where no node tells |
//! | `node replace` | `{"node", "replaced"}` |
//! | `backup`, `backup verify` | `{"file", "bytes", "cluster_id", "node", "version", "feature_level", "revision", "log_time", "taken_at_ms"}`; nothing on standard output for `backup -` |
//! | `leader show` | `{"leader", "address", "term"}` |
//! | `leader transfer` | `{"from", "to"}`: who led before, and who leads now |
//! | `job list` | `{"jobs": [{"job", "open_run", "runs", "keys", "bytes"}], "revision"}` |
//! | `job delete` | `{"runs": how many were deleted, "revision"}` |
//! | `run list` | `{"runs": [{"run", "open", "opened", "opened_at_ms", "ended", "ended_at_ms", "keys", "bytes"}], "revision"}` |
//! | `run open` | `{"run", "created", "ended": name or null, "revision"}` |
//! | `run end`, `run delete` | `{"revision"}` |
//! | `kv put`, `append`, `wait` | `{"revision"}` |
//! | `kv get` | `{"key", "value", "created", "modified", "version", "revision"}` |
//! | `kv add`, `max` | `{"value", "revision"}` |
//! | `kv cas` | `{"swapped", "value": now, null if absent, "revision"}`, whether or not it swapped |
//! | `kv delete` | `{"deleted": bool, "revision"}`; with `--prefix` or `--all` `{"deleted_keys", "changed_keys": written since and kept, "revision"}` |
//! | `kv txn` | `{"succeeded", "outcomes": [`[`TransactionOutcome`](holdfast_api::TransactionOutcome)`], "revision"}`, whether or not the comparisons held |
//! | `kv list` | `{"revision", "entries": [{"key", "value", "created", "modified", "version"}]}`; `revision` is the first page's: a watch from the next one misses nothing |
//! | `kv count` | `{"count", "revision"}` |
//! | `kv watch` | a line for each change: `{"revision", "job", "run", "type": put, delete, push or pop, "key", "value" and "version" of a put, "length" of a queue}`; with `--follow-runs` also `{"revision", "job", "run", "type": run, "deleted"}` when the changes after it are those of another run; `deleted` names a run before it whose changes are missing, if there is one |
//! | `kv push`, `length` | `{"length", "revision"}` |
//! | `kv pop` | `{"value", "length": left after it, "revision"}` |
//! | `token keygen` | `{"key", "file", "public": the file for the nodes}` |
//! | `token create` | `{"token", "id", "name", "role", "jobs", "made_at_ms", "expires_at_ms", "key"}` |
//! | `token show` | the same without `"token"` |
//! | `token list` | `{"node", "keys": [id], "revoked": [{"token", "until_ms": log time}]}` |
//! | `token revoke` | `{"revision"}` |
//! | `config` | for each key `{"value", "source": flag, environment, file or default, "file"}` |
//! | `version` | `{"version"}` |
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

mod argument;
mod cli;
mod colour;
mod commands;
mod config;
mod document;
mod exit;
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
