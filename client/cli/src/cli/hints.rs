//! The commands of etcdctl and kubectl that people type from habit, and what
//! they are called here.

use std::ffi::OsString;

/// The tool, its words, and our command.
const HABITS: &[(&str, &str, &str)] = &[
    ("etcdctl", "get", "holdfast kv get"),
    ("etcdctl", "put", "holdfast kv put"),
    ("etcdctl", "del", "holdfast kv delete"),
    ("etcdctl", "txn", "holdfast kv txn"),
    ("etcdctl", "watch", "holdfast kv watch"),
    ("etcdctl", "member list", "holdfast node list"),
    ("etcdctl", "member add", "holdfast node add"),
    ("etcdctl", "member promote", "holdfast node promote"),
    ("etcdctl", "member remove", "holdfast node remove"),
    ("etcdctl", "member", "holdfast node"),
    ("etcdctl", "endpoint health", "holdfast doctor"),
    ("etcdctl", "endpoint status", "holdfast status"),
    ("etcdctl", "endpoint", "holdfast status"),
    ("etcdctl", "move-leader", "holdfast leader transfer"),
    ("etcdctl", "alarm", "holdfast doctor"),
    ("etcdctl", "completion", "holdfast completions"),
    ("kubectl", "cluster-info", "holdfast status"),
    ("kubectl", "logs", "holdfast events"),
    ("the shell", "ls", "holdfast kv list"),
    ("the shell", "rm", "holdfast kv delete"),
];

/// Commands that do not exist, and the nearest ones that do.
const MISSING: &[(&str, &str)] = &[
    (
        "lock",
        "there is no command for it: programs of a job take locks with `job.lock(name)` (Python) or `Process::lock` (Rust), which end with their holder, and `holdfast comm list` shows them; with `holdfast kv cas KEY '' ME` one of many gets a key, which stays when its owner dies",
    ),
    (
        "elect",
        "there is no election here yet; with `holdfast kv cas KEY '' ME` one of many gets a key, which stays when its owner dies",
    ),
    (
        "lease",
        "a lease here is held by a program, for its processes: `holdfast processes` lists those; no key ends with it",
    ),
];

/// What to type in the place of a word that is no command; `arguments` is the
/// whole line, for the word that follows.
pub(super) fn for_words(word: &str, arguments: &[OsString]) -> Option<String> {
    let mut rest = arguments.iter().skip_while(|argument| *argument != word).skip(1);
    let next = rest.next().and_then(|next| next.to_str()).unwrap_or_default();
    let both = format!("{word} {next}");
    let found = |words: &str| HABITS.iter().find(|(_, theirs, _)| *theirs == words);
    if let Some((tool, theirs, ours)) = found(&both).or_else(|| found(word)) {
        return Some(format!("{tool}'s `{theirs}` is `{ours}`"));
    }
    let missing = MISSING.iter().find(|(theirs, _)| *theirs == word);
    missing.map(|(_, instead)| (*instead).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    fn said(line: &str) -> String {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        parse(&words, clap::ColorChoice::Never).expect_err(line).message()
    }

    #[test]
    fn every_habit_is_answered_with_a_command_that_exists() {
        for (_, theirs, ours) in HABITS {
            let said = said(&format!("holdfast --job llm {theirs} x"));
            assert!(said.contains(&format!("`{theirs}` is `{ours}`")), "{said}");
            assert!(!said.contains("similar"), "{said}");
            let mut command = crate::cli::help::command();
            for word in ours.split_whitespace().skip(1) {
                let next = command.find_subcommand(word).cloned();
                command = next.unwrap_or_else(|| panic!("{ours} does not exist"));
            }
        }
    }

    #[test]
    fn what_there_is_not_is_said() {
        for (theirs, instead) in MISSING {
            assert!(said(&format!("holdfast {theirs} x")).contains(instead));
            assert!(said(&format!("holdfast kv {theirs} x")).contains(instead));
        }
    }

    #[test]
    fn a_slip_is_answered_with_the_nearest_command() {
        assert!(said("holdfast stauts").contains("a similar subcommand exists: 'status'"));
        assert!(said("holdfast node lst").contains("'list'"));
    }
}
