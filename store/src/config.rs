//! What a node is started with: flags over environment over a TOML file over
//! defaults.

mod addresses;
mod flags;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args as _;
use holdfast_api::NodeId;
use holdfast_net::regular_file::read_regular_text;
use serde::Deserialize;

pub(crate) use self::addresses::parse_nodes;
use self::addresses::{advertised, host_name, parse_addresses};
pub(crate) use self::addresses::{check_address, is_loopback};
pub use self::flags::{LogFormat, ServeArgs};
use crate::access::{Access, AccessError};
use crate::formation::Plan;
use crate::node::room::Reserves;
use crate::raft::ConsensusOptions;
use crate::tls::{TlsPaths, TlsSetupError};

/// Longest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Most letters in which a mistyped key differs from the intended one.
const SLIPS_MAX: usize = 2;

/// Default interval between reads of the whole disk.
const SCRUB_EVERY_DEFAULT: Duration = Duration::from_secs(3600);
/// How long a run is kept after its end by default.
const ENDED_RUNS_KEPT_DEFAULT: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    node_id: Option<NodeId>,
    data_dir: Option<PathBuf>,
    listen: Option<String>,
    advertise: Option<String>,
    initial_cluster: Option<String>,
    join: Option<String>,
    token_file: Option<PathBuf>,
    peer_token_file: Option<PathBuf>,
    token_keys: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_client_ca: Option<PathBuf>,
    peer_tls_cert: Option<PathBuf>,
    peer_tls_key: Option<PathBuf>,
    peer_tls_ca: Option<PathBuf>,
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    allow_host: Vec<String>,
    heartbeat: Option<String>,
    election_min: Option<String>,
    election_max: Option<String>,
    snapshot_entries: Option<u64>,
    entries_kept: Option<u64>,
    ended_runs_kept: Option<String>,
    disk_reserve: Option<ByteSize>,
    memory_reserve: Option<ByteSize>,
    scrub_every: Option<String>,
    shutdown_grace: Option<String>,
    log_format: Option<LogFormat>,
}

/// The merged and checked settings of a node.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The node's id, from 1.
    pub node_id: NodeId,
    /// The folder that holds the node's log, snapshots and identity.
    pub data_dir: PathBuf,
    /// Where it listens for clients and nodes, `host:port`.
    pub listen: String,
    /// Where the others reach it, if that was set.
    pub advertise: Option<String>,
    /// How it finds its place while its folder is empty.
    pub plan: Option<Plan>,
    /// Tokens and certificates that it accepts.
    pub access: Access,
    /// Names by which it may be called beside its own; `*` allows all.
    pub allow_host: Vec<String>,
    /// Timings and sizes of consensus.
    pub consensus: ConsensusOptions,
    /// Log time for which a run is kept after its end.
    pub ended_runs_kept: Duration,
    /// Reserves of disk and memory.
    pub reserves: Reserves,
    /// How often the disk is read again; none = never.
    pub scrub_every: Option<Duration>,
    /// How long requests may finish when it stops.
    pub shutdown_grace: Duration,
    /// How log lines look.
    pub log_format: LogFormat,
}

/// Why settings were refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration, --config {path}: {why}")]
    Unreadable {
        /// Path of the configuration file.
        path: PathBuf,
        /// The operating system's error.
        why: std::io::Error,
    },
    /// The configuration file is invalid.
    #[error("the configuration {path} is wrong: {why}")]
    Malformed {
        /// Path of the configuration file.
        path: PathBuf,
        /// What is wrong, with its place.
        why: String,
    },
    /// A setting is missing.
    #[error(
        "{0} is needed: give it as a flag, as an environment variable or in the configuration (`holdfast-store serve --help`)"
    )]
    Missing(&'static str),
    /// The other nodes would look for this node at another address.
    #[error(
        "--initial-cluster says that node {node} is at {listed}, and --advertise says {advertised}: give every node --initial-cluster {corrected}"
    )]
    Misplaced {
        /// Id of this node.
        node: NodeId,
        /// Its address in the list.
        listed: String,
        /// The address that it was given.
        advertised: String,
        /// The list with the advertised address in this node's place, as `--initial-cluster` takes
        /// it.
        corrected: String,
    },
    /// The token file is invalid.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The certificates are invalid.
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
    /// Any client that reaches the port could do everything.
    #[error(
        "--listen {listen} can be reached from other machines, and there is no token: anyone who reaches it could read and change everything. Make one, the same for all nodes, agents and the CLI: `(umask 077; openssl rand -hex 32 > FILE)`, and add --token-file FILE (or HOLDFAST_TOKEN_FILE) and certificates (`holdfast-store tls init --help`); or add --insecure if only trusted hosts reach it"
    )]
    Unguarded {
        /// The address that it was to listen on.
        listen: String,
    },
    /// Others on the network could read the token and the data.
    #[error(
        "--listen {listen} can be reached from other machines, and there is no TLS: anyone on the network could read the token and the data. Make certificates (`holdfast-store tls init --help`) and add --tls-cert, --tls-key and the three of --peer-tls; or add --insecure if only trusted hosts are on the network"
    )]
    PlainText {
        /// The address that it was to listen on.
        listen: String,
    },
    /// A setting is wrong.
    #[error("{what} {given:?} is wrong: {why}")]
    Wrong {
        /// Name of the setting.
        what: &'static str,
        /// What it was given, from a flag, the environment or the file.
        given: String,
        /// Why it is wrong.
        why: String,
    },
}

impl ServeArgs {
    /// Merges with the file and the defaults, and checks everything.
    pub fn merge(self) -> Result<ServeOptions, ConfigError> {
        let file = self.config.as_deref().map(read_file).transpose()?.unwrap_or_default();
        let defaults = ConsensusOptions::default();
        let time = |what, flag: Option<Duration>, file: Option<String>, default| match (flag, file)
        {
            (Some(flag), _) => Ok(flag),
            (None, Some(text)) => duration(what, &text),
            (None, None) => Ok(default),
        };
        let node_id = self.node_id.or(file.node_id).ok_or(ConfigError::Missing("--node-id"))?;
        if node_id == 0 {
            return Err(wrong("--node-id", "0", "node ids start at 1"));
        }
        let listen = self.listen.or(file.listen).ok_or(ConfigError::Missing("--listen"))?;
        check_address("--listen", &listen)?;
        let token_file = self.token_file.or(file.token_file);
        let token_file = token_file.filter(|path| !path.as_os_str().is_empty());
        let access = token_file.map_or(Ok(Access::open()), |path| Access::from_file(&path))?;
        let peers = self.peer_token_file.or(file.peer_token_file);
        let access = match peers.filter(|path| !path.as_os_str().is_empty()) {
            Some(path) if access.is_guarded() => access.with_peers(&path)?,
            Some(path) => {
                let why = "it is of no use without --token-file: add that for agents and the CLI";
                return Err(wrong("--peer-token-file", &path.display().to_string(), why));
            }
            None => access,
        };
        let keys = self.token_keys.or(file.token_keys);
        let access = match keys.filter(|path| !path.as_os_str().is_empty()) {
            Some(path) if access.is_guarded() => access.with_keys(&path)?,
            Some(path) => {
                let why =
                    "it is of no use without --token-file, the token of admins and nodes: add that";
                return Err(wrong("--token-keys", &path.display().to_string(), why));
            }
            None => access,
        };
        let tls = TlsPaths {
            cert: self.tls_cert.or(file.tls_cert),
            key: self.tls_key.or(file.tls_key),
            client_ca: self.tls_client_ca.or(file.tls_client_ca),
            peer_cert: self.peer_tls_cert.or(file.peer_tls_cert),
            peer_key: self.peer_tls_key.or(file.peer_tls_key),
            peer_ca: self.peer_tls_ca.or(file.peer_tls_ca),
        };
        let access = access.with_tls(tls.read()?);
        if !self.insecure && !file.insecure && !is_loopback(&listen) {
            if !access.is_restricted() {
                return Err(ConfigError::Unguarded { listen });
            }
            if access.tls().acceptor().is_none() {
                return Err(ConfigError::PlainText { listen });
            }
        }
        // A flag overrides either key of the file.
        let (initial, join) = match (self.initial_cluster, self.join) {
            (None, None) => (file.initial_cluster, file.join),
            flags => flags,
        };
        let plan = match (initial, join) {
            (Some(initial), _) => {
                let initial = parse_nodes("--initial-cluster", &initial)?;
                if !initial.contains_key(&node_id) {
                    let why = format!("it does not name this node, {node_id}");
                    return Err(wrong(
                        "--initial-cluster",
                        &crate::formation::written(&initial),
                        &why,
                    ));
                }
                Some(Plan::Found { initial })
            }
            (None, Some(join)) => Some(Plan::Join { known: parse_addresses("--join", &join)? }),
            (None, None) => None,
        };
        let allow_host = if self.allow_host.is_empty() { file.allow_host } else { self.allow_host };
        let allow_host: Vec<String> =
            allow_host.into_iter().filter(|name| !name.is_empty()).collect();
        for name in &allow_host {
            host_name(name).map_err(|why| wrong("--allow-host", name, &why))?;
        }
        let advertise = advertised(node_id, &listen, self.advertise.or(file.advertise), &plan)?;
        let consensus = ConsensusOptions {
            heartbeat: time("heartbeat", self.heartbeat, file.heartbeat, defaults.heartbeat)?,
            election_min: time(
                "election_min",
                self.election_min,
                file.election_min,
                defaults.election_min,
            )?,
            election_max: time(
                "election_max",
                self.election_max,
                file.election_max,
                defaults.election_max,
            )?,
            snapshot_entries: self
                .snapshot_entries
                .or(file.snapshot_entries)
                .unwrap_or(defaults.snapshot_entries)
                .max(1),
            entries_kept: self.entries_kept.or(file.entries_kept).unwrap_or(defaults.entries_kept),
        };
        consensus.check().map_err(|why| wrong("heartbeat and election timeout", "", &why))?;
        let grace = Duration::from_secs(5);
        Ok(ServeOptions {
            node_id,
            data_dir: self.data_dir.or(file.data_dir).ok_or(ConfigError::Missing("--data-dir"))?,
            listen,
            advertise,
            plan,
            access,
            allow_host,
            consensus,
            ended_runs_kept: time(
                "ended_runs_kept",
                self.ended_runs_kept,
                file.ended_runs_kept,
                ENDED_RUNS_KEPT_DEFAULT,
            )?,
            reserves: Reserves {
                disk: self.disk_reserve.or(file.disk_reserve).map(|size| size.as_u64()),
                memory: self.memory_reserve.or(file.memory_reserve).map(|size| size.as_u64()),
            },
            scrub_every: Some(time(
                "scrub_every",
                self.scrub_every,
                file.scrub_every,
                SCRUB_EVERY_DEFAULT,
            )?)
            .filter(|every| !every.is_zero()),
            shutdown_grace: time(
                "shutdown_grace",
                self.shutdown_grace,
                file.shutdown_grace,
                grace,
            )?,
            log_format: self.log_format.or(file.log_format).unwrap_or_default(),
        })
    }
}

fn wrong(what: &'static str, given: &str, why: &str) -> ConfigError {
    ConfigError::Wrong { what, given: given.to_owned(), why: why.to_owned() }
}

fn read_file(path: &Path) -> Result<File, ConfigError> {
    let text = read_regular_text(path, FILE_BYTES_MAX)
        .map_err(|why| ConfigError::Unreadable { path: path.to_owned(), why })?;
    let malformed = |why: String| ConfigError::Malformed { path: path.to_owned(), why };
    let table: toml::Table = toml::from_str(&text).map_err(|error| malformed(error.to_string()))?;
    if let Some(why) = unknown_key(&table) {
        return Err(malformed(why));
    }
    toml::from_str(&text).map_err(|error| malformed(error.to_string()))
}

/// Reports a key that is no setting, with the one that was probably meant.
fn unknown_key(table: &toml::Table) -> Option<String> {
    let grammar = ServeArgs::augment_args(clap::Command::new("serve"));
    let flags = grammar.get_arguments().filter_map(clap::Arg::get_long);
    let known: Vec<String> =
        flags.filter(|flag| *flag != "config").map(|flag| flag.replace('-', "_")).collect();
    let unknown = table.keys().find(|key| !known.contains(key))?;
    let nearest = known.iter().min_by_key(|key| strsim::osa_distance(unknown, key));
    let meant = nearest.filter(|key| strsim::osa_distance(unknown, key) <= SLIPS_MAX);
    let meant = meant.map_or(String::new(), |key| format!("; did you mean `{key}`?"));
    Some(format!("`{unknown}` is not a setting{meant} (keys: {})", known.join(", ")))
}

fn duration(what: &'static str, text: &str) -> Result<Duration, ConfigError> {
    humantime::parse_duration(text).map_err(|error| wrong(what, text, &error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(list: &str) -> ServeArgs {
        ServeArgs {
            node_id: Some(1),
            data_dir: Some("d".into()),
            listen: Some("127.0.0.1:21001".into()),
            initial_cluster: Some(list.into()),
            ..ServeArgs::default()
        }
    }

    #[test]
    fn the_documented_form_is_accepted() {
        let options =
            args("1=127.0.0.1:21001,2=127.0.0.1:21002,3=127.0.0.1:21003").merge().unwrap();
        let Some(Plan::Found { initial }) = options.plan else { panic!("{options:?}") };
        assert_eq!(initial[&3], "127.0.0.1:21003");
    }

    #[test]
    fn wrong_lists_are_named() {
        for (list, why) in [
            ("", "names no node"),
            ("x", "ID=HOST:PORT"),
            ("0=a:1", "from 1"),
            ("1=a", "HOST:PORT"),
            ("1=a:99999", "65535"),
            ("1=:5", "host is missing"),
            ("1=a:1,1=b:1", "node 1 appears twice"),
            ("1=a:1,2=a:1", "a:1 appears twice"),
            ("2=a:1", "does not name this node"),
        ] {
            let error = args(list).merge().unwrap_err().to_string();
            assert!(error.contains(why), "{list:?}: {error}");
        }
    }

    #[test]
    fn beyond_loopback_a_node_needs_a_token_and_tls_or_a_decision() {
        let at = |listen: &str| ServeArgs { listen: Some(listen.into()), ..args("1=a:1") };
        for listen in
            ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "LocalHost:1"]
        {
            assert!(!at(listen).merge().unwrap().access.is_guarded(), "{listen}");
        }
        for listen in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "node1:1"] {
            let error = at(listen).merge().unwrap_err().to_string();
            for part in [listen, "--token-file", "--insecure", "openssl rand"] {
                assert!(error.contains(part), "{part:?} is missing in: {error}");
            }
            assert!(ServeArgs { insecure: true, ..at(listen) }.merge().is_ok(), "{listen}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a-token-of-some-length\n").unwrap();
        let token_file = Some(file.path().to_owned());
        let plain = ServeArgs { token_file, ..at("0.0.0.0:1") };
        let error = plain.clone().merge().unwrap_err().to_string();
        for part in ["0.0.0.0:1", "no TLS", "tls init", "--insecure"] {
            assert!(error.contains(part), "{part:?} is missing in: {error}");
        }
        assert!(ServeArgs { insecure: true, ..plain }.merge().unwrap().access.is_guarded());
        let nowhere = Some("/nonexistent/token".into());
        let error = ServeArgs { token_file: nowhere, ..at("127.0.0.1:1") }.merge().unwrap_err();
        assert!(error.to_string().contains("/nonexistent/token"), "{error}");
    }

    #[test]
    fn where_the_others_reach_a_node_is_one_address() {
        let at = |listen: &str, advertise: Option<&str>, list: Option<&str>| ServeArgs {
            listen: Some(listen.into()),
            advertise: advertise.map(Into::into),
            initial_cluster: list.map(Into::into),
            join: list.is_none().then(|| "other:1".to_owned()),
            insecure: true,
            ..args("")
        };
        let all = "0.0.0.0:1";
        for (given, advertised) in [
            (at(all, Some("n1:1"), Some("1=n1:1,2=n2:1")), "n1:1"),
            (at(all, None, Some("1=n1:1,2=n2:1")), "n1:1"),
            (at(all, Some("n1:1"), None), "n1:1"),
            (at("10.0.0.1:1", None, None), "10.0.0.1:1"),
        ] {
            assert_eq!(given.merge().unwrap().advertise.as_deref(), Some(advertised));
        }
        for (given, why) in [
            (at(all, Some("n9:1"), Some("1=n1:1,2=n2:1")), "--initial-cluster 1=n9:1,2=n2:1"),
            (at(all, None, None), "add --advertise"),
            (at("[::]:1", None, None), "add --advertise"),
            (at("10.0.0.1:0", None, None), "add --advertise"),
            (at(all, Some("0.0.0.0:1"), None), "cannot connect"),
            (at(all, Some("n1"), None), "HOST:PORT"),
        ] {
            let error = given.merge().unwrap_err().to_string();
            assert!(error.contains(why), "{why:?} is missing in: {error}");
        }
    }

    #[test]
    fn flags_stand_above_the_file_and_unknown_keys_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.toml");
        std::fs::write(&path, "node_id = 7\nheartbeat = \"20ms\"\nelection_min = \"100ms\"\n")
            .unwrap();
        let mut given = args("1=a:1");
        given.config = Some(path.clone());
        let options = given.clone().merge().unwrap();
        assert_eq!(options.node_id, 1);
        assert_eq!(options.consensus.heartbeat, Duration::from_millis(20));
        std::fs::write(&path, "hartbeat = \"20ms\"\n").unwrap();
        let error = given.clone().merge().unwrap_err().to_string();
        assert!(error.contains("hartbeat") && error.contains("store.toml"), "{error}");
        std::fs::write(&path, "heartbeat = \"soon\"\n").unwrap();
        let error = given.merge().unwrap_err().to_string();
        assert!(error.contains("heartbeat") && error.contains("soon"), "{error}");
    }
}
