//! The binary's command line, without a store: exit codes and what is said.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

/// Nobody listens on port 1.
const NO_STORE: &str = "127.0.0.1:1";

fn agent(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdfast-agent"))
        .args(arguments)
        .env_remove("HOLDFAST_STORE")
        .env_remove("HOLDFAST_AGENT_CONFIG")
        .env_remove("RUST_LOG")
        .output()
        .unwrap()
}

#[track_caller]
fn assert_fails(output: &Output, code: i32, parts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{part:?} is missing in: {stderr}");
    }
}

#[test]
fn help_shows_examples_and_is_no_failure() {
    for arguments in [&["--help"][..], &["serve", "--help"], &["run", "--help"]] {
        let output = agent(arguments);
        assert!(output.status.success());
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.contains("Examples:") && stdout.contains("HOLDFAST_STORE"), "{stdout}");
    }
}

#[test]
fn wrong_usage_is_a_failure_of_the_agent() {
    assert_fails(&agent(&["serve", "--stoer", "x"]), 125, &["--stoer", "--store"]);
    assert_fails(&agent(&["run", "--store", NO_STORE]), 125, &["COMMAND"]);
    assert_fails(&agent(&["serve"]), 125, &["--store", "HOLDFAST_STORE"]);
    assert_fails(&agent(&["serve", "--store", NO_STORE, "--log", "a=b=c"]), 125, &["RUST_LOG"]);
}

#[test]
fn a_port_in_use_is_named_before_any_store_is_asked() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = agent(&["serve", "--store", NO_STORE, "--tcpstore", &address]);
    assert_fails(&output, 125, &["port", &port, "in use", "--tcpstore"]);
}

#[test]
fn a_store_that_does_not_answer_is_named_after_the_deadline() {
    for verb in [&["serve", "--tcpstore", "127.0.0.1:0"][..], &["run"]] {
        let options = ["--store", NO_STORE, "--connect-deadline", "200ms"];
        let command = if verb[0] == "run" { &["--", "true"][..] } else { &[] };
        let output = agent(&[verb, &options, command].concat());
        assert_fails(&output, 125, &[NO_STORE, "job default"]);
    }
}

#[test]
fn a_command_that_cannot_be_run_is_refused_before_any_store_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("train.py");
    std::fs::write(&file, "print()").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let file = file.to_str().unwrap();
    let run = |command: &str| agent(&["run", "--store", NO_STORE, "--", command]);
    assert_fails(&run("no-such-command"), 127, &["no-such-command", "not found"]);
    assert_fails(&run("/no/such/file"), 127, &["/no/such/file", "not found"]);
    assert_fails(&run(folder.path().to_str().unwrap()), 126, &["cannot be executed", "folder"]);
    // Root may read everything, but needs the execute bit like anybody.
    assert_fails(&run(file), 126, &["train.py", "cannot be executed"]);
}

#[test]
fn a_configuration_file_is_read_strictly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.toml");
    std::fs::write(&path, "store = '127.0.0.1:1'\ntcpstor = '127.0.0.1:29500'\n").unwrap();
    let path = path.to_str().unwrap();
    let output = agent(&["serve", "--config", path]);
    assert_fails(&output, 125, &[path, "line 2", "tcpstor", "tcpstore"]);
    let output = agent(&["serve", "--config", "/no/such/file.toml"]);
    assert_fails(&output, 125, &["/no/such/file.toml"]);
}
