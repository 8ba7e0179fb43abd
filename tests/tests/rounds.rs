//! Trainers' verbs on a real cluster: who is alive, the next iteration, votes
//! and blocks, with leaders, hosts and processes that die in between.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_api::{Cause, Code, DroppedWhy, Role, VoteRule};
use holdfast_client::{Client, Deadline, Options};
use holdfast_tests::cluster::job;
use holdfast_tests::way::Gate;
use holdfast_tests::{Cluster, Way, eventually, patiently, soon};
use holdfast_trainer_shim::{Advance, Error, Host, HostOptions, Iteration, Join, Process};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// So long that nobody is taken for dead on a slow machine.
const TTL: Duration = Duration::from_secs(60);

/// Of a host that is to be lost.
const TTL_BRIEF: Duration = Duration::from_secs(5);

/// The shortest that the cluster grants.
const TTL_MIN: Duration = Duration::from_millis(1_500);

async fn host(client: Client, name: &str, ttl: Duration) -> Host {
    let options = HostOptions { host: name.to_owned(), ttl, ..HostOptions::default() };
    patiently("a lease", Host::grant(client, job("train"), options)).await.expect("a lease")
}

async fn join(host: &Host, process: u32) -> Process {
    let join = Join { process: Some(process), ..Join::default() };
    patiently("a registration", host.join(join)).await.expect("a registration")
}

fn world_of_four() -> Advance {
    Advance { world: 4, members_min: 2, ..Advance::default() }
}

/// All of them call, and all get the same iteration.
async fn advance_all(processes: &[Process]) -> Vec<Iteration> {
    let mut calls = JoinSet::new();
    for process in processes {
        let process = process.clone();
        calls.spawn(async move {
            let advance = process.advance(world_of_four(), Deadline::never()).await;
            (process.id(), advance.expect("an iteration"))
        });
    }
    let mut begun = patiently("all iterations", calls.join_all()).await;
    begun.sort_by_key(|(process, _)| *process);
    let begun: Vec<Iteration> = begun.into_iter().map(|(_, iteration)| iteration).collect();
    for iteration in &begun {
        let Iteration { rank: _, .. } = iteration;
        let same = Iteration { rank: begun[0].rank, ..iteration.clone() };
        assert_eq!(same, begun[0], "everybody is told the same");
    }
    begun
}

async fn four(cluster: &Cluster) -> Vec<Process> {
    processes(cluster, [TTL; 4]).await
}

/// Each on a host with this TTL.
async fn processes(cluster: &Cluster, ttls: [Duration; 4]) -> Vec<Process> {
    let mut processes = Vec::new();
    for (n, ttl) in (0..).zip(ttls) {
        let host = host(cluster.client(), &format!("host-{n}"), ttl).await;
        processes.push(join(&host, n).await);
    }
    processes
}

#[tokio::test(flavor = "multi_thread")]
async fn iterations_go_on_while_leaders_are_killed() {
    let mut cluster = Cluster::start(3).await;
    let processes = four(&cluster).await;
    let ranks = |begun: &[Iteration]| begun.iter().map(|i| i.rank).collect::<Vec<_>>();
    for expected in 1..=3 {
        let begun = advance_all(&processes).await;
        assert_eq!(begun[0].iteration, expected);
        assert_eq!(ranks(&begun), [Some(0), Some(1), Some(2), Some(3)]);
    }
    for expected in 4..=6 {
        // Three wait when the leader dies; the fourth comes afterwards.
        let (last, first) = processes.split_last().expect("four");
        let mut calls = JoinSet::new();
        for process in first {
            let process = process.clone();
            calls.spawn(async move { process.advance(world_of_four(), Deadline::never()).await });
        }
        let leader = cluster.leader().await;
        cluster.kill(leader);
        let late = patiently("an iteration", last.advance(world_of_four(), Deadline::never()));
        let late = late.await.expect("an iteration");
        for call in patiently("all iterations", calls.join_all()).await {
            let iteration = call.expect("an iteration");
            assert_eq!(iteration.generation, late.generation);
            assert_eq!(iteration.members, late.members);
        }
        assert_eq!(late.iteration, expected, "no iteration is skipped, none comes twice");
        cluster.restart(leader).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_host_is_left_out_and_its_process_is_fenced() {
    let cluster = Cluster::start(3).await;
    let mut processes = processes(&cluster, [TTL, TTL, TTL, TTL_BRIEF]).await;
    advance_all(&processes).await;

    // A host that vanishes: its tasks, and its client with them, stop dead.
    let lost = processes.pop().expect("four");
    lost.host().freeze();
    let begun = advance_all(&processes).await;
    assert_eq!(begun[0].iteration, 2);
    assert_eq!(begun[0].world_size, 3);
    let dropped = &begun[0].dropped;
    assert_eq!(dropped.len(), 1, "{dropped:?}");
    assert_eq!(dropped[0].process, 3);
    assert_eq!(dropped[0].why, DroppedWhy::Ended(Cause::LeaseExpired));
    assert_eq!(lost.fence(begun[0].generation), None, "no token beyond the lease's certain time");

    // It comes back as a new incarnation, and joins the next iteration.
    let again = host(cluster.client(), "host-3", TTL).await;
    let again = join(&again, 3).await;
    assert!(again.incarnation() > lost.incarnation());
    processes.push(again);
    let begun = advance_all(&processes).await;
    assert_eq!((begun[0].iteration, begun[0].world_size), (3, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_the_agent_tells_closes_the_round_at_once() {
    let cluster = Cluster::start(3).await;
    let mut processes = four(&cluster).await;
    advance_all(&processes).await;
    let dead = processes.pop().expect("four");
    let mut calls = JoinSet::new();
    for process in &processes {
        let process = process.clone();
        calls.spawn(async move { process.live_processes("step", Deadline::never()).await });
    }
    dead.end(Cause::Signaled { signal: 9 }).await.expect("an end");
    for live in patiently("the survivors", calls.join_all()).await {
        let members: Vec<u32> = live.expect("a roll").members.iter().map(|(p, _)| p).collect();
        assert_eq!(members, [0, 1, 2]);
    }
    let fenced = dead.live_processes("step", Deadline::never()).await.expect_err("it is dead");
    assert!(matches!(fenced, Error::Fenced { .. }), "{fenced:?}");
    assert_eq!(fenced.code(), Code::Fenced);
    assert!(fenced.to_string().contains("killed by signal 9"), "{fenced}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spare_takes_the_place_of_the_dead_in_the_same_entry() {
    let cluster = Cluster::start(3).await;
    let mut processes = four(&cluster).await;
    let spare = host(cluster.client(), "spare", TTL).await;
    let join = Join { process: Some(9), role: Role::Standby, ..Join::default() };
    let spare = spare.join(join).await.expect("a registration");
    let waiting = spare.clone();
    let mut promoted = JoinSet::new();
    promoted.spawn(async move { waiting.advance(world_of_four(), Deadline::never()).await });
    let first = advance_all(&processes).await;
    assert_eq!(first[0].world_size, 4, "a spare that is not needed waits on");

    let dead = processes.pop().expect("four");
    dead.end(Cause::Gone).await.expect("an end");
    let begun = advance_all(&processes).await;
    let spared = patiently("the spare", promoted.join_next()).await.expect("a task");
    let spared = spared.expect("it does not panic").expect("an iteration");
    assert_eq!(spared.generation, begun[0].generation);
    assert_eq!(begun[0].world_size, 4);
    assert!(begun[0].promoted.contains(9, spare.incarnation()), "{:?}", begun[0].promoted);
    assert_eq!(spared.rank, Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn votes_and_blocks_tell_everybody_the_same() {
    let cluster = Cluster::start(3).await;
    let processes = four(&cluster).await;
    let base = advance_all(&processes).await[0].generation;
    let vote = async |values: [&'static str; 4]| {
        let mut calls = JoinSet::new();
        for (process, value) in processes.iter().cloned().zip(values) {
            let base = Some(base);
            calls.spawn(async move {
                process.vote("commit", VoteRule::And, value.into(), base, Deadline::never()).await
            });
        }
        patiently("the votes", calls.join_all()).await
    };
    for verdict in vote(["yes"; 4]).await {
        assert!(verdict.expect("a verdict").carried);
    }
    for verdict in vote(["yes", "no", "yes", "yes"]).await {
        let verdict = verdict.expect("a verdict");
        assert!(!verdict.carried);
        assert_eq!(verdict.against[0].process, 1);
    }
    let block = async |before: [Option<(u64, bool)>; 4]| {
        let mut calls = JoinSet::new();
        for (process, before) in processes.iter().cloned().zip(before) {
            calls.spawn(async move { process.atomic("step", before, Deadline::never()).await });
        }
        let mut all = patiently("the blocks", calls.join_all()).await.into_iter();
        let first = all.next().expect("four").expect("a block");
        assert!(all.all(|other| other.as_ref() == Ok(&first)), "everybody is told the same");
        first
    };
    let opened = block([None; 4]).await;
    assert_eq!(opened.succeeded, None);
    let generation = opened.live.generation;
    let next = block([Some((generation, true)); 4]).await;
    assert_eq!(next.succeeded, Some(true));
    let generation = next.live.generation;
    let mut before = [Some((generation, true)); 4];
    before[2] = Some((generation, false));
    let failed = block(before).await;
    assert_eq!(failed.succeeded, Some(false));
    assert_eq!(failed.against[0].process, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_given_up_is_withdrawn_and_a_later_one_counts() {
    let cluster = Cluster::start(1).await;
    let processes = four(&cluster).await;
    let alone = processes[0].live_processes("r", Deadline::after(Duration::from_secs(3)));
    let given_up = alone.await.expect_err("the others are not there");
    assert!(matches!(given_up, Error::Withdrawn { .. }), "{given_up:?}");
    // A future that is dropped withdraws, too.
    let dropped = processes[1].live_processes("r", Deadline::never());
    tokio::time::timeout(Duration::from_secs(3), dropped).await.expect_err("nobody is there");
    // Until the log has it, the call still counts: the others come afterwards.
    eventually("the withdrawal", async || {
        let rounds = processes[0].rounds(soon()).await.expect("the open rounds");
        rounds.is_empty().then_some(())
    })
    .await;
    let mut calls = JoinSet::new();
    for process in &processes {
        let process = process.clone();
        calls.spawn(async move { process.live_processes("r", soon()).await });
    }
    for live in patiently("all", calls.join_all()).await {
        assert_eq!(live.expect("a roll").members.len(), 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_answer_is_late_hears_that_its_round_has_closed() {
    let mut cluster = Cluster::start(1).await;
    let (hold, held) = watch::channel(false);
    let gate: Gate = Arc::new(move || {
        let mut held = held.clone();
        Box::pin(async move { drop(held.wait_for(|held| !*held).await) })
    });
    let way = format!("127.0.0.1:{}", cluster.port());
    let way = Way::open(way, cluster.address(1).to_owned(), gate).await;
    let far = Client::new(Options::new(vec![way.address().to_owned()]));
    let far = join(&host(far, "far", TTL).await, 0).await;
    let near = join(&host(cluster.client(), "near", TTL).await, 1).await;
    let (first, mut waiting) = (near.clone(), JoinSet::new());
    waiting.spawn(async move { first.live_processes("r", soon()).await });
    eventually("the first to wait", async || {
        let rounds = near.rounds(soon()).await.expect("the open rounds");
        (rounds.len() == 1).then_some(())
    })
    .await;
    hold.send(true).expect("the way is there");
    let deadline = Deadline::after(Duration::from_secs(1));
    let mut calling = JoinSet::new();
    calling.spawn(async move { far.live_processes("r", deadline).await });
    let met = waiting.join_all().await.remove(0).expect("a roll");
    tokio::time::sleep_until(deadline.instant().expect("it has one")).await;
    hold.send(false).expect("the way is there");
    let late = patiently("the late call", calling.join_all()).await.remove(0).expect("a roll");
    assert_eq!((late.generation, late.members), (met.generation, met.members));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_registration_is_told_of_the_first() {
    let cluster = Cluster::start(1).await;
    let one = host(cluster.client(), "one", TTL).await;
    let two = host(cluster.client(), "two", TTL).await;
    let first = join(&one, 0).await;
    let join = Join { process: Some(0), ..Join::default() };
    let refused = two.join(join.clone()).await.expect_err("it is alive elsewhere");
    assert!(refused.to_string().contains("alive on host one"), "{refused}");
    let taken = two.join(Join { takeover: true, ..join }).await.expect("a takeover");
    let fenced = first.live_processes("r", soon()).await.expect_err("it was replaced");
    assert!(matches!(fenced, Error::Fenced { .. }), "{fenced:?}");
    let live = patiently("a roll", taken.live_processes("r", soon())).await.expect("a roll");
    assert!(live.members.contains(0, taken.incarnation()));
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_of_many_hosts_share_entries_of_the_log() {
    let cluster = Cluster::start(1).await;
    let mut hosts = Vec::new();
    for n in 0..64 {
        hosts.push(host(cluster.client(), &format!("host-{n}"), TTL_MIN).await);
    }
    let last_log = async || {
        let status = cluster.client().status(soon()).await.expect("the status");
        status.nodes[0].last_log.expect("it runs")
    };
    let (began, first) = (Instant::now(), last_log().await);
    tokio::time::sleep(3 * TTL_MIN).await;
    let (took, entries) = (began.elapsed(), last_log().await - first);
    // Each of them renews four times in a TTL. The leader looks 20 times in a second.
    let renewals = 64 * 4 * took.as_millis() / TTL_MIN.as_millis();
    assert!(entries < took.as_millis() as u64 / 40, "{entries} entries for {renewals} renewals");
    for host in &hosts {
        // A lease that has ended is never valid again.
        let valid = async || host.valid_for().map(|_| ());
        eventually(&format!("the lease of {host:?} to be renewed"), valid).await;
    }
}
