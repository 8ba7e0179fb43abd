//! A node comes back with an older disk than others have seen: a shorter log, an older vote, or
//! both. It says so at its first contact with who saw more, and no acknowledged write is lost.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use holdfast_api::NodeId;
use holdfast_tests::cluster::job;
use holdfast_tests::disk::copy_folder;
use holdfast_tests::{Cluster, eventually, http, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What a node says of itself and of others to other nodes.
const IDENTITY: &str = "/raft/v1/identity";

/// Writes `k0`, `k1`, … up to this many.
async fn write(cluster: &Cluster, count: u64) {
    let keys = cluster.client().keys(job("d"));
    for n in 0..count {
        keys.put(format!("k{n}").as_str(), "v", soon()).await.expect("a put");
    }
}

/// Makes a node lead.
async fn lead(cluster: &Cluster, node: NodeId) {
    eventually(&format!("node {node} to lead"), async || {
        if cluster.leader().await == node {
            return Some(());
        }
        cluster.operate(&["leader", "transfer", &node.to_string()]).await;
        None
    })
    .await;
}

/// Waits until another node knows how far the leader's log reaches.
async fn reach_is_seen(cluster: &Cluster, leader: NodeId) {
    let status = cluster.status_of(leader).await;
    let node = status.nodes.iter().find(|node| node.id == leader).expect("it is a member");
    let applied = node.applied.expect("it answers for itself");
    eventually("another node to see how far the leader's log reaches", async || {
        for other in cluster.ids().into_iter().filter(|id| *id != leader) {
            let asked = http::get(cluster.address(other), IDENTITY).await;
            let seen = &asked.expect("it answers").json()["seen"][leader.to_string()];
            if seen["index"].as_u64() >= Some(applied) && seen["term"].as_u64() == Some(status.term)
            {
                return Some(());
            }
        }
        None
    })
    .await;
}

/// Copies the folder of a node that does not run; answers where to.
fn keep(cluster: &Cluster, node: NodeId, name: &str) -> PathBuf {
    let kept = cluster.folder().join(name);
    copy_folder(cluster.data_dir(node), &kept);
    kept
}

/// Puts another folder in the place of a node's; answers where that is now.
fn exchange(cluster: &Cluster, node: NodeId, other: &Path) -> PathBuf {
    let aside = cluster.folder().join(format!("aside-{node}"));
    fs::rename(cluster.data_dir(node), &aside).expect("a stopped node's folder");
    fs::rename(other, cluster.data_dir(node)).expect("a stopped node's folder");
    aside
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_set_back_loses_nothing() {
    let mut cluster = Cluster::start(3).await;
    write(&cluster, 20).await;
    let (victim, leader) = cluster.follower_and_leader().await;
    assert_ne!(victim, leader);
    cluster.kill(victim);
    let old = keep(&cluster, victim, "old");
    cluster.restart(victim).await;
    lead(&cluster, victim).await;
    write(&cluster, 40).await;
    // It is killed as a leader: the others know from it alone how far its log reached.
    reach_is_seen(&cluster, victim).await;
    cluster.kill(victim);
    write(&cluster, 60).await;

    // Its log alone: the node itself sees that it is too short.
    let log = old.join("log");
    let newer = cluster.folder().join("newer-log");
    fs::rename(cluster.data_dir(victim).join("log"), &newer).expect("a stopped node's folder");
    copy_folder(&log, &cluster.data_dir(victim).join("log"));
    cluster.launch(victim);
    cluster.refuses(victim, &["is damaged", "was made durable", "node remove"]).await;
    fs::remove_dir_all(cluster.data_dir(victim).join("log")).expect("it was copied");
    fs::rename(&newer, cluster.data_dir(victim).join("log")).expect("a stopped node's folder");

    // All of it: the others have seen more.
    let new = exchange(&cluster, victim, &old);
    cluster.expect_error("rolled back");
    cluster.launch(victim);
    let log = format!("the log of node {victim} ends at");
    cluster.refuses(victim, &[&log, "rolled back", "node remove", "new node id"]).await;
    write(&cluster, 80).await;
    cluster.wipe(victim);
    fs::rename(&new, cluster.data_dir(victim)).expect("a stopped node's folder");
    cluster.restart(victim).await;
    assert_eq!(cluster.agreement(&job("d")).await.len(), 80);
}

/// Where other nodes find a node; it passes on what they send, appends only while it is open.
struct Door {
    takes_appends: watch::Sender<bool>,
    _passing: JoinSet<()>,
}

/// How a connection for appends begins.
const APPENDS: &[u8] = b"GET /raft/v1/channel/append ";

impl Door {
    async fn new(from: &str, to: String) -> Door {
        let listener = TcpListener::bind(from).await.expect("a free port");
        let (takes_appends, is_open) = watch::channel(true);
        let mut passing = JoinSet::new();
        passing.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(pass(stream, to.clone(), is_open.clone()));
            }
        });
        Door { takes_appends, _passing: passing }
    }
}

async fn pass(
    mut stream: TcpStream,
    to: String,
    mut takes_appends: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut head = vec![0; APPENDS.len()];
    stream.read_exact(&mut head).await?;
    let is_closed = async {
        match head == APPENDS {
            // It closes with the test, too.
            true => drop(takes_appends.wait_for(|open| !open).await),
            false => std::future::pending().await,
        }
    };
    let mut there = TcpStream::connect(to).await?;
    there.write_all(&head).await?;
    tokio::select! {
        () = is_closed => Ok(()),
        passed = copy_bidirectional(&mut stream, &mut there) => passed.map(drop),
    }
}

/// The node that is set back, which is the last to stand for election, and its tries: it may
/// stand first all the same.
const VOTER: NodeId = 3;
const TRIES_MAX: u32 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_that_forgot_its_vote_is_found() {
    let mut cluster = Cluster::plan(3, &[]);
    let behind = cluster.move_behind(VOTER);
    let door = Door::new(cluster.address(VOTER), behind).await;
    for id in cluster.ids() {
        cluster.launch(id);
    }
    cluster.wait_all_ready().await;
    write(&cluster, 20).await;

    let mut tries = 0;
    let old = loop {
        tries += 1;
        assert!(tries <= TRIES_MAX, "node {VOTER} stood for election each time");
        lead(&cluster, 1).await;
        cluster.agreement(&job("d")).await;
        // From now on its log stays as it is.
        door.takes_appends.send_replace(false);
        cluster.kill(VOTER);
        let old = keep(&cluster, VOTER, &format!("old-{tries}"));
        cluster.restart(VOTER).await;
        cluster.kill(1);
        if cluster.leader().await == 2 {
            break old;
        }
        door.takes_appends.send_replace(true);
        cluster.restart(1).await;
    };
    // Its vote was needed, and it is all that has changed on its disk.
    cluster.kill(VOTER);
    let new = exchange(&cluster, VOTER, &old);
    door.takes_appends.send_replace(true);
    cluster.expect_error("rolled back");
    cluster.launch(VOTER);
    let vote = format!("the vote of node {VOTER} is of term");
    cluster.refuses(VOTER, &[&vote, "rolled back", "node remove", "new node id"]).await;
    cluster.wipe(VOTER);
    fs::rename(&new, cluster.data_dir(VOTER)).expect("a stopped node's folder");
    cluster.launch(VOTER);
    cluster.restart(1).await;
    cluster.wait_all_ready().await;
    assert_eq!(cluster.agreement(&job("d")).await.len(), 20);
}
