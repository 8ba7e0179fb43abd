//! Nodes join, vote, leave; and a new one is brought up to date.

use std::process::Stdio;
use std::time::Duration;

use holdfast_api::{Admin, Blob, Code, Effectiveness, NodeRole};
use holdfast_client::Error;
use holdfast_tests::cluster::job;
use holdfast_tests::{Adders, Cluster, binaries, eventually, soon};

const ADDERS: usize = 24;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_joins_votes_and_replaces_another_under_load() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), ADDERS);
    load.progress(50).await;

    let new = cluster.join();
    let address = cluster.address(new).to_owned();
    eventually("the new node to listen", async || {
        tokio::net::TcpStream::connect(&address).await.ok()
    })
    .await;
    add(&cluster, new).await;
    let role = role_of(&cluster, new).await;
    assert_eq!(role, (NodeRole::Learner, false), "a new node does not vote");
    promote(&cluster, new).await;
    assert!(role_of(&cluster, new).await.1, "a promoted node votes");
    for news in ["was added as a learner; 3 voters", "votes now; 4 voters, of which 1 may fail"] {
        let line = format!("node {new} ({address}) {news}");
        eventually("the leader to log who came", async || {
            let ids = cluster.awake();
            ids.into_iter().find(|id| cluster.process(*id).said().contains(&line))
        })
        .await;
    }
    cluster.wait_ready(new).await;
    load.progress(50).await;

    // The leader itself is removed: leadership is handed over first.
    cluster.expect_error("was removed from cluster");
    let removed = cluster.leader().await;
    cluster.operate_ok(&["node", "remove", &removed.to_string()]).await;
    let (status, said) = cluster.ended(removed).await;
    assert_ne!(status.code(), Some(0), "a removed node that is started again must stay down");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains("removed"), "{last}");
    load.progress(50).await;
    let tally = load.finish().await;
    assert_eq!((tally.failed, tally.unknown), (0, 0), "{tally:?}");

    let status = cluster.status_of(new).await;
    let members: Vec<_> = status.nodes.iter().map(|node| node.id).collect();
    assert_eq!(members.len(), 3);
    assert!(!members.contains(&removed), "{members:?}");

    // It is refused for ever: with what it has, and with an empty disk.
    cluster.launch(removed);
    cluster.refuses(removed, &["removed"]).await;
    cluster.wipe(removed);
    cluster.launch(removed);
    cluster.refuses(removed, &["removed", "new --node-id"]).await;
    cluster.agreement(&job("load")).await;
}

async fn role_of(cluster: &Cluster, id: u64) -> (NodeRole, bool) {
    eventually("a status that lists the node", async || {
        let leader = cluster.leader().await;
        let status = cluster.status(leader).await?;
        let node = status.nodes.into_iter().find(|node| node.id == id)?;
        (node.role != NodeRole::Unreachable).then_some((node.role, node.voter))
    })
    .await
}

/// Adds a node as soon as it waits to be added.
async fn add(cluster: &Cluster, id: u64) {
    eventually("the new node to be added", async || {
        let ended = cluster.operate(&["node", "add", &id.to_string(), cluster.address(id)]).await;
        (ended.code == Some(0)).then_some(())
    })
    .await;
}

/// Promotes a learner as soon as it has caught up.
async fn promote(cluster: &Cluster, id: u64) {
    eventually("the learner to catch up", async || {
        let ended = cluster.operate(&["-o", "json", "node", "promote", &id.to_string()]).await;
        let behind = ended.stderr.contains("quorum_would_be_lost");
        assert!(ended.code == Some(0) || behind, "node {id} cannot be promoted: {ended:#?}");
        (ended.code == Some(0)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_disk_is_replaced_by_one_command_under_load() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), ADDERS);
    load.progress(50).await;

    // At the same address, as on a host that got a new disk.
    let lost = cluster.follower().await;
    cluster.kill(lost);
    cluster.wipe(lost);
    let not_there = cluster.operate(&["node", "replace", &lost.to_string(), "4"]).await;
    not_there.failed(1, &["start it first: holdfast-store serve --node-id 4"]);
    let new = cluster.join_in_place_of(lost);
    let ids = [lost.to_string(), new.to_string()];
    let replace = ["-o", "json", "node", "replace", &ids[0], &ids[1]];
    let said = replaced(&cluster, &replace).await;
    assert_eq!(said, format!(r#"{{"node":{new},"replaced":{lost}}}"#));
    assert_eq!(voters(&cluster).await, members_but(&cluster, &[lost]));
    assert_eq!(replaced(&cluster, &replace).await, said, "once more is harmless");
    // The others go on looking for the lost node at that address, many times a second.
    let logged = cluster.process(new).said();
    let lines = logged.lines().filter(|line| line.contains(&format!("looks for node {lost}")));
    assert!((1..=12).contains(&lines.count()), "{logged}");
    assert!(!logged.contains("refused another node"), "{logged}");
    load.progress(50).await;

    // At another one; a step that was done by hand before is not repeated.
    let next = cluster.join();
    add(&cluster, next).await;
    promote(&cluster, next).await;
    let before = voters(&cluster).await;
    // The leader itself goes: leadership is handed over first.
    cluster.expect_error("was removed from cluster");
    let leader = cluster.leader().await;
    let ids = [leader.to_string(), next.to_string()];
    let there = cluster.address(next).to_owned();
    let slip = cluster.operate(&["node", "replace", &ids[0], &ids[1], "--force"]).await;
    let remove = format!("`holdfast node remove {leader}`");
    slip.failed(1, &["is a voter already", "nothing was changed", &remove]);
    let slip = cluster.operate(&["node", "replace", &ids[0], &ids[1], &there]).await;
    slip.failed(1, &["answers at", cluster.address(leader), "nothing was changed", "--force"]);
    assert_eq!(voters(&cluster).await, before);
    replaced(&cluster, &["node", "replace", &ids[0], &ids[1], &there, "--force"]).await;
    cluster.ended(leader).await;
    assert_eq!(voters(&cluster).await, members_but(&cluster, &[lost, leader]));
    let tally = load.finish().await;
    assert_eq!((tally.failed, tally.unknown), (0, 0), "{tally:?}");
    cluster.agreement(&job("load")).await;
}

/// Replaces a node as soon as the new one has found its place. The command goes
/// on where an earlier try has stopped.
async fn replaced(cluster: &Cluster, replace: &[&str]) -> String {
    eventually("the new node to be there", async || {
        let ended = cluster.operate(replace).await;
        // The last of them if it is done, and the node that was asked did not know what
        // is to be done.
        let waiting = ["start it first", "which answers", "there is no node"];
        let waiting = waiting.iter().any(|text| ended.stderr.contains(text));
        assert!(ended.code == Some(0) || waiting, "{ended:#?}");
        (!ended.stdout.is_empty()).then(|| ended.stdout.trim_end().to_owned())
    })
    .await
}

async fn voters(cluster: &Cluster) -> Vec<u64> {
    let status = cluster.status_of(cluster.leader().await).await;
    status.nodes.iter().filter(|node| node.voter).map(|node| node.id).collect()
}

fn members_but(cluster: &Cluster, gone: &[u64]) -> Vec<u64> {
    cluster.ids().into_iter().filter(|id| !gone.contains(id)).collect()
}

/// Starts an operator's command and interrupts it after this time.
async fn interrupted(cluster: &Cluster, arguments: &[&str], after: Duration) {
    let mut command = binaries::command("holdfast");
    command.args(["--store", &cluster.list()]).args(arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("holdfast starts");
    tokio::time::sleep(after).await;
    child.kill().and_then(|()| child.wait()).expect("a child can be killed");
}

/// Waits until no change of voters is in progress, as the leader sees it; answers the voters.
async fn voters_in_the_end(cluster: &Cluster) -> Vec<u64> {
    eventually("the change to be finished", async || {
        let status = cluster.status(cluster.leader().await).await?;
        status.leader?;
        let voters = status.nodes.iter().filter(|node| node.voter).map(|node| node.id);
        status.joint.is_none().then(|| voters.collect())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_voters_that_is_interrupted_is_finished() {
    let mut cluster = Cluster::start(3).await;
    let new = cluster.join();
    add(&cluster, new).await;
    let id = new.to_string();
    // The leader dies at any point of it.
    for ms in [15, 30, 45, 60] {
        let leader = cluster.leader().await;
        interrupted(&cluster, &["node", "promote", &id], Duration::from_millis(ms)).await;
        cluster.kill(leader);
        voters_in_the_end(&cluster).await;
        cluster.restart(leader).await;
        for id in [1, 2, 3] {
            cluster.wait_ready(id).await;
        }
    }
    if !voters_in_the_end(&cluster).await.contains(&new) {
        promote(&cluster, new).await;
    }
    // The client that asked for it is gone; it may have been asked for or not.
    cluster.expect_error("was removed from cluster");
    for ms in [10, 20, 40, 80] {
        interrupted(&cluster, &["node", "remove", &id], Duration::from_millis(ms)).await;
    }
    eventually("the node to be gone", async || {
        let ended = Box::pin(cluster.operate(&["node", "remove", &id])).await;
        let voters = Box::pin(voters_in_the_end(&cluster)).await;
        (ended.code.is_some() && voters == [1, 2, 3]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_not_founded_yet_says_for_whom_it_waits() {
    let mut cluster = Cluster::plan(3, &[]);
    for id in [1, 2] {
        cluster.launch(id);
    }
    let third = format!("waiting for node 3 at {}", cluster.address(3));
    cluster.process(1).says(&third).await;
    let said = eventually("all nodes to have looked around", async || {
        let began = std::time::Instant::now();
        let said = cluster.cli_fails(3, &["status"]).await;
        // It gives up after 1.5 s; other commands wait for 10 s.
        assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
        said.contains(&third).then_some(said)
    })
    .await;
    assert!(said.contains("the cluster is not founded yet"), "{said}");
    assert!(!said.contains("`holdfast status`"), "{said}");
    cluster.launch(3);
    cluster.wait_all_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_replaced_where_the_quorum_would_be_lost() {
    let mut cluster = Cluster::start(3).await;
    let (follower, leader) = cluster.follower_and_leader().await;
    cluster.kill(follower);
    cluster.kill(leader);
    let said = cluster.cli_fails(1, &["node", "replace", &follower.to_string(), "4"]).await;
    assert!(said.contains("nothing was changed") && said.contains("node list"), "{said}");
    let same = cluster.cli_fails(1, &["node", "replace", "2", "2"]).await;
    assert!(same.contains("never used"), "{same}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_lose_the_quorum_is_refused() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let mut followers = cluster.ids();
    followers.retain(|id| *id != leader);
    let (dead, healthy) = (followers[0], followers[1]);
    cluster.kill(dead);
    // Of the two voters left by removing the healthy one, one would answer.
    let refused = cluster.operate(&["node", "remove", &healthy.to_string()]).await;
    refused.failed(1, &["needed", "answer"]);
    // The dead one may go: two healthy voters are left.
    cluster.operate_ok(&["node", "remove", &dead.to_string()]).await;
    let client = cluster.client();
    client.keys(job("q")).put("k", "v", soon()).await.expect("two voters serve");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_wishes_of_an_operator_are_refused_with_what_to_do() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    let refused = async |admin: Admin| {
        eventually("the wish to be refused", async || {
            match client.admin(admin.clone(), soon()).await {
                Err(Error::Refused(problem)) if problem.outcome == Effectiveness::None => {
                    Some((problem.code, problem.message))
                }
                Err(error) if error.outcome() == Effectiveness::Unknown => None,
                other => panic!("{other:?}"),
            }
        })
        .await
    };
    let (code, said) = refused(Admin::PromoteNode { node: 9 }).await;
    assert_eq!(code, Code::NodeNotFound, "{said}");
    let (code, said) = refused(Admin::PromoteNode { node: 2 }).await;
    assert!(code == Code::Conflict && said.contains("votes already"), "{said}");
    let nobody = format!("127.0.0.1:{}", cluster.port());
    let (code, said) = refused(Admin::AddNode { node: 4, address: nobody.clone() }).await;
    assert!(code == Code::Conflict && said.contains("--join"), "{said}");
    let taken = cluster.address(2).to_owned();
    let (code, said) = refused(Admin::AddNode { node: 4, address: taken }).await;
    assert!(code == Code::Conflict && said.contains("address of node 2"), "{said}");
    let (code, said) = refused(Admin::TransferLeader { to: Some(9) }).await;
    assert_eq!(code, Code::NodeNotFound, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_goes_where_an_operator_wants_it() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client();
    let load = Adders::start(&client, &job("load"), ADDERS);
    for _ in 0..3 {
        load.progress(30).await;
        let to = cluster.follower().await;
        // On a slow machine another election may follow at once: then an operator repeats
        // the command.
        eventually("the chosen node to lead", async || {
            cluster.operate_ok(&["leader", "transfer", &to.to_string()]).await;
            for _ in 0..100 {
                if cluster.leader().await == to {
                    return Some(());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            None
        })
        .await;
    }
    let tally = load.finish().await;
    assert_eq!((tally.failed, tally.unknown), (0, 0), "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_brings_an_empty_node_up_to_date_and_outlives_restarts() {
    let flags = ["--snapshot-entries", "50", "--entries-kept", "10"];
    let mut cluster = Cluster::start_with(3, &flags).await;
    let client = cluster.client();
    let keys = client.keys(job("s"));
    for n in 0..150 {
        keys.put(format!("k{n}").as_str(), format!("v{n}").as_str(), soon()).await.expect("a put");
    }
    // Entries that a new node would need are purged: only a snapshot has them.
    for id in cluster.ids() {
        eventually(&format!("a snapshot of node {id}"), async || {
            let status = cluster.status(id).await?;
            let own = status.nodes.into_iter().find(|node| node.id == id)?;
            (own.snapshot? >= 100).then_some(())
        })
        .await;
    }
    let new = cluster.join();
    add(&cluster, new).await;
    promote(&cluster, new).await;
    cluster.wait_ready(new).await;
    let (_, content) = eventually("the new node to hold everything", async || {
        let content = cluster.content(new, &job("s")).await?;
        (content.1.len() == 150).then_some(content)
    })
    .await;
    assert_eq!(content[&Blob::from("k149")], Blob::from("v149"));

    // A follower that was away for longer than the log reaches back.
    let away = cluster.ids()[0];
    cluster.kill(away);
    for n in 150..300 {
        keys.put(format!("k{n}").as_str(), format!("v{n}").as_str(), soon()).await.expect("a put");
    }
    cluster.restart(away).await;
    assert_eq!(cluster.agreement(&job("s")).await.len(), 300);

    // And everything again from snapshots and the logs after them.
    for id in cluster.ids() {
        cluster.kill(id);
    }
    for id in cluster.ids() {
        cluster.launch(id);
    }
    cluster.wait_all_ready().await;
    let kept = cluster.agreement(&job("s")).await;
    assert_eq!(kept.len(), 300);
    assert_eq!(kept[&Blob::from("k299")], Blob::from("v299"));
}
