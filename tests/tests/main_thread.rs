//! A Python program whose main thread does not run Python: reported to operators, and
//! ended if its policy says so.

use std::path::Path;

use holdfast_tests::{Agent, Cluster, Script, binaries, eventually, python};
use serde_json::Value;

/// A Python process under the agent with this control socket.
async fn join(cluster: &mut Cluster, python: &Path, control: &Path, arguments: &[&str]) -> Script {
    let mut command = binaries::without_settings(python);
    command.arg("-u").arg(python::script("main_thread.py")).args(arguments);
    command.env("HOLDFAST_CONTROL", control);
    let name = format!("main-thread-{}", arguments.join("-"));
    let mut script = Script::start_command(cluster, &name, command);
    script.says("joined").await;
    script
}

async fn listed(cluster: &Cluster, job: &str, what: &[&str]) -> Value {
    let list = [&["-o", "json", "--job", job], what].concat();
    serde_json::from_str(&cluster.cli_ok(&list).await).expect("JSON")
}

/// How long the main thread of process 0 has been silent, as its agent reports.
async fn silent_ms(cluster: &Cluster, job: &str) -> Option<u64> {
    let all = listed(cluster, job, &["agent", "list"]).await;
    let mut processes = all["agents"][0]["processes"].as_array()?.iter();
    processes.find(|one| one["process"] == 0)?["main_thread_silent_ms"].as_u64()
}

async fn is_told_no_more(cluster: &Cluster, job: &str) {
    let silent = async || silent_ms(cluster, job).await.is_none().then_some(());
    eventually("it to be told no more", silent).await;
}

/// Whether it is reported at any moment until the script says this.
async fn told_until(cluster: &Cluster, script: &mut Script, says: &str) -> bool {
    let mut told = false;
    let mut done = std::pin::pin!(script.says(says));
    loop {
        tokio::select! {
            _ = &mut done => return told,
            found = silent_ms(cluster, "train") => told |= found.is_some(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_main_thread_that_runs_no_python_is_told_while_it_lasts_and_ends_nothing() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    // In C with the GIL and without it, and while another thread waits for others.
    for what in ["hold", "sleep", "beside"] {
        let mut agent = Agent::start(&mut cluster, what).await;
        let control = agent.control().await;
        let mut script = join(&mut cluster, &python, &control, &["0"]).await;
        script.order(&format!("{what} 25")).await;
        let told = eventually("it to be told", async || silent_ms(&cluster, what).await).await;
        assert!((5_000..30_000).contains(&told), "{what}: {told} ms");
        let why = cluster.cli_ok(&["--job", what, "why"]).await;
        // One that has arrived is not waited for.
        let told = why.contains("main thread has not run Python for ");
        assert_eq!(told, what != "beside", "{what}: {why}");
        let table = cluster.cli_ok(&["--job", what, "processes"]).await;
        assert!(table.contains("has not run Python for "), "{what}: {table}");
        let agents = cluster.cli_ok(&["--job", what, "agent", "list"]).await;
        assert!(agents.contains("the main thread of process 0 (host "), "{what}: {agents}");
        script.says("done").await;
        is_told_no_more(&cluster, what).await;
        let all = listed(&cluster, what, &["processes"]).await;
        assert_eq!(all["processes"][0]["end"], Value::Null, "without a limit it ends nobody");
        // A thread of its own may still wait: its end does not.
        script.order("end").await;
        script.says("left").await;
        script.succeeds().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_main_thread_that_spins_in_python_or_waits_in_a_verb_is_not_silent() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, "train").await;
    let control = agent.control().await;
    let mut script = join(&mut cluster, &python, &control, &["0", "8"]).await;
    script.order("spin 20").await;
    assert!(!told_until(&cluster, &mut script, "done spin").await, "it runs Python");
    script.order("wait").await;
    script.says("began wait").await;
    let mut other = join(&mut cluster, &python, &control, &["1"]).await;
    other.order("sleep 20").await;
    let slept = told_until(&cluster, &mut other, "done sleep").await;
    assert!(!slept, "a main thread that waits for others answers, and is not beyond its limit");
    other.order("wait").await;
    for mut one in [script, other] {
        one.says("done wait").await;
        one.order("end").await;
        one.says("left").await;
        one.succeeds().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_main_thread_that_is_silent_for_longer_than_its_policy_allows_is_ended() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, "train").await;
    let control = agent.control().await;
    let mut stuck = join(&mut cluster, &python, &control, &["0", "6"]).await;
    stuck.order("hold 600").await;
    agent.process.says("its main thread was silent for").await;
    let cause = eventually("its end", async || {
        let all = listed(&cluster, "train", &["processes"]).await;
        Some(all["processes"][0]["end"]["cause"].clone()).filter(|cause| !cause.is_null())
    })
    .await;
    let silent = cause["unresponsive"]["silent_ms"].as_u64().expect("it was silent");
    assert!((6_000..60_000).contains(&silent), "{cause}");
    is_told_no_more(&cluster, "train").await;
}
