//! The grammar of the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use holdfast_api::{Blob, Fence, Incarnation, Name, NodeId, ProcessId, Revision};

use crate::argument::{self, Value};
use crate::config::{Layer, StoreList, Timeout};
use crate::output::Output;

const AFTER_HELP: &str = "\
Settings: flags go over the environment (HOLDFAST_STORE, HOLDFAST_TOKEN_FILE, HOLDFAST_JOB,
HOLDFAST_RUN), which goes over a TOML file (--config, HOLDFAST_CONFIG, or
~/.config/holdfast/config.toml if it exists; keys store, token_file, job, run, output, timeout),
which goes over the defaults (store
127.0.0.1:21001,127.0.0.1:21002,127.0.0.1:21003; job default; output table; timeout 10s).
`holdfast config` shows the result and where each value came from. HOLDFAST_LOG=debug logs the
client's connections to standard error.

Keys and values are bytes. What is not text is written \\xNN, a backslash may be doubled, and a
value of - is read from standard input as it is. A key that begins with - goes behind --.

Exit codes:
  0  ok
  1  refused: the cluster said no, the key is absent, the swap did not happen, the wait timed out
  2  usage: the command line, the environment or the configuration file is wrong
  3  unreachable: no node, or no leader, answered in time; nothing was changed
  4  outcome unknown: the change may have been made; look before you repeat it

Examples:
  holdfast status
  holdfast --store 10.0.0.1:21001,10.0.0.2:21001 doctor
  holdfast --job llm why
  holdfast --job llm events --follow
  holdfast --job llm job plan --without host7
  holdfast --job llm run open
  holdfast --job llm kv put checkpoint/step 4200
  holdfast --job llm kv cas owner '' \"$(hostname)\"
  holdfast --job llm kv wait ready --timeout 5m && start-training
  holdfast --job llm -o json kv watch checkpoint/ | jq .value";

/// Looks into a Holdfast cluster and changes it.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, after_help = AFTER_HELP, arg_required_else_help = true)]
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
    /// Nodes of the cluster; any of them will do [env: HOLDFAST_STORE] [default: those of `holdfast-store dev`]
    #[arg(long, global = true, value_name = "HOST:PORT,…")]
    store: Option<StoreList>,
    /// File with the cluster's token, where it asks for one [env: HOLDFAST_TOKEN_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The job whose keys and runs are meant [env: HOLDFAST_JOB] [default: default]
    #[arg(long, global = true)]
    job: Option<Name>,
    /// The run whose keys are meant; without it the job's open run [env: HOLDFAST_RUN]
    #[arg(long, global = true)]
    run: Option<Name>,
    /// How answers are printed; json also prints errors as a problem document [default: table]
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    output: Option<Output>,
    /// How long each request, or a `kv wait`, may take: 500ms, 10s, 5m, never [default: 10s]
    #[arg(long, global = true, value_name = "DURATION")]
    timeout: Option<Timeout>,
    /// The configuration file [env: HOLDFAST_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

impl GlobalArgs {
    /// What the flags say.
    pub(crate) fn layer(&self) -> Layer {
        Layer {
            store: self.store.clone(),
            token_file: self.token_file.clone(),
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
    /// Show the cluster: leader, term, revision, nodes; any node answers, with or without a quorum
    Status,
    /// Show and change the nodes of the cluster
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show who leads, or hand leadership over
    #[command(subcommand)]
    Leader(LeaderCommand),
    /// Show the agents and who is connected to them; of one job with --job
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Show who has been waiting for more than a second, for what, and since when; of one job with
    /// --job, of one run with --run
    Waits,
    /// Say why the job does not go on: who is missing, since when, where, in which state, and what
    /// happens at which deadline
    ///
    /// For every open round, and for every process that has been waiting for a key for more than a
    /// second, it shows who is missing: grouped by host, at most 20 lines, whatever the size of the
    /// job; -o json shows everything. Rounds that wait for each other are named as a Deadlock. If
    /// nothing waits, the hang is in a collective or in user code; then it shows what the cluster
    /// knows of each rank. Durations are log time, which stands still while there is no leader, and
    /// where no agent is and nobody writes.
    Why,
    /// List the processes of the run: incarnation, role, state, host, rank, and the rounds that each
    /// waits in
    Processes,
    /// End a process
    #[command(subcommand)]
    Process(ProcessCommand),
    /// Check fence tokens
    #[command(subcommand)]
    Fence(FenceCommand),
    /// List the open rounds of the run: who has arrived, how many are missing, and what happens at
    /// which deadline
    Rounds,
    /// Show the job's latest iteration with its members and ranks, and when it advanced
    Iterations,
    /// Print what happened to processes and rounds of the job, one line each, oldest first; of one
    /// run with --run
    ///
    /// A line begins with the revision and the log time in seconds. Old events are dropped when
    /// there are more than the cluster keeps (events_per_job_max).
    Events {
        /// Only events behind this revision
        #[arg(long, value_name = "REV", default_value_t = 0)]
        after: Revision,
        /// Go on with events as they happen, until Ctrl-C
        #[arg(long, short)]
        follow: bool,
    },
    /// Examine the nodes and this host: reachability, versions, clock rate, fsync latency, ports,
    /// PyTorch; exit code 1 if something does not work
    Doctor {
        /// The Python whose PyTorch is meant [default: python3]
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
    /// Whoever it is can go on only as a new incarnation. The operating-system process is not
    /// killed by this; its agent does that.
    Remove {
        /// The process, as `holdfast processes` shows it
        process: ProcessId,
        /// Which of its lives; without it, the one that is alive
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        incarnation: Option<Incarnation>,
        /// Why: it stands in the event log, and in what the process is told
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

/// Commands on fence tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum FenceCommand {
    /// Say whether a token holds: whether the life of the process that it was given to still goes on
    ///
    /// For whoever guards something that only the living may write to. Exit code 0: it holds; 1: it
    /// is void, and why is said. The job and the run are those in the token.
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
    /// ranks, who is dropped and why, which standbys are promoted; changes nothing
    Plan {
        /// A process by its number, or a host by its name; can be repeated
        #[arg(long, value_name = "HOST|PROCESS")]
        without: Vec<String>,
        /// A host whose name is a number; can be repeated
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
        #[arg(value_parser = argument::value(), allow_hyphen_values = true)]
        value: Value,
        /// Only if the key was last changed at this revision; 0 = only if it is absent
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
        /// Print exactly the bytes of the value, without a newline, whatever --output says
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
    /// Set a key if it has the expected value (an empty one matches an absent key) and print its
    /// value afterwards; exit code 1 if it was not set
    Cas {
        /// The key
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// The value that must be there
        #[arg(value_parser = argument::blob(), allow_hyphen_values = true)]
        expected: Blob,
        /// The value to put in its place
        #[arg(value_parser = argument::blob(), allow_hyphen_values = true, value_name = "NEW")]
        desired: Blob,
    },
    /// Delete a key and print how many there were
    #[command(visible_aliases = ["del", "rm"])]
    Delete {
        /// The key
        #[arg(value_parser = argument::blob())]
        key: Blob,
    },
    /// Append to the value of a key (absent = empty)
    Append {
        /// The key
        #[arg(value_parser = argument::blob())]
        key: Blob,
        /// What to append; - reads standard input as it is
        #[arg(value_parser = argument::value(), allow_hyphen_values = true)]
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
    /// Print every change, one line each, until Ctrl-C
    Watch {
        /// Only keys that start with this
        #[arg(value_parser = argument::blob())]
        prefix: Option<Blob>,
        /// The first revision wanted; without it, changes from now on
        #[arg(long, value_name = "REV", value_parser = clap::value_parser!(u64).range(1..))]
        from: Option<Revision>,
    },
    /// Wait until all keys exist (as a key, or as a queue that is not empty); --timeout bounds the
    /// whole wait, exit code 1 if it passes
    Wait {
        /// The keys
        #[arg(value_parser = argument::blob(), required = true, value_name = "KEY")]
        keys: Vec<Blob>,
        /// Wait until the keys are numbers of at least this instead
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        at_least: Option<i64>,
    },
    /// Put a value at the end of a queue and print the queue's length
    Push {
        /// The queue
        #[arg(value_parser = argument::blob(), value_name = "KEY")]
        queue: Blob,
        /// The value; - reads standard input as it is
        #[arg(value_parser = argument::value(), allow_hyphen_values = true)]
        value: Value,
    },
    /// Take the value at the front of a queue and print it; exit code 1 if the queue is empty
    Pop {
        /// The queue
        #[arg(value_parser = argument::blob(), value_name = "KEY")]
        queue: Blob,
        /// Print exactly the bytes of the value, without a newline, whatever --output says
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

#[cfg(test)]
mod tests;
