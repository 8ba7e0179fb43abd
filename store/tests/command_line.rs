//! Mistakes on the command line, in the environment and in the configuration file
//! of `holdfast-store`, generated from its own definitions: each is refused with
//! exit code 2, by name, and nothing is started.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use clap::{Arg, Command as Grammar, CommandFactory};
use holdfast_store::cli::Cli;

/// Longest time to report a mistake: two seconds, and room for a slow machine.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Runs the program with only these of its variables.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast-store"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HOLDFAST_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command.args(arguments).envs(variables.iter().copied());
    let began = Instant::now();
    let output = command.output().expect("the program can be started");
    assert!(began.elapsed() < TIME_MAX, "{arguments:?} {variables:?}: {:?}", began.elapsed());
    output
}

/// It must be refused, and print all of these texts.
fn refused(arguments: &[&str], variables: &[(&str, &str)], texts: &[&str]) {
    let output = run(arguments, variables);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let case = format!("{arguments:?} {variables:?}: {said}");
    assert_eq!(output.status.code(), Some(2), "{case}");
    for text in texts {
        assert!(said.contains(text), "{text:?} is missing: {case}");
    }
}

/// A word with its second letter wrong.
fn slip(word: &str) -> String {
    let wrong = if word.chars().nth(1) == Some('x') { 'y' } else { 'x' };
    word.chars().enumerate().map(|(n, letter)| if n == 1 { wrong } else { letter }).collect()
}

/// A command line without mistakes, which is never reached.
fn sound(grammar: &Grammar, folder: &str) -> Vec<String> {
    let words: &[&str] = match grammar.get_name() {
        "serve" => &["serve", "--node-id", "1", "--listen", "127.0.0.1:1", "--data-dir", folder],
        "dev" => &["dev", "--data-dir", folder],
        "restore" => &[
            "restore",
            "-",
            "--node-id",
            "1",
            "--data-dir",
            folder,
            "--initial-cluster",
            "1=a:1",
            "--attempt",
            "1",
        ],
        "recover" => &["recover", folder, "backup"],
        "inspect" => &["inspect", folder],
        "completions" => &["completions", "bash"],
        name => &[name],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn flags(grammar: &Grammar) -> impl Iterator<Item = (&str, &Arg)> {
    grammar.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)))
}

/// Nothing must be created here.
fn folder() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("data").display().to_string();
    (dir, path)
}

fn is_untouched(dir: &tempfile::TempDir) {
    let inside = std::fs::read_dir(dir.path()).expect("a temporary folder").count();
    assert_eq!(inside, 0, "a slip made something");
}

#[test]
fn a_command_with_a_letter_wrong_is_named_with_the_nearest() {
    for command in Cli::command().get_subcommands() {
        let wrong = slip(command.get_name());
        refused(&[&wrong], &[], &[&wrong, command.get_name()]);
    }
}

#[test]
fn a_flag_with_a_letter_wrong_is_named_with_the_nearest() {
    let (dir, path) = folder();
    for command in Cli::command().get_subcommands() {
        for (flag, _) in flags(command) {
            let mut words = sound(command, &path);
            let wrong = format!("--{}", slip(flag));
            words.insert(1, wrong.clone());
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            refused(&words, &[], &[&wrong, &format!("--{flag}")]);
        }
    }
    is_untouched(&dir);
}

/// A value that the flag refuses; none where every text is a path or a name.
fn strange(flag: &str) -> Option<&'static str> {
    match flag {
        "config" | "token-file" | "peer-token-file" => Some("/nonexistent/file"),
        "data-dir" | "insecure" | "ready" | "tls" => None,
        "accept-loss" | "trainers-are-stopped" | "json" => None,
        _ => Some("!rubbish"),
    }
}

#[test]
fn a_value_of_another_type_is_named_with_its_flag() {
    let (dir, path) = folder();
    for command in Cli::command().get_subcommands() {
        for (flag, _) in flags(command) {
            let Some(value) = strange(flag) else { continue };
            let mut words = sound(command, &path);
            let flag = format!("--{flag}");
            if let Some(at) = words.iter().position(|word| *word == flag) {
                words[at + 1] = value.to_owned();
            } else {
                words.extend([flag.clone(), value.to_owned()]);
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            refused(&words, &[], &[value, &flag]);
        }
    }
    refused(&["completions", "!rubbish"], &[], &["!rubbish", "bash"]);
    is_untouched(&dir);
}

#[test]
fn a_variable_with_rubbish_is_named() {
    let (dir, path) = folder();
    let grammar = Cli::command();
    let serve = grammar.find_subcommand("serve").expect("it is there");
    for (flag, arg) in flags(serve) {
        let Some(name) = arg.get_env().and_then(|name| name.to_str()) else { continue };
        let value = match (flag, strange(flag)) {
            ("insecure", _) => "!rubbish",
            (_, Some(value)) => value,
            (_, None) => continue,
        };
        let mut words = sound(serve, &path);
        if let Some(at) = words.iter().position(|word| *word == format!("--{flag}")) {
            words.drain(at..at + 2);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        refused(&words, &[(name, value)], &[value, name]);
    }
    refused(
        &["serve", "--node-id", "1", "--listen", "127.0.0.1:1", "--data-dir", &path],
        &[("RUST_LOG", "holdfast=loud")],
        &["RUST_LOG"],
    );
    is_untouched(&dir);
}

#[test]
fn a_key_of_the_file_with_a_letter_wrong_is_named_with_the_nearest() {
    let (dir, path) = folder();
    let grammar = Cli::command();
    let serve = grammar.find_subcommand("serve").expect("it is there");
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let config = file.path().display().to_string();
    let mut words = sound(serve, &path);
    words.extend(["--config".to_owned(), config.clone()]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for (flag, _) in flags(serve).filter(|(flag, _)| *flag != "config") {
        let key = flag.replace('-', "_");
        let wrong = slip(&key);
        std::fs::write(file.path(), format!("{wrong} = 1\n")).expect("a temporary file");
        refused(&words, &[], &[&config, &wrong, &format!("`{key}`")]);
        std::fs::write(file.path(), format!("{key} = [[]]\n")).expect("a temporary file");
        refused(&words, &[], &[&config, &key]);
    }
    std::fs::write(file.path(), "node_id = \n").expect("a temporary file");
    refused(&words, &[], &[&config, "line 1"]);
    is_untouched(&dir);
}

#[test]
fn a_variable_with_a_letter_wrong_in_its_name_is_named_with_the_right_one() {
    let (dir, path) = folder();
    let grammar = Cli::command();
    let serve = grammar.find_subcommand("serve").expect("it is there");
    for (_, arg) in flags(serve) {
        let Some(name) = arg.get_env().and_then(|name| name.to_str()) else { continue };
        let wrong = format!("{}Q", &name[..name.len() - 1]);
        let texts = [&*wrong, "is ignored", &format!("did you mean {name}?")];
        // What is missing because of it, and what else is wrong.
        refused(&["serve", "--data-dir", &path], &[(&wrong, "x")], &texts);
        refused(&["serve", "--data-dri", &path], &[(&wrong, "x")], &texts);
    }
    is_untouched(&dir);
    let shown = run(&["serve", "--help"], &[("HOLDFAST_NODE_DI", "1")]);
    assert!(shown.status.success() && shown.stderr.is_empty(), "{shown:?}");
}

/// Files that cannot be read: a pipe without a writer, a device without end, a
/// folder, and a file longer than any limit.
fn no_files(dir: &tempfile::TempDir) -> [String; 4] {
    let pipe = dir.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo can be started");
    assert!(made.success());
    let long = dir.path().join("long");
    std::fs::write(&long, vec![b'#'; 1 << 20]).expect("a temporary file");
    [&pipe, std::path::Path::new("/dev/zero"), dir.path(), &long].map(|p| p.display().to_string())
}

#[test]
fn what_is_no_file_is_named_and_not_waited_for() {
    let ((dir, path), strange) = (folder(), tempfile::tempdir().expect("a temporary folder"));
    let grammar = Cli::command();
    let serve = grammar.find_subcommand("serve").expect("it is there");
    for file in no_files(&strange) {
        for flag in ["--config", "--token-file"] {
            let mut words = sound(serve, &path);
            words.extend([flag.to_owned(), file.clone()]);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let why = if file.ends_with("long") { "longer than" } else { "not a regular file" };
            refused(&words, &[], &[flag, &file, why]);
        }
    }
    is_untouched(&dir);
}

#[test]
fn what_each_node_would_refuse_is_refused_before_one_is_started() {
    let (dir, path) = folder();
    refused(
        &["dev", "--data-dir", &path, "--", "--heartbaet", "50ms"],
        &[],
        &["--heartbaet", "--heartbeat"],
    );
    is_untouched(&dir);
}

#[test]
fn each_shell_gets_its_completions() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = run(&["completions", shell], &[]);
        assert!(output.status.success(), "{output:?}");
        let script = String::from_utf8(output.stdout).expect("a script is text");
        for word in ["holdfast-store", "initial-cluster", "base-port"] {
            assert!(script.contains(word), "{word} is missing for {shell}");
        }
    }
}
