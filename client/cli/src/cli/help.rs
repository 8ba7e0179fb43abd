//! The help of the grammar: what applies to every command is shown once, at the
//! top, and each command has examples.

mod entries;

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};

use self::entries::ENTRIES;
use super::Cli;
use crate::colour::{HEADING, HELP};

/// What a user needs to know before the first command.
const BASICS: &str = "\
Settings: flags go over the environment (HOLDFAST_STORE, HOLDFAST_TOKEN_FILE, HOLDFAST_TLS_CA,
HOLDFAST_TLS_CERT, HOLDFAST_TLS_KEY, HOLDFAST_JOB, HOLDFAST_RUN), which goes over a TOML file (--config, HOLDFAST_CONFIG, or
~/.config/holdfast/config.toml if it exists; keys store, token_file, tls_ca,
tls_cert, tls_key, job, run, output, timeout), which goes over the defaults (store
127.0.0.1:21001,127.0.0.1:21002,127.0.0.1:21003; job default; output table; timeout 10s).
They stand before the command or after it. `holdfast config` shows the result and where each
value came from. HOLDFAST_LOG=debug logs the client's connections to standard error.

Keys and values are bytes. What is not text is written \\xNN, a backslash may be doubled, and a
value of - is read from standard input as it is. A key or value that begins with - goes after --,
unless it is a number.

Exit codes:
  0  ok
  1  refused: the cluster said no, the key is absent, the swap did not happen, the wait timed out
  2  usage: the command line, the environment or the configuration file is wrong
  3  unreachable: no node, or no leader, answered in time; nothing was changed
  4  outcome unknown: the change may have been made; look before you repeat it

";

/// Printed after the examples of every command but the top.
const SETTINGS: &str = "Settings (--job, --run, -o json, --timeout, …): see `holdfast --help`";

/// The grammar with its help.
pub(super) fn command() -> Command {
    let command = Cli::command().styles(HELP);
    // A copy that is not shown; clap hands it on to what is below.
    let hidden: Vec<Arg> = command
        .get_arguments()
        .filter(|argument| argument.is_global_set())
        .map(|argument| argument.clone().hide(true))
        .collect();
    let names = names(&command);
    let command = names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, |below| below_top(below.args(&hidden), name))
    });
    command.after_help(after_help(BASICS, "", ""))
}

fn names(command: &Command) -> Vec<String> {
    command.get_subcommands().map(|below| below.get_name().to_owned()).collect()
}

fn below_top(command: Command, path: &str) -> Command {
    let command = names(&command).iter().fold(command, |command, name| {
        command.mut_subcommand(name, |below| below_top(below, &format!("{path} {name}")))
    });
    command.after_help(after_help("", path, SETTINGS))
}

fn after_help(before: &str, path: &str, behind: &str) -> StyledStr {
    let mut text = before.to_owned();
    for heading in ["Settings:", "Exit codes:"] {
        text = text.replace(heading, &format!("{HEADING}{heading}{HEADING:#}"));
    }
    if let Some(entry) = ENTRIES.iter().find(|entry| entry.command == path) {
        let _ = writeln!(text, "{HEADING}Examples:{HEADING:#}");
        for line in entry.examples {
            let _ = writeln!(text, "  {line}");
        }
        if !entry.json.is_empty() {
            let words: Vec<&str> = entry.json.split_whitespace().collect();
            let _ = writeln!(text, "\n{HEADING}With -o json:{HEADING:#}\n  {}", words.join(" "));
        }
        if !behind.is_empty() {
            text.push('\n');
        }
    }
    text.push_str(behind);
    text.trim_end().to_owned().into()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::ColorChoice;

    use super::entries::Entry;
    use super::*;
    use crate::cli::parse;

    /// Every command with its path, the top's being empty.
    fn all() -> Vec<(String, Command)> {
        fn collect(path: &str, command: &Command, found: &mut Vec<(String, Command)>) {
            found.push((path.trim().to_owned(), command.clone()));
            for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
                collect(&format!("{path} {}", below.get_name()), below, found);
            }
        }
        let mut command = command();
        command.build();
        let mut found = Vec::new();
        collect("", &command, &mut found);
        found
    }

    fn help(command: &Command) -> String {
        command.clone().render_long_help().to_string()
    }

    #[test]
    fn every_command_has_examples_and_every_example_has_a_command() {
        let all = all();
        for (path, command) in &all {
            let has = ENTRIES.iter().any(|entry| entry.command == path);
            let does = !command.has_subcommands() || !command.is_subcommand_required_set();
            assert_eq!(has, path.is_empty() || does, "{path}");
        }
        for Entry { command, .. } in ENTRIES {
            assert!(all.iter().any(|(known, _)| known == command), "{command}");
        }
    }

    #[test]
    fn every_command_but_a_script_says_its_document() {
        for Entry { command, json, .. } in ENTRIES {
            let has = json.contains(['{', '[']);
            assert_eq!(has, !matches!(*command, "" | "completions"), "{command}: {json}");
        }
        let (_, put) = all().into_iter().find(|(path, _)| path == "kv put").expect("kv put");
        let help = help(&put);
        assert!(help.contains("With -o json:\n  {\"revision\"}"), "{help}");
    }

    #[test]
    fn every_example_can_be_typed() {
        for Entry { command, examples, .. } in ENTRIES {
            for line in *examples {
                let words = words(line);
                let parsed = parse(&words, ColorChoice::Never);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err().message());
                let named = command.split(' ').all(|word| line.contains(word));
                assert!(named, "the example of `{command}` shows something else: {line}");
            }
        }
    }

    /// The words of the part of a line that is ours, as a shell splits them.
    fn words(line: &str) -> Vec<OsString> {
        let ours = &line[line.find("holdfast").expect("an example names the program")..];
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for c in ours.chars() {
            match (quote, c) {
                (None, '\'' | '"') => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                (Some(open), c) if open == c => quote = None,
                (None, ' ') => words.extend(word.take().map(OsString::from)),
                (None, ')' | '|' | '<' | '&' | '>') => break,
                (_, c) => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word.map(OsString::from));
        for word in &mut words {
            if *word == "$HOLDFAST_FENCE" {
                *word = "llm:r7:3:12:4".into();
            }
        }
        words
    }

    #[test]
    fn settings_are_told_once_and_taken_everywhere() {
        for (path, command) in all() {
            let help = help(&command);
            let told = help.contains("--token-file");
            assert_eq!(told, path.is_empty(), "{path}: {help}");
            assert_eq!(help.contains(SETTINGS), !path.is_empty(), "{path}: {help}");
        }
        let line = ["kv", "get", "k", "--store", "a:1", "--color", "never", "-ojson"];
        for place in 0..3 {
            let mut line: Vec<&str> = line.to_vec();
            line.rotate_left(3);
            let (flags, rest) = line.split_at(5);
            let (before, behind) = rest.split_at(place);
            let line = [&["holdfast"], before, flags, behind].concat();
            let words: Vec<OsString> = line.iter().map(OsString::from).collect();
            assert!(parse(&words, ColorChoice::Never).is_ok(), "{line:?}");
        }
    }

    #[test]
    fn the_top_tells_what_one_needs_to_know() {
        let (_, top) = all().remove(0);
        let help = help(&top);
        for part in [
            "4  outcome unknown",
            "HOLDFAST_STORE",
            "HOLDFAST_CONFIG",
            "Examples:",
            "kv wait",
            "holdfast config",
        ] {
            assert!(help.contains(part), "{part} in {help}");
        }
    }

    /// Words that a line of help begins with.
    const VERBS: &[&str] = &[
        "Add", "Append", "Ask", "Begin", "Check", "Colour", "Compare", "Connect", "Count",
        "Delete", "Describe", "Do", "End", "Examine", "Give", "Go", "Hand", "Leave", "Let", "List",
        "Lose", "Make", "Open", "Print", "Put", "Raise", "Read", "Remove", "Say", "Send", "Set",
        "Show", "Take", "Use", "Wait", "Write",
    ];

    #[test]
    fn lines_of_help_begin_with_a_verb_and_options_tell_their_default() {
        for (path, command) in all() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let begins =
                |text: &str| VERBS.iter().any(|verb| text.split([' ', ',']).next() == Some(verb));
            assert!(path.is_empty() || begins(&about), "{path}: {about}");
            for option in command.get_arguments().filter(|one| !one.is_positional()) {
                let help = option.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(begins(&help), "{path} {option}: {help}");
                let tells = ["[default:", "can be repeated"].iter().any(|part| help.contains(part))
                    || !option.get_default_values().is_empty()
                    || option.is_required_set()
                    || !option.get_action().takes_values();
                assert!(tells, "{path} {option} does not tell its default: {help}");
            }
        }
    }

    #[test]
    fn headings_are_styled_alike() {
        let (_, top) = all().remove(0);
        let help = top.clone().render_help().ansi().to_string();
        for heading in ["Usage:", "Commands:", "Settings:", "Exit codes:", "Examples:"] {
            assert!(
                help.contains(&format!("{HEADING}{heading}{HEADING:#}")),
                "{heading}: {help:?}"
            );
        }
    }
}
