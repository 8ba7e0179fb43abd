//! Programs that bypass the agent with a store of their own: found while they run,
//! and reported at once, since such a job often hangs until its time limit.
//!
//! A Python that has Holdfast's wheel puts those stores on Holdfast, and sets a variable for that.
//! A store that it serves nevertheless was opened without Python's `TCPStore`.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::bypass::{self, Process};
use super::link;
use super::memory::{Libraries, Program};
use crate::remedy;

/// How often to look at first, and later.
const INTERVAL: Duration = Duration::from_millis(700);
const INTERVAL_LATER: Duration = Duration::from_secs(10);
/// How long "at first" is.
const FIRST: Duration = Duration::from_secs(120);
const NAMED_MAX: usize = 4;
/// At how many looks in a row a program has to wait within PyTorch: a client that connects waits
/// there for a moment, too.
const LOOKS_WAITED: u32 = 2;

/// The variables that show which store a program uses.
const VARIABLES: [&str; 4] = ["MASTER_ADDR", "MASTER_PORT", "HOLDFAST_CONTROL", "HOLDFAST_CAPTURE"];
/// As [`VARIABLES`] has them.
const OFF: &str = "off";

/// A command whose programs are looked at.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Pid of the command.
    pub root: u32,
    /// How many words it has.
    pub words: usize,
    /// Where its TCPStore clients connect.
    pub ours: SocketAddr,
    /// Its `MASTER_*` are not the agent's.
    pub keeps_master_addr: bool,
    /// Ports at which programs may be masters beside the agent: their servers have no clients.
    pub masters: BTreeSet<u16>,
    /// The control socket of its agent.
    pub control: PathBuf,
}

/// What a program does, as far as it matters here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Facts {
    /// `MASTER_ADDR` and `MASTER_PORT` now, and whether it was started with them.
    address: String,
    port: String,
    started_so: bool,
    /// Control socket that the program was given.
    control: String,
    capture: String,
    /// Stores that it serves, those at ports for masters left out.
    serves: bool,
    /// It has waited within PyTorch for [`LOOKS_WAITED`] looks.
    searches: bool,
}

/// How a program bypasses the agent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Bypass {
    /// Its variables name another store; it has set them itself, or was started so.
    Named { address: String, port: String, started_so: bool },
    /// It is a server of PyTorch's TCPStore.
    Serves,
    /// It is one although it has the wheel.
    ServesUncaptured,
    /// It looks for a store that is not there.
    Searches,
}

#[derive(Debug, Default)]
struct Seen {
    libraries: Libraries,
    /// Programs that waited within PyTorch at the last look, and at how many in a row.
    waited: BTreeMap<u32, u32>,
    said: BTreeSet<Bypass>,
}

/// Looks repeatedly, and reports what it finds.
pub async fn watch(watched: Watched) -> Infallible {
    let began = Instant::now();
    let mut seen = Seen::default();
    loop {
        let first = began.elapsed() < FIRST && seen.said.len() < NAMED_MAX;
        sleep(if first { INTERVAL } else { INTERVAL_LATER }).await;
        if seen.said.len() >= NAMED_MAX {
            continue;
        }
        // A slow agent, or one that is being replaced, is not bypassed.
        let Ok(Some(link::Seen { ports, .. })) = link::seen(&watched.control).await else {
            continue;
        };
        let (before, looked_at) = (std::mem::take(&mut seen), watched.clone());
        match spawn_blocking(move || before.look(&looked_at, &ports)).await {
            Ok((now, found)) => {
                seen = now;
                for line in found {
                    warn!("{line}");
                }
            }
            Err(error) => debug!(%error, "the programs of the command were not looked at"),
        }
    }
}

impl Seen {
    fn look(mut self, watched: &Watched, ports: &[u16]) -> (Seen, Vec<String>) {
        let mut waiting = BTreeMap::new();
        let mut found = Vec::new();
        for process in bypass::family(watched.root) {
            let Some(program) = Program::read(process.id) else { continue };
            let mut facts = self.facts(&process, &program, &watched.masters);
            if program.sleeps_in_pytorch() {
                let looks = self.looks_waited(process.id);
                facts.searches = looks >= LOOKS_WAITED;
                waiting.insert(process.id, looks);
            }
            let bypass = bypass(&facts, process.id, watched, ports);
            if let Some(bypass) = bypass.filter(|bypass| !self.said.contains(bypass))
                && self.said.len() < NAMED_MAX
            {
                found.push(said(&process, &bypass, &facts.capture, watched));
                self.said.insert(bypass);
            }
        }
        self.waited = waiting;
        (self, found)
    }

    /// At how many looks in a row a program has waited that waits now.
    fn looks_waited(&self, id: u32) -> u32 {
        self.waited.get(&id).map_or(1, |looks| looks.saturating_add(1))
    }

    fn facts(&mut self, process: &Process, program: &Program, masters: &BTreeSet<u16>) -> Facts {
        let now = program.variables(VARIABLES, &mut self.libraries);
        let started = [&process.address, &process.port];
        let Some([address, port, control, capture]) =
            now.map(|all| all.map(Option::unwrap_or_default))
        else {
            // Without these, whether it has the wheel is not known.
            return Facts { capture: process.id.to_string(), ..Facts::default() };
        };
        let started_so = started == [&address, &port];
        let stores = program.stores_served();
        let serves = stores > 0 && stores > beside(masters, &program.ports());
        Facts { address, port, started_so, control, capture, serves, searches: false }
    }
}

/// How this program bypasses the agent, if it does.
fn bypass(facts: &Facts, id: u32, watched: &Watched, ports: &[u16]) -> Option<Bypass> {
    let elsewhere = facts.control != watched.control.to_string_lossy();
    if elsewhere {
        return None;
    }
    if facts.capture == id.to_string() {
        return facts.serves.then_some(Bypass::ServesUncaptured);
    }
    let is_told = !facts.port.is_empty() && !watched.keeps_master_addr;
    if is_told && !is_ours(&facts.address, &facts.port, watched.ours, ports) {
        let Facts { address, port, started_so, .. } = facts.clone();
        return Some(Bypass::Named { address, port, started_so });
    }
    if facts.serves {
        return Some(Bypass::Serves);
    }
    facts.searches.then_some(Bypass::Searches)
}

/// How many stores a program that listens at these ports serves beside the agent.
fn beside(masters: &BTreeSet<u16>, listens: &BTreeSet<u16>) -> usize {
    masters.intersection(listens).count()
}

fn is_ours(host: &str, port: &str, ours: SocketAddr, ports: &[u16]) -> bool {
    let ip: Option<IpAddr> = host.parse().ok();
    let is_local = host == "localhost" || ip.is_some_and(|ip| ip.is_loopback());
    let is_port = port.parse().is_ok_and(|port| ports.contains(&port));
    is_port && (ip == Some(ours.ip()) || (is_local && ours.ip().is_loopback()))
}

fn said(process: &Process, bypass: &Bypass, capture: &str, watched: &Watched) -> String {
    let wheel = if *bypass == Bypass::ServesUncaptured {
        "open it with Python's TCPStore, which Holdfast's wheel puts on Holdfast"
    } else if capture == OFF {
        "start it without HOLDFAST_CAPTURE=off, which leaves such stores to PyTorch"
    } else {
        "install Holdfast's wheel into its Python (`pip install ./trainer-shim/python`), which puts \
         such stores on Holdfast, and start it again"
    };
    let mut fixes = vec![wheel.to_owned()];
    match bypass {
        Bypass::Named { address, port, started_so } => {
            fixes.push(if *started_so {
                format!(
                    "start it with MASTER_ADDR and MASTER_PORT as `run` sets them, {}",
                    watched.ours
                )
            } else {
                "remove the lines that set MASTER_ADDR and MASTER_PORT".to_owned()
            });
            let port: Option<u16> = port.parse().ok();
            let local = address == "localhost" || address == "127.0.0.1";
            if let Some(port) = port.filter(|port| local && *port > 0) {
                let line = remedy::at(&format!("127.0.0.1:{port}"), watched.words);
                fixes.push(format!("if it forms its process group only once, run: {line}"));
            }
        }
        Bypass::Serves | Bypass::ServesUncaptured | Bypass::Searches => {
            fixes.push(
                "use the store of init_process_group(init_method=\"env://\"), with MASTER_ADDR and \
                 MASTER_PORT as `run` sets them"
                    .to_owned(),
            );
            let first = watched.ours.port();
            let both = format!("127.0.0.1:{first}-{}", first.saturating_add(1));
            let line = remedy::at(&both, watched.words);
            fixes.push(format!("if its port is MASTER_PORT + 1, run on every host: {line}"));
        }
    }
    let fixes = fixes.iter().zip(1..).map(|(fix, n)| format!("({n}) {fix}"));
    let fixes = fixes.collect::<Vec<_>>().join("; ");
    format!("{} bypasses Holdfast: it {bypass}. Fix, one of: {fixes}", bypass::named(process))
}

impl fmt::Display for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bypass::Named { address, port, started_so } => {
                let how = if *started_so { "was started with" } else { "sets" };
                let address = bypass::shown(&format!("MASTER_ADDR={address} MASTER_PORT={port}"));
                write!(f, "{how} {address}, and the agent does not listen there")
            }
            Bypass::Serves => f.write_str("serves a TCPStore itself (is_master=True)"),
            Bypass::ServesUncaptured => f.write_str(
                "serves a TCPStore that was not opened with Python's TCPStore, as C++ code does",
            ),
            Bypass::Searches => f.write_str(
                "waits in PyTorch for a store at an address of its own (init_method=\"tcp://…\" or \
                 TCPStore(host, port)), and nothing answers there",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched() -> Watched {
        Watched {
            root: 10,
            words: 0,
            ours: "127.0.0.1:29500".parse().unwrap(),
            keeps_master_addr: false,
            masters: BTreeSet::new(),
            control: PathBuf::from("/run/c.sock"),
        }
    }

    fn facts(address: &str, port: &str) -> Facts {
        let (address, port) = (address.to_owned(), port.to_owned());
        Facts { address, port, control: "/run/c.sock".to_owned(), ..Facts::default() }
    }

    fn passes(facts: &Facts) -> Option<Bypass> {
        bypass(facts, 77, &watched(), &[29500, 20001])
    }

    #[test]
    fn a_program_that_names_another_store_bypasses_the_agent() {
        for (address, port) in
            [("127.0.0.1", "29500"), ("localhost", "29500"), ("localhost", "20001"), ("", "")]
        {
            assert_eq!(passes(&facts(address, port)), None, "{address}:{port}");
        }
        for (address, port) in [("localhost", "12355"), ("node0", "29500"), ("127.0.0.1", "x")] {
            let found = passes(&facts(address, port));
            assert!(matches!(found, Some(Bypass::Named { .. })), "{address}:{port}: {found:?}");
        }
        let kept = Watched { keeps_master_addr: true, ..watched() };
        assert_eq!(bypass(&facts("node0", "7"), 77, &kept, &[29500]), None);
    }

    #[test]
    fn one_with_the_wheel_or_another_agent_does_not() {
        let serves = Facts { serves: true, searches: true, ..facts("localhost", "12355") };
        assert!(passes(&serves).is_some());
        let with_wheel = Facts { capture: "77".to_owned(), ..serves.clone() };
        assert_eq!(passes(&with_wheel), Some(Bypass::ServesUncaptured));
        assert_eq!(passes(&Facts { serves: false, ..with_wheel }), None);
        assert_eq!(passes(&Facts { control: "/run/d.sock".to_owned(), ..serves.clone() }), None);
        // A program started by one with the wheel lacks it.
        assert!(passes(&Facts { capture: "76".to_owned(), ..serves.clone() }).is_some());
        assert!(passes(&Facts { capture: OFF.to_owned(), ..serves }).is_some());
    }

    #[test]
    fn servers_and_searchers_are_told_apart() {
        let own = facts("127.0.0.1", "29500");
        assert_eq!(
            passes(&Facts { serves: true, searches: true, ..own.clone() }),
            Some(Bypass::Serves)
        );
        assert_eq!(passes(&Facts { searches: true, ..own.clone() }), Some(Bypass::Searches));
        // A master at a port of the list is beside the agent, one at another port is not.
        let listens = |ports: &[u16]| ports.iter().copied().collect::<BTreeSet<u16>>();
        for (masters, ports, expected) in [
            (&[][..], &[29501, 12355][..], 0),
            (&[29500, 29501], &[29501, 40000], 1),
            (&[29500, 29501], &[29501, 12355], 1),
            (&[29500, 29501], &[12355], 0),
        ] {
            assert_eq!(beside(&listens(masters), &listens(ports)), expected, "{ports:?}");
        }
    }

    /// The documents name two seconds; the looks themselves take what is left of them.
    #[test]
    fn looks_are_so_frequent_that_a_bypass_is_named_within_two_seconds() {
        let (mut seen, mut looks) = (Seen::default(), 0);
        // It begins to wait just after a look. All else is seen at the first one.
        while seen.waited.get(&77).is_none_or(|waited| *waited < LOOKS_WAITED) {
            looks += 1;
            seen.waited = BTreeMap::from([(77, seen.looks_waited(77))]);
        }
        assert!(looks > 1, "a client that just connects is not named");
        assert!(INTERVAL * looks <= Duration::from_millis(1_500), "{INTERVAL:?} between {looks}");
    }

    #[test]
    fn what_is_said_names_the_program_the_store_and_what_to_do() {
        let process = Process { id: 77, command: "python ddp.py".to_owned(), ..Process::default() };
        let named = passes(&facts("localhost", "12355")).unwrap();
        let line = said(&process, &named, "", &watched());
        for part in [
            "process 77 (python ddp.py)",
            "bypasses Holdfast: it sets MASTER_ADDR=localhost MASTER_PORT=12355",
            "pip install",
            "--tcpstore 127.0.0.1:12355",
        ] {
            assert!(line.contains(part), "{part:?} is missing in: {line}");
        }
        let line = said(&process, &Bypass::Searches, OFF, &watched());
        for part in ["without HOLDFAST_CAPTURE=off", "tcp://", "--tcpstore 127.0.0.1:29500-29501"] {
            assert!(line.contains(part), "{part:?} is missing in: {line}");
        }
    }
}
