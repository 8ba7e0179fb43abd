//! Guesses for an unknown word; completion scripts.

use std::io::{self, Write};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, CommandFactory};
use clap_complete::Shell;

use crate::command_line::CommandLine;

/// Below this two words have nothing to do with each other.
const LIKENESS_MIN: f64 = 0.7;

/// Names the nearest option: clap takes no short words with two letters
/// exchanged.
pub fn with_hint(mut error: clap::Error, verb: Option<&str>) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return error };
    let name = word.trim_start_matches('-').split('=').next().unwrap_or_default().to_owned();
    let top = CommandLine::command();
    let verb = verb.and_then(|verb| top.find_subcommand(verb).cloned());
    let known = verb.unwrap_or(top);
    if let Some(near) = nearest(&name, known.get_arguments().filter_map(Arg::get_long)) {
        // Not that it could be a value.
        error.remove(ContextKind::Suggested);
        let near = ContextValue::String(format!("--{near}"));
        error.insert(ContextKind::SuggestedArg, near);
    }
    error
}

/// The one of these words that was probably meant.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |one: &str| match strsim::osa_distance(word, one) {
        1 => 1.0,
        _ => strsim::jaro(word, one),
    };
    let rated = known.into_iter().map(|one| (likeness(one), one));
    let near = rated.filter(|(likeness, _)| *likeness > LIKENESS_MIN);
    near.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, one)| one)
}

/// Prints the script that completes command lines in this shell.
pub fn complete(shell: Shell) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::command(), "holdfast-agent", &mut script);
    io::stdout().write_all(&script)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// A word with two letters exchanged, or one left out: another word.
    fn slip(word: &str, known: &[&str]) -> String {
        let letters: Vec<char> = word.chars().collect();
        let exchanged = (1..letters.len()).map(|n| {
            let mut slip = letters.clone();
            slip.swap(n - 1, n);
            slip.into_iter().collect::<String>()
        });
        let mut other = exchanged.filter(|slip| !known.contains(&slip.as_str()) && slip != word);
        other.next_back().expect("no option is one letter again and again")
    }

    #[test]
    fn each_option_with_a_letter_wrong_is_refused_and_the_right_one_named() {
        let top = CommandLine::command();
        let mut tried = 0;
        for verb in top.get_subcommands() {
            let known: Vec<&str> = verb.get_arguments().filter_map(Arg::get_long).collect();
            for option in &known {
                let wrong = format!("--{}", slip(option, &known));
                let line = ["holdfast-agent", verb.get_name(), &wrong, "x", "--", "true"];
                let error = CommandLine::try_parse_from(line).expect_err(&wrong);
                let said = with_hint(error, Some(verb.get_name())).to_string();
                assert!(said.contains(&format!("'--{option}'")), "{wrong}: {said}");
                assert!(said.contains(&wrong), "{wrong}: {said}");
                tried += 1;
            }
        }
        assert!(tried > 30, "{tried}");
    }

    #[test]
    fn a_slip_is_near_and_another_word_is_not() {
        let known = ["store", "token_file", "job", "run"];
        for (word, meant) in [
            ("stroe", Some("store")),
            ("jbo", Some("job")),
            ("tokenfile", Some("token_file")),
            ("x", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
    }
}
