//! The grammar of the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use holdfast_api::{Fence, Incarnation, Name, NodeId, ProcessId, Revision};

use crate::colour::When;
use crate::config::{Layer, StoreList, Timeout};
use crate::output::Output;

mod comm;
mod help;
mod hints;
mod kv;
mod token;
mod usage;

pub(crate) use self::comm::{CommCommand, GroupArgs};
pub(crate) use self::kv::{Deletion, KvCommand};
pub(crate) use self::token::{ClusterTokenCommand, CreateTokenArgs, TokenCommand};
pub(crate) use self::usage::{UsageError, asked, complete, parse};

/// Looks into a Holdfast cluster and changes it.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command takes, before it or after it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Settings")]
pub(crate) struct GlobalArgs {
    /// Ask these nodes of the cluster, any of which will do [env: HOLDFAST_STORE] [default: those of
    /// `holdfast-store dev`]
    #[arg(long, global = true, value_name = "HOST:PORT,…")]
    store: Option<StoreList>,
    /// Send the cluster's token, which is in this file [env: HOLDFAST_TOKEN_FILE] [default: none]
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Connect with TLS to nodes whose certificates are of this authority [env: HOLDFAST_TLS_CA]
    /// [default: none, which is plain text]
    #[arg(long, global = true, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Use this client certificate, where the cluster accepts one instead of a token [env: HOLDFAST_TLS_CERT]
    /// [default: none]
    #[arg(long, global = true, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Use this private key, of the certificate [env: HOLDFAST_TLS_KEY] [default: none]
    #[arg(long, global = true, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Use the keys and runs of this job [env: HOLDFAST_JOB] [default: default]
    #[arg(long, global = true)]
    job: Option<Name>,
    /// Use the keys of this run [env: HOLDFAST_RUN] [default: the job's open run]
    #[arg(long, global = true)]
    run: Option<Name>,
    /// Print answers in this form; with json, errors are JSON too [default: table]
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    output: Option<Output>,
    /// Give up a request, or a `kv wait`, after this time: 500ms, 10s, 5m, never [default: 10s]
    #[arg(long, global = true, value_name = "DURATION")]
    timeout: Option<Timeout>,
    /// Colour headings, states and errors [default: auto, which is on a terminal, unless NO_COLOR is
    /// set]
    #[arg(long, global = true, value_enum, value_name = "WHEN")]
    color: Option<When>,
    /// Read settings from this file [env: HOLDFAST_CONFIG] [default:
    /// ~/.config/holdfast/config.toml if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

impl GlobalArgs {
    /// What the flags say.
    pub(crate) fn layer(&self) -> Layer {
        Layer {
            store: self.store.clone(),
            token_file: self.token_file.clone(),
            tls_ca: self.tls_ca.clone(),
            tls_cert: self.tls_cert.clone(),
            tls_key: self.tls_key.clone(),
            job: self.job.clone(),
            run: self.run.clone(),
            output: self.output,
            timeout: self.timeout,
        }
    }
}

/// The top-level commands of `holdfast`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// What the cluster is asked for.
    #[command(flatten)]
    Cluster(ClusterCommand),
    /// Make, list and revoke the tokens by which a cluster knows who may do what
    #[command(subcommand)]
    Token(TokenCommand),
    /// Show the settings and where each came from; asks no node
    Config,
    /// Print a completion script for a shell
    Completions {
        /// The shell that will read the script
        shell: Shell,
    },
    /// Print the version of this program
    Version,
}

/// The commands that ask the cluster.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Typed as a part of `token`.
    #[command(skip)]
    Token(ClusterTokenCommand),
    /// Show the cluster: leader, term, revision, nodes; any node answers, with or without a quorum
    Status,
    /// Show and change the nodes of the cluster
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show who leads, or hand leadership over
    #[command(subcommand)]
    Leader(LeaderCommand),
    /// Write everything that the cluster keeps into a file, while it serves
    ///
    /// A follower makes the backup, if there is one. It contains every write that was acknowledged
    /// before. The file is synced and read again before it gets its name.
    /// `holdfast-store restore` begins a new cluster with it.
    Backup(BackupArgs),
    /// Show the agents and who is connected to them; of one job with --job
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Show who has been waiting for more than a second, for what, and since when; of one job with
    /// --job, of one run with --run
    Waits,
    /// Say why jobs do not go on: who ended, who is missing, since when, where, in which state, and
    /// what happens at which deadline; of all jobs with anything alive, or of one with --job
    ///
    /// First come programs that have ended, with their exit codes where their agents know them, and
    /// who waits for their keys. For every open round, and for every process that has been waiting
    /// for a key for more than a second, it shows who is missing: grouped by host, at most 20
    /// lines for a job of any size; -o json shows everything. It also shows what else a
    /// round's rule requires, and which processes came with numbers (world, members_min …) that
    /// differ from those in force. Rounds that wait for each other are named as a Deadlock. For ranks that
    /// wait neither for a key nor in a round it shows the last store call, and what their main
    /// threads do, as their agents see it: the hang is then outside the store, in a collective or
    /// in user code. Those that differ from the others come first. Durations are log time, which
    /// stands still while there is no leader, and while there are no agents and no writes.
    Why {
        /// Say it again when something happens in the job, and every 10 s while something waits,
        /// until Ctrl-C or the end of the run that was named; needs a job
        #[arg(long, short)]
        follow: bool,
    },
    /// List the processes of the run: incarnation, role, state, host, rank, and the rounds that each
    /// waits in
    Processes,
    /// End an incarnation of a process, so that rounds go on without it
    #[command(subcommand)]
    Process(ProcessCommand),
    /// Check whether a fence token still holds
    #[command(subcommand)]
    Fence(FenceCommand),
    /// List the open rounds of the run: who has arrived, how many are missing, what happens at which
    /// deadline, and what each needs besides those missing
    Rounds,
    /// Show the communicators and locks of the job, and release what no agent can report
    #[command(subcommand)]
    Comm(CommCommand),
    /// Show the job's latest iteration with its members and ranks, and when members changed
    Iterations,
    /// Print what happened to processes and rounds of the job, one line each, oldest first; of one
    /// run with --run
    ///
    /// A line begins with the revision and the log time in seconds. An iteration with other members
    /// than the one before is one line: who left, who joined, and the first fault. Single
    /// registrations, ends and promotions are dropped first when there are more events than the
    /// cluster keeps (events_per_job_max).
    Events {
        /// Print only events after this revision
        #[arg(long, value_name = "REV", default_value_t = 0)]
        after: Revision,
        /// Go on with events as they happen, until Ctrl-C
        #[arg(long, short)]
        follow: bool,
    },
    /// Examine the nodes and this host: reachability, versions, clock rate, fsync latency, ports,
    /// PyTorch; exit code 1 if something does not work
    Doctor {
        /// Examine the PyTorch of this Python [default: python3]
        #[arg(long, value_name = "FILE")]
        python: Option<PathBuf>,
    },
    /// Show and delete jobs
    #[command(subcommand)]
    Job(JobCommand),
    /// Show, open, end and delete runs of a job
    #[command(subcommand)]
    Run(RunCommand),
    /// Read and change keys and queues of a run
    #[command(subcommand)]
    Kv(KvCommand),
}

/// The subcommands of `holdfast node`.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List all nodes: address, role, who votes, who answers, who has caught up, and version
    #[command(visible_alias = "ls")]
    List,
    /// Add a node as a learner: it catches up and does not vote yet
    Add {
        /// Its id, never used in this cluster before
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        id: NodeId,
        /// The address at which clients and other nodes reach it, HOST:PORT
        address: String,
    },
    /// Make a learner that has caught up a voter
    Promote {
        /// The learner that becomes a voter
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        id: NodeId,
    },
    /// Put a new node in the place of one that lost its disk: add it, wait until it has caught up,
    /// promote it, and remove the old one; can be repeated if it was interrupted
    Replace {
        /// The node that goes, for ever
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        old: NodeId,
        /// The node that comes: it runs, started with --join, under an id never used before
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        new: NodeId,
        /// Address of the new node, HOST:PORT [default: the old one's]
        address: Option<String>,
        /// Do it even if the old node still answers: it can never return under its id
        #[arg(long)]
        force: bool,
    },
    /// Remove a node for ever; its id is never used again
    Remove {
        /// The node that goes, for ever
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        id: NodeId,
    },
}

/// The subcommands of `holdfast agent`.
#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// List all agents that are connected to the cluster
    #[command(visible_alias = "ls")]
    List,
}

/// What is to be backed up where to.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BackupCommand>,
    /// The file, with a dot or a slash in its name; `-` is standard output
    #[arg(value_name = "FILE", required = true, value_parser = file_to_make)]
    pub(crate) file: Option<PathBuf>,
    /// Write over a file that exists
    #[arg(long)]
    pub(crate) force: bool,
    /// Take the state of one node, which may be old; this works without a quorum
    #[arg(long)]
    pub(crate) stale: bool,
}

/// A bare word is more likely a mistyped command.
fn file_to_make(text: &str) -> Result<PathBuf, String> {
    if text == "-" || text.contains(['.', '/']) {
        return Ok(PathBuf::from(text));
    }
    Err(format!(
        "a bare word is taken for a command, and the similar one is `verify`: a file of this name is ./{text}"
    ))
}

/// The subcommands of `holdfast backup`.
#[derive(Debug, Subcommand)]
pub(crate) enum BackupCommand {
    /// Read a backup and compare its checksums; asks no node
    Verify {
        /// The file; `-` is standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Commands on the leader.
#[derive(Debug, Subcommand)]
pub(crate) enum LeaderCommand {
    /// Show the leader, its address and its term; exit code 3 if there is no leader
    Show,
    /// Hand leadership to a node, or to the most advanced voter
    Transfer {
        /// The node that should lead
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        id: Option<NodeId>,
    },
}

/// The subcommands of `holdfast process`.
#[derive(Debug, Subcommand)]
pub(crate) enum ProcessCommand {
    /// End an incarnation of a process for ever: it is fenced, and rounds go on without it
    ///
    /// The process can go on only as a new incarnation. This does not kill the
    /// operating-system process; its agent does that.
    Remove {
        /// The process, as `holdfast processes` shows it
        process: ProcessId,
        /// Which of its incarnations; without it, the one that is alive
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        incarnation: Option<Incarnation>,
        /// Say why: shown in the event log and to the process
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

/// Commands on fence tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum FenceCommand {
    /// Say whether a token holds: whether the incarnation that it was given to is still alive
    ///
    /// For a service that guards something to which only live processes may write. Exit code 0: it
    /// holds; 1: it is void, and the reason is printed. The job and the run are those in the token.
    Check {
        /// The token, as `fence()` gives it: JOB:RUN:PROCESS:INCARNATION:GENERATION
        token: Fence,
    },
}

/// The subcommands of `holdfast job`.
#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// List all jobs: open run, number of runs, keys and bytes
    #[command(visible_alias = "ls")]
    List,
    /// Delete a job that has no open run: all its runs with their keys
    Delete {
        /// The job to delete
        name: Name,
    },
    /// Show the iteration that would begin if these hosts and processes were lost now: how many
    /// ranks, who is dropped and why, which standbys are promoted, or what it would wait for;
    /// changes nothing
    ///
    /// The rule that closes rounds decides it, as if all other live processes had arrived.
    Plan {
        /// Lose a process, by its number, or a host, by its name; can be repeated
        #[arg(long, value_name = "HOST|PROCESS")]
        without: Vec<String>,
        /// Lose a host whose name is a number; can be repeated
        #[arg(long, value_name = "HOST")]
        without_host: Vec<String>,
    },
}

/// The subcommands of `holdfast run`.
#[derive(Debug, Subcommand)]
pub(crate) enum RunCommand {
    /// List the runs of the job, oldest first
    #[command(visible_alias = "ls")]
    List,
    /// Open a run, or join it if it is open, and print its name; a new run ends the one before
    Open {
        /// Its name; without it the job's next number (r1, r2, …)
        name: Option<Name>,
        /// End the job's open run even if agents hold it: their ranks lose their store
        #[arg(long)]
        takeover: bool,
    },
    /// End a run: it stays readable and cannot be written to any more
    End {
        /// The run to end
        name: Name,
    },
    /// Delete an ended run with its keys
    Delete {
        /// The run to delete
        name: Name,
    },
}

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod tests;
