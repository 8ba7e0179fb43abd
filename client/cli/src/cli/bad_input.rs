//! Everything that can be mistyped, made from the grammar itself: each must be
//! a usage error that names the error, and the nearest known word.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ColorChoice, Command};
use holdfast_api::Blob;

use super::{help, parse};
use crate::argument::Value;

/// Values of which one fits every argument.
const SAMPLES: [&str; 9] =
    ["1", "k", "a:1", "llm:r7:3:12:4", "bash", "exists(k)", "get k", "admin", "30d"];
/// A value that only an argument takes that takes every value.
const RUBBISH: &str = "!/ \u{1}";

/// A word with one letter replaced, left out, or exchanged with the next.
fn slips(word: &str) -> Vec<String> {
    let letters: Vec<char> = word.chars().collect();
    let mut slips = Vec::new();
    for index in 0..letters.len() {
        let mut replaced = letters.clone();
        replaced[index] = if letters[index] == 'q' { 'z' } else { 'q' };
        slips.push(replaced);
        let mut shorter = letters.clone();
        shorter.remove(index);
        slips.push(shorter);
        if index + 1 < letters.len() {
            let mut exchanged = letters.clone();
            exchanged.swap(index, index + 1);
            slips.push(exchanged);
        }
    }
    let slips = slips.into_iter().map(String::from_iter);
    // A word that begins with a dash is parsed as something else.
    slips.filter(|slip| slip != word && !slip.is_empty() && !slip.starts_with('-')).collect()
}

/// The commands that do something, with the words that name them.
fn leaves() -> Vec<(Vec<String>, Command)> {
    fn collect(path: &[String], command: &Command, found: &mut Vec<(Vec<String>, Command)>) {
        if !command.has_subcommands() {
            found.push((path.to_vec(), command.clone()));
        }
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            collect(&[path, &[below.get_name().to_owned()]].concat(), below, found);
        }
    }
    let mut command = help::command();
    command.build();
    let mut found = Vec::new();
    collect(&[], &command, &mut found);
    found
}

/// A value that an argument takes.
fn sample(argument: &Arg) -> String {
    let taken = |value: &&&str| {
        let mut argument = argument.clone().global(false);
        if argument.is_positional() {
            argument = argument.index(1);
        }
        let long = argument.get_long().map(|long| format!("--{long}"));
        let words = ["x".to_owned()].into_iter().chain(long).chain([(**value).to_owned()]);
        Command::new("x").arg(argument).try_get_matches_from(words).is_ok()
    };
    let found = SAMPLES.iter().find(taken);
    (*found.unwrap_or_else(|| panic!("no sample fits {argument}"))).to_owned()
}

/// The line of a command with all that it needs, but without this argument.
fn line(path: &[String], command: &Command, without: Option<&Arg>) -> Vec<String> {
    let mut line = [&["holdfast".to_owned()], path].concat();
    let needed = command.get_arguments().filter(|argument| {
        argument.is_required_set() && without.is_none_or(|one| one.get_id() != argument.get_id())
    });
    for argument in needed {
        line.extend(argument.get_long().map(|long| format!("--{long}")));
        line.push(sample(argument));
    }
    // One of several that exclude each other.
    if path.join(" ") == "kv delete" && without.is_none() {
        line.push("k".to_owned());
    }
    line
}

#[track_caller]
fn refused(line: &[String], parts: &[&str]) {
    let words: Vec<OsString> = line.iter().map(OsString::from).collect();
    let message = match parse(&words, ColorChoice::Never) {
        Ok(cli) => panic!("{line:?} is taken for {cli:?}"),
        Err(error) => error.message(),
    };
    for part in parts {
        assert!(message.contains(part), "{line:?}: {part:?} in {message}");
    }
}

fn with(line: &[String], more: &[&str]) -> Vec<String> {
    line.iter().cloned().chain(more.iter().map(|word| (*word).to_owned())).collect()
}

#[test]
fn a_line_that_is_right_is_taken() {
    for (path, command) in leaves() {
        let words: Vec<OsString> = line(&path, &command, None).iter().map(Into::into).collect();
        let parsed = parse(&words, ColorChoice::Never);
        assert!(parsed.is_ok(), "{words:?}: {}", parsed.unwrap_err().message());
    }
}

#[test]
fn an_option_with_a_wrong_letter_is_refused_with_the_nearest() {
    for (path, command) in leaves() {
        let right = line(&path, &command, None);
        let known: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
        let options = command.get_arguments().filter(|one| one.get_long().is_some());
        for option in options {
            let name = option.get_long().unwrap_or_default();
            // Settings are the same everywhere: one slip each is enough.
            let slips = slips(name).into_iter().filter(|slip| !known.contains(&slip.as_str()));
            for slip in slips.take(if option.is_global_set() { 1 } else { usize::MAX }) {
                let similar = ["similar argument exists", &format!("'--{slip}'")];
                refused(&with(&right, &[&format!("--{slip}=1")]), &similar);
                refused(&with(&right, &[&format!("--{slip}"), "1"]), &similar);
            }
        }
    }
    let (path, command) = leaves().swap_remove(0);
    for option in command.get_arguments().filter(|one| one.is_global_set()) {
        for slip in slips(option.get_long().unwrap_or_default()) {
            let right = line(&path, &command, None);
            refused(&with(&right, &[&format!("--{slip}")]), &["similar argument exists"]);
            let before = [&right[..1], &[format!("--{slip}")], &right[1..]].concat();
            refused(&before, &[&slip]);
        }
    }
}

#[test]
fn a_command_with_a_wrong_letter_is_refused_with_the_nearest() {
    for (path, _) in leaves() {
        for place in 0..path.len() {
            for slip in slips(&path[place]) {
                let mut line = with(&["holdfast".to_owned()], &[]);
                line.extend(path.iter().cloned());
                line[place + 1] = slip.clone();
                let words: Vec<OsString> = line.iter().map(OsString::from).collect();
                let error = parse(&words, ColorChoice::Never).expect_err(&slip).message();
                let helps = error.contains("similar") || error.contains("` is `holdfast");
                assert!(error.contains(&format!("'{slip}'")) && helps, "{line:?}: {error}");
            }
        }
    }
}

#[test]
fn what_is_too_much_is_refused() {
    for (path, command) in leaves() {
        let right = line(&path, &command, None);
        refused(&with(&right, &["--frobnicate"]), &["'--frobnicate'"]);
        refused(&with(&right, &["-%"]), &["'-%'"]);
        let places: Vec<&Arg> = command.get_positionals().collect();
        let endless =
            places.iter().any(|one| one.get_num_args().is_some_and(|n| n.max_values() > 1));
        if !endless {
            let optional = places.iter().filter(|one| !one.is_required_set());
            let mut full = right.clone();
            if path.join(" ") != "kv delete" {
                full.extend(optional.map(|one| sample(one)));
            }
            refused(&with(&full, &["surplus"]), &["'surplus'"]);
        }
    }
}

#[test]
fn a_value_of_another_type_is_refused_and_named() {
    let any = [
        TypeId::of::<Blob>(),
        TypeId::of::<Value>(),
        TypeId::of::<String>(),
        TypeId::of::<PathBuf>(),
    ];
    let mut typed = 0;
    for (path, command) in leaves() {
        let arguments = command.get_arguments().filter(|argument| {
            let takes = argument.get_action().takes_values();
            takes && !any.iter().any(|any| argument.get_value_parser().type_id() == *any)
        });
        for argument in arguments {
            typed += 1;
            let rubbish = match argument.get_long() {
                Some(long) => {
                    let right = line(&path, &command, Some(argument));
                    with(&right, &[&format!("--{long}={RUBBISH}")])
                }
                None => with_rubbish_at(&path, &command, argument),
            };
            let name = argument.get_value_names().and_then(|names| names.first());
            refused(&rubbish, &["invalid value", name.map_or("", |name| name.as_str())]);
        }
    }
    assert!(typed > 200, "only {typed} arguments have a type");
}

/// The line with rubbish at the place of a positional argument.
fn with_rubbish_at(path: &[String], command: &Command, rubbish: &Arg) -> Vec<String> {
    let mut line = [&["holdfast".to_owned()], path].concat();
    for argument in command.get_positionals() {
        if argument.get_id() == rubbish.get_id() {
            line.push(RUBBISH.to_owned());
            break;
        }
        line.push(sample(argument));
    }
    let options = command.get_opts().filter(|option| option.is_required_set());
    for option in options {
        line.push(format!("--{}={}", option.get_long().unwrap_or_default(), sample(option)));
    }
    line
}
