//! Layout of the help: settings that several commands share are shown once, at
//! the top.

use clap::{Arg, Args, Command, CommandFactory};

use crate::command_line::{CommandLine, Flags};

/// Settings come from several places.
const PLACES: &str = "\
Flags go over environment variables, these over the configuration file, that
over the defaults. A file looks like this, every line optional:
    store = \"10.0.0.1:21001,10.0.0.2:21001\"
    token_file = \"/etc/holdfast/token\"
    job = \"train\"
    run = \"r3\"
    tcpstore = \"127.0.0.1:29500\"
    store_lost_deadline = \"5min\"
    lease_ttl = \"5s\"
    allow_uid = \"1000,trainer\"
    connect_deadline = \"30s\"
    log = \"info\"
    log_format = \"json\"
    [limits]
    connections_max = 16384";

/// Examples of `serve`, for its own help and for that of the program.
const SERVE: &str = "\
  Serve the run r3 of job train at PyTorch's usual port:
    holdfast-agent serve --store 10.0.0.1:21001,10.0.0.2:21001,10.0.0.3:21001 \\
        --job train --run r3 --tcpstore 127.0.0.1:29500";

/// Examples of `run`, for its own help and for that of the program.
const RUN: &str = "\
  Start an unmodified PyTorch program in a new run of its own:
    export HOLDFAST_STORE=10.0.0.1:21001,10.0.0.2:21001
    holdfast-agent run --job train -- python train.py
    holdfast-agent run --job train -- torchrun --nproc-per-node=8 train.py";

/// Exit codes of `run`.
const CODES_OF_RUN: &str = "\
Exit codes: the command's own; 128+n if signal n ended it; 126 it cannot be
executed; 127 it was not found; 2 it was not started, because its own arguments
lead its ranks past the agent: the command to use instead is printed; 125 a
failure of the agent itself, wrong usage included.";

/// Exit codes of the other commands.
const CODES: &str = "Exit codes: 0 ok; 125 a failure of the agent itself, wrong usage included.";

/// The grammar as it shows itself.
pub fn command() -> Command {
    let top = CommandLine::command();
    let shared: Vec<Arg> =
        Flags::augment_args(Command::new("settings")).get_arguments().cloned().collect();
    let names: Vec<String> =
        shared.iter().filter_map(Arg::get_long).map(|name| format!("--{name}")).collect();
    let elsewhere =
        format!("Settings, described by `holdfast-agent --help`: {}.", names.join(", "));
    let below = |command: Command, examples: &str, codes: &str| {
        let command = shared.iter().fold(command, |command, shared| {
            command.mut_arg(shared.get_id(), |argument| argument.hide(true))
        });
        command.after_help(format!("{elsewhere}\n\nExamples:\n{examples}\n\n{codes}"))
    };
    let settings = settings(shared.clone());
    top.mut_subcommand("serve", |command| below(command, SERVE, CODES))
        .mut_subcommand("run", |command| below(command, RUN, CODES_OF_RUN))
        .after_help(format!(
            "Settings of `serve` and `run`, after the command:\n{settings}\n\n{PLACES}\n\nExamples:\n{SERVE}\n\n{RUN}\n\n{CODES}\nThose of `run`: `holdfast-agent run --help`."
        ))
}

/// The options as a list of them shows them.
fn settings(shared: Vec<Arg>) -> String {
    let mut list = Command::new("settings")
        .args(shared)
        .disable_help_flag(true)
        .max_term_width(100)
        .help_template("{options}");
    list.render_help().to_string().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words that a line of help begins with.
    const VERBS: [&str; 21] = [
        "Serve", "Open", "Print", "Ask", "Send", "End", "Listen", "Let", "Look", "Keep", "Count",
        "Connect", "Show", "Use", "Read", "Log", "Leave", "Wait", "Start", "Run", "Replace",
    ];

    fn begins_with_a_verb(text: &str) -> bool {
        VERBS.into_iter().chain(["Drain"]).any(|verb| text.split(' ').next() == Some(verb))
    }

    #[test]
    fn lines_of_help_begin_with_a_verb() {
        let mut top = command();
        top.build();
        for verb in top.get_subcommands().filter(|verb| verb.get_name() != "help") {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(verb.is_hide_set() || begins_with_a_verb(&about), "{}", verb.get_name());
            for option in verb.get_opts().filter(|one| one.get_long() != Some("help")) {
                let help = option.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(verb.is_hide_set() || begins_with_a_verb(&help), "{option}: {help}");
            }
        }
    }

    #[test]
    fn settings_are_told_once_and_taken_where_they_are_named() {
        let mut top = command();
        top.build();
        let told = top.render_long_help().to_string();
        for verb in ["serve", "run"] {
            let below = top.find_subcommand_mut(verb).expect("it is there");
            let help = below.render_long_help().to_string();
            for shared in Flags::augment_args(Command::new("x")).get_arguments() {
                let name = format!("--{}", shared.get_long().expect("they are options"));
                assert!(told.contains(&format!("\n      {name}")), "{name}");
                assert!(!help.contains(&format!("\n      {name}")), "{verb} {name}");
                assert!(help.contains(&name), "{verb} does not name {name}");
                let variable = shared.get_env().map(|name| name.to_string_lossy().into_owned());
                assert!(variable.is_none_or(|variable| told.contains(&variable)), "{name}");
            }
            assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
        }
    }
}
