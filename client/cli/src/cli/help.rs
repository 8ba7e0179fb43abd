//! The help of the grammar: what applies to every command is shown once, at the
//! top, and each command has examples.

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};

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
value of - is read from standard input as it is. A key or value that begins with - goes behind --,
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

/// Commands and what to type, each as it stands in the command's own help.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "holdfast status",
            "holdfast --store 10.0.0.1:21001,10.0.0.2:21001 doctor",
            "holdfast --job llm why",
            "holdfast --job llm events --follow",
            "holdfast --job llm job plan --without host7",
            "holdfast --job llm run open",
            "holdfast --job llm kv put checkpoint/step 4200",
            "holdfast --job llm kv cas owner '' \"$(hostname)\"",
            "holdfast --job llm kv wait ready --timeout 5m && start-training",
            "holdfast --job llm -o json kv watch checkpoint/ | jq .value",
        ],
    ),
    ("status", &["holdfast status", "holdfast --store 10.0.0.1:21001 status -o json"]),
    ("node list", &["holdfast node list"]),
    ("node add", &["holdfast node add 4 10.0.0.4:21001"]),
    ("node promote", &["holdfast node promote 4"]),
    (
        "node replace",
        &["holdfast node replace 2 4", "holdfast node replace 2 4 10.0.0.4:21001 --force"],
    ),
    ("node remove", &["holdfast node remove 4"]),
    ("leader show", &["holdfast leader show"]),
    ("leader transfer", &["holdfast leader transfer", "holdfast leader transfer 2"]),
    ("backup", &["holdfast backup monday.backup", "holdfast backup - | zstd > monday.zst"]),
    (
        "backup verify",
        &["holdfast backup verify monday.backup", "zstd -dc monday.zst | holdfast backup verify -"],
    ),
    ("agent list", &["holdfast agent list", "holdfast --job llm agent list"]),
    ("waits", &["holdfast waits", "holdfast --job llm --run r7 waits"]),
    ("why", &["holdfast why", "holdfast --job llm why", "holdfast --job llm why --follow"]),
    ("processes", &["holdfast --job llm processes", "holdfast --job llm --run r7 processes"]),
    ("process remove", &["holdfast --job llm process remove 7 --reason 'ECC errors on host7'"]),
    ("fence check", &["holdfast fence check \"$HOLDFAST_FENCE\" && upload checkpoint"]),
    ("rounds", &["holdfast --job llm rounds"]),
    (
        "comm list",
        &["holdfast --job llm comm list", "holdfast --job llm -o json comm list | jq .groups"],
    ),
    (
        "comm show",
        &[
            "holdfast --job llm comm show world",
            "holdfast --job llm comm show world --generation 12",
        ],
    ),
    ("comm excuse", &["holdfast --job llm comm excuse world 7"]),
    ("comm revoke", &["holdfast --job llm comm revoke world --reason 'NIC of host7 flaps'"]),
    ("iterations", &["holdfast --job llm iterations"]),
    (
        "events",
        &[
            "holdfast --job llm events --follow",
            "holdfast --job llm events --after 4200 -o json | jq .what",
        ],
    ),
    ("doctor", &["holdfast doctor", "holdfast doctor --python .venv/bin/python"]),
    ("job list", &["holdfast job list"]),
    ("job delete", &["holdfast job delete llm"]),
    (
        "job plan",
        &[
            "holdfast --job llm job plan --without host7",
            "holdfast --job llm job plan --without 12 --without 13",
        ],
    ),
    ("run list", &["holdfast --job llm run list"]),
    ("run open", &["holdfast --job llm run open", "holdfast --job llm run open r7"]),
    ("run end", &["holdfast --job llm run end r7"]),
    ("run delete", &["holdfast --job llm run delete r7"]),
    (
        "kv put",
        &[
            "holdfast kv put greeting hello",
            "holdfast kv put config - < config.json",
            "holdfast kv put owner host7 --if-revision 0",
            "holdfast kv put flags -- --fast",
        ],
    ),
    ("kv get", &["holdfast kv get greeting", "holdfast kv get config --raw > config.json"]),
    ("kv add", &["holdfast kv add steps 1", "holdfast kv add budget -5"]),
    ("kv max", &["holdfast kv max last_step 4200"]),
    ("kv cas", &["holdfast kv cas owner '' host7", "holdfast kv cas owner host7 host8"]),
    ("kv delete", &["holdfast kv delete greeting", "holdfast kv delete --prefix checkpoint/"]),
    (
        "kv txn",
        &[
            "holdfast kv txn --if 'absent(owner)' --then 'put owner host7' --else 'get owner'",
            "holdfast kv txn --if 'value(\"owner\") = \"host7\"' --then 'delete owner' --then 'add freed 1'",
            "holdfast kv txn < swap.txt",
        ],
    ),
    ("kv append", &["holdfast kv append log 'step 4200 done'"]),
    ("kv list", &["holdfast kv list", "holdfast kv list checkpoint/ --keys-only"]),
    ("kv count", &["holdfast kv count checkpoint/"]),
    (
        "kv watch",
        &["holdfast kv watch", "holdfast -o json kv watch checkpoint/ --from 42 | jq .value"],
    ),
    (
        "kv wait",
        &[
            "holdfast kv wait ready --timeout 5m && start-training",
            "holdfast kv wait steps --at-least 100 --timeout never",
        ],
    ),
    ("kv push", &["holdfast kv push work shard-17"]),
    ("kv pop", &["holdfast kv pop work"]),
    ("kv length", &["holdfast kv length work"]),
    ("token keygen", &["holdfast token keygen tokens.key"]),
    (
        "token create",
        &[
            "holdfast token create --key tokens.key --role job --jobs 'llm-*' --name team-a --expires 30d",
            "holdfast token create --key tokens.key --role operator --name alice --expires 12h",
        ],
    ),
    ("token list", &["holdfast token list"]),
    ("token revoke", &["holdfast token revoke t0123456789abcdef --keep 30d"]),
    ("token show", &["holdfast token show team-a.token"]),
    ("config", &["holdfast config", "HOLDFAST_JOB=llm holdfast config -o json"]),
    ("completions", &["source <(holdfast completions bash)"]),
    ("version", &["holdfast version"]),
];

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
    if let Some((_, lines)) = EXAMPLES.iter().find(|(of, _)| *of == path) {
        let _ = writeln!(text, "{HEADING}Examples:{HEADING:#}");
        for line in *lines {
            let _ = writeln!(text, "  {line}");
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
            let has = EXAMPLES.iter().any(|(of, _)| of == path);
            let does = !command.has_subcommands() || !command.is_subcommand_required_set();
            assert_eq!(has, path.is_empty() || does, "{path}");
        }
        for (path, _) in EXAMPLES {
            assert!(all.iter().any(|(known, _)| known == path), "{path}");
        }
    }

    #[test]
    fn every_example_can_be_typed() {
        for (path, lines) in EXAMPLES {
            for line in *lines {
                let words = words(line);
                let parsed = parse(&words, ColorChoice::Never);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err().message());
                let named = path.split(' ').all(|word| line.contains(word));
                assert!(named, "the example of `{path}` shows something else: {line}");
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
