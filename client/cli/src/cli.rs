//! The grammar of the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use holdfast_api::{
    Blob, Compare, Fence, Incarnation, Name, NodeId, ProcessId, Revision, TransactionOp,
};

use crate::argument::{self, Value};
use crate::colour::When;
use crate::config::{Layer, StoreList, Timeout};
use crate::exit::Failure;
use crate::output::Output;
use crate::transaction;

mod comm;
mod help;
mod hints;
mod token;
mod usage;

pub(crate) use self::comm::{CommCommand, GroupArgs};
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
    /// Show this certificate, for a cluster that lets its holders in [env: HOLDFAST_TLS_CERT]
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

/// The commands.
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
        /// The shell
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
    /// A node that does not lead makes it, of a state that holds all that was answered before the
    /// backup was asked for. It is read again and synced before it gets its name.
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
    /// lines for a job of any size; -o json shows everything. It says what a round needs
    /// besides those, by the rule that closes it, and whose numbers (world, members_min …) are not
    /// those that govern. Rounds that wait for each other are named as a Deadlock. For ranks that
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
    /// End a process
    #[command(subcommand)]
    Process(ProcessCommand),
    /// Check fence tokens
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

/// Commands on nodes.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List all nodes
    #[command(visible_alias = "ls")]
    List,
    /// Add a node as a learner: it catches up and does not vote yet
    Add {
        /// Its id, never used in this cluster before
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        id: NodeId,
        /// Its address, HOST:PORT
        address: String,
    },
    /// Make a learner that has caught up a voter
    Promote {
        /// The learner
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
        /// Go on although the old node answers: it is out for ever
        #[arg(long)]
        force: bool,
    },
    /// Remove a node for ever; its id is never used again
    Remove {
        /// The node
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        id: NodeId,
    },
}

/// Commands on agents.
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
    /// Let a file that is there be replaced
    #[arg(long)]
    pub(crate) force: bool,
    /// Take what a node has, which may be old: works without a quorum
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

/// Commands on backups.
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
    /// Show the leader
    Show,
    /// Hand leadership to a node, or to the most advanced voter
    Transfer {
        /// The node that should lead
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        id: Option<NodeId>,
    },
}

/// Commands on processes.
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

/// Commands on jobs.
#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// List all jobs
    #[command(visible_alias = "ls")]
    List,
    /// Delete a job that has no open run: all its runs with their keys
    Delete {
        /// The job
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

/// Commands on runs.
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
        /// The run
        name: Name,
    },
    /// Delete an ended run with its keys
    Delete {
        /// The run
        name: Name,
    },
}

/// Commands on keys and queues.
#[derive(Debug, Subcommand)]
pub(crate) enum KvCommand {
    /// Set a key
    Put {
        /// The key
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// Its new value; - reads standard input as it is
        #[arg(value_parser = argument::value(), allow_negative_numbers = true)]
        value: Value,
        /// Set it only if it was last changed at this revision; 0 = only if it is absent [default: set it
        /// in any case]
        #[arg(long, value_name = "REV")]
        if_revision: Option<Revision>,
    },
    /// Print the value of a key; exit code 1 if it is absent
    Get {
        /// The key
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// Let any node answer from its own state, however old
        #[arg(long)]
        stale: bool,
        /// Print exactly the bytes of the value, without a newline; --output has no effect
        #[arg(long)]
        raw: bool,
    },
    /// Add to a decimal number (absent = 0) and print the sum
    Add {
        /// The key
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// What to add; may be negative
        #[arg(allow_negative_numbers = true, value_name = "N")]
        delta: i64,
    },
    /// Raise a decimal number to at least N (absent = N) and print what it is then
    Max {
        /// The key
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// What it is at least from now on; may be negative
        #[arg(allow_negative_numbers = true, value_name = "N")]
        number: i64,
    },
    /// Set a key if it has the expected value (an empty one matches an absent key) and print its
    /// value afterwards; exit code 1 if it was not set
    Cas {
        /// The key
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// The value that must be there
        #[arg(value_parser = argument::blob(), allow_negative_numbers = true)]
        expected: Blob,
        /// The value to put in its place
        #[arg(value_parser = argument::blob(), allow_negative_numbers = true, value_name = "NEW")]
        desired: Blob,
    },
    /// Delete a key, or many, and print how many there were
    ///
    /// Of many keys it deletes those that are there when it begins, 500 at a time. A key that
    /// is written after that, and before its turn, is kept and reported, with exit code 1.
    #[command(visible_aliases = ["del", "rm"])]
    Delete {
        #[command(flatten)]
        what: DeletionArgs,
    },
    /// Compare and change several keys at one revision; exit code 1 if not all comparisons hold
    ///
    /// All comparisons hold, and the steps of --then are done; or the steps of --else are. Each of
    /// the three options can be repeated. Without any of them the transaction is read from standard
    /// input: comparisons, an empty line, steps, an empty line, steps else, a line each.
    ///
    /// A comparison is value(KEY) = VALUE, revision(KEY) = N (0: the key is absent), exists(KEY) or
    /// absent(KEY). A step is get KEY, put KEY VALUE, add KEY N, append KEY VALUE or delete KEY. Keys
    /// and values with spaces stand between double quotes.
    ///
    /// It prints `then` or `else`, and a line for each step that was done.
    #[command(verbatim_doc_comment)]
    Txn {
        /// Compare this; can be repeated, and all must hold
        #[arg(long = "if", value_name = "COMPARISON", value_parser = transaction::compare)]
        compare: Vec<Compare>,
        /// Do this if all comparisons hold; can be repeated
        #[arg(long, value_name = "STEP", value_parser = transaction::step)]
        then: Vec<TransactionOp>,
        /// Do this if one does not hold; can be repeated
        #[arg(long = "else", value_name = "STEP", value_parser = transaction::step)]
        or_else: Vec<TransactionOp>,
    },
    /// Append to the value of a key (absent = empty)
    Append {
        /// The key
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// What to append; - reads standard input as it is
        #[arg(value_parser = argument::value(), allow_negative_numbers = true)]
        value: Value,
    },
    /// List keys in byte order
    #[command(visible_alias = "ls")]
    List {
        /// Only keys that start with this
        #[arg(value_parser = argument::blob())]
        prefix: Option<Blob>,
        /// Leave the values out
        #[arg(long)]
        keys_only: bool,
        /// Let any node answer from its own state, however old
        #[arg(long)]
        stale: bool,
    },
    /// Count keys
    Count {
        /// Only keys that start with this
        #[arg(value_parser = argument::blob())]
        prefix: Option<Blob>,
        /// Let any node answer from its own state, however old
        #[arg(long)]
        stale: bool,
    },
    /// Print every change, one line each, until Ctrl-C; exit code 1 when the run has ended. Says on
    /// stderr that the last agent has left it, and when it ends
    Watch {
        /// Only keys that start with this
        #[arg(value_parser = argument::blob())]
        prefix: Option<Blob>,
        /// Begin with this revision [default: changes from now on]
        #[arg(long, value_name = "REV", value_parser = clap::value_parser!(u64).range(1..))]
        from: Option<Revision>,
        /// Go on with the job's next run when this one has ended, from its opening; with --from,
        /// begin with the run of that revision
        #[arg(long)]
        follow_runs: bool,
    },
    /// Wait until all keys exist (as a key, or as a queue that is not empty); --timeout bounds the
    /// whole wait, exit code 1 if it passes
    Wait {
        /// The keys
        #[arg(value_parser = argument::blob(), required = true, value_name = "KEY")]
        keys: Vec<Blob>,
        /// Wait until the keys are numbers of at least this [default: until they exist]
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        at_least: Option<i64>,
    },
    /// Put a value at the end of a queue and print the queue's length
    Push {
        /// The queue
        #[arg(value_parser = argument::blob(), value_name = "KEY")]
        queue: Blob,
        /// The value; - reads standard input as it is
        #[arg(value_parser = argument::value(), allow_negative_numbers = true)]
        value: Value,
    },
    /// Take the value at the front of a queue and print it; exit code 1 if the queue is empty
    Pop {
        /// The queue
        #[arg(value_parser = argument::blob(), value_name = "KEY")]
        queue: Blob,
        /// Print exactly the bytes of the value, without a newline; --output has no effect
        #[arg(long)]
        raw: bool,
    },
    /// Print the length of a queue
    Length {
        /// The queue
        #[arg(value_parser = argument::blob(), value_name = "KEY")]
        queue: Blob,
    },
}

/// Which keys are deleted: exactly one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct DeletionArgs {
    /// The key
    #[arg(value_parser = argument::blob())]
    key: Option<Blob>,
    /// Delete all keys that start with this, which is not empty [default: one key]
    #[arg(long, value_parser = argument::blob())]
    prefix: Option<Blob>,
    /// Delete all keys of the run
    #[arg(long)]
    all: bool,
}

/// Which keys are deleted.
#[derive(Debug, PartialEq)]
pub(crate) enum Deletion {
    Key(Blob),
    Prefix(Blob),
}

impl DeletionArgs {
    /// What is meant; a variable of a script that was not set does not delete
    /// all there is.
    pub(crate) fn of(self) -> Result<Deletion, Failure> {
        match self {
            DeletionArgs { key: Some(key), .. } => Ok(Deletion::Key(key)),
            DeletionArgs { prefix: Some(prefix), .. } if prefix.is_empty() => Err(Failure::Usage(
                "every key starts with an empty --prefix; to delete all keys of the run, say --all"
                    .to_owned(),
            )),
            DeletionArgs { prefix, .. } => Ok(Deletion::Prefix(prefix.unwrap_or_default())),
        }
    }
}

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod tests;
