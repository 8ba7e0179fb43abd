//! `token`: its grammar.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use holdfast_api::grant::Role;
use holdfast_api::{JobPattern, Name};

/// Commands on signed tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a key that signs tokens: FILE, which stays with you, and FILE.pub, which every node
    /// gets with --token-keys
    Keygen {
        /// The file, which must not exist yet
        file: PathBuf,
    },
    /// Print a new token, signed by a key: its holder may do what the role allows, until it expires
    Create(CreateTokenArgs),
    /// Show what a token says; only nodes know whether they take it
    Show {
        /// A file with the token
        file: PathBuf,
    },
    /// What the cluster is asked for.
    #[command(flatten)]
    Cluster(ClusterTokenCommand),
}

/// Commands on signed tokens that ask the cluster.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterTokenCommand {
    /// List the keys that the answering node takes, and the tokens that were revoked
    #[command(visible_alias = "ls")]
    List,
    /// End a token before it expires: every node refuses it, and its streams end
    Revoke {
        /// Its id, as `holdfast token show` and the nodes' logs tell it
        token: Name,
        /// Let the cluster remember it for this time: until the token has expired
        /// [default: 3660days, the longest that one is valid]
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        keep: Option<Duration>,
    },
}

/// What a new token says.
#[derive(Debug, Args)]
pub(crate) struct CreateTokenArgs {
    /// Use the signing key in this file
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,
    /// Give its holder this role: admin, operator or job
    #[arg(long)]
    pub(crate) role: Role,
    /// Let a token of role job see and change these jobs; * stands for any characters [default: none]
    #[arg(long = "jobs", value_name = "PATTERN,…", value_delimiter = ',')]
    pub(crate) patterns: Vec<JobPattern>,
    /// Let it expire after this time: 12h, 30d
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) expires: Duration,
    /// Say whose it is, for the nodes' logs
    #[arg(long)]
    pub(crate) name: Name,
}
