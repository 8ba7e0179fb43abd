//! Which users of a host an agent serves. Only root can be other users: elsewhere these tests say
//! SKIPPED.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;

use holdfast_tests::command::{COMES, Command, gone, process_at};
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Agent, Cluster, Ended, Process, binaries};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

const OWN: u32 = 4710;
const STRANGER: u32 = 4711;
const FRIEND: u32 = 4712;
const NONCE: u32 = 7;

fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: only root can be another user");
    }
    is_root
}

/// Whether a client of this user is served.
async fn is_served(uid: u32, address: &str) -> bool {
    let mut store = TcpStore::connect_by(uid, address, NONCE).await;
    let answer = store.number_or_end::<4>("the nonce").await;
    assert!(answer.is_none_or(|nonce| nonce == NONCE.to_le_bytes()));
    answer.is_some()
}

/// The agent's program where every user can execute it.
fn program(folder: &Path) -> std::process::Command {
    let copy = folder.join("holdfast-agent");
    std::fs::copy(binaries::path("holdfast-agent"), &copy).expect("the folder is ours");
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).expect("it is ours");
    binaries::without_settings(copy)
}

/// `holdfast-agent open` by this user, at this control socket.
async fn open(folder: &Path, uid: u32, control: &Path) -> Ended {
    let mut command = program(folder);
    command.args(["open", "side", "--control"]).arg(control).uid(uid).gid(uid);
    Ended::of(command).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_serves_its_own_user_and_whom_it_is_told_to() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let mut cluster = Cluster::start(1).await;
    let friend = FRIEND.to_string();
    for (job, flags, friends, strangers) in [
        ("alone", &["--keeper"][..], false, false),
        ("friends", &["--allow-uid", &friend], true, false),
        ("anybody", &["--allow-uid", "any"], true, true),
    ] {
        let control = folder.path().join(format!("{job}.sock")).display().to_string();
        let flags = [flags, &["--control", &control]].concat();
        let mut agent = Agent::start_with(&mut cluster, job, &flags).await;
        for (uid, served) in [(0, true), (FRIEND, friends), (STRANGER, strangers)] {
            assert_eq!(is_served(uid, agent.address()).await, served, "{uid} at {job}");
            let control = agent.control().await;
            let opened = open(folder.path(), uid, &control).await;
            let reason = match friends {
                false if uid > 0 => "ermission denied".to_owned(),
                _ => format!("user {uid} may not use this agent"),
            };
            match served {
                true => assert_eq!(opened.code, Some(0), "{uid} at {job}: {opened:?}"),
                false => opened.failed(125, &[&reason]),
            }
            if !served {
                agent.process.says(&format!("--allow-uid {uid}")).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_another_user_than_root_serves_that_and_root() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let mut cluster = Cluster::start(1).await;
    let runtime = folder.path().join("runtime");
    std::fs::create_dir(&runtime).expect("the folder is ours");
    std::fs::set_permissions(&runtime, PermissionsExt::from_mode(0o700)).expect("it is ours");
    chown(&runtime, Some(OWN), Some(OWN)).expect("root may");
    let address = format!("127.0.0.1:{}", cluster.port());
    let mut command = program(folder.path());
    command.args(["serve", "--store", &cluster.list(), "--job", "own", "--tcpstore", &address]);
    command.env("HOLDFAST_RUNTIME_DIR", &runtime).uid(OWN).gid(OWN).current_dir("/");
    let log = cluster.keep_log("own");
    let mut agent = Process::start("the agent", command, &log);
    agent.says(&format!("on {address}")).await;
    for (uid, served) in [(OWN, true), (0, true), (STRANGER, false), (FRIEND, false)] {
        assert_eq!(is_served(uid, &address).await, served, "{uid}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_refused_while_an_agent_is_killed_and_started_again() {
    if !is_root() {
        return;
    }
    let mut cluster = Cluster::start(1).await;
    let command = Command::start(&mut cluster, "again", &["--job", "again"]).await;
    let mut served = TcpStore::connect(&command.address).await;
    for n in 1..4 {
        let agent = process_at(&command.control).await;
        // Nothing is read of it before it is killed: it is accepted now, or by the next one.
        kill(Pid::from_raw(agent), Signal::SIGSTOP).expect("it is ours");
        let mut stranger = TcpStore::connect_by(STRANGER, &command.address, NONCE).await;
        let mut own = TcpStore::connect_as(&command.address, NONCE).await;
        kill(Pid::from_raw(agent), Signal::SIGKILL).expect("it is ours");
        gone(agent).await;
        assert!(stranger.is_closed().await);
        let nonce = own.number_or_end::<4>("the nonce").await;
        assert_eq!(nonce, Some(NONCE.to_le_bytes()));
        assert_eq!(served.add("n", 1).await, n);
    }
    let said = command.end(0).await;
    assert!(said.contains("user 4711 may not use this agent"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_changes_its_user_is_served_if_that_is_allowed() {
    if !is_root() {
        return;
    }
    let mut cluster = Cluster::start(1).await;
    let script = format!("{COMES} | wc -c | grep -qx 4", COMES = COMES.replace(" >/dev/null", ""));
    let uid = STRANGER.to_string();
    let command =
        ["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups", "bash", "-c", &script];
    for (job, flags, code) in
        [("refused", &["--job", "refused"][..], 1), ("allowed", &["--allow-uid", "4711"], 0)]
    {
        let (mut agent, _) = Agent::run(&mut cluster, job, flags, &command);
        assert_eq!(agent.ended().await.code(), Some(code), "{}", agent.said());
        let refusal = "user 4711 may not use this agent; to serve that user, too, start the agent \
                       with --allow-uid 4711";
        assert_eq!(agent.said().contains(refusal), code == 1, "{}", agent.said());
    }
}
