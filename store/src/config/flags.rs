//! The flags of `holdfast-store serve`.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use holdfast_api::NodeId;
use serde::Deserialize;

use super::addresses::host_name;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line of text for each event, for people.
    #[default]
    Pretty,
    /// One JSON object a line.
    Json,
}

/// Flags of `holdfast-store serve`; each also an environment variable and a
/// key of the TOML file.
#[derive(Debug, Clone, Default, Args)]
pub struct ServeArgs {
    /// Read any of these settings from this TOML file; keys are the flags with underscores
    /// [default: none]
    #[arg(long, env = "HOLDFAST_STORE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Run as the node of this id: a number from 1, never used again after the node was removed
    #[arg(long, env = "HOLDFAST_NODE_ID", value_name = "ID")]
    pub node_id: Option<NodeId>,
    /// Keep everything in this folder; created if missing
    #[arg(long, env = "HOLDFAST_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Listen on this address, for clients and nodes alike
    #[arg(long, env = "HOLDFAST_LISTEN", value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Tell the others to reach this node at this address; a name is looked up again for each
    /// connection [default: its own entry of --initial-cluster, or --listen]
    #[arg(long, env = "HOLDFAST_ADVERTISE", value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Found a new cluster of these nodes, this one included: 1=HOST:PORT,2=HOST:PORT,…
    /// Counts only while the data folder is empty
    #[arg(long, env = "HOLDFAST_INITIAL_CLUSTER", value_name = "LIST")]
    pub(crate) initial_cluster: Option<String>,
    /// Join the cluster of these nodes: HOST:PORT,…
    /// Then run `holdfast node add ID ADDRESS` and `holdfast node promote ID`
    #[arg(long, env = "HOLDFAST_JOIN", value_name = "LIST", conflicts_with = "initial_cluster")]
    pub join: Option<String>,
    /// Ask everybody for the token in this file, which nodes, agents and the CLI share; one
    /// a line while it is being replaced: the first is sent, all are accepted [default: none]
    #[arg(long, env = "HOLDFAST_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Ask other nodes for the token in this file, which nodes alone share
    /// [default: that of --token-file]
    #[arg(long, env = "HOLDFAST_PEER_TOKEN_FILE", value_name = "FILE")]
    pub(crate) peer_token_file: Option<PathBuf>,
    /// Accept tokens signed by the keys in this file, one public key a line, as `holdfast token
    /// keygen` makes them; a token says what its holder may do. Read again when it changes
    #[arg(long, env = "HOLDFAST_TOKEN_KEYS", value_name = "FILE")]
    pub(crate) token_keys: Option<PathBuf>,
    /// Show this certificate (PEM) to clients: with it, the port speaks TLS alone. Needs --tls-key
    /// and the three of --peer-tls; `holdfast-store tls init` makes all of them
    #[arg(long, env = "HOLDFAST_STORE_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Use this private key of --tls-cert
    #[arg(long, env = "HOLDFAST_STORE_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Let in clients with a certificate of this authority, without a token
    #[arg(long, env = "HOLDFAST_STORE_TLS_CLIENT_CA", value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Show this certificate to other nodes, which show theirs
    #[arg(long, env = "HOLDFAST_PEER_TLS_CERT", value_name = "FILE")]
    pub(crate) peer_tls_cert: Option<PathBuf>,
    /// Use this private key of --peer-tls-cert
    #[arg(long, env = "HOLDFAST_PEER_TLS_KEY", value_name = "FILE")]
    pub(crate) peer_tls_key: Option<PathBuf>,
    /// Take a connection for that of a node only with a certificate of this authority
    #[arg(long, env = "HOLDFAST_PEER_TLS_CA", value_name = "FILE")]
    pub(crate) peer_tls_ca: Option<PathBuf>,
    /// Listen beyond this machine without TLS, or without a token: everybody on the network reads
    /// the traffic, and without a token every client can do everything
    #[arg(long, env = "HOLDFAST_INSECURE", value_parser = clap::builder::BoolishValueParser::new())]
    pub insecure: bool,
    /// Accept requests that call the node by this name, such as a load balancer's; `*`: any. Counts
    /// only without a token, and can be repeated [default: the names of the cluster's nodes]
    #[arg(long, env = "HOLDFAST_ALLOW_HOST", value_name = "NAME", value_delimiter = ',', value_parser = host_name)]
    pub allow_host: Vec<String>,
    /// Send heartbeats this often as the leader [default: 50ms]
    #[arg(long, env = "HOLDFAST_HEARTBEAT", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub heartbeat: Option<Duration>,
    /// Set the shortest election timeout: a node stands for election when its leader has been
    /// silent for this long, up to --election-max [default: 300ms]
    #[arg(long, env = "HOLDFAST_ELECTION_MIN", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) election_min: Option<Duration>,
    /// Set the longest election timeout, for which voters keep to a silent leader
    /// [default: 500ms]
    #[arg(long, env = "HOLDFAST_ELECTION_MAX", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) election_max: Option<Duration>,
    /// Make a snapshot after this many log entries (up to two thirds more, so that nodes take
    /// turns) [default: 50000]
    #[arg(long, env = "HOLDFAST_SNAPSHOT_ENTRIES", value_name = "N")]
    pub snapshot_entries: Option<u64>,
    /// Keep this many log entries before a snapshot, for followers that lag [default: 10000]
    #[arg(long, env = "HOLDFAST_ENTRIES_KEPT", value_name = "N")]
    pub entries_kept: Option<u64>,
    /// Keep an ended run this long, in log time, while this node leads [default: 24h]
    #[arg(long, env = "HOLDFAST_ENDED_RUNS_KEPT", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub ended_runs_kept: Option<Duration>,
    /// Refuse writes that add data when too many nodes have less disk free than this beyond one
    /// more snapshot, such as 2GiB [default: 1GiB, at most a tenth of the disk]
    #[arg(long, env = "HOLDFAST_DISK_RESERVE", value_name = "BYTES")]
    pub(crate) disk_reserve: Option<ByteSize>,
    /// Refuse writes that add data when too many nodes have less memory free than this
    /// [default: 512MiB, at most a twentieth of it]
    #[arg(long, env = "HOLDFAST_MEMORY_RESERVE", value_name = "BYTES")]
    pub(crate) memory_reserve: Option<ByteSize>,
    /// Read the whole disk again this often, and repair damage from memory; 0s: never
    /// [default: 1h]
    #[arg(long, env = "HOLDFAST_SCRUB_EVERY", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub scrub_every: Option<Duration>,
    /// Let requests finish for this long when the node stops [default: 5s]
    #[arg(long, env = "HOLDFAST_SHUTDOWN_GRACE", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub shutdown_grace: Option<Duration>,
    /// Log in this format; RUST_LOG filters the lines [default: pretty]
    #[arg(long, env = "HOLDFAST_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}
