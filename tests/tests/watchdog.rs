//! Processes that fall silent: reported, asked to end, ended, and when not.

use std::path::Path;

use holdfast_tests::{Agent, Cluster, Script, binaries, eventually};
use nix::sys::signal::Signal;
use serde_json::Value;

/// A program that joins with these limits in milliseconds: soft, hard, grace.
async fn trainer(cluster: &mut Cluster, control: &Path, process: u32, watchdog: &str) -> Script {
    let program = binaries::path("holdfast-test-trainer").display().to_string();
    // SIGTERM alone does not end it.
    let stubborn = format!("trap '' TERM; exec {program} {process} --watchdog {watchdog}");
    let mut command = binaries::without_settings("sh");
    command.args(["-c", &stubborn]).env("HOLDFAST_CONTROL", control);
    let mut script = Script::start_command(cluster, &format!("trainer-{process}"), command);
    script.says("joined ").await;
    script
}

async fn start(cluster: &mut Cluster) -> (Agent, std::path::PathBuf) {
    let mut agent = Agent::start_with(cluster, "train", &["--lease-ttl", "20s"]).await;
    let control = agent.control().await;
    (agent, control)
}

/// The cluster's record of a process's end; null while it is alive.
async fn end_of(cluster: &Cluster, process: u32) -> Value {
    let list = ["-o", "json", "--job", "train", "processes"];
    let all: Value = serde_json::from_str(&cluster.cli_ok(&list).await).expect("JSON");
    let found = all["processes"].as_array().expect("a list").iter();
    let mut found = found.filter(|one| one["process"] == process);
    found.next().expect("it was there")["end"]["cause"].clone()
}

/// How an agent sees a process.
async fn seen(cluster: &Cluster, process: u32) -> Option<Value> {
    let list = ["-o", "json", "--job", "train", "agent", "list"];
    let all: Value = serde_json::from_str(&cluster.cli_ok(&list).await).expect("JSON");
    let processes = all["agents"][0]["processes"].as_array()?;
    processes.iter().find(|one| one["process"] == process).cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_frozen_is_ended_and_the_others_go_on() {
    let mut cluster = Cluster::start(1).await;
    let (mut agent, control) = start(&mut cluster).await;
    let mut lively = trainer(&mut cluster, &control, 0, "2000,6000,500").await;
    let mut frozen = trainer(&mut cluster, &control, 1, "2000,6000,500").await;
    for script in [&mut lively, &mut frozen] {
        script.order("roll first").await;
    }
    // By then its agent knows its limits.
    frozen.says("rolled first 0,1").await;
    lively.order("roll r").await;
    frozen.signal(Signal::SIGSTOP);
    assert_eq!(lively.says("rolled r ").await, "0");
    let cause = end_of(&cluster, 1).await;
    let silent = cause["unresponsive"]["silent_ms"].as_u64().expect("it was silent");
    assert!(silent >= 6_000, "{silent}");
    for words in ["process 1 (2) has shown no progress for", "SIGTERM", "SIGKILL"] {
        agent.process.says(words).await;
    }
    assert_eq!(end_of(&cluster, 0).await, Value::Null, "heartbeats are enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_tells_of_progress_is_told_when_there_is_none() {
    let mut cluster = Cluster::start(1).await;
    let (_agent, control) = start(&mut cluster).await;
    let mut idle = trainer(&mut cluster, &control, 0, "500,600000,500").await;
    idle.order("roll first").await;
    idle.says("rolled first 0").await;
    idle.order("progress 7").await;
    let silent: u64 = idle.says("silent ").await.parse().expect("milliseconds");
    assert!(silent >= 500, "{silent}");
    let told = eventually("the report", async || {
        seen(&cluster, 0).await.filter(|told| told["health"] == "silent" && told["progress"] == 7)
    })
    .await;
    assert_eq!(told["last_call"], "first");
    let why = cluster.cli_ok(&["--job", "train", "why"]).await;
    for words in ["the control plane is idle", "last call first", "progress 7", "silent for"] {
        assert!(why.contains(words), "{words:?} is missing: {why}");
    }
    let table = cluster.cli_ok(&["--job", "train", "processes"]).await;
    assert!(table.contains("LAST-CALL") && table.contains("first"), "{table}");
    // Going in circles is no progress; going on is.
    idle.order("progress 7").await;
    idle.order("progress 8").await;
    let told = eventually("its progress", async || {
        seen(&cluster, 0).await.filter(|told| told["progress"] == 8)
    })
    .await;
    assert_eq!(told["waiting"], false);
    idle.says("silent ").await;
    assert_eq!(end_of(&cluster, 0).await, Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn pauses_and_critical_sections_hold_the_watchdog_up_but_not_for_ever() {
    let mut cluster = Cluster::start(1).await;
    let (_agent, control) = start(&mut cluster).await;
    let mut paused = trainer(&mut cluster, &control, 0, "1000,5000,500").await;
    let mut critical = trainer(&mut cluster, &control, 1, "1000,5000,500").await;
    let mut ended = trainer(&mut cluster, &control, 2, "1000,5000,500").await;
    paused.order("paused 600000").await;
    critical.order("critical 600000").await;
    for script in [&mut paused, &mut critical, &mut ended] {
        script.order("ping").await;
    }
    critical.says("silent ").await;
    eventually("the third to be ended", async || {
        end_of(&cluster, 2).await["unresponsive"].as_object().map(|_| ())
    })
    .await;
    for (process, health) in [(0, "paused"), (1, "critical")] {
        assert_eq!(end_of(&cluster, process).await, Value::Null);
        eventually("the report", async || {
            seen(&cluster, process).await.filter(|told| told["health"] == health)
        })
        .await;
    }
    for (script, process) in [(&mut paused, 0), (&mut critical, 1)] {
        script.order("free").await;
        eventually("its end", async || {
            end_of(&cluster, process).await["unresponsive"].as_object().map(|_| ())
        })
        .await;
    }
    // A critical section has a time limit of its own.
    let mut last = trainer(&mut cluster, &control, 3, "1000,5000,500").await;
    last.order("ping").await;
    last.order("critical 8000").await;
    let cause = eventually("its end", async || {
        Some(end_of(&cluster, 3).await).filter(|cause| !cause.is_null())
    })
    .await;
    assert!(cause["unresponsive"]["silent_ms"].as_u64() >= Some(6_500), "{cause}");
}
