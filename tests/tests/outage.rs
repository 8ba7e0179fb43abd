//! The store does not answer: agents, commands and programs report that, why, and when it is over.

use holdfast_api::routes;
use holdfast_tests::command::{Command, gone, process_at};
use holdfast_tests::{Agent, Cluster, Process, Script, binaries, eventually, http, python};
use nix::sys::signal::Signal;

/// Kills all nodes but one that leads, or `follows`; answers those.
async fn lose_majority(cluster: &mut Cluster, follows: bool) -> Vec<u64> {
    let (follower, leader) = cluster.follower_and_leader().await;
    let left = if follows { follower } else { leader };
    let lost: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != left).collect();
    for id in &lost {
        cluster.kill(*id);
    }
    lost
}

/// It reports the missing voters and how many are needed; answers the line.
async fn says_who_is_missing(process: &mut Process, cluster: &Cluster, lost: &[u64]) -> String {
    let line = process.says("the majority is lost: ").await;
    for id in lost {
        let voter = format!("{id} ({})", cluster.address(*id));
        assert!(line.contains(&voter), "{voter} is missing in {line}");
    }
    assert!(line.contains("2 of 3 are needed, 1 answers"), "{line}");
    line
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_started_without_a_majority_says_so_and_when_it_is_over() {
    let mut cluster = Cluster::start(3).await;
    let lost = lose_majority(&mut cluster, true).await;
    let (mut command, _) = Agent::run(&mut cluster, "late", &["--job", "late"], &["echo", "ran"]);
    let line = says_who_is_missing(&mut command, &cluster, &lost).await;
    assert!(line.contains("the store has not answered for") && line.contains(" s of "), "{line}");
    cluster.restart(lost[0]).await;
    command.says("the store answers again, after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_nothing_to_do_says_that_the_majority_is_lost() {
    let mut cluster = Cluster::start(3).await;
    // It renews its lease too seldom to notice by that.
    let flags = ["--lease-ttl", "30min"];
    let mut agent = Agent::start_with(&mut cluster, "idle", &flags).await;
    // The leader runs: nothing breaks.
    let lost = lose_majority(&mut cluster, false).await;
    says_who_is_missing(&mut agent.process, &cluster, &lost).await;
    cluster.restart(lost[0]).await;
    agent.process.says("the store answers again, after").await;
    // Nodes that hold their sockets and do nothing are missing as well.
    let mut second = Agent::start_with(&mut cluster, "frozen", &flags).await;
    let frozen = cluster.follower().await;
    cluster.pause(frozen);
    let line = second.process.says("the majority is lost: ").await;
    assert!(line.contains(cluster.address(frozen)), "{line}");
    cluster.resume(frozen);
    second.process.says("the store answers again, after").await;
}

/// A leader that has stopped is known for as long as its connections are open.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_majority_is_frozen_is_not_ready() {
    let mut cluster = Cluster::start(3).await;
    let (follower, leader) = cluster.follower_and_leader().await;
    let awake = cluster.ids().into_iter().find(|id| ![follower, leader].contains(id));
    let awake = awake.expect("three nodes");
    for id in [follower, leader] {
        cluster.pause(id);
    }
    let address = cluster.address(awake).to_owned();
    let text = eventually("a node that is not ready", async || {
        let answer = http::get(&address, routes::READYZ).await.ok()?;
        (answer.status == 503).then(|| String::from_utf8_lossy(&answer.body).into_owned())
    });
    let text = text.await;
    assert!(text.contains("the majority is lost: "), "{text}");
    for id in [follower, leader] {
        cluster.resume(id);
    }
    cluster.wait_all_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_no_node_answers_names_the_addresses() {
    let mut cluster = Cluster::start(3).await;
    let mut agent = Agent::start(&mut cluster, "nobody").await;
    for id in cluster.ids() {
        cluster.pause(id);
    }
    let line = agent.process.says("no node of the store answers (").await;
    for id in cluster.ids() {
        assert!(line.contains(cluster.address(id)), "{line}");
    }
    for id in cluster.ids() {
        cluster.resume(id);
    }
    agent.process.says("the store answers again, after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ends_in_an_outage_says_what_it_waits_for_and_can_be_ended() {
    let mut cluster = Cluster::start(3).await;
    let mut command = Command::start(&mut cluster, "ends", &["--job", "ends"]).await;
    let agent = process_at(&command.control).await;
    let lost = lose_majority(&mut cluster, false).await;
    std::fs::write(&command.order, "5").expect("the folder is ours");
    let line = command.agent.says("to tell it that this host leaves run r1").await;
    assert!(line.contains("the majority is lost: ") && line.contains("up to "), "{line}");
    command.agent.says("Ctrl-C or SIGTERM ends the wait").await;
    command.agent.signal(Signal::SIGTERM);
    assert_eq!(command.agent.ended().await.code(), Some(5), "{}", command.agent.said());
    // The agent recovers by itself.
    cluster.restart(lost[0]).await;
    gone(agent).await;
    let said = command.agent.said();
    let (_, log) = said.split_once("its log is ").expect("it is named");
    let log = std::fs::read_to_string(log.lines().next().expect("a path")).expect("it stays");
    assert!(log.contains("the store answers again, after"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_with_the_library_say_that_the_majority_is_lost_while_a_call_waits() {
    let Some(python) = python::with_package() else { return };
    let mut cluster = Cluster::start(3).await;
    let mut agent = Agent::start(&mut cluster, "outage").await;
    let control = agent.control().await;
    let script = |variable: &str, value: &std::ffi::OsStr| {
        let mut command = binaries::without_settings(&python);
        command.arg("-u").arg(python::script("job_outage.py")).env(variable, value);
        command
    };
    let list = cluster.list();
    let own = script("HOLDFAST_STORE", list.as_ref());
    let own = Script::start_command(&mut cluster, "outage-own", own);
    let attached = script("HOLDFAST_CONTROL", control.as_ref());
    let attached = Script::start_command(&mut cluster, "outage-attached", attached);
    let mut waiting = [own, attached];
    for script in &mut waiting {
        // It is in its round, and has reported the processes that it waits for.
        script.says("warning: process 0 of job ").await;
    }
    let lost = lose_majority(&mut cluster, false).await;
    // One that joins in between is notified of it, too.
    let late = script("HOLDFAST_CONTROL", control.as_ref());
    let late = Script::start_command(&mut cluster, "outage-late", late);
    let [mut own, mut attached] = waiting;
    let mut late = late;
    for script in [&mut own, &mut attached, &mut late] {
        let line = says_with(script, "the majority is lost: ").await;
        assert!(line.contains(cluster.address(lost[0])), "{line}");
    }
    cluster.restart(lost[0]).await;
    for script in [&mut own, &mut attached] {
        says_with(script, "the store answers again").await;
    }
}

/// Waits for the next warning that holds a text.
async fn says_with(script: &mut Script, text: &str) -> String {
    loop {
        let line = script.says("warning: ").await;
        if line.contains(text) {
            return line;
        }
    }
}
