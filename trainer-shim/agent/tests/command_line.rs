//! The binary's command line, without a store: exit codes and what is said.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

/// Nobody listens on port 1.
const NO_STORE: &str = "127.0.0.1:1";

fn agent(arguments: &[&str]) -> Output {
    agent_with(arguments, &[])
}

fn agent_with(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast-agent"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["HOLDFAST_", "PET_", "SLURM_", "RUST_LOG"].iter().any(|own| name.starts_with(own)) {
            command.env_remove(name);
        }
    }
    command.args(arguments).envs(variables.iter().copied()).output().unwrap()
}

/// A folder with a torchrun whose Python has this torch; it must not be run.
fn torchrun(version: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("torch");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("__init__.py"), "raise SystemExit('imported')").unwrap();
    std::fs::write(package.join("version.py"), format!("__version__ = '{version}'\n")).unwrap();
    let path = folder.path().display();
    for (name, text) in [
        ("python", format!("#!/bin/sh\nPYTHONPATH={path} exec python3 \"$@\"\n")),
        ("torchrun", format!("#!{path}/python\nprint('STARTED')\n")),
    ] {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let torchrun = folder.path().join("torchrun").display().to_string();
    (folder, torchrun)
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

#[test]
fn a_command_that_leads_past_the_agent_is_not_started_and_the_right_one_is_shown() {
    let (_folder, torchrun) = torchrun("2.15.0");
    let flags = ["run", "--store", NO_STORE, "--job", "j", "--"];
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        agent_with(&[&flags[..], &[&torchrun], arguments].concat(), variables)
    };
    let right = format!("run --store {NO_STORE} --job j -- {torchrun} --nproc-per-node=2 train.py");
    for wrong in [&["--standalone"][..], &["--rdzv_backend", "c10d"], &["--master-port=29511"]] {
        let output = run(&[wrong, &["--nproc-per-node=2", "train.py"]].concat(), &[]);
        assert_fails(&output, 2, &["not started", wrong[0], &right, "--allow-bypass"]);
        assert!(output.stdout.is_empty());
    }
    let pet = [("PET_RDZV_BACKEND", "c10d"), ("PET_NNODES", "2")];
    let right = format!("{torchrun} --node-rank=N train.py");
    assert_fails(&run(&["train.py"], &pet), 2, &["PET_RDZV_BACKEND=c10d", &right]);
    let python = ["python3", "-m", "torch.distributed.run", "--standalone", "train.py"];
    assert_fails(&agent(&[&flags[..], &python].concat()), 2, &["python3 -m torch.distributed.run"]);
    // Allowed, it fails later: no store answers.
    let bypass = ["run", "--store", NO_STORE, "--connect-deadline", "200ms", "--allow-bypass"];
    let output = agent(&[&bypass[..], &["--", &torchrun, "--standalone", "train.py"]].concat());
    assert_fails(&output, 125, &["allowed to lead past Holdfast", "--standalone", NO_STORE]);
}

#[test]
fn a_torch_that_dies_of_a_port_in_use_is_refused_with_the_reason() {
    let (_folder, old) = torchrun("2.5.1+cu124");
    let flags = ["run", "--store", NO_STORE, "--connect-deadline", "200ms"];
    let run = |more: &[&str], command: &[&str]| agent(&[&flags, more, &["--"], command].concat());
    let refused = run(&[], &[&old, "--nnodes=2", "--node-rank=1", "train.py"]);
    assert_fails(&refused, 2, &["torch 2.5", "port", "2.7", "--allow-bypass"]);
    // What needs no static rendezvous is started: here no store answers.
    for (more, command) in [
        (&["--allow-bypass"][..], &[&*old, "train.py"][..]),
        (&["--keep-master-addr"], &[&old, "--standalone", "train.py"]),
        (&[], &["sh", "-c", "exec python train.py"]),
    ] {
        assert_fails(&run(more, command), 125, &[NO_STORE]);
    }
    // A version that cannot be known is no reason to refuse.
    let (folder, unknown) = torchrun("none");
    assert_fails(&run(&[], &[&unknown, "train.py"]), 125, &["cannot tell which torch", NO_STORE]);
    drop(folder);
}
