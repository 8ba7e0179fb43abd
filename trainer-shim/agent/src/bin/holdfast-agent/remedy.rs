//! The lines to type in place of one that was refused.

use std::ffi::{OsStr, OsString};

use holdfast_agent::agent::{self, Remedy};
use holdfast_agent::control::protocol::Refused;
use holdfast_api::Name;

use crate::keeping::KEPT;

/// The only word of a line whose variable the shell is to put in.
const NODE_RANK_OF_SLURM: &str = "--node-rank=$SLURM_NODEID";

/// A refusal of the agent that a command was to be attached to.
#[derive(Debug, thiserror::Error)]
#[error("not started: {}", .0.reason)]
pub struct NotAttached(pub Refused);

/// The command line to use instead of this program's own, if the error knows. Its
/// last `command` words are a command and its arguments.
pub fn of(error: &anyhow::Error, command: usize) -> Option<String> {
    let refused = error.downcast_ref::<NotAttached>().and_then(|one| one.0.remedy.clone());
    let own = || error.downcast_ref::<agent::Error>().and_then(agent::Error::remedy);
    let remedy = refused.or_else(own)?;
    let mut typed = typed();
    let command = typed.split_off(typed.len().saturating_sub(command));
    Some(lines(&remedy, &typed, &command))
}

/// This program's own line, with the agent at this address. Its last `command`
/// words are a command and its arguments.
pub fn at(address: &str, command: usize) -> String {
    let mut typed = typed();
    let command = typed.split_off(typed.len().saturating_sub(command));
    let line = with(without(&typed, "--tcpstore"), &["--tcpstore", address]);
    line.iter().chain(&command).map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// This program's own line, as it was typed.
fn typed() -> Vec<OsString> {
    let mut all: Vec<OsString> = std::env::args_os().collect();
    // The agent of `serve` got it from its keeper.
    if all.get(2).is_some_and(|word| word == KEPT) {
        all.remove(2);
    }
    all
}

fn lines(remedy: &Remedy, typed: &[OsString], command: &[OsString]) -> String {
    let shown = |words: Vec<OsString>| {
        let words = words.iter().chain(command);
        words.map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    };
    match remedy {
        Remedy::AnotherJob { job, run } => {
            let other = shown(with(without(typed, "--job"), &["--job", &next(job)]));
            let mut typed = typed.to_vec();
            typed.retain(|word| word != "--takeover");
            let over = if is_named(run, &typed) {
                // This line would name the run that it is to end.
                let words = ["--takeover", "--run", &next(run)];
                shown(with(without(&typed, "--run"), &words))
            } else {
                shown(with(typed, &["--takeover"]))
            };
            format!(
                "choose:\n  beside it, as another job:  {other}\n  in its place, which ends run \
                 {run}:  {over}"
            )
        }
        Remedy::AnotherRun { .. } => {
            // What was not typed has another source: a variable, the file, or the launcher.
            let other = run_in_environment().is_some() || value(typed, "--run").is_none();
            let auto: &[&str] = if other { &["--run", "auto"] } else { &[] };
            let line = shown(with(without(typed, "--run"), auto));
            format!("start a new one (or name one never used before with --run):\n  {line}")
        }
    }
}

fn run_in_environment() -> Option<String> {
    std::env::var("HOLDFAST_RUN").ok().filter(|run| !run.is_empty())
}

/// Whether this line probably names this run, by a flag, a variable, the file or its launcher: its
/// name is none that the store gives, or is typed.
fn is_named(run: &Name, typed: &[OsString]) -> bool {
    let number = run.as_str().strip_prefix('r');
    let automatic = number.is_some_and(|number| number.parse::<u64>().is_ok());
    let typed = value(typed, "--run").or_else(run_in_environment);
    !automatic || typed.is_some_and(|name| name == run.as_str())
}

/// The line with these words after the program and the verb.
fn with(mut line: Vec<OsString>, words: &[&str]) -> Vec<OsString> {
    let at = line.len().min(2);
    line.splice(at..at, words.iter().map(OsString::from));
    line
}

/// The line without a flag and its value.
fn without(typed: &[OsString], flag: &str) -> Vec<OsString> {
    let joined = format!("{flag}=");
    let mut kept = Vec::new();
    let mut words = typed.iter();
    while let Some(word) = words.next() {
        if word == flag {
            words.next();
        } else if !word.to_string_lossy().starts_with(&joined) {
            kept.push(word.clone());
        }
    }
    kept
}

/// The value of a flag, if the line has it.
fn value(typed: &[OsString], flag: &str) -> Option<String> {
    let mut words = typed.iter().map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        if word == flag {
            return words.next().map(|value| value.into_owned());
        }
        if let Some(value) = word.strip_prefix(flag).and_then(|rest| rest.strip_prefix('=')) {
            return Some(value.to_owned());
        }
    }
    None
}

/// Another name for a job or run, distinct from it: `train` is followed by `train-2`.
fn next(name: &Name) -> String {
    let name = name.as_str();
    let numbered = name.rsplit_once('-').and_then(|(stem, number)| {
        let number: u32 = number.parse().ok()?;
        Some(format!("{stem}-{}", number.checked_add(1)?))
    });
    let next = numbered.unwrap_or_else(|| format!("{name}-2"));
    if next.parse::<Name>().is_ok() { next } else { "NAME".to_owned() }
}

/// A word quoted for a shell.
pub fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
    if text == NODE_RANK_OF_SLURM || !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        for (word, shown) in [
            ("torchrun", "torchrun"),
            ("--node-rank=$SLURM_NODEID", "--node-rank=$SLURM_NODEID"),
            ("cost$5", "'cost$5'"),
            ("a b", "'a b'"),
            ("", "''"),
            ("it's", "'it'\\''s'"),
            ("*", "'*'"),
        ] {
            assert_eq!(quoted(OsStr::new(word)), shown);
        }
    }

    #[test]
    fn a_line_is_shown_as_it_has_to_be_typed() {
        let job = |name: &str| name.parse::<Name>().unwrap();
        for (typed, command, other, over) in [
            (
                "holdfast-agent run --job train --",
                "torchrun --job x train.py",
                "holdfast-agent run --job train-2 -- torchrun --job x train.py",
                "holdfast-agent run --takeover --job train -- torchrun --job x train.py",
            ),
            (
                "holdfast-agent run --store a:1 --job=train",
                "python train.py",
                "holdfast-agent run --job train-2 --store a:1 python train.py",
                "holdfast-agent run --takeover --store a:1 --job=train python train.py",
            ),
            (
                "holdfast-agent serve",
                "",
                "holdfast-agent serve --job train-2",
                "holdfast-agent serve --takeover",
            ),
        ] {
            let remedy = Remedy::AnotherJob { job: job("train"), run: job("r1") };
            let shown = lines(&remedy, &words(typed), &words(command));
            assert!(shown.contains(&format!("another job:  {other}\n")), "{shown}");
            assert!(shown.ends_with(&format!("ends run r1:  {over}")), "{shown}");
        }
        for (typed, line) in [
            ("run --job tr3 --run n1 --", "run --job tr3 -- torchrun train.py"),
            // The launcher named it, or the file.
            ("run --job tr3 --", "run --run auto --job tr3 -- torchrun train.py"),
        ] {
            let typed = words(&format!("holdfast-agent {typed}"));
            let remedy = Remedy::AnotherRun { job: job("tr3") };
            let shown = lines(&remedy, &typed, &words("torchrun train.py"));
            assert!(shown.ends_with(&format!("holdfast-agent {line}")), "{shown}");
        }
        for (typed, held, over) in [
            ("run --run r1 --", "r1", "run --takeover --run r1-2 -- python"),
            ("run --run=r2 --", "r1", "run --takeover --run=r2 -- python"),
            ("run --", "slurm-812.2.0", "run --takeover --run slurm-812.2.0-2 -- python"),
        ] {
            let typed = words(&format!("holdfast-agent {typed}"));
            let remedy = Remedy::AnotherJob { job: job("tr3"), run: job(held) };
            let shown = lines(&remedy, &typed, &words("python"));
            assert!(shown.ends_with(&format!("holdfast-agent {over}")), "{shown}");
        }
    }

    #[test]
    fn the_next_job_is_a_name() {
        let next = |name: &str| next(&name.parse().unwrap());
        assert_eq!(next("train"), "train-2");
        assert_eq!(next("train-2"), "train-3");
        assert_eq!(next("train-4294967295"), "train-4294967295-2");
        assert_eq!(next(&"x".repeat(128)), "NAME");
    }
}
