//! The binary's command line, without a store: exit codes and output.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Port 1 has no listener.
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
    for arguments in [&["--help"][..], &["serve", "--help"], &["run", "--help"], &["run", "-h"]] {
        let output = agent(arguments);
        assert!(output.status.success());
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.contains("Examples:") && stdout.contains("--store"), "{stdout}");
    }
}

/// Text of `--help`, without line breaks: long lines are broken anywhere.
fn help(arguments: &[&str]) -> String {
    let help = String::from_utf8(agent(&[arguments, &["--help"]].concat()).stdout).unwrap();
    help.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The options in a help that take a value.
fn options(help: &str) -> Vec<String> {
    let words: Vec<&str> = help.split(' ').collect();
    let pairs =
        words.windows(2).filter(|pair| pair[0].starts_with("--") && pair[1].starts_with('<'));
    pairs.map(|pair| pair[0].to_owned()).collect()
}

#[test]
fn each_option_with_a_value_of_another_type_is_named_and_nothing_is_started() {
    const RUBBISH: &str = "/nowhere/[";
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started").display().to_string();
    let settings = options(&help(&[]));
    assert!(settings.len() >= 12, "{settings:?}");
    let mut tried = 0;
    for (verb, rest) in [
        ("run", vec!["--", "touch", &*started]),
        ("serve", vec!["--tcpstore=127.0.0.1:0"]),
        ("open", vec!["name"]),
    ] {
        let has_settings = verb != "open";
        let own = options(&help(&[verb]));
        assert!(!own.is_empty(), "{verb}");
        for option in settings.iter().filter(|_| has_settings).chain(&own) {
            let rubbish = format!("{option}={RUBBISH}");
            let mut words = vec![verb];
            if has_settings && option != "--store" {
                words.push("--store=127.0.0.1:1");
            }
            if has_settings && option != "--connect-deadline" {
                words.push("--connect-deadline=1ms");
            }
            words.push(&rubbish);
            words.extend(rest.iter().filter(|word| !word.starts_with(&format!("{option}="))));
            let named = match option.as_str() {
                "--config" => "configuration file",
                "--control" => RUBBISH,
                option => option,
            };
            assert_fails(&agent(&words), 125, &[named]);
            tried += 1;
        }
    }
    assert!(tried >= 26, "{tried}");
    assert_fails(&agent(&["open", "a/b", "--control", "/x"]), 125, &["a/b", "<NAME>"]);
    assert!(!Path::new(&started).exists());
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
    // Root may read everything, but needs the execute bit like any user.
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
    for wrong in [
        &["--standalone"][..],
        &["--rdzv_backend", "c10d"],
        &["--rdzv_backend", "etcd-v2"],
        &["--master-port=29511"],
    ] {
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
    assert_fails(&output, 125, &["allowed to bypass Holdfast", "--standalone", NO_STORE]);
}

#[test]
fn a_torch_that_dies_of_a_port_in_use_is_refused_with_the_reason() {
    let (_folder, old) = torchrun("2.5.1+cu124");
    let flags = ["run", "--store", NO_STORE, "--connect-deadline", "200ms"];
    let run = |more: &[&str], command: &[&str]| agent(&[&flags, more, &["--"], command].concat());
    let refused = run(&[], &[&old, "--nnodes=2", "--node-rank=1", "train.py"]);
    assert_fails(&refused, 2, &["torch 2.5", "port", "2.7", "--allow-bypass"]);
    // A command without a static rendezvous is started: here no store answers.
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

/// Texts in backticks, or between other quotes.
fn quoted(text: &str, quote: char) -> Vec<String> {
    text.split(quote).skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn a_command_that_looks_like_an_option_is_refused_unless_it_stands_behind_two_dashes() {
    let output = agent(&["run", "--jbo", "x", "--", "true"]);
    assert_fails(&output, 125, &["--jbo", "'--job'"]);
    let output = agent(&["run", "--store", NO_STORE, "--", "--jbo"]);
    assert_fails(&output, 127, &["--jbo: command not found"]);
}

#[test]
fn completions_are_printed_for_each_shell_and_no_other() {
    for shell in ["bash", "zsh", "fish"] {
        let output = agent(&["completions", shell]);
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("expect-clients-within"));
    }
    assert_fails(&agent(&["completions", "bsh"]), 125, &["bsh", "bash"]);
}

#[test]
fn each_variable_with_rubbish_is_named_and_nothing_is_started() {
    let help = help(&[]);
    let variables: Vec<&str> =
        help.split("[env: ").skip(1).filter_map(|rest| rest.split(['=', ']']).next()).collect();
    assert!(variables.len() >= 12, "{variables:?}");
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started").display().to_string();
    for variable in variables {
        let mut all = vec![("HOLDFAST_STORE", NO_STORE), ("HOLDFAST_CONNECT_DEADLINE", "200ms")];
        all.retain(|(name, _)| *name != variable);
        all.push((variable, "/[=\u{7f}"));
        let output = agent_with(&["run", "--", "touch", &started], &all);
        let flag = variable.trim_start_matches("HOLDFAST_").to_lowercase().replace('_', "-");
        let flag = match &*flag {
            "agent-config" => "configuration file",
            "rust-log" => "RUST_LOG",
            other => other,
        };
        assert_fails(&output, 125, &[&flag.replace("token-file", "token")]);
    }
    assert!(!Path::new(&started).exists());
}

#[test]
fn a_variable_with_a_letter_wrong_in_its_name_is_named_with_the_right_one() {
    let shown = [help(&[]), help(&["open"])];
    let names = shown.iter().flat_map(|help| help.split("[env: ").skip(1));
    let names: Vec<&str> = names.filter_map(|rest| rest.split(['=', ']']).next()).collect();
    assert!(names.len() >= 13 && names.contains(&"HOLDFAST_CONTROL"), "{names:?}");
    for name in names.iter().filter(|name| name.starts_with("HOLDFAST_")) {
        let wrong = format!("{}Q", &name[..name.len() - 1]);
        let texts = [&*wrong, "is ignored", &format!("did you mean {name}?")];
        // Missing settings because of it, errors beside it, and once there is a log.
        assert_fails(&agent_with(&["serve"], &[(&wrong, "x")]), 125, &texts);
        assert_fails(&agent_with(&["serve", "--jbo", "x"], &[(&wrong, "x")]), 125, &texts);
        let serve = ["run", "--store", NO_STORE, "--connect-deadline", "1ms", "--", "true"];
        let output = agent_with(&serve, &[(&wrong, "x")]);
        assert_fails(&output, 125, &texts);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.matches("is ignored").count(), 1, "{said}");
    }
}

#[test]
fn what_is_no_file_is_named_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, long) = (folder.path().join("pipe"), folder.path().join("long"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::write(&long, vec![b'#'; 1 << 20]).unwrap();
    let strange = [&*pipe, Path::new("/dev/zero"), folder.path(), &long];
    for file in strange.map(|path| path.to_str().unwrap()) {
        let why = if file.ends_with("long") { "longer than" } else { "not a regular file" };
        for flag in ["--config", "--token-file"] {
            let output = agent(&["serve", "--store", NO_STORE, flag, file]);
            assert_fails(&output, 125, &[file, why]);
        }
    }
}

#[test]
fn each_key_of_the_file_with_a_letter_wrong_or_another_type_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.toml");
    let path = path.to_str().unwrap();
    let serve = |text: &str| {
        std::fs::write(path, text).unwrap();
        agent(&["serve", "--config", path])
    };
    let known = |table: &str| {
        let error = String::from_utf8(serve(&format!("{table}\nx9 = 1\n")).stderr).unwrap();
        let line = error.lines().find(|line| line.contains("unknown field")).unwrap().to_owned();
        quoted(&line, '`').split_off(1)
    };
    for table in ["", "[limits]"] {
        let keys = known(table);
        assert!(keys.len() >= 12, "{keys:?}");
        for key in &keys {
            let slip = format!("{}_{}", &key[..1], &key[1..]);
            let output = serve(&format!("{table}\n{slip} = 1\n"));
            assert_fails(&output, 125, &[path, "line 2", &slip, &format!("did you mean `{key}`?")]);
            let output = serve(&format!("{table}\n{key} = true\n"));
            assert_fails(&output, 125, &[path, "line 2", "true"]);
        }
    }
}

#[test]
fn a_port_that_others_reach_is_named_where_the_store_has_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "a-token-of-the-store\n").unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    let token = token.display().to_string();
    let store = ["--store", NO_STORE, "--connect-deadline", "1ms"];
    let open = ["--tcpstore", "0.0.0.0:0"];
    let parts = ["--tcpstore 0.0.0.0:0", "without the token", "use 127.0.0.1:0"];
    for (verb, command) in [("serve", &[][..]), ("run", &["--", "true"])] {
        let words = [&[verb][..], &store, &open, &["--token-file", &token], command].concat();
        let output = agent(&words);
        assert_fails(&output, 125, &parts);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.matches(parts[1]).count(), 1, "{said}");
        let without = agent(&[&[verb][..], &store, &open, command].concat());
        assert!(!String::from_utf8_lossy(&without.stderr).contains(parts[1]), "{without:?}");
    }
}
