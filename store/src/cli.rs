//! The grammar of the `holdfast-store` command line, and the source of an invalid
//! value.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args, Command as Grammar, CommandFactory, Parser, Subcommand};

use crate::authority::InitArgs;
use crate::config::{ServeArgs, check_address};
use crate::dev;
use crate::offline::inspect::InspectArgs;
use crate::offline::recover::RecoverArgs;
use crate::offline::restore::RestoreArgs;

/// A Holdfast store node: the replicated control plane of training jobs.
#[derive(Debug, Parser)]
#[command(name = "holdfast-store", version, after_help = EXAMPLES)]
pub struct Cli {
    /// The subcommand that was given, with its flags.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  A cluster to try, on this machine:
    holdfast-store dev --nodes 3 --data-dir /tmp/holdfast --base-port 21000

  One of three nodes (run the like on each host):
    holdfast-store serve --node-id 1 --data-dir /var/lib/holdfast --listen 10.0.0.1:21001 \\
      --token-file /etc/holdfast/token --insecure \\
      --initial-cluster 1=10.0.0.1:21001,2=10.0.0.2:21001,3=10.0.0.3:21001

  --insecure is for a network that you trust.

  With TLS in its place: certificates in a folder, and what each node is started with:
    holdfast-store tls init certificates --nodes 1=10.0.0.1:21001,2=10.0.0.2:21001,3=10.0.0.3:21001

  A fourth node for a running cluster (with HOLDFAST_TOKEN_FILE=/etc/holdfast/token everywhere):
    holdfast-store serve --node-id 4 --data-dir /var/lib/holdfast --listen 10.0.0.4:21001 --insecure --join 10.0.0.1:21001
    holdfast --store 10.0.0.1:21001 node add 4 10.0.0.4:21001
    holdfast --store 10.0.0.1:21001 node promote 4

Exit codes: 0 stopped as asked, 1 failed (the last message says why and what to do), 2 usage,
3 its port accepts no more connections: start it again.";

/// What `holdfast-store` can do: one subcommand each.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run one node of a cluster
    Serve(Box<ServeArgs>),
    /// Run a whole cluster on this machine, to try things
    Dev(dev::DevArgs),
    /// Make a node's data folder from a backup, for a new cluster
    Restore(Box<RestoreArgs>),
    /// Make a backup from one surviving data folder after the majority is lost
    Recover(RecoverArgs),
    /// Show what the folder of a stopped node holds, and compare every checksum
    Inspect(InspectArgs),
    /// Ask a node whether it is alive; for container health checks
    Health(HealthArgs),
    /// Make certificates for TLS
    #[command(subcommand)]
    Tls(TlsCommand),
    /// Print a script that completes this program's arguments
    Completions {
        /// Print the script for this shell
        shell: clap_complete::Shell,
    },
}

/// Subcommands of `holdfast-store tls`.
#[derive(Debug, Subcommand)]
pub enum TlsCommand {
    /// Make an authority for clients and one for nodes, and certificates for all of them
    Init(InitArgs),
}

/// Flags of `holdfast-store health`.
#[derive(Debug, Args)]
pub struct HealthArgs {
    /// Ask the node at this address
    #[arg(long, default_value = "127.0.0.1:21001", value_name = "HOST:PORT", value_parser = address)]
    pub address: String,
    /// Ask whether it is ready to serve, not only alive
    #[arg(long)]
    pub ready: bool,
    /// Connect with TLS; the node's certificate is of this authority [default: none, which is
    /// plain text]
    #[arg(long, env = "HOLDFAST_TLS_CA", value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
}

fn address(text: &str) -> Result<String, String> {
    match check_address("--address", text) {
        Ok(()) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Source of the value that an error is about, if that was not the command line.
/// An error names the flag, also where a variable set it.
pub fn origin(
    error: &str,
    arguments: &[OsString],
    variable: &dyn Fn(&OsStr) -> Option<OsString>,
) -> Option<String> {
    let grammar = Cli::command();
    let known: Vec<_> = grammar.get_subcommands().flat_map(Grammar::get_arguments).collect();
    let (_, flag) = known
        .iter()
        .filter_map(|flag| Some((find_flag(error, flag.get_long()?)?, flag)))
        .min_by_key(|(at, _)| *at)?;
    let (long, name) = (flag.get_long()?, flag.get_env()?);
    let typed = arguments.iter().filter_map(|argument| argument.to_str()).any(|argument| {
        let flag = argument.strip_prefix("--").map(|flag| flag.split('=').next());
        flag == Some(Some(long))
    });
    (!typed && variable(name).is_some()).then(|| {
        format!("this value comes from the environment variable {}", name.to_string_lossy())
    })
}

/// Where a text names this flag, and not another with the same beginning.
fn find_flag(text: &str, long: &str) -> Option<usize> {
    let flag = format!("--{long}");
    let ends = |at: &usize| {
        let next = text[at + flag.len()..].chars().next();
        next.is_none_or(|next| next != '-' && !next.is_alphanumeric())
    };
    text.match_indices(&flag).map(|(at, _)| at).find(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_a_variable_is_told_with_its_name() {
        let set = |name: &OsStr| (name == "HOLDFAST_NODE_ID").then(|| "x".into());
        let of = |error: &str, arguments: &[&str]| {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            origin(error, &arguments, &set)
        };
        let error = "error: invalid value 'x' for '--node-id <ID>'";
        assert!(of(error, &["serve"]).unwrap().ends_with("HOLDFAST_NODE_ID"));
        assert_eq!(of(error, &["serve", "--node-id", "x"]), None);
        assert_eq!(of(error, &["serve", "--node-id=x"]), None);
        assert_eq!(of("--listen \"x\" is wrong; see --node-id", &["serve"]), None);
        assert_eq!(of("--node-identity is wrong", &["serve"]), None);
    }

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }
}
