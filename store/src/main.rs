//! The `holdfast-store` program.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use holdfast_api::variables::mistyped;
use holdfast_net::tls::{Dialer, File, TlsError};
use holdfast_store::authority;
use holdfast_store::cli::{Cli, Command, HealthArgs, TlsCommand, origin};
use holdfast_store::config::LogFormat;
use holdfast_store::offline::{inspect, recover, restore};
use holdfast_store::serve::ServeError;
use holdfast_store::tls::Tls;
use holdfast_store::{dev, dial, priority, serve};
use tokio::runtime::{Builder, Runtime};

/// Exit code of a failure: somebody must look before the next start.
const FAILED: u8 = 1;

/// Exit code of a wrong command line, environment or configuration file.
const USAGE: u8 = 2;

/// Exit code of a node whose port accepts no more connections: it is to be started again.
const ACCEPTS_NOBODY: u8 = 3;

fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref() {
        Some(ServeError::AcceptsNobody(_)) => ACCEPTS_NOBODY,
        _ => FAILED,
    }
}

/// Threads of consensus alone. If one of them blocks, another takes over, so that
/// a second one is of use only where it has a processor.
fn consensus_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / 4).clamp(1, CONSENSUS_THREADS_MAX)
}

/// More do not help: one task decides, one applies.
const CONSENSUS_THREADS_MAX: usize = 2;

/// More do not help: one consensus, one state machine.
const WORKER_THREADS_MAX: usize = 8;

/// Half the processors: the rest is for disk writes. Few threads answer sooner
/// than many that wake each other.
fn worker_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / 2).clamp(1, WORKER_THREADS_MAX)
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are reported as errors, too.
            let _ = error.print();
            if !error.use_stderr() {
                return ExitCode::SUCCESS;
            }
            say_mistyped();
            return say_origin(&error.to_string(), &arguments);
        }
    };
    if !matches!(cli.command, Command::Completions { .. }) {
        say_mistyped();
    }
    priority::begin();
    let started = threads("serve", worker_threads())
        .and_then(|serving| Ok((serving, consensus_runtime(consensus_threads())?)));
    let (runtime, consensus) = match started {
        Ok(runtimes) => runtimes,
        Err(error) => {
            eprintln!("holdfast-store: cannot start its threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let usage = |error: String| {
        eprintln!("holdfast-store: {error}");
        say_origin(&error, &arguments)
    };
    let result = match cli.command {
        Command::Serve(args) => match args.merge() {
            Ok(options) => match log_to_stderr(options.log_format) {
                Ok(()) => runtime
                    .block_on(serve::run(options, consensus.handle().clone()))
                    .map_err(anyhow::Error::from),
                Err(error) => return usage(error),
            },
            Err(error) => return usage(error.to_string()),
        },
        Command::Dev(args) => {
            let checked = args.check();
            match checked.and_then(|access| log_to_stderr(LogFormat::Pretty).map(|()| access)) {
                Ok(access) => runtime.block_on(dev::run(args, access)),
                Err(error) => return usage(error),
            }
        }
        Command::Restore(args) => runtime.block_on(restore::run(*args)),
        Command::Recover(args) => recover::run(&args),
        Command::Inspect(args) => inspect::run(&args).map_err(anyhow::Error::from),
        Command::Health(args) => match health_tls(args.tls_ca.as_deref()) {
            Ok(tls) => runtime.block_on(health(args, tls)),
            Err(error) => return usage(error.to_string()),
        },
        Command::Tls(TlsCommand::Init(args)) => authority::run(&args),
        Command::Completions { shell } => {
            let (mut grammar, mut out) = (Cli::command(), std::io::stdout().lock());
            clap_complete::generate(shell, &mut grammar, "holdfast-store", &mut out);
            Ok(())
        }
    };
    // Threads that still use a disk must not keep the process running.
    consensus.shutdown_timeout(Duration::from_secs(1));
    runtime.shutdown_timeout(Duration::from_secs(1));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("holdfast-store: {error:#}");
            ExitCode::from(exit_code(&error))
        }
    }
}

fn threads(name: &str, count: usize) -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .thread_name(name)
        .worker_threads(count)
        .on_thread_start(priority::begin)
        .enable_all()
        .build()
}

/// As [`threads`], for what must not wait for long behind everything else that wants a
/// processor.
fn consensus_runtime(count: usize) -> std::io::Result<Runtime> {
    let runtime = Builder::new_multi_thread()
        .thread_name("consensus")
        .worker_threads(count)
        .on_thread_start(|| {
            priority::begin();
            priority::adapt();
        })
        .on_thread_unpark(priority::adapt)
        .enable_all()
        .build()?;
    runtime.spawn(priority::watch());
    Ok(runtime)
}

/// Adds to an error the source of the value that it is about.
fn say_origin(error: &str, arguments: &[OsString]) -> ExitCode {
    if let Some(origin) = origin(error, arguments, &|name| std::env::var_os(name)) {
        eprintln!("{origin}");
    }
    ExitCode::from(USAGE)
}

/// Reports which variables were meant by misspelt names.
fn say_mistyped() {
    for mistyped in mistyped(std::env::vars_os()) {
        eprintln!("holdfast-store: {mistyped}");
    }
}

fn log_to_stderr(format: LogFormat) -> Result<(), String> {
    use tracing_subscriber::EnvFilter;
    // A message from another node during shutdown is no error. What the consensus
    // library reports is logged here where it is handled.
    const FILTER: &str = "info,openraft=off,openraft::raft::raft_inner=off";
    let filter = match std::env::var("RUST_LOG") {
        Ok(filter) => EnvFilter::try_new(&filter).map_err(|error| {
            format!("the environment variable RUST_LOG is wrong: {error}; write a level such as debug, or MODULE=LEVEL,…")
        })?,
        Err(_) => EnvFilter::new(FILTER),
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        // The reader of the log may be gone; that must not stop a node.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Pretty => subscriber.with_target(false).init(),
        LogFormat::Json => subscriber.json().init(),
    }
    Ok(())
}
/// How a health check connects.
fn health_tls(ca: Option<&Path>) -> Result<Tls, TlsError> {
    let ca = ca.filter(|path| !path.as_os_str().is_empty());
    let ca = ca.map(|path| File { flag: "--tls-ca", path: path.to_owned() });
    let dialer = ca.map(|ca| Dialer::for_clients(ca, None)).transpose()?;
    Ok(dialer.map_or_else(Tls::default, Tls::of_client))
}

async fn health(args: HealthArgs, tls: Tls) -> anyhow::Result<()> {
    let path = if args.ready { holdfast_api::routes::READYZ } else { holdfast_api::routes::LIVEZ };
    let (status, _, body) = dial::request(
        &tls,
        &args.address,
        http::Method::GET,
        path,
        http::HeaderMap::new(),
        bytes::Bytes::new(),
        Duration::from_secs(3),
    )
    .await?;
    let body = String::from_utf8_lossy(&body);
    if status.is_success() {
        println!("{}", body.trim_end());
        Ok(())
    } else {
        anyhow::bail!("{status}: {}", body.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str = include_str!("../docs/holdfast-store.service");

    #[test]
    fn systemd_restarts_a_node_that_accepts_nobody_and_no_other_that_failed() {
        let why = || "planted".to_owned();
        assert_eq!(exit_code(&ServeError::AcceptsNobody(why()).into()), ACCEPTS_NOBODY);
        assert_eq!(exit_code(&ServeError::Fatal(why()).into()), FAILED);
        assert_eq!(exit_code(&anyhow::anyhow!("planted")), FAILED);
        assert!(UNIT.lines().any(|line| line == "Restart=on-failure"));
        let stays = UNIT.lines().find_map(|line| line.strip_prefix("RestartPreventExitStatus="));
        let stays: Vec<u8> = stays.unwrap().split(' ').map(|code| code.parse().unwrap()).collect();
        assert_eq!(stays, [FAILED, USAGE]);
    }
}
