//! A command whose ranks never came to the agent: which of its processes got
//! another address, and from which process.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

use super::memory::{Libraries, Program};

/// Processes of this host that are looked at.
const PROCESSES_MAX: usize = 16_384;
/// Most bytes read of a process's variables and of its command line.
const READ_BYTES_MAX: u64 = 256 * 1024;
const RANKS_NAMED_MAX: usize = 8;
/// Most characters shown of a command line.
const SHOWN_CHARS_MAX: usize = 80;

/// A process as `/proc` shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Its process id, which names its folder in `/proc`.
    pub id: u32,
    /// Pid of the parent.
    pub parent: u32,
    /// Its words with spaces between them; empty if they cannot be read.
    pub command: String,
    /// `MASTER_ADDR` and `MASTER_PORT` as it was started.
    pub address: String,
    /// Its `MASTER_PORT`; see `address`.
    pub port: String,
    /// Its `RANK`, as it was started or as it has set it itself.
    pub rank: Option<u64>,
}

/// Ranks of a command that sent no client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silent {
    /// Each with one of its processes.
    ranks: Vec<(u64, String)>,
    /// How many ranks there are.
    of: usize,
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Silent { ranks, of } = self;
        let named = ranks.iter().take(RANKS_NAMED_MAX);
        let named: Vec<String> =
            named.map(|(rank, process)| format!("rank {rank}, {process}")).collect();
        let more = match ranks.len().saturating_sub(RANKS_NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (count, named) = (ranks.len(), named.join("; "));
        write!(
            f,
            "{count} of {of} ranks of this command are not on Holdfast ({named}{more}): no TCPStore client of theirs came"
        )
    }
}

/// Why no client came, as far as it can be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// A process was started with another address.
    OtherAddress {
        /// The process, in words.
        process: String,
        /// The address that it was started with.
        address: String,
        /// Name of the parent, which has the agent's address: the launcher.
        launcher: String,
        /// Where the agent serves the command's ranks.
        ours: SocketAddr,
    },
    /// All processes have the agent's address, and do not use it.
    Unused {
        /// How many processes there are.
        processes: usize,
    },
    /// There is nothing to look at any more.
    Gone {
        /// Command line of the process.
        command: String,
        /// Where the agent served the command's ranks.
        ours: SocketAddr,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::OtherAddress { process, address, launcher, ours } => write!(
                f,
                "{process} was started with {address}: {launcher} probably set its own address; {}",
                advice(launcher, *ours)
            ),
            Finding::Unused { processes } => write!(
                f,
                "the {processes} processes of the command have the agent's address and did not \
                 connect: they may not have come to init_process_group yet, or name another store \
                 in the program (init_method=\"tcp://…\", TCPStore(…)): install Holdfast's wheel into \
                 their Python, which puts such stores on Holdfast, or use init_method=\"env://\"; \
                 a file (init_method=\"file://…\", FileStore(…)) stays a file in either case: use \
                 init_method=\"env://\" instead"
            ),
            Finding::Gone { command, ours } => {
                write!(f, "it ended without init_process_group, or {}", advice(command, *ours))
            }
        }
    }
}

/// What to do about a launcher, by its name. Values are spelled out: the reader's shell does not
/// have the command's variables.
fn advice(launcher: &str, ours: SocketAddr) -> String {
    let is = |names: &[&str]| names.iter().any(|name| launcher.contains(name));
    if is(&["torchrun", "torch.distributed"]) {
        return "torchrun with another rendezvous than static starts a store of its own: leave out \
                --standalone, --rdzv-backend and --rdzv-endpoint"
            .to_owned();
    }
    if is(&["accelerate"]) {
        return "accelerate always starts a store of its own: install Holdfast's \
                wheel into its Python (`pip install ./trainer-shim/python`), which puts that store on \
                Holdfast, or start the program, as it is, with torchrun"
            .to_owned();
    }
    if is(&["deepspeed"]) {
        return format!(
            "deepspeed sets its own port: install Holdfast's wheel into its Python (`pip install \
             ./trainer-shim/python`), or give `run` --tcpstore {ours} and deepspeed \
             --master_addr={} --master_port={}, or start the program with torchrun",
            ours.ip(),
            ours.port()
        );
    }
    "a launcher inside set its own MASTER_ADDR: start each rank by `holdfast-agent run`, with the \
     same --run, from that launcher"
        .to_owned()
}

/// Looks at the processes below `root` now.
pub fn look(root: u32, command: &str, ours: SocketAddr) -> Finding {
    judge(&processes(), root, command, ours)
}

fn judge(all: &[Process], root: u32, command: &str, ours: SocketAddr) -> Finding {
    let mut children: BTreeMap<u32, Vec<&Process>> = BTreeMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let mut family: Vec<&Process> = all.iter().filter(|process| process.id == root).collect();
    let mut n = 0;
    while n < family.len() && family.len() <= PROCESSES_MAX {
        family.extend(children.get(&family[n].id).into_iter().flatten());
        n += 1;
    }
    if family.is_empty() {
        return Finding::Gone { command: shown(command), ours };
    }
    let (host, port) = (ours.ip().to_string(), ours.port().to_string());
    let led_away = |process: &&&Process| {
        let told = !process.port.is_empty() || !process.address.is_empty();
        told && (process.address != host || process.port != port)
    };
    let Some(away) = family.iter().find(led_away) else {
        return Finding::Unused { processes: family.len() };
    };
    let parent = family.iter().find(|process| process.id == away.parent);
    Finding::OtherAddress {
        process: named(away),
        address: shown(&format!("MASTER_ADDR={} MASTER_PORT={}", away.address, away.port)),
        launcher: parent.map_or_else(|| named(away), |parent| named(parent)),
        ours,
    }
}

/// The ranks below `root` that have no process among these; `None` if all are there.
pub fn silent(root: u32, programs: &[u32]) -> Option<Silent> {
    let mut libraries = Libraries::default();
    let mut family = family(root);
    for process in family.iter_mut().filter(|process| process.rank.is_none()) {
        let now = Program::read(process.id).and_then(|one| one.variables(["RANK"], &mut libraries));
        process.rank = now.and_then(|[rank]| rank?.parse().ok());
    }
    silent_of(&family, programs)
}

fn silent_of(family: &[Process], programs: &[u32]) -> Option<Silent> {
    let mut ranks: BTreeMap<u64, Vec<&Process>> = BTreeMap::new();
    for process in family {
        if let Some(rank) = process.rank {
            ranks.entry(rank).or_default().push(process);
        }
    }
    let of = ranks.len();
    let came = |all: &[&Process]| all.iter().any(|process| programs.contains(&process.id));
    let silent = ranks.into_iter().filter(|(_, all)| !came(all));
    let ranks: Vec<_> = silent.map(|(rank, all)| (rank, named(all[0]))).collect();
    (!ranks.is_empty()).then_some(Silent { ranks, of })
}

/// A process, with the beginning of its words.
pub fn named(process: &Process) -> String {
    format!("process {} ({})", process.id, shown(&process.command))
}

/// The processes below `root`, and it: those that may be looked at.
pub fn family(root: u32) -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents = ids.take(PROCESSES_MAX).filter_map(|id: u32| Some((id, parent(id)?)));
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (id, parent) in parents {
        children.entry(parent).or_default().push(id);
    }
    let mut found = vec![root];
    let mut n = 0;
    while n < found.len() && found.len() <= PROCESSES_MAX {
        found.extend(children.remove(&found[n]).into_iter().flatten());
        n += 1;
    }
    // Most others are not the command's: only these are read.
    found.into_iter().filter_map(read).collect()
}

fn parent(id: u32) -> Option<u32> {
    parent_of(&read_some(&Path::new("/proc").join(id.to_string()).join("stat"))?)
}

/// The beginning, on one line and without what a terminal would obey.
pub fn shown(command: &str) -> String {
    let plain = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let mut shown: String = command.chars().take(SHOWN_CHARS_MAX).map(plain).collect();
    if command.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.take(PROCESSES_MAX).filter_map(read).collect()
}

/// A process that is there and may be looked at.
fn read(id: u32) -> Option<Process> {
    let folder = Path::new("/proc").join(id.to_string());
    let parent = parent(id)?;
    let words = read_some(&folder.join("cmdline")).unwrap_or_default();
    let command = words.trim_end_matches('\0').replace('\0', " ");
    // Processes of other users cannot be read.
    let variables = read_some(&folder.join("environ")).unwrap_or_default();
    let value = |name: &str| value_of(&variables, name).unwrap_or_default().to_owned();
    let (address, port) = (value("MASTER_ADDR"), value("MASTER_PORT"));
    let rank = value("RANK").parse().ok();
    Some(Process { id, parent, command, address, port, rank })
}

fn read_some(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(READ_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The name in the second field may hold anything, brackets included.
fn parent_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn value_of<'a>(variables: &'a str, name: &str) -> Option<&'a str> {
    let mut all = variables.split('\0');
    all.find_map(|one| one.split_once('=').filter(|(other, _)| *other == name)).map(|(_, v)| v)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: u32, parent: u32, command: &str, port: &str) -> Process {
        let (command, port) = (command.to_owned(), port.to_owned());
        let address = if port.is_empty() { "" } else { "127.0.0.1" }.to_owned();
        Process { id, parent, command, address, port, rank: None }
    }

    #[test]
    fn one_rank_that_came_does_not_speak_for_the_others() {
        let rank = |id, rank| Process { rank, ..process(id, 1, "python train.py", "") };
        let mut all: Vec<Process> = (0..8).map(|n| rank(10 + n, Some(u64::from(n)))).collect();
        // Its shell, and what it has started itself.
        all.extend([rank(5, None), rank(30, Some(0)), rank(31, Some(1))]);
        assert_eq!(silent_of(&all, &(10..18).collect::<Vec<_>>()), None);
        assert_eq!(silent_of(&[rank(5, None)], &[]), None, "nobody says that it is a rank");
        let text = silent_of(&all, &[30]).unwrap().to_string();
        for part in ["7 of 8 ranks", "rank 1, process 11 (python train.py)", "rank 7, process 17"] {
            assert!(text.contains(part), "{part:?} is missing in: {text}");
        }
        assert!(!text.contains("rank 0"), "{text}");
        let many: Vec<Process> = (0..20).map(|n| rank(n, Some(u64::from(n)))).collect();
        assert!(silent_of(&many, &[]).unwrap().to_string().contains("and 12 more"));
    }

    fn ours() -> SocketAddr {
        "127.0.0.1:29500".parse().unwrap()
    }

    #[test]
    fn the_launcher_is_the_one_that_had_the_agents_address_and_gave_another() {
        let all = [
            process(1, 0, "init", ""),
            process(20, 10, "accelerate launch train.py", "29500"),
            process(21, 20, "python train.py", "41001"),
            process(10, 1, "sh job.sh", "29500"),
            process(99, 1, "another job", "5"),
        ];
        let finding = judge(&all, 10, "sh job.sh", ours());
        let text = finding.to_string();
        for part in [
            "process 21 (python train.py)",
            "MASTER_PORT=41001",
            "process 20 (accelerate launch train.py) probably",
            "Holdfast's wheel",
        ] {
            assert!(text.contains(part), "{part:?} is missing in: {text}");
        }
        let unused = judge(&all[..4], 20, "x", "127.0.0.1:41001".parse().unwrap());
        assert!(matches!(unused, Finding::OtherAddress { .. }), "{unused:?}");
        assert_eq!(judge(&all[4..], 99, "x", ours()), judge(&all, 99, "x", ours()));
        assert_eq!(judge(&all[3..4], 10, "x", ours()), Finding::Unused { processes: 1 });
        let gone = judge(&all, 7, "torchrun train.py", ours());
        assert_eq!(gone, Finding::Gone { command: "torchrun train.py".to_owned(), ours: ours() });
        assert!(gone.to_string().contains("--standalone"));
    }

    #[test]
    fn advice_can_be_typed_into_any_shell() {
        for launcher in ["torchrun x", "accelerate launch x", "deepspeed x", "python x"] {
            let advice = advice(launcher, ours());
            assert!(!advice.contains('$'), "{advice}");
        }
        let deepspeed = advice("python -m deepspeed.launcher.runner train.py", ours());
        for part in ["--tcpstore 127.0.0.1:29500", "--master_addr=127.0.0.1", "--master_port=29500"]
        {
            assert!(deepspeed.contains(part), "{part:?} is missing in: {deepspeed}");
        }
    }

    #[test]
    fn what_a_process_is_called_cannot_speak_to_the_terminal() {
        assert_eq!(shown("python\u{1b}[2J a\nb"), "python\u{fffd}[2J a\u{fffd}b");
        let long = "ä".repeat(SHOWN_CHARS_MAX);
        assert_eq!(shown(&long), long);
        assert_eq!(shown(&format!("{long}x")), format!("{long}…"));
    }

    #[test]
    fn a_process_is_read_as_it_was_started() {
        assert_eq!(parent_of("12 (a) b) S 7 12 12 0"), Some(7));
        assert_eq!(parent_of(""), None);
        assert_eq!(value_of("A=1\0MASTER_PORT=2=3\0", "MASTER_PORT"), Some("2=3"));
        assert_eq!(value_of("XMASTER_PORT=1", "MASTER_PORT"), None);
        let mut command = std::process::Command::new("sleep");
        command.arg("600").env("MASTER_ADDR", "node0").env("MASTER_PORT", "7");
        let mut child = command.spawn().unwrap();
        let own = std::process::id();
        // Until it has become the other program, it has our variables.
        let found = loop {
            match look(own, "x", ours()) {
                Finding::Unused { .. } => std::thread::yield_now(),
                found => break found,
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        let Finding::OtherAddress { process, address, launcher, .. } = found else {
            panic!("{found:?}")
        };
        assert!(process.contains("sleep 600"), "{process}");
        assert_eq!(address, "MASTER_ADDR=node0 MASTER_PORT=7");
        assert!(launcher.contains(&own.to_string()), "{launcher}");
    }
}
