//! Flags and `--help`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  Serve the run r3 of job train at PyTorch's usual port:
    holdfast-agent serve --store 10.0.0.1:21001,10.0.0.2:21001,10.0.0.3:21001 \\
        --job train --run r3 --tcpstore 127.0.0.1:29500

  Start an unmodified PyTorch program in a new run of its own:
    export HOLDFAST_STORE=10.0.0.1:21001,10.0.0.2:21001
    holdfast-agent run --job train -- python train.py

Settings: flags go over environment variables, these over the configuration
file, that over the defaults. A file looks like this, every line optional:
    store = \"10.0.0.1:21001,10.0.0.2:21001\"
    token_file = \"/etc/holdfast/token\"
    job = \"train\"
    run = \"r3\"
    tcpstore = \"127.0.0.1:29500\"
    store_lost_deadline = \"5min\"
    connect_deadline = \"30s\"
    log = \"info\"
    log_format = \"json\"
    [limits]
    connections_max = 16384

Exit codes: 0 ok; 125 a failure of the agent itself, wrong usage included.
For `run` also: the command's own code; 128+n if signal n ended it; 126 it
cannot be executed; 127 it was not found.";

/// Speaks PyTorch's TCPStore protocol on this host and keeps the keys in a
/// replicated Holdfast store, so that a job survives the loss of any one
/// store node.
#[derive(Debug, Parser)]
#[command(name = "holdfast-agent", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct CommandLine {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve TCPStore clients until SIGTERM or SIGINT. SIGUSR1 drains: no new
    /// trainer is taken, those that are connected may go on, and the agent
    /// ends with the last of them.
    #[command(after_help = EXAMPLES)]
    Serve {
        #[command(flatten)]
        flags: Flags,

        /// Drain on the first SIGTERM too, instead of closing all connections;
        /// a second one closes them.
        #[arg(long)]
        drain: bool,
    },
    /// Serve one command: start it with MASTER_ADDR, MASTER_PORT and
    /// TORCHELASTIC_USE_AGENT_STORE set, pass signals on to it, and exit with
    /// its code.
    #[command(after_help = EXAMPLES)]
    Run {
        #[command(flatten)]
        flags: Flags,
        /// The command and its arguments.
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "COMMAND"
        )]
        command: Vec<OsString>,
    },
}

/// What to do once the settings are known.
#[derive(Debug)]
pub enum Mode {
    /// `serve`
    Serve {
        /// Whether the first SIGTERM drains.
        drain: bool,
    },
    /// `run`
    Run {
        /// The command and its arguments; at least one.
        command: Vec<OsString>,
    },
}

/// The settings as texts: what they mean is read in one place, wherever they
/// come from. An empty environment variable counts as not set.
#[derive(Debug, Default, Args)]
pub struct Flags {
    /// Nodes of the store, host:port, separated by commas; one is enough, the
    /// others are learned from it.
    #[arg(long, env = "HOLDFAST_STORE", value_name = "LIST")]
    pub store: Option<String>,

    /// File with the token of the store, where it asks for one.
    #[arg(long, env = "HOLDFAST_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// The job: keys of different jobs never meet [default: default].
    #[arg(long, env = "HOLDFAST_JOB", value_name = "NAME")]
    pub job: Option<String>,

    /// The run of the job to join, or to open if it is not the open one;
    /// without it a new run is opened. Opening a run ends the one before.
    #[arg(long, env = "HOLDFAST_RUN", value_name = "NAME")]
    pub run: Option<String>,

    /// Where to listen for TCPStore clients, an IP address and a port
    /// [default: 127.0.0.1:29500; `run` takes a free port of 127.0.0.1].
    #[arg(long, env = "HOLDFAST_TCPSTORE", value_name = "ADDRESS")]
    pub tcpstore: Option<String>,

    /// How long an operation may wait for a store that has lost its quorum,
    /// before its connection closes [default: 300s].
    #[arg(long, env = "HOLDFAST_STORE_LOST_DEADLINE", value_name = "DURATION")]
    pub store_lost_deadline: Option<String>,

    /// How long to look for the store at the start [default: 30s].
    #[arg(long, env = "HOLDFAST_CONNECT_DEADLINE", value_name = "DURATION")]
    pub connect_deadline: Option<String>,

    /// A TOML file with any of these settings.
    #[arg(long, env = "HOLDFAST_AGENT_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// What to log, to stderr: error, warn, info, debug, trace, or a filter by
    /// module [default: info].
    #[arg(long, env = "RUST_LOG", value_name = "FILTER")]
    pub log: Option<String>,

    /// How to log: pretty or json [default: pretty].
    #[arg(long, env = "HOLDFAST_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<String>,
}

impl CommandLine {
    /// The flags and what to do with them.
    pub fn split(self) -> (Flags, Mode) {
        match self.verb {
            Verb::Serve { flags, drain } => (flags, Mode::Serve { drain }),
            Verb::Run { flags, command } => (flags, Mode::Run { command }),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn everything_behind_the_command_belongs_to_the_command() {
        for arguments in [
            &["holdfast-agent", "run", "--job", "j", "--", "torchrun", "--job", "x", "-h"][..],
            &["holdfast-agent", "run", "--job", "j", "torchrun", "--job", "x", "-h"][..],
        ] {
            let (flags, mode) = CommandLine::try_parse_from(arguments).unwrap().split();
            let Mode::Run { command } = mode else { panic!("not run") };
            assert_eq!(flags.job.as_deref(), Some("j"));
            assert_eq!(command, ["torchrun", "--job", "x", "-h"]);
        }
    }
}
