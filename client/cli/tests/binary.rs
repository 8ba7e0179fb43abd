//! The real binary, where no cluster is needed: usage, configuration, output,
//! and a cluster that is not there.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Nothing listens on this port: it is privileged and its service extinct.
const NOWHERE: &str = "127.0.0.1:1";

/// A machine of its own: an empty home and no variables.
struct Machine {
    home: TempDir,
}

impl Machine {
    fn new() -> Machine {
        Machine { home: tempfile::tempdir().expect("a temporary folder") }
    }

    fn command(&self, line: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.env_clear().env("HOME", self.home.path()).stdin(Stdio::null()).args(line);
        command
    }

    fn run(&self, line: &[impl AsRef<OsStr>]) -> Run {
        Run::of(&mut self.command(line))
    }

    fn write_config(&self, text: &str) -> std::path::PathBuf {
        let folder = self.home.path().join(".config/holdfast");
        fs::create_dir_all(&folder).expect("the home is ours");
        let path = folder.join("config.toml");
        fs::write(&path, text).expect("the home is ours");
        path
    }
}

/// How a run of the binary ended.
#[derive(Debug)]
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Run {
    fn of(command: &mut Command) -> Run {
        let Output { status, stdout, stderr } = command.output().expect("the binary was built");
        Run {
            code: status.code(),
            stdout: String::from_utf8(stdout).expect("text without a store"),
            stderr: String::from_utf8(stderr).expect("errors are text"),
        }
    }

    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        assert_eq!(self.stderr, "");
        self.stdout
    }

    /// What it said on standard error; an error prints no answer.
    #[track_caller]
    fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "");
        self.stderr
    }
}

#[track_caller]
fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} in:\n{text}");
    }
}

#[test]
fn help_goes_to_standard_output_and_documents_the_contract() {
    let help = Machine::new().run(&["--help"]).ok();
    assert_contains(&help, &["Exit codes:", "3  unreachable", "Examples:", "HOLDFAST_JOB"]);
    let help = Machine::new().run(&["kv", "cas", "--help"]).ok();
    assert_contains(&help, &["EXPECTED", "absent key", "--job"]);
}

#[test]
fn usage_errors_are_exit_code_2() {
    let machine = Machine::new();
    for line in
        [&[][..], &["kv"], &["frobnicate"], &["kv", "add", "n", "x"], &["-o", "xml", "status"]]
    {
        let said = machine.run(line).failed(2);
        assert!(said.contains("Usage:") || said.contains("error:"), "{line:?}: {said}");
    }
    let said = machine.run(&["--job", "a/b", "status"]).failed(2);
    assert_contains(&said, &["--job", "a/b", "is not a name"]);
}

#[test]
fn a_command_on_runs_takes_the_run_as_its_argument() {
    let line = ["--store", NOWHERE, "--run", "r7", "run", "open"];
    assert_contains(&Machine::new().run(&line).failed(2), &["run open NAME"]);
}

#[test]
fn a_node_that_is_added_needs_one_address() {
    let line = ["--store", NOWHERE, "node", "add", "4", "a:1,b:2"];
    assert_contains(&Machine::new().run(&line).failed(2), &["one address", "a:1,b:2"]);
}

#[test]
fn the_version_is_printed_whatever_the_settings_are() {
    let machine = Machine::new();
    machine.write_config("nonsense = 1");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(machine.run(&["version"]).ok(), format!("holdfast {version}\n"));
    assert_eq!(machine.run(&["--version"]).ok(), format!("holdfast {version}\n"));
    let printed: Value =
        serde_json::from_str(&machine.run(&["version", "-o", "json"]).ok()).unwrap();
    assert_eq!(printed, json!({"version": version}));
}

#[test]
fn completions_are_made_for_the_usual_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let script = Machine::new().run(&["completions", shell]).ok();
        assert_contains(&script, &["holdfast", "transfer"]);
    }
}

#[test]
fn config_shows_each_value_and_where_it_came_from() {
    let machine = Machine::new();
    let path = machine.write_config("job = \"of-file\"\nrun = \"of-file\"\ntimeout = \"3s\"");
    let mut command = machine.command(&["config", "--job", "of-flag", "-o", "json"]);
    command.env("HOLDFAST_JOB", "of-environment").env("HOLDFAST_RUN", "of-environment");
    let printed: Value = serde_json::from_str(&Run::of(&mut command).ok()).unwrap();
    assert_eq!(printed["job"], json!({"value": "of-flag", "source": "flag"}));
    assert_eq!(printed["run"], json!({"value": "of-environment", "source": "environment"}));
    assert_eq!(printed["timeout"], json!({"value": "3s", "source": "file", "file": path}));
    assert_eq!(printed["store"]["source"], "default");
    assert_contains(&machine.run(&["config"]).ok(), &["of-file", "file /", "KEY", "FROM"]);
}

#[test]
fn a_bad_configuration_file_is_named_with_the_known_keys() {
    let machine = Machine::new();
    let path = machine.write_config("stroe = \"a:1\"");
    let path = path.to_str().unwrap();
    let said = machine.run(&["status"]).failed(2);
    assert_contains(
        &said,
        &[path, "`stroe`", "known keys: store, token_file, job, run, output, timeout"],
    );
    machine.write_config("timeout = 10");
    assert_contains(
        &machine.run(&["status"]).failed(2),
        &[path, "timeout = 10", "such as \"10s\""],
    );
    let said = machine.run(&["--config", "/nonexistent.toml", "status"]).failed(2);
    assert_contains(&said, &["/nonexistent.toml", "--config"]);
}

#[test]
fn a_bad_variable_is_named() {
    let machine = Machine::new();
    for (name, value) in
        [("HOLDFAST_STORE", "nowhere"), ("HOLDFAST_JOB", "a/b"), ("HOLDFAST_LOG", "a=b=c")]
    {
        let said = Run::of(machine.command(&["status"]).env(name, value)).failed(2);
        assert_contains(&said, &[name]);
    }
}

#[test]
fn with_json_an_error_is_a_problem_document() {
    let machine = Machine::new();
    machine.write_config("stroe = 1");
    let said = machine.run(&["-o", "json", "status"]).failed(2);
    let problem: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(problem["code"], "invalid_request");
    assert_eq!(problem["outcome"], "none");
    assert_eq!(problem["retryable"], false);
    assert!(problem["detail"].as_str().unwrap().contains("known keys"), "{said}");
}

/// A command line against a cluster that is not there.
fn unreachable(line: &[impl AsRef<OsStr>]) -> Run {
    let mut command = Machine::new().command(&["--store", NOWHERE, "--timeout", "300ms"]);
    Run::of(command.args(line))
}

#[test]
fn a_cluster_that_is_not_there_is_exit_code_3_for_every_command() {
    for line in [
        &["status"][..],
        &["node", "list"],
        &["leader", "transfer"],
        &["job", "list"],
        &["job", "plan", "--without", "host7"],
        &["why"],
        &["processes"],
        &["process", "remove", "7", "--reason", "ECC"],
        &["rounds"],
        &["iterations"],
        &["events"],
        &["events", "--follow"],
        &["run", "open"],
        &["kv", "put", "k", "v"],
        &["kv", "get", "k"],
        &["kv", "get", "k", "--stale"],
        &["kv", "list"],
        &["kv", "watch"],
        &["kv", "watch", "--from", "1"],
        &["kv", "wait", "k"],
    ] {
        let said = unreachable(line).failed(3);
        assert_contains(
            &said,
            &[NOWHERE, "nothing was changed", "--store", "HOLDFAST_STORE", "holdfast-store dev"],
        );
    }
}

#[test]
fn a_node_that_accepts_and_says_nothing_is_exit_code_3() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = listener.local_addr().unwrap().to_string();
    let line = ["--store", &mute, "--timeout", "300ms", "kv", "put", "k", "v"];
    assert_contains(&Machine::new().run(&line).failed(3), &[&mute]);
}

#[test]
fn with_json_an_unreachable_cluster_is_a_problem_document() {
    let said = unreachable(&["-o", "json", "kv", "put", "k", "v"]).failed(3);
    let problem: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(problem["code"], "unavailable");
    assert_eq!(problem["outcome"], "none");
    assert_eq!(problem["retryable"], true);
    assert!(problem["detail"].as_str().unwrap().contains(NOWHERE), "{said}");
}

#[test]
fn arguments_need_not_be_text() {
    let key = OsString::from_vec(b"k\xff".to_vec());
    let line = [OsStr::new("kv"), OsStr::new("put"), &key, OsStr::new("-7")];
    unreachable(&line).failed(3);
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Machine::new().command(&["completions", "bash"]);
    let run = Run::of(command.stdout(writer));
    assert_eq!(run.failed(0), "");
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let full = Path::new("/dev/full");
    let full = fs::OpenOptions::new().write(true).open(full).unwrap();
    let said = Run::of(Machine::new().command(&["version"]).stdout(full)).failed(1);
    assert_contains(&said, &["standard output"]);
}

#[test]
fn no_colours_are_printed() {
    let said = unreachable(&["status"]).failed(3);
    let help = Machine::new().run(&["--help"]).ok();
    let usage = Machine::new().run(&["frobnicate"]).failed(2);
    for text in [said, help, usage] {
        assert!(!text.contains('\x1b'), "{text:?}");
    }
}
