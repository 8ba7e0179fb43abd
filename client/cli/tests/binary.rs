//! The real binary, where no cluster is needed: usage, configuration, output,
//! and a cluster that is not there.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::TcpListener;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

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
    for line in [&["kv", "cas", "--help"][..], &["help", "kv", "cas"]] {
        let help = Machine::new().run(line).ok();
        assert_contains(&help, &["EXPECTED", "absent key", "Examples:", "see `holdfast --help`"]);
        assert!(!help.contains("--token-file"), "settings are told once: {help}");
    }
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
    for (line, shown) in [(&[][..], "Exit codes:"), (&["kv"], "Print the value of a key")] {
        assert_contains(&machine.run(line).failed(2), &["Usage:", shown]);
    }
    let said = machine.run(&["--job", "a/b", "status"]).failed(2);
    assert_contains(&said, &["--job", "a/b", "is not a name"]);
}

#[test]
fn a_command_on_runs_takes_the_run_as_its_argument() {
    let line = ["--store", NOWHERE, "--run", "r7", "run", "open"];
    assert_contains(&Machine::new().run(&line).failed(2), &["run open NAME"]);
}

/// Runs it with this standard input.
fn with_input(line: &[&str], input: &str) -> Run {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let path = folder.path().join("input");
    fs::write(&path, input).expect("the folder is ours");
    let machine = Machine::new();
    let mut command = machine.command(&["--store", NOWHERE, "--timeout", "300ms"]);
    Run::of(command.args(line).stdin(fs::File::open(path).expect("it is there")))
}

#[test]
fn a_transaction_is_read_from_standard_input_if_nothing_is_given() {
    for (input, part) in [
        ("", "the transaction is empty"),
        ("\n\nget k\n", "nothing is compared"),
        ("value(k) = v\n\nptu k w\n", "standard input, line 3: `ptu` is not a step"),
        ("value(k)\n", "line 1: there is no ="),
    ] {
        assert_contains(&with_input(&["kv", "txn"], input).failed(2), &[part]);
    }
    with_input(&["kv", "txn"], "exists(k)\n\nget k\n").failed(3);
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
        assert_contains(&script, &["holdfast", "transfer", "token-file", "color"]);
    }
    // Settings are offered after every command, though its help does not show
    // them; and the shell can read the whole.
    let script = Machine::new().run(&["completions", "bash"]).ok();
    let get = script.split_once("holdfast__subcmd__kv__subcmd__get)").expect("kv get").1;
    let offered = get.lines().find(|line| line.contains("opts=")).expect("what is offered");
    assert_contains(offered, &["--stale", "--raw", "--job", "--token-file", "--output"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("holdfast.bash");
    fs::write(&path, script).unwrap();
    let checked = Command::new("bash").arg("-n").arg(&path).output().expect("bash is there");
    assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
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
        &[
            path,
            "`stroe`",
            "known keys: store, token_file, tls_ca, tls_cert, tls_key, job, run, output, timeout",
        ],
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
fn a_variable_with_a_letter_wrong_in_its_name_is_named_with_the_right_one() {
    let machine = Machine::new();
    let help = machine.run(&["--help"]).stdout;
    let told = help.split("[env: ").skip(1).filter_map(|rest| rest.split(']').next());
    let names: Vec<&str> = told.chain(["HOLDFAST_LOG"]).collect();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        let wrong = format!("{}Q", &name[..name.len() - 1]);
        for line in [&["config"][..], &["-o", "json", "config"]] {
            let run = Run::of(machine.command(line).env(&wrong, "x"));
            assert_eq!(run.code, Some(0), "{run:?}");
            assert_contains(&run.stderr, &[&wrong, "is ignored", &format!("did you mean {name}?")]);
            let document = serde_json::from_str::<Value>(&run.stdout);
            assert_eq!(document.is_ok(), line.len() > 1, "{run:?}");
        }
        let said = Run::of(machine.command(&["confgi"]).env(&wrong, "x")).failed(2);
        assert_contains(&said, &[&wrong, "confgi"]);
    }
    let version = Run::of(machine.command(&["version"]).env("HOLDFAST_JBO", "x"));
    assert_eq!((version.code, &*version.stderr), (Some(0), ""));
}

/// What can be seen to be wrong here is reported here: no node is asked or
/// waited for.
#[test]
fn no_node_is_asked_about_bad_input() {
    // Two seconds, and room for a slow machine; a command that waits for an answer takes longer.
    const LONGEST: Duration = Duration::from_secs(8);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let node = listener.local_addr().unwrap().to_string();
    let pipe = tempfile::tempdir().unwrap();
    let fifo = pipe.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let fifo = fifo.to_str().unwrap();
    let lines = [
        "kv get k --jbo x",
        "kv gte k",
        "kv put k --stale",
        "kv get k surplus",
        "kv add k x",
        "kv delete --prefix=",
        "kv txn",
        "kv txn --else=get_k",
        "node add 4 nowhere",
        "node add 4 a:1,b:2",
        "--timeout 10 status",
        "--run r7 run list",
        "-o xml status",
        "run open auto",
        "member list",
    ];
    type Line<'a> = (Vec<&'a str>, Option<(&'a str, &'a str)>);
    let mut runs: Vec<Line<'_>> =
        lines.iter().map(|line| (line.split(' ').collect(), None)).collect();
    for variable in [
        ("HOLDFAST_JOB", "a/b"),
        ("HOLDFAST_RUN", "!"),
        ("HOLDFAST_LOG", "debgu"),
        ("HOLDFAST_LOG", "a=b=c"),
        ("HOLDFAST_CONFIG", "/nonexistent"),
        ("HOLDFAST_CONFIG", fifo),
        ("HOLDFAST_TOKEN_FILE", "/nonexistent"),
        ("HOLDFAST_TOKEN_FILE", fifo),
    ] {
        runs.push((vec!["status"], Some(variable)));
    }
    let machine = Machine::new();
    for (line, variable) in runs {
        for form in [&[][..], &["--output=json"]] {
            let mut command = machine.command(&["--store", &node]);
            command.args(form).args(&line).envs(variable);
            let start = Instant::now();
            let said = Run::of(&mut command).failed(2);
            assert!(start.elapsed() < LONGEST, "{line:?} {variable:?}");
            // `-o xml` asks for a form that is not known; the one before counts.
            let document = serde_json::from_str::<Value>(&said);
            assert_eq!(document.is_ok(), !form.is_empty(), "{line:?}: {said}");
            if let Some((name, _)) = variable {
                assert_contains(&said, &[name]);
            }
        }
    }
    let asked = listener.accept();
    assert!(asked.is_err(), "a node was asked");
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

#[test]
fn with_json_a_usage_error_is_a_problem_document_too() {
    let machine = Machine::new();
    for (line, part) in [
        ("-o json frobnicate", "unrecognized subcommand 'frobnicate'"),
        ("kv get k --jbo llm --output=json", "a similar argument exists: '--job'"),
        ("kv add n x -ojson", "invalid value 'x'"),
        ("-o json kv", "a command is missing"),
        ("-o json member list", "etcdctl's `member list` is `holdfast node list`"),
        ("-o json --timeout 10 status", "with its unit"),
        ("-o json --token-file /nonexistent status", "--token-file /nonexistent"),
    ] {
        let line: Vec<_> = line.split(' ').collect();
        let said = machine.run(&line).failed(2);
        assert_eq!(said.lines().count(), 1, "{said}");
        let problem: Value = serde_json::from_str(&said).expect("a document");
        assert_eq!(problem["code"], "invalid_request", "{said}");
        assert_eq!(problem["outcome"], "none", "{said}");
        assert_contains(problem["detail"].as_str().unwrap(), &[part]);
    }
}

#[test]
fn errors_are_json_if_the_configuration_file_says_so() {
    let machine = Machine::new();
    let is_json = |line: &[&str]| {
        let said = machine.run(line).failed(2);
        serde_json::from_str::<Value>(&said).is_ok_and(|said| said["detail"].is_string())
    };
    machine.write_config("output = \"json\"");
    assert!(is_json(&["frobnicate"]));
    assert!(!is_json(&["-o", "table", "frobnicate"]));
    machine.write_config("output = \"json\"\nstroe = 1");
    assert!(is_json(&["status"]));
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
        &["--job", "llm", "why", "--follow"],
        &["processes"],
        &["process", "remove", "7", "--reason", "ECC"],
        &["rounds"],
        &["comm", "list"],
        &["comm", "excuse", "world", "7"],
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
            &[NOWHERE, "nothing was changed", "--store", "HOLDFAST_STORE", "whether they run"],
        );
        assert!(
            !said.contains("holdfast-store dev"),
            "nodes were named, so there is a cluster: {said}"
        );
    }
}

#[test]
fn a_node_that_accepts_and_says_nothing_is_exit_code_3() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
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
fn colours_are_printed_where_they_are_asked_for_and_never_in_json() {
    let texts = |more: &[&str]| {
        let with = |line: &[&'static str]| -> Vec<String> {
            more.iter().chain(line).map(|word| (*word).to_owned()).collect()
        };
        [
            unreachable(&with(&["status"])).failed(3),
            Machine::new().run(&with(&["--help"])).ok(),
            Machine::new().run(&with(&["frobnicate"])).failed(2),
            Machine::new().run(&with(&["config"])).ok(),
        ]
    };
    for text in texts(&[]).iter().chain(&texts(&["--color", "never"])) {
        assert!(!text.contains('\x1b'), "nobody sees it: {text:?}");
    }
    for text in texts(&["--color", "always"]) {
        assert!(text.contains('\x1b'), "it was asked for: {text:?}");
    }
    let [said, _, usage, config] = texts(&["--color", "always", "-o", "json"]);
    for text in [said, usage, config] {
        assert!(!text.contains('\x1b'), "a program reads it: {text:?}");
    }
}
