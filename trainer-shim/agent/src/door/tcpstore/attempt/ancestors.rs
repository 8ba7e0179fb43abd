//! Ancestors of a process whose own variables do not give its attempt.
//!
//! Only a launcher restarts ranks in place, and a rank is a descendant of its
//! launcher. So a process without one among its ancestors was never restarted,
//! and a process below a rank without the variable has that rank's attempt.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::variables::Variables;

const ANCESTORS_MAX: usize = 128;
/// Words of a command line that are looked at.
const WORDS_MAX: usize = 4_096;

/// torchrun's programs, and those that carry it inside.
const LAUNCHERS: [&str; 5] =
    ["torchrun", "accelerate", "accelerate-launch", "ft_launcher", "torchx"];
const LAUNCHER_MODULES: [&str; 5] = [
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "nvidia_resiliency_ext.fault_tolerance.launcher",
];
/// Launchers whose count of restarts is an argument or this variable, and is 0 if neither is set.
const TORCHRUN: [&str; 3] = ["torchrun", "torch.distributed.run", "torch.distributed.launch"];
const RESTARTS_ARGUMENT: &str = "--max-restarts";
const RESTARTS_VARIABLE: &str = "PET_MAX_RESTARTS";

/// A process that cannot be taken for another one.
pub type Identity = (u32, u64);

/// Origin of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// An ancestor whose variables give the attempt of all its descendants.
    Attempt(u32),
    /// No launcher that can be seen to be one.
    NoLauncher,
    /// A launcher that never restarts its ranks.
    Unrestarted,
    /// A launcher that may restart it: this process.
    Launcher(u32),
    /// The origin cannot be seen from here.
    Unseen,
}

struct Stat {
    parent: u32,
    started: u64,
}

impl Stat {
    fn of(process: u32) -> Option<Stat> {
        let path = Path::new("/proc").join(process.to_string()).join("stat");
        let text = fs::read(path).ok()?;
        let text = String::from_utf8_lossy(&text);
        // The name before may hold anything.
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let started = fields.nth(17)?.parse().ok()?;
        Some(Stat { parent, started })
    }
}

/// The process with this id, if there is one that can be seen.
pub fn identity(process: u32) -> Option<Identity> {
    Stat::of(process).map(|stat| (process, stat.started))
}

/// Looks at the ancestors of a process. `launchers` are known to be some.
pub fn origin(process: u32, launchers: &BTreeSet<Identity>) -> Origin {
    let Some(mut stat) = Stat::of(process) else { return Origin::Unseen };
    for _ in 0..ANCESTORS_MAX {
        let process = stat.parent;
        if process == 0 {
            return Origin::NoLauncher;
        }
        let Some(next) = Stat::of(process) else { return Origin::Unseen };
        stat = next;
        let words = command_line(process);
        let variables = Variables::of(process).ok();
        if let Some(launcher) = launcher(&words) {
            return match TORCHRUN.contains(&launcher) && !restarts(&words, variables.as_ref()) {
                true => Origin::Unrestarted,
                false => Origin::Launcher(process),
            };
        }
        if launchers.contains(&(process, stat.started)) {
            return Origin::Launcher(process);
        }
        if let Some(attempt) = variables.and_then(|variables| variables.say_of_rank()) {
            return Origin::Attempt(attempt);
        }
    }
    Origin::Unseen
}

fn command_line(process: u32) -> Vec<String> {
    let path = Path::new("/proc").join(process.to_string()).join("cmdline");
    let bytes = fs::read(path).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).take(WORDS_MAX);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The launcher that a command line starts, if it does.
fn launcher(words: &[String]) -> Option<&'static str> {
    let base = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let program = |word: &str| LAUNCHERS.into_iter().find(|name| *name == base(word));
    let (first, mut rest) = (words.first()?, words.iter().skip(1));
    if let Some(found) = program(first) {
        return Some(found);
    }
    if !base(first).starts_with("python") {
        return None;
    }
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-m" => {
                let module = rest.next()?;
                return LAUNCHER_MODULES.into_iter().find(|name| name == module);
            }
            "-X" | "-W" => drop(rest.next()),
            flag if flag.starts_with('-') => {}
            script => {
                let module = script.strip_suffix(".py").unwrap_or(script).replace('/', ".");
                let is_file_of = |name: &&str| module.ends_with(&format!(".{name}"));
                return program(script).or_else(|| LAUNCHER_MODULES.into_iter().find(is_file_of));
            }
        }
    }
    None
}

/// Whether torchrun may restart its ranks in place. An argument of the program
/// after it with the same name counts, too: the two look the same here.
fn restarts(words: &[String], variables: Option<&Variables>) -> bool {
    let is_none = |count: &str| count.parse() == Ok(0_u64);
    let mut words = words.iter();
    let mut named = None;
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.as_str(), None),
        };
        // argparse takes a beginning for the whole.
        let name = name.replace('_', "-");
        if name.starts_with("--max") && RESTARTS_ARGUMENT.starts_with(&name) {
            let value = value.or_else(|| words.next().map(String::as_str));
            let none = named.unwrap_or(true) && value.is_some_and(is_none);
            named = Some(none);
        }
    }
    match (named, variables) {
        (Some(none), _) => !none,
        (None, Some(variables)) if variables.are_whole() => {
            variables.get(RESTARTS_VARIABLE).is_some_and(|count| !is_none(count))
        }
        (None, _) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn launchers_are_known_by_their_command_lines() {
        for (line, expected) in [
            ("/usr/bin/python3.11 /venv/bin/torchrun --nproc-per-node=2 t.py", Some("torchrun")),
            ("python3 -u -X dev -m torch.distributed.run t.py", Some("torch.distributed.run")),
            (
                "python /site-packages/torch/distributed/launch.py t.py",
                Some("torch.distributed.launch"),
            ),
            ("/venv/bin/python /venv/bin/accelerate launch t.py", Some("accelerate")),
            ("torchrun t.py", Some("torchrun")),
            // Commands that only name one.
            ("python train.py torchrun", None),
            ("python -m train torch.distributed.run", None),
            ("holdfast-agent run -- torchrun t.py", None),
            ("sh -c torchrun", None),
            ("python", None),
            ("", None),
        ] {
            assert_eq!(launcher(&words(line)), expected, "{line}");
        }
    }

    #[test]
    fn torchrun_restarts_its_ranks_if_it_is_told_to() {
        let whole = || Variables::of(std::process::id()).unwrap();
        for (line, expected) in [
            ("torchrun t.py", false),
            ("torchrun --max-restarts=0 t.py", false),
            ("torchrun --max_restarts 3 t.py", true),
            ("torchrun --max-r=1 t.py", true),
            ("torchrun --max-restarts t.py", true),
            ("torchrun t.py --max-steps=3 --maximum 4", false),
            ("torchrun --max-restarts=0 t.py --max-restarts=2", true),
        ] {
            assert_eq!(restarts(&words(line), Some(&whole())), expected, "{line}");
        }
        assert!(restarts(&words("torchrun t.py"), None), "a variable may say it");
    }

    #[test]
    fn a_process_without_a_launcher_above_it_was_never_restarted() {
        let own = std::process::id();
        let parent = Stat::of(own).unwrap().parent;
        assert_eq!(origin(own, &BTreeSet::new()), Origin::NoLauncher);
        let launchers = BTreeSet::from([identity(parent).unwrap()]);
        assert_eq!(origin(own, &launchers), Origin::Launcher(parent));
        assert_eq!(origin(u32::MAX, &launchers), Origin::Unseen);
        assert_eq!(identity(u32::MAX), None);
    }
}
