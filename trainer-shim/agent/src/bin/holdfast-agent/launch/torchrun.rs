//! torchrun in a command: where it is, what its own arguments say, and how
//! they read once they no longer lead around the agent.
//!
//! torchrun's options as of torch 2.15. Python's argparse accepts any
//! unambiguous beginning of an option and joins values with `=`; torchrun
//! writes each option with dashes and with underscores.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;

/// The rendezvous of Holdfast's Python package.
pub const OURS: &str = "holdfast";

/// Options that take a value.
const WITH_VALUE: [&str; 27] = [
    "duplicate-stderr-filters",
    "duplicate-stdout-filters",
    "event-log-handler",
    "local-addr",
    "local-ranks-filter",
    "log-dir",
    "log-line-prefix-template",
    "logs-specs",
    "master-addr",
    "master-port",
    "max-restarts",
    "monitor-interval",
    "nnodes",
    "node-rank",
    "nproc-per-node",
    "numa-binding",
    "print-completion",
    "rdzv-backend",
    "rdzv-conf",
    "rdzv-endpoint",
    "rdzv-id",
    "redirects",
    "role",
    "shutdown-timeout",
    "signals-to-handle",
    "start-method",
    "tee",
];
const FLAGS: [&str; 7] =
    ["help", "module", "no-python", "run-path", "standalone", "use-env", "virtual-local-rank"];

/// Where torchrun is in a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Torchrun<'a> {
    command: &'a [OsString],
    /// The program that runs torchrun.
    pub program: Program<'a>,
    /// Index of its first own argument among the words of the command.
    first: usize,
}

/// How torchrun is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program<'a> {
    /// By a file whose name is `torchrun`: this word of the command.
    Script(&'a OsStr),
    /// As a module of this Python: `PYTHON -m torch.distributed.run`.
    Python(&'a OsStr),
}

#[derive(Debug, PartialEq, Eq)]
struct Argument {
    option: &'static str,
    value: String,
    /// Which words of the command it takes.
    words: Range<usize>,
}

/// The environment that decides how torchrun behaves.
#[derive(Debug, Default)]
pub struct Around {
    /// Ports that the agent was asked to serve; empty if it chooses one.
    pub ports: Vec<SocketAddr>,
    /// `PET_RDZV_BACKEND` as the user set it.
    pub pet_backend: Option<String>,
    /// `PET_NNODES`, the number of nodes, as the user set it.
    pub pet_nodes: Option<String>,
    /// Whether `PET_NODE_RANK` is set.
    pub pet_node_rank: bool,
    /// Whether this is a step of a Slurm job.
    pub slurm: bool,
    /// Whether torchrun finds Holdfast's rendezvous.
    pub has_ours: bool,
}

/// The value that `PET_RDZV_BACKEND` is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rendezvous {
    /// torchrun's own, with the rank of each node given.
    Static,
    /// Holdfast's: nodes meet there, and any of them may die.
    Holdfast,
}

/// A command that would lead its ranks past the agent.
#[derive(Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// Why it bypasses the agent; one sentence each.
    pub reasons: Vec<String>,
    /// The command without it.
    pub corrected: Vec<OsString>,
}

/// Looks for torchrun: the command itself, or what a wrapper (`env`, `numactl`,
/// `srun`) starts. Arguments of a script are not looked at.
pub fn find(command: &[OsString]) -> Option<Torchrun<'_>> {
    let mut n = 0;
    while n < command.len() {
        let word = &command[n];
        let name = Path::new(word).file_name().unwrap_or_default().to_string_lossy();
        if name == "torchrun" {
            return Some(Torchrun { command, program: Program::Script(word), first: n + 1 });
        }
        if is_python(&name) {
            let first = n + 1 + module_after(&command[n + 1..])?;
            return Some(Torchrun { command, program: Program::Python(word), first });
        }
        n += 1;
    }
    None
}

fn is_python(name: &str) -> bool {
    let version = name.strip_prefix("python").or_else(|| name.strip_prefix("pypy"));
    version.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
}

/// How many of Python's arguments there are, if they run torchrun.
fn module_after(arguments: &[OsString]) -> Option<usize> {
    let launches = |module: &str| {
        matches!(module, "torch.distributed.run" | "torch.distributed.launch").then_some(())
    };
    let mut n = 0;
    while let Some(argument) = arguments.get(n) {
        let text = argument.to_string_lossy();
        // A script, or `-`.
        let short = text.strip_prefix('-').filter(|short| !short.is_empty())?;
        n += 1;
        if short.starts_with('-') {
            continue;
        }
        // Letters may be joined (`-um`); the first that takes a value ends them.
        match short.find(['m', 'c', 'W', 'X']) {
            Some(at) => {
                let (letter, rest) = (&short[at..=at], &short[at + 1..]);
                let value = if rest.is_empty() {
                    n += 1;
                    arguments.get(n - 1)?.to_string_lossy().into_owned()
                } else {
                    rest.to_owned()
                };
                match letter {
                    "m" => return launches(&value).map(|()| n),
                    "c" => return None,
                    _ => {}
                }
            }
            None => continue,
        }
    }
    None
}

impl Torchrun<'_> {
    /// Its own arguments; those of the script are not among them.
    fn arguments(&self) -> Vec<Argument> {
        let mut found = Vec::new();
        let mut n = self.first;
        while let Some(word) = self.command.get(n) {
            let text = word.to_string_lossy();
            let Some((option, joined, takes_value)) = read_option(&text) else { break };
            let start = n;
            n += 1;
            let value = match (joined, takes_value) {
                (Some(joined), _) => joined,
                (None, false) => String::new(),
                (None, true) => {
                    n += 1;
                    let value = self.command.get(n - 1);
                    value.map(|value| value.to_string_lossy().into_owned()).unwrap_or_default()
                }
            };
            let words = start..n.min(self.command.len());
            found.push(Argument { option, value, words });
        }
        found
    }

    /// The value of one of its options, the last where it is there twice.
    pub fn value(&self, option: &str) -> Option<String> {
        let found = self.arguments().into_iter().rfind(|argument| argument.option == option);
        found.map(|argument| argument.value)
    }

    /// The rendezvous for a command that names none: Holdfast's where it is
    /// there, unless the nodes have been given ranks, which only the static
    /// rendezvous keeps.
    pub fn rendezvous(&self, around: &Around) -> Rendezvous {
        let mut arguments = self.arguments().into_iter();
        let ranked = around.pet_node_rank || arguments.any(|one| one.option == "node-rank");
        match around.pet_backend.as_deref() {
            Some(OURS) => Rendezvous::Holdfast,
            Some("static") => Rendezvous::Static,
            _ if around.has_ours && !ranked => Rendezvous::Holdfast,
            _ => Rendezvous::Static,
        }
    }

    /// The part of it that bypasses the agent; `None` if nothing does.
    pub fn contradiction(&self, around: &Around) -> Option<Contradiction> {
        let arguments = self.arguments();
        let value = |option: &str| {
            let last = arguments.iter().rev().find(|argument| argument.option == option);
            last.map(|argument| argument.value.as_str())
        };
        let nodes = value("nnodes").map(str::to_owned).or_else(|| around.pet_nodes.clone());
        let nodes_max = nodes.as_deref().map_or(1, nodes_max);
        let mut reasons = Vec::new();
        let mut dropped = Vec::new();
        let backend = value("rdzv-backend").or(around.pet_backend.as_deref());
        let is_ours = backend == Some(OURS);
        for argument in arguments.iter().filter(|argument| !is_ours || !argument.is_of_rendezvous())
        {
            if let Some(reason) = leads_past(argument, around) {
                reasons.push(format!("{}: {reason}", self.text(&argument.words)));
                dropped.push(argument.words.clone());
            }
        }
        let ranked = value("node-rank").is_some() || around.pet_node_rank;
        let needs_ranks = nodes_max > 1 && self.rendezvous(around) == Rendezvous::Static;
        let elsewhere = value("rdzv-backend").is_none()
            && around
                .pet_backend
                .as_deref()
                .is_some_and(|named| named != "static" && named != OURS);
        if elsewhere && needs_ranks && !ranked {
            reasons.push(format!(
                "PET_RDZV_BACKEND={}: its workers' store would live in node 0's torchrun; \
                 the static rendezvous that replaces it needs the rank of each of the {nodes_max} nodes",
                around.pet_backend.as_deref().unwrap_or_default()
            ));
        }
        if reasons.is_empty() {
            return None;
        }
        let mut corrected = Vec::new();
        for (n, word) in self.command.iter().enumerate() {
            if n == self.first && needs_ranks && !ranked {
                let rank = if around.slurm { "$SLURM_NODEID" } else { "N" };
                corrected.push(format!("--node-rank={rank}").into());
            }
            let in_words = |words: &Range<usize>| words.contains(&n);
            if dropped.iter().any(in_words) {
                continue;
            }
            let nodes = arguments.iter().find(|argument| {
                needs_ranks
                    && argument.option == "nnodes"
                    && argument.value.contains(':')
                    && in_words(&argument.words)
            });
            match nodes {
                Some(nodes) if nodes.words.start == n => {
                    corrected.push(format!("--nnodes={nodes_max}").into());
                }
                Some(_) => {}
                None => corrected.push(word.clone()),
            }
        }
        Some(Contradiction { reasons, corrected })
    }

    fn text(&self, words: &Range<usize>) -> String {
        let words: Vec<_> =
            self.command[words.clone()].iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }
}

/// The static rendezvous waits for all nodes that there may be.
fn nodes_max(nodes: &str) -> u32 {
    nodes.rsplit(':').next().and_then(|max| max.trim().parse().ok()).unwrap_or(1)
}

/// The option, its value if that is joined to it, and whether it takes one.
fn read_option(text: &str) -> Option<(&'static str, Option<String>, bool)> {
    if let Some(long) = text.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (long, None),
        };
        let name = name.replace('_', "-");
        let all = || WITH_VALUE.into_iter().chain(FLAGS);
        let exact = all().find(|option| *option == name);
        let beginning = || {
            let mut options = all().filter(|option| option.starts_with(&name));
            let first = options.next();
            // torchrun itself will refuse what could mean two things.
            first.filter(|_| !name.is_empty() && options.next().is_none())
        };
        let option = exact.or_else(beginning)?;
        return Some((option, value, !FLAGS.contains(&option)));
    }
    let short = text.strip_prefix('-')?;
    let letter = short.chars().next()?;
    let option = match letter {
        'm' => return Some(("module", None, false)),
        'h' => return Some(("help", None, false)),
        'r' => "redirects",
        't' => "tee",
        _ => return None,
    };
    let joined = short[letter.len_utf8()..].to_owned();
    Some((option, Some(joined).filter(|joined| !joined.is_empty()), true))
}

impl Argument {
    /// Whether it configures a rendezvous of the command's own.
    fn is_of_rendezvous(&self) -> bool {
        matches!(self.option, "rdzv-backend" | "rdzv-endpoint")
    }
}

fn leads_past(argument: &Argument, around: &Around) -> Option<String> {
    let ours = |port: &str| {
        let port = port.parse();
        around.ports.iter().any(|address| port == Ok(address.port()))
    };
    let reason = match (argument.option, argument.value.as_str()) {
        ("standalone", _) => "its workers get a store inside torchrun".to_owned(),
        ("rdzv-backend", "static") => return None,
        ("rdzv-backend", _) => "its workers get a store inside node 0's torchrun, which dies \
                                with that node; use --rdzv-backend=holdfast (from the \
                                Python package), or the static rendezvous"
            .to_owned(),
        ("rdzv-endpoint", endpoint) => {
            let address = around.ports.first().map(ToString::to_string);
            if address.as_deref() == Some(endpoint) {
                return None;
            }
            "it is not the agent, and goes over the address that the agent sets".to_owned()
        }
        ("master-port", port) if ours(port) => return None,
        ("master-port", _) => "the agent does not serve this port".to_owned(),
        ("master-addr", host) => {
            if around.ports.iter().any(|address| address.ip().to_string() == host) {
                return None;
            }
            "the agent of each host serves it under an address of its own".to_owned()
        }
        _ => return None,
    };
    Some(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    fn judged(command: &str, around: &Around) -> Option<(usize, String)> {
        let command = words(command);
        let contradiction = find(&command).expect("torchrun is found").contradiction(around)?;
        let corrected: Vec<_> =
            contradiction.corrected.iter().map(|word| word.to_string_lossy()).collect();
        Some((contradiction.reasons.len(), corrected.join(" ")))
    }

    #[test]
    fn torchrun_is_found_under_all_its_names() {
        for (command, first) in [
            ("torchrun train.py", 1),
            ("/opt/venv/bin/torchrun train.py", 1),
            ("env A=1 numactl -N 0 torchrun train.py", 6),
            ("python -m torch.distributed.run train.py", 3),
            ("python3.11 -um torch.distributed.run train.py", 3),
            ("python3 -u -X dev -W error -mtorch.distributed.launch train.py", 7),
        ] {
            assert_eq!(find(&words(command)).map(|found| found.first), Some(first), "{command}");
        }
        for command in [
            "python train.py torchrun --standalone",
            "python -c torch.distributed.run",
            "python -m train torchrun",
            "python",
            "python -m",
            "./train --launcher",
            "",
        ] {
            assert_eq!(find(&words(command)), None, "{command}");
        }
    }

    #[test]
    fn each_spelling_of_a_contradiction_is_refused_with_the_command_to_use() {
        let around = Around::default();
        let corrected = "torchrun --nproc-per-node=2 train.py --standalone";
        for argument in [
            "--standalone",
            "--stand",
            "--rdzv-backend=c10d",
            "--rdzv_backend c10d",
            "--rdzv-b=c10d",
            "--rdzv_b c10d",
            "--rdzv-backend=etcd-v2",
            "--rdzv-endpoint=node0:29400",
            "--rdzv_endpoint node0",
            "--master-port 29501",
            "--master_p=29501",
            "--master-addr=node0",
        ] {
            let command = format!("torchrun --nproc-per-node=2 {argument} train.py --standalone");
            assert_eq!(judged(&command, &around), Some((1, corrected.to_owned())), "{argument}");
        }
    }

    #[test]
    fn what_does_not_contradict_is_left_alone() {
        let ports = ["127.0.0.1:29500", "127.0.0.1:29501"].map(|text| text.parse().unwrap());
        let around = Around { ports: ports.into(), ..Around::default() };
        for arguments in [
            "",
            "--rdzv-backend=static",
            "--rdzv_backend static --nnodes=2 --node-rank 1 --rdzv-id 7",
            "--master-port=29501 --master-addr 127.0.0.1",
            "--rdzv-endpoint=127.0.0.1:29500",
            "-r3 -t 3 --log-dir /tmp -m",
            "--max-restarts=2 --no-python",
            "--unknown-to-us",
            "--role --standalone",
        ] {
            let command = format!("torchrun {arguments} train.py --rdzv-backend=c10d");
            assert_eq!(judged(&command, &around), None, "{arguments}");
        }
    }

    #[test]
    fn several_nodes_need_their_rank_and_their_number() {
        let command = "torchrun --nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=n0:1 train.py";
        let corrected = "torchrun --node-rank=N --nnodes=4 train.py".to_owned();
        assert_eq!(judged(command, &Around::default()), Some((2, corrected)));
        let around = Around { slurm: true, ..Around::default() };
        let corrected = "torchrun --node-rank=$SLURM_NODEID --nnodes=4 train.py".to_owned();
        assert_eq!(judged(command, &around), Some((2, corrected)));
        let ranked = "torchrun --nnodes 2 --node_rank 1 --rdzv-backend=c10d train.py";
        let corrected = "torchrun --nnodes 2 --node_rank 1 train.py".to_owned();
        assert_eq!(judged(ranked, &Around::default()), Some((1, corrected)));
    }

    #[test]
    fn a_backend_in_the_environment_is_replaced_unless_the_nodes_have_no_ranks() {
        let pet = |nodes: &str, pet_node_rank| Around {
            pet_backend: Some("c10d".to_owned()),
            pet_nodes: Some(nodes.to_owned()),
            pet_node_rank,
            ..Around::default()
        };
        assert_eq!(judged("torchrun train.py", &pet("1", false)), None);
        assert_eq!(judged("torchrun train.py", &pet("2", true)), None);
        let corrected = "torchrun --node-rank=N train.py".to_owned();
        assert_eq!(judged("torchrun train.py", &pet("2", false)), Some((1, corrected)));
    }

    #[test]
    fn where_the_package_is_nodes_meet_on_holdfast_unless_they_have_ranks() {
        let around = Around { has_ours: true, ..Around::default() };
        let of = |command: &str, around: &Around| {
            find(&words(command)).expect("torchrun is found").rendezvous(around)
        };
        assert_eq!(of("torchrun train.py", &around), Rendezvous::Holdfast);
        assert_eq!(of("torchrun train.py", &Around::default()), Rendezvous::Static);
        assert_eq!(of("torchrun --nnodes=2 --node-rank=1 train.py", &around), Rendezvous::Static);
        for (backend, pet_node_rank, expected) in [
            (Some("static"), false, Rendezvous::Static),
            (Some("c10d"), false, Rendezvous::Holdfast),
            (Some(OURS), true, Rendezvous::Holdfast),
            (None, true, Rendezvous::Static),
        ] {
            let pet_backend = backend.map(str::to_owned);
            let around = Around { pet_backend, pet_node_rank, has_ours: true, ..Around::default() };
            assert_eq!(of("torchrun train.py", &around), expected, "{backend:?}");
        }
        // A command refused for that is corrected to that one: the nodes need no ranks.
        let command = "torchrun --nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=n0:1 train.py";
        let corrected = "torchrun --nnodes=1:4 train.py".to_owned();
        assert_eq!(judged(command, &around), Some((2, corrected)));
        let pet_backend = Some("c10d".to_owned());
        let pet = Around { pet_backend, pet_nodes: Some("2".to_owned()), ..around };
        assert_eq!(judged("torchrun train.py", &pet), None);
    }

    #[test]
    fn the_rendezvous_of_holdfast_is_left_as_it_is() {
        let ours = "torchrun --rdzv-backend=holdfast --rdzv-endpoint=a:1,b:2 --nnodes=1:4 train.py";
        assert_eq!(judged(ours, &Around::default()), None);
        let pet = Around {
            pet_backend: Some(OURS.to_owned()),
            pet_nodes: Some("1:4".to_owned()),
            ..Around::default()
        };
        assert_eq!(judged("torchrun --rdzv-endpoint=a:1 train.py", &pet), None);
        // Arguments go over the environment.
        let other = judged("torchrun --rdzv-backend=c10d --node-rank=0 train.py", &pet);
        assert_eq!(other.map(|(reasons, _)| reasons), Some(1));
    }
}
