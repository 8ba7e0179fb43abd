//! Reads a command line, and says what is wrong with one in the form that was
//! asked for.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ColorChoice, Command, CommandFactory, FromArgMatches, ValueEnum};

use super::{Cli, help, hints};
use crate::colour::When;
use crate::nearest::nearest;
use crate::output::{Output, repeated};

/// Why a command line is not run: it cannot be understood, or it asks for help
/// or the version.
#[derive(Debug)]
pub(crate) struct UsageError(clap::Error);

/// Reads a command line, the program's name first.
pub(crate) fn parse(arguments: &[OsString], colour: ColorChoice) -> Result<Cli, UsageError> {
    let command = help::command().color(colour);
    let parsed = command
        .try_get_matches_from(arguments)
        .and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    parsed.map_err(|error| UsageError(with_hint(error, arguments)))
}

/// The script that completes command lines in this shell.
pub(crate) fn complete(shell: clap_complete::Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut script);
    script
}

/// Names what was probably meant, where clap does not: a command known from
/// another tool; words of few letters; settings, which the help of the command
/// does not show.
fn with_hint(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    shorten(&mut error);
    let Some(word) = context(&error) else { return error };
    let command = named(arguments);
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            if let Some(hint) = hints::for_words(&word, arguments) {
                error.remove(ContextKind::SuggestedSubcommand);
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
            } else if error.get(ContextKind::SuggestedSubcommand).is_none()
                && let Some(near) = nearest(&word, command.get_subcommands().map(Command::get_name))
            {
                let near = ContextValue::Strings(vec![near.to_owned()]);
                error.insert(ContextKind::SuggestedSubcommand, near);
            }
        }
        ErrorKind::UnknownArgument if error.get(ContextKind::SuggestedArg).is_none() => {
            let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
            let top = Cli::command();
            let known = command.get_arguments().chain(top.get_arguments());
            if let Some(near) = nearest(name, known.filter_map(Arg::get_long)) {
                // Removes the hint that it could be a value.
                error.remove(ContextKind::Suggested);
                error.insert(ContextKind::SuggestedArg, ContextValue::String(format!("--{near}")));
            }
        }
        _ => {}
    }
    error
}

/// What was typed may be of any length: only its beginning is repeated.
fn shorten(error: &mut clap::Error) {
    let typed =
        [ContextKind::InvalidValue, ContextKind::InvalidArg, ContextKind::InvalidSubcommand];
    for kind in typed {
        if let Some(ContextValue::String(text)) = error.get(kind) {
            let shown = repeated(text);
            if shown != *text {
                // It repeats the whole.
                error.remove(ContextKind::Suggested);
            }
            error.insert(kind, ContextValue::String(shown));
        }
    }
}

/// The command that a line names, as far as it is understood.
fn named(arguments: &[OsString]) -> Command {
    arguments.iter().skip(1).fold(help::command(), |command, word| {
        let below = word.to_str().and_then(|word| command.find_subcommand(word)).cloned();
        below.unwrap_or(command)
    })
}

/// The word that an error is about.
fn context(error: &clap::Error) -> Option<String> {
    let kinds = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg];
    kinds.into_iter().find_map(|kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    })
}

impl UsageError {
    /// Whether help or the version was asked for, which is no error.
    pub(crate) fn is_answer(&self) -> bool {
        !self.0.use_stderr()
    }

    /// Prints it for people, to where it belongs.
    pub(crate) fn print(&self) {
        // The reader has closed the pipe and wants no output.
        let _ = self.0.print();
    }

    /// What is wrong, in words without colour or layout.
    pub(crate) fn message(&self) -> String {
        if self.0.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            return "a command is missing; `holdfast --help` shows all of them".to_owned();
        }
        let text = self.0.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// What has to be known of a command line before it is parsed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) output: Option<Output>,
    pub(crate) colour: Option<When>,
    pub(crate) config: Option<PathBuf>,
}

/// Finds the form of the answer in a command line that may be wrong. The last
/// word counts, as in one that is right.
pub(crate) fn asked(arguments: &[OsString]) -> Asked {
    let mut asked = Asked::default();
    let mut words = arguments.iter().skip(1).map(OsString::as_os_str);
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        }
        let Some((option, value)) = option(word) else { continue };
        if !["output", "color", "config"].contains(&option) {
            continue;
        }
        let Some(value) = value.or_else(|| words.next()) else { break };
        let text = value.to_str().unwrap_or_default();
        match option {
            "output" => asked.output = Output::from_str(text, false).ok().or(asked.output),
            "color" => asked.colour = When::from_str(text, false).ok().or(asked.colour),
            _ => asked.config = Some(value.into()),
        }
    }
    asked
}

/// The name of an option, and its value if that stands in the same word.
fn option(word: &OsStr) -> Option<(&str, Option<&OsStr>)> {
    let text = word.to_str()?;
    if let Some(long) = text.strip_prefix("--") {
        return Some(match long.split_once('=') {
            Some((name, value)) => (name, Some(OsStr::new(value))),
            None => (long, None),
        });
    }
    let (_, value) = text.strip_prefix('-')?.split_once('o')?;
    let value = value.strip_prefix('=').unwrap_or(value);
    Some(("output", Some(OsStr::new(value)).filter(|value| !value.is_empty())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn how_to_answer_is_found_in_a_line_that_is_wrong() {
        for line in [
            "holdfast -o json frobnicate",
            "holdfast frobnicate --output json",
            "holdfast kv get --output=json --jbo x",
            "holdfast kv -ojson",
            "holdfast kv -o=json",
            "holdfast events -fo json --jbo",
            "holdfast -o table kv -o json",
            "holdfast -o json -o xml status",
        ] {
            assert_eq!(asked(&words(line)).output, Some(Output::Json), "{line}");
        }
        for line in ["holdfast", "holdfast -o", "holdfast kv put k -- -o json"] {
            assert_eq!(asked(&words(line)), Asked::default(), "{line}");
        }
        let all = asked(&words("holdfast --color always --config=a.toml kv"));
        let config = Some(PathBuf::from("a.toml"));
        assert_eq!(all, Asked { output: None, colour: Some(When::Always), config });
    }

    #[test]
    fn the_message_is_what_people_read_without_its_layout() {
        let error = parse(&words("holdfast kv get k --jbo x"), ColorChoice::Always).unwrap_err();
        assert!(!error.is_answer());
        let message = error.message();
        for part in ["unexpected argument '--jbo' found\n", "a similar argument exists: '--job'"] {
            assert!(message.contains(part), "{message}");
        }
        assert!(!message.contains("error:") && !message.contains('\x1b'), "{message}");
        let missing = parse(&words("holdfast kv"), ColorChoice::Auto).unwrap_err().message();
        assert!(missing.contains("a command is missing"), "{missing}");
    }
}
