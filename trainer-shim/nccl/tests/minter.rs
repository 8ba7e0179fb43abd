//! Minters, as real processes with the library of the package registry.

#[path = "support/mint.rs"]
mod mint;
mod support;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use holdfast_nccl::minter::Options;
use holdfast_nccl::{MintError, Minter, UniqueId};
use mint::minter_options;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use support::{
    Counts, PATIENCE, in_a_process_of_its_own, is_open, library, meeting_point, variable,
};

/// Prefix of a line that a minter of the test's own writes before its answer.
const MARK: &str = "minter ";

fn watch(pid: i32) -> OwnedFd {
    let pid = Pid::from_raw(pid).expect("a process");
    pidfd_open(pid, PidfdFlags::empty()).expect("it runs")
}

fn wait_for_end(watched: impl AsFd) {
    let patience = Timespec::try_from(PATIENCE).expect("it fits");
    let ended = poll(&mut [PollFd::new(&watched, PollFlags::IN)], Some(&patience));
    assert_eq!(ended.expect("it can be waited for"), 1, "waited {PATIENCE:?} in vain for its end");
}

#[test]
fn its_port_is_open_until_it_is_dropped() {
    let Some(library) = library() else { return };
    let minter = Minter::start(&minter_options(Some(library))).expect("a minter");
    let address = meeting_point(minter.id());
    let watched = minter.pidfd().expect("it runs");
    assert!(address.ip().is_loopback(), "{address}");
    assert!(is_open(address));
    drop(minter);
    wait_for_end(watched);
    assert!(!is_open(address));
}

#[test]
fn a_killed_one_is_noticed_and_its_port_refuses() {
    let Some(library) = library() else { return };
    let mut minter = Minter::start(&minter_options(Some(library))).expect("a minter");
    assert!(minter.ended().expect("its state").is_none());
    let watched = minter.pidfd().expect("it runs");
    let pid = Pid::from_raw(minter.pid().cast_signed()).expect("a process");
    kill_process(pid, Signal::KILL).expect("it is ours");
    wait_for_end(watched);
    assert!(!is_open(meeting_point(minter.id())));
    let status = minter.ended().expect("its state").expect("it has ended");
    assert!(!status.success(), "{status}");
}

#[test]
fn a_hundred_of_them_leave_nothing_behind() {
    in_a_process_of_its_own("a_hundred", &[]);
}

#[test]
#[ignore = "counts what its process has: run by `a_hundred_of_them_leave_nothing_behind`"]
fn a_hundred() {
    let Some(library) = library() else { return };
    let options = minter_options(Some(library));
    let before = Counts::now();
    let mut ids = BTreeSet::new();
    for _ in 0..100 {
        let minter = Minter::start(&options).expect("a minter");
        assert!(ids.insert(*minter.id().as_bytes()), "an id came twice");
        assert_eq!(Counts::now().threads, before.threads);
        assert_eq!(Counts::now().children, before.children + 1);
    }
    assert_eq!(Counts::now(), before);
}

/// The helper as its parent starts it, driven by hand.
fn spawn(parent: u32, library: Option<PathBuf>) -> Child {
    let options = minter_options(library);
    let mut command = Command::new(&options.program);
    command.arg(parent.to_string()).args(&options.library).envs(options.environment);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts")
}

#[test]
fn it_ends_when_its_input_closes() {
    let Some(library) = library() else { return };
    let mut helper = spawn(std::process::id(), Some(library));
    let mut line = String::new();
    let mut output = BufReader::new(helper.stdout.take().expect("it was piped"));
    output.read_line(&mut line).expect("a line");
    let id = UniqueId::from_hex(line.trim()).expect("an id");
    assert!(is_open(meeting_point(&id)));
    // What is written to it changes nothing.
    helper.stdin.as_mut().expect("it was piped").write_all(b"x").expect("it reads");
    assert!(helper.try_wait().expect("its state").is_none());
    let watched = watch(helper.id().cast_signed());
    drop(helper.stdin.take());
    wait_for_end(watched);
    assert!(helper.wait().expect("it has ended").success());
    assert!(!is_open(meeting_point(&id)));
}

#[test]
fn it_mints_nothing_for_a_process_that_is_not_its_parent() {
    let Some(library) = library() else { return };
    let helper = spawn(1, Some(library));
    let output = helper.wait_with_output().expect("it ends");
    assert!(output.stdout.is_empty() && output.status.success(), "{output:?}");
}

#[test]
fn it_goes_with_its_parent_however_that_ends() {
    if library().is_none() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "a_parent", "--ignored", "--nocapture"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut parent = command.spawn().expect("it starts");
    let lines = BufReader::new(parent.stdout.take().expect("it was piped")).lines();
    let said = lines
        .map(|line| line.expect("a line"))
        // The harness writes the test's name into the same line.
        .find_map(|line| line.split_once(MARK).map(|(_, said)| said.to_owned()))
        .expect("the parent tells of its minter");
    let (pid, id) = said.split_once(' ').expect("a process and an id");
    let minter = watch(pid.parse().expect("a number"));
    let address = meeting_point(&UniqueId::from_hex(id).expect("an id"));
    assert!(is_open(address));
    parent.kill().expect("it is ours");
    parent.wait().expect("it has ended");
    wait_for_end(minter);
    assert!(!is_open(address));
}

#[test]
#[ignore = "is killed: run by `it_goes_with_its_parent_however_that_ends`"]
fn a_parent() {
    let minter = Minter::start(&minter_options(library())).expect("a minter");
    println!("{MARK}{} {}", minter.pid(), minter.id().to_hex());
    // Until it is killed, or its parent has gone.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn it_says_why_it_mints_nothing() {
    let Some(library) = library() else { return };
    let refused = |options: &Options| match Minter::start(options).expect_err("no id") {
        MintError::Refused { reason } => reason,
        other => panic!("{other}"),
    };
    let missing = minter_options(Some("/nowhere/libnccl.so.2".into()));
    assert!(refused(&missing).contains("/nowhere/libnccl.so.2"));

    let mut no_interface = minter_options(Some(library.clone()));
    no_interface.environment = vec![variable("NCCL_SOCKET_IFNAME", "nope")];
    assert!(refused(&no_interface).contains("ncclGetUniqueId failed"));

    let mut fixed = minter_options(Some(library));
    fixed.environment.push(variable("NCCL_COMM_ID", "127.0.0.1:9"));
    assert!(refused(&fixed).contains("NCCL_COMM_ID=127.0.0.1:9 is set"));
}

#[test]
fn a_fixed_id_in_the_configuration_file_is_refused_too() {
    let Some(library) = library() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("nccl.conf");
    std::fs::write(&file, "NCCL_COMM_ID=127.0.0.1:9\n").expect("a file");
    let mut options = minter_options(Some(library));
    options.environment.push(variable("NCCL_CONF_FILE", file));
    let error = Minter::start(&options).expect_err("no id");
    assert!(matches!(error, MintError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("NCCL_COMM_ID"), "{error}");
}

#[test]
fn its_line_stays_whole_when_nccl_writes_its_log() {
    let Some(library) = library() else { return };
    let mut options = minter_options(Some(library));
    options.environment.push(variable("NCCL_DEBUG", "INFO"));
    Minter::start(&options).expect("a minter");
}

/// Programs that are no minter, and the error for each.
#[test]
fn another_program_is_no_minter() {
    in_a_process_of_its_own("other_programs", &[]);
}

#[test]
#[ignore = "counts what its process has: run by `another_program_is_no_minter`"]
fn other_programs() {
    let before = Counts::now();
    let start = |program: &str, library: Option<&str>| {
        let options = minter_options(library.map(PathBuf::from));
        Minter::start(&Options { program: program.into(), ..options }).expect_err("no minter")
    };
    assert_eq!(start("/nowhere/minter", None).code(), "mint_not_started");
    assert_eq!(start("true", None).code(), "mint_ended");
    // It writes its argument, the number of this process.
    assert_eq!(start("echo", None).code(), "mint_garbled");
    // It writes a line without end.
    assert_eq!(start("cat", Some("/dev/zero")).code(), "mint_garbled");

    // It sleeps for as many seconds as this process has a number.
    let options = minter_options(None);
    let deadline = std::time::Duration::from_millis(100);
    let options = Options { program: "sleep".into(), deadline, ..options };
    let error = Minter::start(&options).expect_err("no minter");
    assert!(matches!(error, MintError::TooLate { deadline_ms: 100 }), "{error}");
    assert!(error.is_retryable());
    assert_eq!(Counts::now(), before);
}
