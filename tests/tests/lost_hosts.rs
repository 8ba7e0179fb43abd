//! The leader's host is lost: packets vanish, nothing closes, nothing refuses.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use holdfast_api::{
    Answer, Command, LeaseCommand, LeaseId, LeaseOutcome, Nonce, Outcome, Read, ReadOutcome,
};
use holdfast_client::{Client, Options};
use holdfast_tests::cluster::job;
use holdfast_tests::command::Command as UnderAgent;
use holdfast_tests::stream::RawStream;
use holdfast_tests::tcpstore::TcpStore;
use holdfast_tests::{Cluster, Host, Names, Network, Process, Script, binaries, eventually, soon};
use serde_json::Value;
use tokio::task::JoinSet;

/// How often a cluster loses its leader's host here.
const LOSSES: usize = 2;

/// How often everything is lost instead, in a run that measures.
fn asked() -> Option<usize> {
    let count = std::env::var("HOLDFAST_LOST_HOSTS").ok()?;
    Some(count.parse().expect("a number in HOLDFAST_LOST_HOSTS"))
}

/// Prints a line for a table of `benchmarks.md` in a run that measures: times, median and worst
/// in milliseconds.
fn publish(what: &str, mut taken: Vec<Duration>) {
    taken.sort_unstable();
    let (Some(_), Some(worst)) = (asked(), taken.last()) else { return };
    let [median, worst] = [taken[taken.len() / 2], *worst].map(|time| time.as_secs_f64() * 1e3);
    println!("| {what} | {} | {median:.0} | {worst:.0} |", taken.len());
}

/// Cuts off the leader's host so many times; answers how long each write begun
/// after that took.
async fn lose_leaders(network: &mut Network, flags: &[&str]) -> Vec<Duration> {
    let hosts: [Host; 3] = network.hosts(Names::Real);
    let flags = [&["--insecure"], flags].concat();
    let mut cluster = Cluster::start_on(&hosts, &flags).await;
    let keys = cluster.client().keys(job("lost"));
    let mut outages = Vec::new();
    for added in 1..=asked().unwrap_or(LOSSES) as i64 {
        assert_eq!(keys.add("count", 1, soon()).await.expect("a cluster at work"), added * 2 - 1);
        let leader = cluster.leader().await;
        let host = &hosts[leader as usize - 1];
        host.cut_off();
        let lost = Instant::now();
        assert_eq!(keys.add("count", 1, soon()).await.expect("the others go on"), added * 2);
        outages.push(lost.elapsed());
        host.plug_in();
        eventually("the node to follow", async || {
            let status = cluster.status(leader).await?;
            status.leader.filter(|successor| *successor != leader)
        })
        .await;
        cluster.wait_ready(leader).await;
    }
    outages
}

#[test]
fn the_leader_s_host_is_succeeded_before_an_election_is_due() {
    Network::test(async |network| {
        let (min, max) = ("30s", "40s");
        let outages = lose_leaders(network, &["--election-min", min, "--election-max", max]).await;
        assert!(outages.iter().all(|outage| *outage < Duration::from_secs(30)), "{outages:?}");
    });
}

#[test]
fn at_default_settings_a_lost_host_costs_a_moment() {
    Network::test(async |network| {
        let outages = lose_leaders(network, &[]).await;
        println!("host lost to the next write: {outages:?}");
        publish("a host lost, to the next write", outages);
    });
}

#[test]
fn who_waits_hears_of_another_leader_from_a_follower() {
    Network::test(async |network| {
        let hosts: [Host; 3] = network.hosts(Names::Real);
        let mut cluster = Cluster::start_on(&hosts, &["--insecure"]).await;
        let never = Duration::from_secs(3_600);
        // It sends no probes by itself.
        let options = Options { probe_after: never, ..cluster.client_options(&[1, 2, 3]) };
        let waiting = Client::new(options);
        let keys = waiting.keys(job("told"));
        let mut wait = JoinSet::new();
        wait.spawn(async move { keys.wait(vec!["go".into()], soon()).await });
        let keys = cluster.client().keys(job("told"));
        keys.add("count", 1, soon()).await.expect("a cluster at work");
        let leader = cluster.leader().await;
        eventually("a follower that is listened to", async || {
            waiting.statistics().lookout.filter(|node| *node != leader)
        })
        .await;
        hosts[leader as usize - 1].cut_off();
        let lost = Instant::now();
        keys.put("go", "now", soon()).await.expect("the others go on");
        let put = lost.elapsed();
        let ended = wait.join_next().await.expect("it waits").expect("it does not panic");
        ended.expect("it hears of the key");
        println!(
            "host lost to the next write: {put:?}, to the end of a wait: {:?}",
            lost.elapsed()
        );
        assert!(waiting.statistics().leader.is_some_and(|successor| successor != leader));
        hosts[leader as usize - 1].plug_in();
        cluster.wait_all_ready().await;
    });
}

/// How long a client is cut off from the leader alone, and how long it may take to
/// notice.
const CUT_OFF: Duration = Duration::from_secs(12);
const NOTICED: Duration = Duration::from_secs(1);

/// The least TTL of a lease, in milliseconds.
const TTL_MS: u64 = 1_500;

/// The test's own address.
const HERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

async fn grant(client: &Client) -> LeaseId {
    let command = Command::Lease(LeaseCommand::Grant {
        scope: job("cut"),
        nonce: Nonce(1, 2),
        host: "here".into(),
        ttl_ms: TTL_MS,
        store_lost_ms_max: None,
    });
    eventually("a lease", async || match client.propose(command.clone(), soon()).await {
        Ok(Answer { outcome: Outcome::Lease(LeaseOutcome::Granted { lease, .. }), .. }) => {
            Some(lease)
        }
        _ => None,
    })
    .await
}

/// Cuts a client off from the leader alone; answers how long the longest call took that was begun
/// later than [`NOTICED`].
async fn cut_off_from_the_leader(network: &mut Network) -> Duration {
    let hosts: [Host; 3] = network.hosts(Names::Real);
    let mut cluster = Cluster::start_on(&hosts, &["--insecure"]).await;
    let client = cluster.client();
    let keys = client.keys(job("cut"));
    keys.add("count", 1, soon()).await.expect("a cluster at work");
    let lease = grant(&client).await;
    // One that only waits notices, too.
    let waiting = cluster.client();
    let its_keys = waiting.keys(job("cut"));
    let mut wait = JoinSet::new();
    wait.spawn(async move { its_keys.wait(vec!["go".into()], soon()).await });
    eventually("the wait's connection", async || waiting.statistics().leader).await;
    // So does an agent: its lease and its connections stay.
    let flags = ["--job", "agent", "--lease-ttl", "1500ms", "--no-keeper"];
    let command = UnderAgent::start(&mut cluster, "agent", &flags).await;
    let mut store = TcpStore::connect(&command.address).await;
    store.set("k", b"v").await;
    let (leader, term) = (cluster.leader().await, cluster.status_of(1).await.term);
    let host = &hosts[leader as usize - 1];
    host.lose_what_goes_to(HERE);

    let (cut, mut count, mut worst) = (Instant::now(), 1, Duration::ZERO);
    let (mut of_agent, mut wait) = (Duration::ZERO, Some(wait));
    while cut.elapsed() < CUT_OFF {
        let begun = Instant::now();
        count += 1;
        assert_eq!(keys.add("count", 1, soon()).await.expect("another way"), count);
        if begun.duration_since(cut) > NOTICED {
            worst = worst.max(begun.elapsed());
        }
        let renewed = Command::Lease(LeaseCommand::KeepAlive { lease });
        let renewed = client.propose(renewed, soon()).await.expect("another way").outcome;
        assert!(matches!(renewed, Outcome::Lease(LeaseOutcome::Kept)), "{renewed:?}");
        let begun = Instant::now();
        store.set("k", b"v").await;
        if begun.duration_since(cut) > NOTICED {
            of_agent = of_agent.max(begun.elapsed());
            if let Some(mut wait) = wait.take() {
                let begun = Instant::now();
                keys.put("go", "now", soon()).await.expect("another way");
                let ended = wait.join_next().await.expect("it waits");
                ended.expect("it does not panic").expect("another way");
                println!("a wait went on after {:?}", begun.elapsed());
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!(
        "{count} adds while cut off from the leader, the worst took {worst:?}; of an agent's \
         {of_agent:?}"
    );
    let said = command.agent.said();
    assert!(!said.contains("lease") || !said.contains("expired"), "{said}");
    let connects = client.statistics().connects;
    host.reach_again(HERE);
    eventually("the direct way", async || {
        count += 1;
        assert_eq!(keys.add("count", 1, soon()).await.expect("a cluster at work"), count);
        (client.statistics().connects > connects).then_some(())
    })
    .await;
    let status = cluster.status_of(leader).await;
    assert_eq!((status.term, status.leader), (term, Some(leader)));
    assert_eq!(store.get("k").await, b"v", "the connection was kept");
    command.end(0).await;
    cluster.wait_all_ready().await;
    worst.max(of_agent)
}

#[test]
fn a_client_that_loses_only_the_leader_goes_through_another_node() {
    let mut longest = Vec::new();
    for _ in 0..asked().unwrap_or(1) {
        Network::test(async |network| {
            longest.push(Box::pin(cut_off_from_the_leader(network)).await);
        });
    }
    publish("cut off from the leader for 12 s, the longest call after the first second", longest);
}

/// A host with an agent on it and a trainer, which has joined.
async fn trainer_on(cluster: &mut Cluster, host: &Host, process: u32) -> (Process, Script) {
    let mut agent = binaries::command("holdfast-agent");
    agent.args(["serve", "--store", &cluster.list(), "--job", "train"]);
    agent.args(["--tcpstore", "127.0.0.1:29500", "--lease-ttl", &format!("{TTL_MS}ms")]);
    let log = cluster.keep_log(&format!("agent-{process}"));
    let mut agent = host.process("the agent", agent, &log);
    let line = agent.says("HOLDFAST_CONTROL=").await;
    let (_, control) = line.split_once("HOLDFAST_CONTROL=").expect("it was looked for");
    let mut trainer = binaries::command("holdfast-test-trainer");
    trainer.arg(process.to_string()).env("HOLDFAST_CONTROL", control.trim());
    let mut trainer = host.program(cluster, &format!("trainer-{process}"), trainer);
    trainer.says("joined ").await;
    (agent, trainer)
}

/// Loses a host with the leader and a trainer on it; answers when the others' round ended.
async fn lose_host_with_leader(network: &mut Network) -> Duration {
    let hosts: [Host; 3] = network.hosts(Names::Real);
    let mut cluster = Cluster::start_on(&hosts, &["--insecure"]).await;
    let (mut agents, mut trainers) = (Vec::new(), Vec::new());
    for (process, host) in (1..).zip(&hosts) {
        let (agent, trainer) = trainer_on(&mut cluster, host, process).await;
        agents.push(agent);
        trainers.push(trainer);
    }
    let leader = cluster.leader().await;
    let lost = trainers.remove(leader as usize - 1);
    let others: Vec<String> = (1..=3).filter(|n| *n != leader).map(|n| n.to_string()).collect();
    for trainer in &mut trainers {
        trainer.order("roll lost").await;
    }
    let client = cluster.client();
    let rounds = || client.read(Read::rounds(job("train")), Default::default(), soon());
    let before = eventually("the others to wait", async || {
        let answer = rounds().await.ok()?;
        let ReadOutcome::Rounds(rounds) = answer.outcome else { return None };
        rounds.iter().any(|open| open.arrived.len() == 2).then_some(answer.time_ms)
    })
    .await;
    hosts[leader as usize - 1].cut_off();
    let cut = Instant::now();
    for trainer in &mut trainers {
        assert_eq!(trainer.says("rolled lost ").await, others.join(","));
    }
    let closed = cut.elapsed();
    println!("host and leader lost to the end of a round: {closed:?}");
    // The next leader gives the lease one TTL of log time, and no more.
    let list = ["-o", "json", "--job", "train", "processes"];
    let listed: Value = serde_json::from_str(&cluster.cli_ok(&list).await).expect("JSON");
    let mut listed = listed["processes"].as_array().expect("a list").iter();
    let end = &listed.find(|one| one["process"] == leader).expect("it was there")["end"];
    assert_eq!(end["cause"], "lease_expired");
    let ended = end["at_ms"].as_u64().expect("a log time");
    println!("its lease ended after {} ms of log time", ended - before);
    assert!(ended - before < 3 * TTL_MS, "{ended} ms, {before} ms when it was lost");
    hosts[leader as usize - 1].plug_in();
    cluster.wait_all_ready().await;
    drop((lost, agents));
    closed
}

#[test]
fn a_round_goes_on_when_a_host_is_lost_together_with_the_leader_on_it() {
    let mut closed = Vec::new();
    for _ in 0..asked().unwrap_or(1) {
        Network::test(async |network| closed.push(Box::pin(lose_host_with_leader(network)).await));
    }
    publish("a host and the leader on it lost, to the end of a round", closed);
}

/// How long a follower is cut off, and how soon it holds a new write then: the
/// kernel's own pauses between two tries have grown longer by then.
const FOLLOWER_CUT_OFF: Duration = Duration::from_secs(8);
const FOLLOWS_AGAIN: Duration = Duration::from_secs(4);

#[test]
fn a_follower_that_is_plugged_in_again_is_written_to_at_once() {
    Network::test(async |network| {
        let hosts: [Host; 3] = network.hosts(Names::Real);
        let mut cluster = Cluster::start_on(&hosts, &["--insecure"]).await;
        let keys = cluster.client().keys(job("again"));
        let (follower, leader) = cluster.follower_and_leader().await;
        let host = &hosts[follower as usize - 1];
        host.cut_off();
        let cut = Instant::now();
        while cut.elapsed() < FOLLOWER_CUT_OFF {
            keys.add("count", 1, soon()).await.expect("the others go on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        host.plug_in();
        let back = Instant::now();
        let wanted = cluster.status_of(leader).await.nodes[leader as usize - 1].last_log;
        eventually("the follower to have it all", async || {
            let status = cluster.status(follower).await?;
            (status.nodes[follower as usize - 1].last_log >= wanted).then_some(())
        })
        .await;
        println!("plugged in to all written: {:?}", back.elapsed());
        assert!(back.elapsed() < FOLLOWS_AGAIN, "{:?}", back.elapsed());
        assert_eq!(cluster.leader().await, leader);
        cluster.wait_all_ready().await;
    });
}

/// Connections of a lost host, and how soon their places are to be free.
const STREAMS: usize = 32;
const REAPED: Duration = Duration::from_secs(10);

#[test]
fn the_places_of_a_host_that_is_gone_are_free_again() {
    Network::test(async |network| {
        let hosts: [Host; 1] = network.hosts(Names::Real);
        let mut cluster = Cluster::start_on(&hosts, &["--insecure"]).await;
        let pid = cluster.process(1).pid();
        let open =
            || std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").count();
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            streams.push(RawStream::open(cluster.address(1)).await.expect("a stream"));
        }
        let all = open();
        // It no longer answers, and nothing notifies the node.
        network.lose_what_goes_to(hosts[0].address());
        let gone = Instant::now();
        eventually("their places to be free", async || {
            (open() + STREAMS * 3 / 4 < all).then_some(())
        })
        .await;
        println!(
            "{STREAMS} idle streams of a host that is gone: closed after {:?}",
            gone.elapsed()
        );
        assert!(gone.elapsed() < REAPED + Duration::from_secs(3), "{:?}", gone.elapsed());
        network.reach_again(hosts[0].address());
        drop(streams);
    });
}
