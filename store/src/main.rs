//! The `holdfast-store` program.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use holdfast_store::config::{LogFormat, ServeArgs};
use holdfast_store::{dev, dial, serve};

/// A Holdfast store node: the replicated control plane of training jobs.
#[derive(Debug, Parser)]
#[command(name = "holdfast-store", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  A cluster to try, on this machine:
    holdfast-store dev --nodes 3 --data-dir /tmp/holdfast --base-port 21000

  One of three nodes (run the like on each host):
    holdfast-store serve --node-id 1 --data-dir /var/lib/holdfast --listen 10.0.0.1:21001 \\
      --token-file /etc/holdfast/token \\
      --initial-cluster 1=10.0.0.1:21001,2=10.0.0.2:21001,3=10.0.0.3:21001

  A fourth node for a running cluster (with HOLDFAST_TOKEN_FILE=/etc/holdfast/token everywhere):
    holdfast-store serve --node-id 4 --data-dir /var/lib/holdfast --listen 10.0.0.4:21001 --join 10.0.0.1:21001
    holdfast --store 10.0.0.1:21001 node add 4 10.0.0.4:21001
    holdfast --store 10.0.0.1:21001 node promote 4

Exit codes: 0 stopped as asked, 1 failed (the last message says why and what to do), 2 usage.";

/// More do not help: one consensus, one state machine.
const WORKER_THREADS_MAX: usize = 8;

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one node
    Serve(Box<ServeArgs>),
    /// Run a whole cluster on this machine, to try things
    Dev(dev::DevArgs),
    /// Ask a node whether it is alive; for container health checks
    Health(HealthArgs),
}

#[derive(Debug, Args)]
struct HealthArgs {
    /// The node's address
    #[arg(long, default_value = "127.0.0.1:21001", value_name = "HOST:PORT")]
    address: String,
    /// Ask whether it is ready to serve, not only alive
    #[arg(long)]
    ready: bool,
}

/// Half the processors: the rest is for what writes to the disk. Few threads
/// answer sooner than many that wake each other.
fn worker_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / 2).clamp(1, WORKER_THREADS_MAX)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = match runtime.worker_threads(worker_threads()).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("holdfast-store: cannot start its threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = match cli.command {
        Command::Serve(args) => match args.merge() {
            Ok(options) => {
                log_to_stderr(options.log_format);
                runtime.block_on(serve::run(options)).map_err(anyhow::Error::from)
            }
            Err(error) => {
                eprintln!("holdfast-store: {error}");
                return ExitCode::from(2);
            }
        },
        Command::Dev(args) => {
            log_to_stderr(LogFormat::default());
            runtime.block_on(dev::run(args))
        }
        Command::Health(args) => runtime.block_on(health(args)),
    };
    // Threads that still read or write a disk must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("holdfast-store: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn log_to_stderr(format: LogFormat) {
    use tracing_subscriber::EnvFilter;
    // A message of another node that meets a node which stops is no error.
    // What the consensus library reports is logged here where it is handled.
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,openraft=off,openraft::raft::raft_inner=off"));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Pretty => subscriber.with_target(false).init(),
        LogFormat::Json => subscriber.json().init(),
    }
}

async fn health(args: HealthArgs) -> anyhow::Result<()> {
    let path = if args.ready { holdfast_api::routes::READYZ } else { holdfast_api::routes::LIVEZ };
    let (status, _, body) = dial::request(
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
