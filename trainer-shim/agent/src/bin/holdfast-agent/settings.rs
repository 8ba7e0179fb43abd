//! Settings: flags over environment over a file over defaults.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use holdfast_agent::agent::{self, PORTS_MAX, Wanted};
use holdfast_agent::door::tcpstore::{Limits, serve};
use holdfast_agent::guard::Guard;
use holdfast_api::name::{NameError, RUN_AUTO, RUN_NEW, default_name};
use holdfast_api::{Name, RunChoice};
use holdfast_client::{Tls, TlsFiles, parse_endpoints, read_regular_text};
use holdfast_trainer_shim::link::Users;
use serde::Deserialize;

use crate::command_line::Flags;
use crate::usage::nearest;

const TCPSTORE_PORT: u16 = 29500;
const STORE_LOST_DEADLINE: Duration = Duration::from_secs(300);
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);
const ATTEMPTS_KEPT: Duration = Duration::from_secs(600);
const LEASE_TTL: Duration = Duration::from_secs(5);
/// Longest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// All settings of the agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Nodes of the store.
    pub store: Vec<String>,
    /// The file with the token of the store.
    pub token_file: Option<PathBuf>,
    /// The files for TLS with the store.
    pub tls: TlsFiles,
    /// The job, if it was named.
    pub job: Option<Name>,
    /// The run, if it was set.
    pub run: Option<RunChoice>,
    /// Opening it may end a run that other agents hold.
    pub takeover: bool,
    /// Where to listen, if it was set; each port is a namespace of the run.
    pub tcpstore: Vec<SocketAddr>,
    /// How long an operation waits for a quorum.
    pub store_lost_deadline: Duration,
    /// How long to look for the store at the start.
    pub connect_deadline: Duration,
    /// How long the keys of an attempt that is over stay readable.
    pub attempts_kept: Duration,
    /// No launcher restarts ranks in place.
    pub single_attempt: bool,
    /// The agent has no keeper.
    pub no_keeper: bool,
    /// The TTL of this host's lease.
    pub lease_ttl: Duration,
    /// Users that are served beside this one and root.
    pub allow_uid: Users,
    /// Filter of the log's events.
    pub log: String,
    /// Whether log lines are text or JSON.
    pub log_format: LogFormat,
    /// Limits of the TCPStore door.
    pub limits: Limits,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people, in colour on a terminal.
    Pretty,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    store: Option<String>,
    token_file: Option<PathBuf>,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    job: Option<String>,
    run: Option<String>,
    tcpstore: Option<String>,
    store_lost_deadline: Option<String>,
    connect_deadline: Option<String>,
    attempts_kept: Option<String>,
    lease_ttl: Option<String>,
    allow_uid: Option<String>,
    log: Option<String>,
    log_format: Option<String>,
    limits: Limits,
}

impl Settings {
    /// Reads all of it, the file included.
    pub fn resolve(flags: Flags) -> anyhow::Result<Settings> {
        let path = flags.config.clone().filter(|path| !path.as_os_str().is_empty());
        let file = match &path {
            Some(path) => read(path)?,
            None => File::default(),
        };
        Settings::merge(flags, file)
    }

    fn merge(flags: Flags, file: File) -> anyhow::Result<Settings> {
        file.limits.check().context("in the configuration file")?;
        let Some(store) = pick(flags.store, file.store) else {
            bail!(
                "which store? Name at least one of its nodes as host:port with --store, \
                 HOLDFAST_STORE, or `store` in the configuration file"
            );
        };
        let store = parse_endpoints(&store).map_err(|error| anyhow!("--store: {error}"))?;
        let token_file = located("--token-file", flags.token_file, file.token_file)?;
        let tls = TlsFiles {
            ca: located("--tls-ca", flags.tls_ca, file.tls_ca)?,
            cert: located("--tls-cert", flags.tls_cert, file.tls_cert)?,
            key: located("--tls-key", flags.tls_key, file.tls_key)?,
        };
        let job = parsed("job", pick(flags.job, file.job), Name::from_str)?;
        let run = parsed("run", pick(flags.run, file.run), run_choice)?;
        let tcpstore =
            parsed("tcpstore", pick(listed(flags.tcpstore), file.tcpstore), listen_list)?;
        let deadline = pick(flags.store_lost_deadline, file.store_lost_deadline);
        let store_lost_deadline = parsed("store-lost-deadline", deadline, duration)?;
        let deadline = pick(flags.connect_deadline, file.connect_deadline);
        let connect_deadline = parsed("connect-deadline", deadline, duration)?;
        let attempts_kept = pick(flags.attempts_kept, file.attempts_kept);
        let attempts_kept = parsed("attempts-kept", attempts_kept, duration)?;
        let lease_ttl = pick(flags.lease_ttl, file.lease_ttl);
        let lease_ttl = parsed("lease-ttl", lease_ttl, duration)?;
        let allow_uid = pick(flags.allow_uid, file.allow_uid);
        let allow_uid = parsed("allow-uid", allow_uid, Users::from_str)?;
        let log_format = pick(flags.log_format, file.log_format);
        let log_format = parsed("log-format", log_format, LogFormat::from_str)?;
        Ok(Settings {
            store,
            token_file,
            tls,
            job,
            run,
            takeover: flags.takeover,
            tcpstore: tcpstore.unwrap_or_default(),
            store_lost_deadline: store_lost_deadline.unwrap_or(STORE_LOST_DEADLINE),
            connect_deadline: connect_deadline.unwrap_or(CONNECT_DEADLINE),
            attempts_kept: attempts_kept.unwrap_or(ATTEMPTS_KEPT),
            single_attempt: flags.single_attempt,
            no_keeper: flags.no_keeper,
            lease_ttl: lease_ttl.unwrap_or(LEASE_TTL),
            allow_uid: allow_uid.unwrap_or_default(),
            log: pick(flags.log, file.log).unwrap_or_else(|| "info".to_owned()),
            log_format: log_format.unwrap_or(LogFormat::Pretty),
            limits: file.limits,
        })
    }

    /// The job: as it was named, or `default`.
    pub fn job(&self) -> Name {
        self.job.clone().unwrap_or_else(default_name)
    }

    /// Where to listen: as set, or at PyTorch's default port.
    pub fn listen_or_usual(&self) -> Vec<SocketAddr> {
        if self.tcpstore.is_empty() {
            return vec![SocketAddr::from((Ipv4Addr::LOCALHOST, TCPSTORE_PORT))];
        }
        self.tcpstore.clone()
    }

    /// Which run to serve; `usual` if none was set. A run that is joined takes nothing over.
    pub fn choice(&self, usual: RunChoice) -> RunChoice {
        match self.run.clone().unwrap_or(usual) {
            RunChoice::Auto | RunChoice::Held if self.takeover => RunChoice::New,
            choice => choice,
        }
    }

    /// Warning for ports that other hosts reach, where the store has a token: clients that connect
    /// there need none.
    pub fn open_ports(&self) -> Option<String> {
        let address = self.tcpstore.iter().find(|address| !address.ip().is_loopback())?;
        self.token_file.as_ref()?;
        Some(format!(
            "--tcpstore {address}: anyone who reaches that port reads and writes this job's keys \
             without the token, for the TCPStore protocol has none; use 127.0.0.1:{}, with an agent \
             on each host, or let nobody else reach the port",
            address.port()
        ))
    }

    /// Options of the agent, with the `usual` run if none was set.
    pub fn agent_options(
        &self,
        usual: RunChoice,
        tls: Option<Tls>,
        guard: Guard,
    ) -> agent::Options {
        let mut store = holdfast_client::Options::new(self.store.clone());
        store.token_file = self.token_file.clone();
        store.tls = tls;
        agent::Options {
            store,
            job: self.job(),
            run: Wanted::Chosen(self.choice(usual)),
            takeover: self.takeover,
            tcpstore: self.tcpstore.clone(),
            connect_deadline: self.connect_deadline,
            attempts_kept: self.attempts_kept,
            lease_ttl: self.lease_ttl,
            door: serve::Options {
                store_lost_deadline: self.store_lost_deadline,
                single_attempt: self.single_attempt,
                limits: self.limits.clone(),
                guard,
            },
        }
    }
}

/// A file of a flag or of the configuration file. The agent of `run` leaves the folder
/// that it is relative to.
fn located(
    flag: &'static str,
    given: Option<PathBuf>,
    file: Option<PathBuf>,
) -> anyhow::Result<Option<PathBuf>> {
    let given = given.filter(|path| !path.as_os_str().is_empty());
    given.or(file).map(std::path::absolute).transpose().context(flag)
}

/// The first that is set, of a flag or its variable, and the file.
fn pick(flag: Option<String>, file: Option<String>) -> Option<String> {
    flag.filter(|text| !text.is_empty()).or(file)
}

fn parsed<T, E: Display>(
    name: &str,
    text: Option<String>,
    parse: impl Fn(&str) -> Result<T, E>,
) -> anyhow::Result<Option<T>> {
    text.map(|text| parse(&text).map_err(|error| anyhow!("--{name} {text:?}: {error}"))).transpose()
}

fn read(path: &Path) -> anyhow::Result<File> {
    let text = read_regular_text(path, FILE_BYTES_MAX)
        .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
    // The error shows the line, and for an unknown key the known ones.
    toml::from_str(&text).map_err(|error: toml::de::Error| {
        let meant = meant(error.message());
        anyhow!("in the configuration file {}: {error}{meant}", path.display())
    })
}

/// Which of the known keys was probably meant by the unknown one: serde's message
/// has all of them in backticks, the unknown one first.
fn meant(message: &str) -> String {
    let mut words = message.split('`').skip(1).step_by(2);
    let near = words
        .next()
        .filter(|_| message.starts_with("unknown field"))
        .and_then(|unknown| nearest(unknown, words));
    near.map(|near| format!("did you mean `{near}`?\n")).unwrap_or_default()
}

fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("it must be longer than nothing".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; write for instance 300s or 5min")),
    }
}

fn run_choice(text: &str) -> Result<RunChoice, NameError> {
    Ok(match text {
        RUN_AUTO => RunChoice::Auto,
        RUN_NEW => RunChoice::New,
        name => RunChoice::Named(name.parse()?),
    })
}

fn listed(addresses: Vec<String>) -> Option<String> {
    let addresses: Vec<String> = addresses.into_iter().filter(|text| !text.is_empty()).collect();
    if addresses.is_empty() { None } else { Some(addresses.join(",")) }
}

/// Addresses, and ranges of ports, separated by commas; each once.
fn listen_list(text: &str) -> Result<Vec<SocketAddr>, String> {
    let mut addresses = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.rsplit_once('-') {
            Some((first, last)) => (listen_address(first)?, Some(last)),
            None => (listen_address(part)?, None),
        };
        let last = match last.map(str::parse::<u16>) {
            None => first.port(),
            Some(Ok(last)) if last >= first.port() && first.port() > 0 => last,
            Some(_) => {
                return Err("a range goes from a lower to a higher port; \
                            write for instance 127.0.0.1:29500-29510"
                    .to_owned());
            }
        };
        let count = usize::from(last - first.port()) + 1;
        if addresses.len() + count > PORTS_MAX {
            return Err(format!("an agent serves at most {PORTS_MAX} ports"));
        }
        for port in first.port()..=last {
            let address = SocketAddr::new(first.ip(), port);
            if port == 0 || !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    Ok(addresses)
}

/// An IP address and a port. No other names: a look-up may hang, and differ
/// from the trainer's.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse::<u16>().ok()) {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    let why = match text.rsplit_once(':') {
        _ if text.parse::<IpAddr>().is_ok() => "the port is missing",
        Some((_, port)) if port.parse::<u16>().is_err() => "the port is not between 0 and 65535",
        _ => "it is not an IP address and a port",
    };
    Err(format!("{why}; write for instance 127.0.0.1:29500"))
}

impl FromStr for LogFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "pretty" => Ok(LogFormat::Pretty),
            "json" => Ok(LogFormat::Json),
            _ => Err("use pretty or json"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn file(toml: &str) -> anyhow::Result<File> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        std::fs::write(&path, toml).unwrap();
        read(&path)
    }

    #[test]
    fn flags_go_over_the_file_and_the_file_over_the_defaults() {
        let flags =
            Flags { job: text("by-flag"), run: text(""), single_attempt: true, ..Flags::default() };
        let toml = "store = 'a:1,b:2'\ntoken_file = '/etc/token'\ntls_ca = '/etc/ca.crt'\njob = 'by-file'\nrun = 'r7'\nconnect_deadline = '1min'\nallow_uid = '1000'\n\
                    [limits]\nconnections_max = 3";
        let settings = Settings::merge(flags, file(toml).unwrap()).unwrap();
        let expected = Settings {
            store: vec!["a:1".to_owned(), "b:2".to_owned()],
            token_file: Some("/etc/token".into()),
            tls: TlsFiles { ca: Some("/etc/ca.crt".into()), ..TlsFiles::default() },
            job: Some("by-flag".parse().unwrap()),
            run: Some(RunChoice::Named("r7".parse().unwrap())),
            takeover: false,
            tcpstore: Vec::new(),
            store_lost_deadline: Duration::from_secs(300),
            connect_deadline: Duration::from_secs(60),
            attempts_kept: Duration::from_secs(600),
            single_attempt: true,
            no_keeper: false,
            lease_ttl: Duration::from_secs(5),
            allow_uid: "1000".parse().unwrap(),
            log: "info".to_owned(),
            log_format: LogFormat::Pretty,
            limits: Limits { connections_max: 3, ..Limits::default() },
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn what_takes_over_joins_nothing() {
        let settings = |run: Option<&str>, takeover| {
            let (store, run) = (text("a:1"), run.map(str::to_owned));
            let flags = Flags { store, run, takeover, ..Flags::default() };
            Settings::merge(flags, File::default()).unwrap()
        };
        let named = RunChoice::Named("n".parse().unwrap());
        for (run, takeover, choice) in [
            (None, false, RunChoice::Auto),
            (None, true, RunChoice::New),
            (Some("auto"), true, RunChoice::New),
            (Some("new"), false, RunChoice::New),
            (Some("n"), true, named),
        ] {
            assert_eq!(settings(run, takeover).choice(RunChoice::Auto), choice, "{run:?}");
        }
    }

    #[test]
    fn a_port_that_others_reach_is_named_where_the_store_has_a_token() {
        let of = |tcpstore: &str, token: Option<&str>| {
            let token_file = token.map(PathBuf::from);
            let tcpstore = vec![tcpstore.to_owned()];
            let flags = Flags { store: text("a:1"), token_file, tcpstore, ..Flags::default() };
            Settings::merge(flags, File::default()).unwrap().open_ports()
        };
        for open in ["0.0.0.0:29500", "127.0.0.1:29400,10.0.0.7:29500", "[::]:29500"] {
            let warning = of(open, Some("/t")).expect(open);
            assert!(warning.contains("use 127.0.0.1:29500"), "{warning}");
            assert_eq!(of(open, None), None, "the store is open itself");
        }
        assert_eq!(of("127.0.0.1:29500,[::1]:29501,127.0.0.2:1", Some("/t")), None);
    }

    #[test]
    fn a_token_file_is_found_from_every_folder() {
        let flags = Flags { store: text("a:1"), token_file: Some("t".into()), ..Flags::default() };
        let settings = Settings::merge(flags, File::default()).unwrap();
        assert_eq!(settings.token_file, Some(std::env::current_dir().unwrap().join("t")));
    }

    #[test]
    fn the_job_is_called_default_where_none_is_named() {
        let flags = Flags { store: text("a:1"), ..Flags::default() };
        let settings = Settings::merge(flags, File::default()).unwrap();
        assert_eq!(settings.job().as_str(), "default");
    }

    #[test]
    fn an_unknown_key_is_refused_with_file_line_and_the_known_keys() {
        for toml in ["store = 'a:1'\nstoer = 'b'", "store = 'a:1'\n[limits]\nstoer = 1"] {
            let error = format!("{:#}", file(toml).unwrap_err());
            for part in ["agent.toml", "line", "`stoer`", "expected one of"] {
                assert!(error.contains(part), "{part:?} is missing in: {error}");
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_with_the_flag_and_the_reason() {
        let with = |change: fn(&mut Flags)| {
            let mut flags = Flags { store: text("a:1"), ..Flags::default() };
            change(&mut flags);
            format!("{:#}", Settings::merge(flags, File::default()).unwrap_err())
        };
        for (error, parts) in [
            (with(|flags| flags.store = None), ["HOLDFAST_STORE", "--store"]),
            (with(|flags| flags.store = text("a")), ["--store", "port is missing"]),
            (with(|flags| flags.job = text("a/b")), ["--job", "letters"]),
            (with(|flags| flags.run = text("-")), ["--run", "letters"]),
            (
                with(|flags| flags.tcpstore = vec!["node:1".to_owned()]),
                ["--tcpstore", "IP address"],
            ),
            (
                with(|flags| flags.tcpstore = vec!["127.0.0.1".to_owned()]),
                ["--tcpstore", "port is missing"],
            ),
            (
                with(|flags| flags.tcpstore = vec!["[::1]:70000".to_owned()]),
                ["--tcpstore", "65535"],
            ),
            (with(|flags| flags.connect_deadline = text("soon")), ["--connect-deadline", "300s"]),
            (
                with(|flags| flags.store_lost_deadline = text("0s")),
                ["--store-lost-deadline", "longer"],
            ),
            (with(|flags| flags.log_format = text("xml")), ["--log-format", "json"]),
        ] {
            assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
        }
    }

    #[test]
    fn a_listen_address_is_numeric_or_localhost() {
        for (text, address) in [
            ("localhost:1", "127.0.0.1:1"),
            ("0.0.0.0:29500", "0.0.0.0:29500"),
            ("[::1]:0", "[::1]:0"),
        ] {
            assert_eq!(listen_address(text), Ok(address.parse().unwrap()));
        }
    }

    #[test]
    fn ports_come_one_by_one_and_in_ranges() {
        let read = |text: &str| {
            let list = listen_list(text)?;
            Ok::<_, String>(list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        let three = "127.0.0.1:29500 127.0.0.1:29501 127.0.0.1:29502";
        assert_eq!(read("127.0.0.1:29500-29502").unwrap(), three);
        assert_eq!(read("localhost:29500,127.0.0.1:29501-29502,127.0.0.1:29500").unwrap(), three);
        assert_eq!(read("[::1]:1-2").unwrap(), "[::1]:1 [::1]:2");
        let flags = vec!["127.0.0.1:29500-29501".to_owned(), "127.0.0.1:29502".to_owned()];
        assert_eq!(read(&listed(flags).unwrap()).unwrap(), three);
        for (bad, why) in [
            ("127.0.0.1:29510-29500", "29500-29510"),
            ("127.0.0.1:1-", "29500-29510"),
            ("127.0.0.1:1-70000", "29500-29510"),
            ("127.0.0.1:0-3", "29500-29510"),
            ("127.0.0.1:1-65535", "at most 64"),
            ("127.0.0.1:1,", "IP address"),
        ] {
            assert!(read(bad).unwrap_err().contains(why), "{bad}: {:?}", read(bad));
        }
    }
}
