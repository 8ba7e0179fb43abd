//! The variables that a command is started with.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use holdfast_client::TlsFiles;

use super::launcher::Launcher;
use super::torchrun::{OURS, Rendezvous};

/// Prefix under which a replaced or removed variable is kept.
const ORIGINAL: &str = "HOLDFAST_ORIG_";

/// torchrun's variables that would lead it elsewhere than those that are set: an endpoint goes
/// over address and port, and standalone over everything.
const ENDPOINT: &str = "PET_RDZV_ENDPOINT";
const STANDALONE: &str = "PET_STANDALONE";

/// Which of torchrun's attempts a rank belongs to. Before torch 2.7 a rank whose
/// store is the launcher's fails without it, although torchrun alone sets it.
const ATTEMPT: &str = "TORCHELASTIC_RESTART_COUNT";

/// Makes setproctitle leave a process's variables where they can be read: they say
/// which attempt it is.
const TITLE_WITHOUT_VARIABLES: &str = "SPT_NOENV";

/// Environment that the command gets.
#[derive(Debug)]
pub struct CommandSettings<'a> {
    /// Where its TCPStore clients connect.
    pub address: SocketAddr,
    /// The first address of its agent.
    pub listens: SocketAddr,
    /// Leave `MASTER_*` and torchrun's variables alone.
    pub keep_master_addr: bool,
    /// Where torchrun's nodes meet.
    pub rendezvous: Rendezvous,
    /// Nodes of the store.
    pub store: String,
    /// The file with the store's token.
    pub token_file: Option<&'a Path>,
    /// The files for TLS with the store.
    pub tls: &'a TlsFiles,
    /// Job of the command.
    pub job: &'a str,
    /// Run of the command.
    pub run: &'a str,
    /// How the run was met, in words.
    pub met: &'a str,
    /// The control socket of its agent.
    pub control: &'a OsStr,
    /// Launcher of the command.
    pub launcher: &'a Launcher,
}

/// Variables to set, and (without a value) to take away.
pub type Changes = BTreeMap<String, Option<OsString>>;

/// Differences from the agent's own environment, which `now` reads.
pub fn changes(settings: &CommandSettings<'_>, now: impl Fn(&str) -> Option<OsString>) -> Changes {
    let mut changes = Changes::new();
    let mut replace = |name: &str, value: Option<&str>| {
        let value = value.map(OsString::from);
        if let Some(before) = now(name).filter(|before| Some(before) != value.as_ref()) {
            changes.insert(format!("{ORIGINAL}{name}"), Some(before));
        }
        changes.insert(name.to_owned(), value);
    };
    let address = reachable(settings.address);
    if !settings.keep_master_addr {
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        replace("MASTER_ADDR", Some(&host));
        replace("MASTER_PORT", Some(&port));
        replace("TORCHELASTIC_USE_AGENT_STORE", Some("True"));
        replace("PET_MASTER_ADDR", Some(&host));
        replace("PET_MASTER_PORT", Some(&port));
        // A user who chose Holdfast's rendezvous may have set its address.
        if now("PET_RDZV_BACKEND").is_none_or(|backend| backend != OURS) {
            let backend = match settings.rendezvous {
                Rendezvous::Static => "static",
                Rendezvous::Holdfast => OURS,
            };
            replace("PET_RDZV_BACKEND", Some(backend));
            replace(ENDPOINT, None);
        }
        replace(STANDALONE, None);
    }
    let mut set = |name: &str, value: OsString| changes.insert(name.to_owned(), Some(value));
    let missing = |name: &str| now(name).is_none_or(|value| value.is_empty());
    if settings.keep_master_addr {
        set("HOLDFAST_TCPSTORE", reachable(settings.listens).to_string().into());
    } else if missing(ATTEMPT) {
        set(ATTEMPT, "0".into());
    }
    if missing(TITLE_WITHOUT_VARIABLES) {
        set(TITLE_WITHOUT_VARIABLES, "1".into());
    }
    set("HOLDFAST_STORE", settings.store.clone().into());
    if let Some(file) = settings.token_file {
        set("HOLDFAST_TOKEN_FILE", file.into());
    }
    let TlsFiles { ca, cert, key } = settings.tls;
    for (name, file) in
        [("HOLDFAST_TLS_CA", ca), ("HOLDFAST_TLS_CERT", cert), ("HOLDFAST_TLS_KEY", key)]
    {
        if let Some(file) = file {
            set(name, file.into());
        }
    }
    set("HOLDFAST_JOB", settings.job.into());
    set("HOLDFAST_RUN", settings.run.into());
    set("HOLDFAST_CONTROL", settings.control.to_owned());
    for (name, value) in settings.launcher.ranks() {
        if missing(name) {
            set(name, value.into());
        }
    }
    changes
}

/// The rank of the command, if its launcher gives it one.
pub fn rank(settings: &CommandSettings<'_>, now: impl Fn(&str) -> Option<OsString>) -> Option<u64> {
    if settings.launcher.starts_ranks() {
        return None;
    }
    let set = changes(settings, &now).remove("RANK").flatten();
    set.or_else(|| now("RANK"))?.to_str()?.parse().ok()
}

/// An address at which the listener is reached from this host.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        other => other,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::super::launcher::tests::launcher;
    use super::*;

    static NO_TLS: TlsFiles = TlsFiles { ca: None, cert: None, key: None };

    static NONE: LazyLock<Launcher> = LazyLock::new(|| launcher("", ""));

    fn settings() -> CommandSettings<'static> {
        CommandSettings {
            address: "0.0.0.0:29500".parse().unwrap(),
            listens: "0.0.0.0:29500".parse().unwrap(),
            keep_master_addr: false,
            rendezvous: Rendezvous::Static,
            store: "a:1,b:2".to_owned(),
            token_file: None,
            tls: &NO_TLS,
            job: "j",
            run: "r1",
            met: "a new run",
            control: OsStr::new("/run/c.sock"),
            launcher: &NONE,
        }
    }

    fn of(settings: &CommandSettings<'_>, now: &[(&str, &str)]) -> Vec<(String, Option<String>)> {
        let look = |name: &str| {
            let found = now.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let text = |value: OsString| value.to_string_lossy().into_owned();
        changes(settings, look).into_iter().map(|(name, value)| (name, value.map(text))).collect()
    }

    fn get<'a>(all: &'a [(String, Option<String>)], name: &str) -> Option<Option<&'a str>> {
        let found = all.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_deref())
    }

    #[test]
    fn the_command_is_led_to_the_agent_and_what_was_there_is_kept() {
        let now = [
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29500"),
            ("PET_RDZV_BACKEND", "c10d"),
            ("PET_RDZV_ENDPOINT", "node0:29400"),
        ];
        let all = of(&settings(), &now);
        for (name, value) in [
            ("MASTER_ADDR", Some("127.0.0.1")),
            ("MASTER_PORT", Some("29500")),
            ("TORCHELASTIC_USE_AGENT_STORE", Some("True")),
            ("TORCHELASTIC_RESTART_COUNT", Some("0")),
            ("PET_MASTER_ADDR", Some("127.0.0.1")),
            ("PET_MASTER_PORT", Some("29500")),
            ("PET_RDZV_BACKEND", Some("static")),
            ("PET_RDZV_ENDPOINT", None),
            ("PET_STANDALONE", None),
            ("HOLDFAST_ORIG_MASTER_ADDR", Some("node0")),
            ("HOLDFAST_ORIG_PET_RDZV_BACKEND", Some("c10d")),
            ("HOLDFAST_ORIG_PET_RDZV_ENDPOINT", Some("node0:29400")),
            ("HOLDFAST_STORE", Some("a:1,b:2")),
            ("HOLDFAST_RUN", Some("r1")),
            ("HOLDFAST_CONTROL", Some("/run/c.sock")),
            ("SPT_NOENV", Some("1")),
        ] {
            assert_eq!(get(&all, name), Some(value), "{name}");
        }
        // A rank that is restarted by a launcher outside stays as it is.
        let restarted = of(&settings(), &[("TORCHELASTIC_RESTART_COUNT", "2")]);
        assert_eq!(get(&restarted, "TORCHELASTIC_RESTART_COUNT"), None);
        // An unchanged variable needs no copy.
        assert_eq!(get(&all, "HOLDFAST_ORIG_MASTER_PORT"), None);
        assert_eq!(get(&all, "HOLDFAST_TCPSTORE"), None);
    }

    #[test]
    fn a_program_that_uses_its_master_address_itself_keeps_it() {
        let all = of(
            &CommandSettings { keep_master_addr: true, ..settings() },
            &[("MASTER_ADDR", "node0")],
        );
        assert_eq!(get(&all, "HOLDFAST_TCPSTORE"), Some(Some("127.0.0.1:29500")));
        let touched = |(name, _): &(String, _)| {
            ["MASTER", "PET_", "TORCHELASTIC", "HOLDFAST_ORIG"].iter().any(|p| name.starts_with(p))
        };
        assert!(!all.iter().any(touched), "{all:?}");
    }

    #[test]
    fn ranks_that_are_missing_come_from_the_launcher_and_others_stay() {
        let step = "SLURM_JOB_ID=812 SLURM_STEP_ID=2 SLURM_PROCID=11 SLURM_NTASKS=16 \
                    SLURM_LOCALID=3";
        let launcher = launcher("python train.py", step);
        let settings = CommandSettings { launcher: &launcher, ..settings() };
        let all = of(&settings, &[("RANK", "7"), ("LOCAL_RANK", "")]);
        assert_eq!(get(&all, "RANK"), None);
        assert_eq!(get(&all, "WORLD_SIZE"), Some(Some("16")));
        assert_eq!(get(&all, "LOCAL_RANK"), Some(Some("3")));
    }

    #[test]
    fn the_command_is_told_an_address_that_it_can_reach() {
        let shown = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(shown("0.0.0.0:1"), "127.0.0.1:1");
        assert_eq!(shown("[::]:1"), "[::1]:1");
        assert_eq!(shown("10.0.0.7:1"), "10.0.0.7:1");
    }
}
