//! Flags.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use holdfast_api::{LeaseId, Name};

/// Speaks PyTorch's TCPStore protocol on this host and keeps the keys in a
/// replicated Holdfast store, so that a job survives the loss of any one
/// store node.
#[derive(Debug, Parser)]
#[command(name = "holdfast-agent", version, max_term_width = 100)]
pub struct CommandLine {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve TCPStore clients until SIGTERM or SIGINT. SIGUSR1 drains: no new
    /// trainer is taken, those that are connected may go on, and the agent
    /// ends with the last of them.
    Serve {
        #[command(flatten)]
        flags: Flags,

        /// Drain on the first SIGTERM too, instead of closing all connections;
        /// a second one closes them.
        #[arg(long)]
        drain: bool,

        /// Listen here for programs with the library, which find it in
        /// HOLDFAST_CONTROL [default: a socket in the folder of this user's
        /// agents; its path is printed].
        #[arg(long, value_name = "PATH")]
        control: Option<PathBuf>,

        /// Let a keeper hold the connections, so that they outlive an agent that is killed, and
        /// start the next one. `run` has one anyway.
        #[arg(long)]
        keeper: bool,

        /// Its keeper is at the other end of its standard input.
        #[arg(long, hide = true)]
        kept: bool,
    },
    /// Serve one command: attach to the agent of its run on this host, or start
    /// that agent as a process of its own; start the command with MASTER_ADDR, MASTER_PORT,
    /// TORCHELASTIC_USE_AGENT_STORE and torchrun's PET_* set, pass signals on to
    /// it, and exit with its code.
    Run {
        #[command(flatten)]
        flags: Flags,
        #[command(flatten)]
        run: RunFlags,
        /// The command and its arguments; one that begins with a dash comes after `--`.
        #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Open a namespace of the run at a port of its own, and print the port;
    /// the same name is the same namespace on every host. To be called by a
    /// command that `run` started.
    Open {
        /// The name of the namespace.
        name: Name,
        /// Ask the agent with this control socket.
        #[arg(long, env = "HOLDFAST_CONTROL", value_name = "PATH")]
        control: PathBuf,
    },
    /// Print a completion script for a shell.
    Completions {
        /// The shell that will read the script.
        shell: Shell,
    },
    /// Say which signals come, to the `run` that started this.
    #[command(hide = true)]
    Witness,
    /// Replace the running agent by the program now installed at its path;
    /// connections stay open. To be called by a command that `run` started, or with
    /// the agent's control socket.
    Upgrade {
        /// Replace the agent that has this control socket.
        #[arg(long, env = "HOLDFAST_CONTROL", value_name = "PATH")]
        control: PathBuf,
    },
    /// The parent of the agent's own process, started by `run` with what that is to
    /// be started with.
    #[command(hide = true, disable_help_flag = true)]
    Keeper {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// The agent's own process, started by `run`.
    #[command(hide = true)]
    Host {
        #[command(flatten)]
        flags: Flags,
        #[command(flatten)]
        run: RunFlags,
        /// Join the run that `--join-run` names, and end if it is not open:
        /// the place of an agent is taken that was killed. It served these
        /// ports, in this order.
        #[arg(long, value_name = "ADDRESS", value_delimiter = ',', requires = "join_run")]
        join: Vec<SocketAddr>,
        /// The run that the agent before served.
        #[arg(long, value_name = "NAME", requires = "join")]
        join_run: Option<Name>,
        /// The lease with which it held the run, to be given back for it.
        #[arg(long, value_name = "NUMBER", requires = "join")]
        join_lease: Option<LeaseId>,
        /// Its keeper is at the other end of its standard input, and this is its
        /// control socket.
        #[arg(long, value_name = "PATH")]
        kept: Option<PathBuf>,
    },
}

/// Which process this is.
#[derive(Debug, Clone, Copy)]
pub enum Process<'c> {
    /// The agent under `run`; with its control socket, if it has a keeper.
    Host {
        /// Path of its control socket; `None` without a keeper.
        kept: Option<&'c Path>,
    },
    /// The parent of that.
    Keeper,
    /// One that another process started and waits for.
    Other,
}

/// An agent that was killed, and whose place is taken.
#[derive(Debug)]
pub struct Before {
    /// Name of its run.
    pub run: Name,
    /// Its ports, in the order that gives their namespaces.
    pub ports: Vec<SocketAddr>,
    /// The lease with which it held the run.
    pub lease: Option<LeaseId>,
}

/// A parsed command line.
#[derive(Debug)]
pub enum Task {
    /// A command that has settings.
    Configured(Box<Flags>, Mode),
    /// `open`: a namespace at a port of its own
    Open {
        /// Name of the namespace.
        name: Name,
        /// Path of the control socket of the agent that is asked.
        control: PathBuf,
    },
    /// `upgrade`: another program for the agent
    Upgrade {
        /// Path of the control socket of the agent to replace.
        control: PathBuf,
    },
    /// `keeper`: the parent of the agent, with the arguments that it starts the agent with
    Keeper(Vec<OsString>),
    /// `completions`: for this shell
    Completions(Shell),
    /// The witness of `run`'s signals.
    Witness,
}

/// A command whose settings are known.
#[derive(Debug)]
pub enum Mode {
    /// `serve`: the agent alone
    Serve {
        /// Whether the first SIGTERM drains.
        drain: bool,
        /// The control socket, if it was named.
        control: Option<PathBuf>,
        /// Whether it is to have a keeper.
        keeper: bool,
        /// Whether it has one, which is its parent.
        is_kept: bool,
    },
    /// The agent's process under `run`.
    Host {
        /// The agent before, if it takes its place.
        before: Option<Before>,
        /// Its control socket, if it has a keeper.
        kept: Option<PathBuf>,
    },
    /// `run`: the agent and a command
    Run {
        /// Flags of `run` alone.
        run: RunFlags,
        /// The command and its arguments; at least one.
        command: Vec<OsString>,
    },
}

/// Flags of `run` alone.
#[derive(Debug, Clone, Args)]
pub struct RunFlags {
    /// Leave MASTER_ADDR, MASTER_PORT and torchrun's variables alone, for
    /// programs that bind or advertise them; the agent's address is in
    /// HOLDFAST_TCPSTORE instead.
    #[arg(long)]
    pub keep_master_addr: bool,

    /// Wait this long for the command's first TCPStore client before saying
    /// that this job is not on Holdfast; 0s never says it.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    pub expect_clients_within: Duration,

    /// Start the command even if its own arguments lead its ranks past the
    /// agent, or its torch cannot use it.
    #[arg(long)]
    pub allow_bypass: bool,
}

/// The settings as texts: what they mean is read in one place, wherever they
/// come from. An empty environment variable counts as not set.
#[derive(Debug, Default, Args)]
pub struct Flags {
    /// Ask these nodes of the store, host:port, separated by commas; one is
    /// enough, the others are learned from it.
    #[arg(long, env = "HOLDFAST_STORE", value_name = "LIST")]
    pub store: Option<String>,

    /// Send the token in this file to the store, where it asks for one.
    #[arg(long, env = "HOLDFAST_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Connect to the store with TLS: its nodes' certificates are of this authority.
    #[arg(long, env = "HOLDFAST_TLS_CA", value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// Use this client certificate, where the store accepts one instead of a token.
    #[arg(long, env = "HOLDFAST_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// Use this private key, of the certificate.
    #[arg(long, env = "HOLDFAST_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// Serve this job: keys of different jobs never meet [default: under `run` the
    /// launcher's own name, as in slurm-812.3; else default].
    #[arg(long, env = "HOLDFAST_JOB", value_name = "NAME")]
    pub job: Option<String>,

    /// Serve this run of the job: a name never used before, or that of the open
    /// one, to join it. `auto`: the job's open run, or a new one if none is open
    /// or its last agent has left. `new`: a new one. It ends with the last agent
    /// that leaves it; a host whose agent was lost comes back into it [default:
    /// auto; `run`: new, for a command that is a whole launch by itself].
    #[arg(long, env = "HOLDFAST_RUN", value_name = "NAME")]
    pub run: Option<String>,

    /// End the job's open run even if agents hold it, and open a new one: their
    /// ranks lose their store. Use it on one host; the others of the launch
    /// join. With --run NAME all may use it. Without it `run` starts no rank that
    /// runs already in that run, on any host, or has ended there with code 0.
    #[arg(long)]
    pub takeover: bool,

    /// Listen here for TCPStore clients: an IP address and a port, or a range as
    /// 127.0.0.1:29500-29510; may be given again. The first port has the run's
    /// own keys, each other one a namespace of its number, the same on every
    /// host. `run` serves those after 127.0.0.1's first at ::1, so that a program
    /// can be master of a store of its own there, and sets MASTER_ADDR=::1
    /// [default: 127.0.0.1:29500; `run` takes a free port of 127.0.0.1].
    #[arg(long, env = "HOLDFAST_TCPSTORE", value_name = "ADDRESS", value_delimiter = ',')]
    pub tcpstore: Vec<String>,

    /// Let an operation wait this long for a store that has lost its quorum,
    /// before its connection closes [default: 300s].
    #[arg(long, env = "HOLDFAST_STORE_LOST_DEADLINE", value_name = "DURATION")]
    pub store_lost_deadline: Option<String>,

    /// Look this long for the store at the start [default: 30s].
    #[arg(long, env = "HOLDFAST_CONNECT_DEADLINE", value_name = "DURATION")]
    pub connect_deadline: Option<String>,

    /// Keep the keys of an attempt that torchrun has ended for this long, and
    /// those of a namespace that `open` has followed by another
    /// [default: 10min].
    #[arg(long, env = "HOLDFAST_ATTEMPTS_KEPT", value_name = "DURATION")]
    pub attempts_kept: Option<String>,

    /// Take every client for one of the first attempt: no launcher restarts its
    /// ranks in place. Without it, one whose attempt cannot be known because the
    /// variables of its process cannot be read is refused where there is such a
    /// launcher.
    #[arg(long, env = "HOLDFAST_SINGLE_ATTEMPT", value_parser = yes_or_no)]
    pub single_attempt: bool,

    /// Run the agent as one process, which takes the connections of its ranks with it if
    /// it is killed. Without this, its parent keeps them, and starts it again.
    #[arg(long, env = "HOLDFAST_NO_KEEPER", value_parser = yes_or_no)]
    pub no_keeper: bool,

    /// Count processes that joined with the library as alive for this long
    /// without a word from this agent; the death of one of them is reported at
    /// once [default: 5s].
    #[arg(long, env = "HOLDFAST_LEASE_TTL", value_name = "DURATION")]
    pub lease_ttl: Option<String>,

    /// Serve processes of these users too, at the ports and at the control socket: numbers
    /// or names, separated by commas, or `any` [default: the agent's own user and root
    /// alone].
    #[arg(long, env = "HOLDFAST_ALLOW_UID", value_name = "USERS")]
    pub allow_uid: Option<String>,

    /// Read any of these settings from this TOML file.
    #[arg(long, env = "HOLDFAST_AGENT_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Log this to stderr: error, warn, info, debug, trace, or a filter by
    /// module. The agent of `run` logs to a file beside its socket, which `run`
    /// shows on stderr [default: info].
    #[arg(long, env = "RUST_LOG", value_name = "FILTER")]
    pub log: Option<String>,

    /// Log in this format: pretty or json [default: pretty].
    #[arg(long, env = "HOLDFAST_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<String>,
}

/// Parses a variable that replaces a flag without a value.
fn yes_or_no(text: &str) -> Result<bool, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "1" => Ok(true),
        "false" | "no" | "0" | "" => Ok(false),
        _ => Err("use true or false"),
    }
}

impl CommandLine {
    /// How many words at its end are a command and its arguments.
    pub fn command_words(&self) -> usize {
        match &self.verb {
            Verb::Run { command, .. } => command.len(),
            _ => 0,
        }
    }

    /// Whether this is the agent's own process, or its parent.
    pub fn process(&self) -> Process<'_> {
        match &self.verb {
            Verb::Host { kept, .. } => Process::Host { kept: kept.as_deref() },
            Verb::Keeper { .. } => Process::Keeper,
            _ => Process::Other,
        }
    }

    /// The command, with its flags.
    pub fn task(self) -> Task {
        let (flags, mode) = match self.verb {
            Verb::Serve { flags, drain, control, keeper, kept } => {
                (flags, Mode::Serve { drain, control, keeper, is_kept: kept })
            }
            Verb::Run { flags, run, command } => (flags, Mode::Run { run, command }),
            // How the command runs is no matter of the agent's.
            Verb::Host { flags, run: _, join, join_run, join_lease, kept } => {
                let before = |run| Before { run, ports: join, lease: join_lease };
                (flags, Mode::Host { before: join_run.map(before), kept })
            }
            Verb::Upgrade { control } => return Task::Upgrade { control },
            Verb::Keeper { arguments } => return Task::Keeper(arguments),
            Verb::Open { name, control } => return Task::Open { name, control },
            Verb::Completions { shell } => return Task::Completions(shell),
            Verb::Witness => return Task::Witness,
        };
        Task::Configured(Box::new(flags), mode)
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
    fn a_variable_that_stands_for_a_flag_says_yes_or_no() {
        for (text, meant) in [("true", Ok(true)), ("Yes", Ok(true)), ("1", Ok(true))] {
            assert_eq!(yes_or_no(text), meant);
        }
        for text in ["false", "NO", "0", ""] {
            assert_eq!(yes_or_no(text), Ok(false));
        }
        assert_eq!(yes_or_no("flase"), Err("use true or false"));
    }

    #[test]
    fn everything_behind_the_command_belongs_to_the_command() {
        for arguments in [
            &["holdfast-agent", "run", "--job", "j", "--", "torchrun", "--job", "x", "-h"][..],
            &["holdfast-agent", "run", "--job", "j", "torchrun", "--job", "x", "-h"][..],
        ] {
            let task = CommandLine::try_parse_from(arguments).unwrap().task();
            let Task::Configured(flags, Mode::Run { command, .. }) = task else {
                panic!("not run")
            };
            assert_eq!(flags.job.as_deref(), Some("j"));
            assert_eq!(command, ["torchrun", "--job", "x", "-h"]);
        }
        let dashed = ["holdfast-agent", "run", "--", "--jbo", "x"];
        let task = CommandLine::try_parse_from(dashed).unwrap().task();
        let Task::Configured(_, Mode::Run { command, .. }) = task else { panic!("not run") };
        assert_eq!(command, ["--jbo", "x"]);
    }
}
