//! Trainers' verbs on a real cluster: live processes, the next iteration, votes and
//! blocks, with leaders, hosts and processes that die in between.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_api::{
    AgainstWhy, Among, AssignmentStep, Cause, Code, DroppedWhy, Policy, Role, VoteRule,
};
use holdfast_client::{Client, Deadline, Options};
use holdfast_tests::cluster::job;
use holdfast_tests::delay_proxy::Gate;
use holdfast_tests::{Cluster, DelayProxy, eventually, patiently, soon};
use holdfast_trainer_shim::exception::block_failure;
use holdfast_trainer_shim::{BlockVerdict, Error, Host, HostOptions, Iteration, Join, Process};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// So long that no process is declared dead on a slow machine.
const TTL: Duration = Duration::from_secs(60);

/// Of a host that is to be lost, or that renews its lease often.
const TTL_BRIEF: Duration = Duration::from_secs(5);

async fn host(client: Client, name: &str, ttl: Duration) -> Host {
    let options = HostOptions { host: name.to_owned(), ttl, ..HostOptions::default() };
    patiently("a lease", Host::grant(client, job("train"), options)).await.expect("a lease")
}

async fn join(host: &Host, process: u32) -> Process {
    join_with(host, Join { process: Some(process), ..Join::default() }).await
}

async fn join_with(host: &Host, join: Join) -> Process {
    patiently("a registration", host.join(join)).await.expect("a registration")
}

fn world_of_four() -> Policy {
    Policy { world: 4, members_min: 2, ..Policy::default() }
}

/// All of them call, and all get the same iteration.
async fn advance_all(processes: &[Process]) -> Vec<Iteration> {
    let mut calls = JoinSet::new();
    for process in processes {
        let process = process.clone();
        calls.spawn(async move {
            let advance = process.advance(None, Deadline::never()).await;
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
        let join = Join { process: Some(n), policy: world_of_four(), ..Join::default() };
        processes.push(join_with(&host, join).await);
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
            calls.spawn(async move { process.advance(None, Deadline::never()).await });
        }
        let leader = cluster.leader().await;
        cluster.kill(leader);
        let late = patiently("an iteration", Box::pin(last.advance(None, Deadline::never())));
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

/// Without the store no process can prove that it is alive, and none is dead: once there
/// is a leader again, the same incarnation goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_not_a_death() {
    let mut cluster = Cluster::start(3).await;
    let processes = processes(&cluster, [TTL, TTL, TTL, TTL_BRIEF]).await;
    let begun = advance_all(&processes).await;
    let generation = begun[0].generation;
    let brief = &processes[3];
    let fence = brief.fence(generation).expect("it is alive");

    // Two nodes of three are down: there is no leader, and no log time passes.
    let (follower, leader) = cluster.follower_and_leader().await;
    cluster.pause(leader);
    cluster.pause(follower);
    let lost = patiently("an unproven life", async {
        loop {
            match brief.fence(generation) {
                Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => break error,
            }
        }
    });
    let lost = lost.await;
    assert!(matches!(lost, Error::StoreLost { .. }), "{lost}");
    assert!(lost.is_retryable(), "{lost}");
    assert_eq!(brief.host().valid_for(), None);
    let soon = Deadline::after(Duration::from_millis(100));
    let unanswered = brief.live_processes("in the outage", Among::Active, soon).await;
    let unanswered = unanswered.expect_err("nobody answers");
    assert_eq!(unanswered.code(), Code::Unavailable, "{unanswered}");

    cluster.resume(follower);
    cluster.resume(leader);
    let again = patiently("a proof of life", async {
        loop {
            match brief.fence(generation) {
                Ok(fence) => break fence,
                Err(Error::StoreLost { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(other) => panic!("an outage is told as a death: {other}"),
            }
        }
    });
    assert_eq!(again.await, fence, "the same incarnation");
    let begun = advance_all(&processes).await;
    assert_eq!((begun[0].iteration, begun[0].world_size), (2, 4));
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
    let unproven = lost.fence(begun[0].generation).expect_err("its lease is not certain any more");
    assert!(matches!(unproven, Error::StoreLost { .. }), "{unproven}");

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
        calls.spawn(async move {
            process.live_processes("step", Among::Active, Deadline::never()).await
        });
    }
    dead.end(Cause::Signaled { signal: 9 }).await.expect("an end");
    for live in patiently("the survivors", calls.join_all()).await {
        let members: Vec<u32> = live.expect("a roll").members.iter().map(|(p, _)| p).collect();
        assert_eq!(members, [0, 1, 2]);
    }
    let fenced = dead
        .live_processes("step", Among::Active, Deadline::never())
        .await
        .expect_err("it is dead");
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
    promoted.spawn(async move { waiting.advance(None, Deadline::never()).await });
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

/// All of them call at the same time; the results, in their order.
async fn all_call<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    processes: &[Process],
    call: impl Fn(Process) -> F,
) -> Vec<T> {
    let mut calls = JoinSet::new();
    for (place, process) in processes.iter().cloned().enumerate() {
        let call = call(process);
        calls.spawn(async move { (place, call.await) });
    }
    let mut came = patiently("all calls", calls.join_all()).await;
    came.sort_by_key(|(place, _)| *place);
    came.into_iter().map(|(_, one)| one).collect()
}

/// The result that is the same for all.
fn one<T: PartialEq + std::fmt::Debug>(mut answers: Vec<Result<T, Error>>) -> T {
    let first = answers.remove(0).expect("an answer");
    for other in answers {
        assert_eq!(other.as_ref(), Ok(&first), "everybody is told the same");
    }
    first
}

#[tokio::test(flavor = "multi_thread")]
async fn votes_tell_everybody_the_same() {
    let cluster = Cluster::start(3).await;
    let processes = four(&cluster).await;
    let among = Among::Generation(advance_all(&processes).await[0].generation);
    let vote = async |values: [&'static str; 4]| {
        let verdicts = all_call(&processes, |process| {
            let (among, value) = (among.clone(), values[process.id() as usize].into());
            async move { process.vote("go", VoteRule::And, value, among, Deadline::never()).await }
        });
        one(verdicts.await)
    };
    assert!(vote(["yes"; 4]).await.carried);
    let verdict = vote(["yes", "no", "yes", "yes"]).await;
    assert!(!verdict.carried);
    assert_eq!(verdict.against[0].process, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_a_filter_left_out_is_not_waited_for_by_the_ranked() {
    let cluster = Cluster::start(1).await;
    let assignment = vec![AssignmentStep::DivisibleBy { divisor: 3 }];
    let policy = Policy { assignment, ..world_of_four() };
    let mut processes = Vec::new();
    for n in 0..4 {
        let host = host(cluster.client(), &format!("host-{n}"), TTL).await;
        let join = Join { process: Some(n), policy: policy.clone(), ..Join::default() };
        processes.push(join_with(&host, join).await);
    }
    let begun = advance_all(&processes).await;
    let ranks: Vec<_> = begun.iter().map(|iteration| iteration.rank).collect();
    assert_eq!(ranks, [Some(0), Some(1), Some(2), None]);
    let among = Among::Generation(begun[0].generation);

    // It waits for the next iteration, and the others vote.
    let left_out = processes.pop().expect("four");
    let (waiting, mut next) = (left_out.clone(), JoinSet::new());
    next.spawn(async move { waiting.advance(None, Deadline::never()).await });
    let verdict =
        one(all_call(&processes, |process| {
            let among = among.clone();
            async move {
                process.vote("go", VoteRule::And, "yes".into(), among, Deadline::never()).await
            }
        })
        .await);
    assert!(verdict.carried && verdict.against.is_empty(), "{verdict:?}");
    let refused = left_out.vote("go", VoteRule::And, "yes".into(), among, soon()).await;
    assert_eq!(refused.expect_err("it has no rank").code(), Code::Conflict);
    let begun = advance_all(&processes).await;
    let next = patiently("the one left out", next.join_next()).await.expect("a task");
    let next = next.expect("it does not panic").expect("an iteration");
    assert_eq!(next.generation, begun[0].generation);
}

/// All enter one atomic block; answers its generation.
async fn enter(processes: &[Process]) -> u64 {
    let entered =
        all_call(
            processes,
            |process| async move { process.enter("step", Deadline::never()).await },
        );
    one(entered.await).generation
}

/// All arrive at the exit, these with a failure.
async fn exit(processes: &[Process], block: u64, failures: &[(u32, &'static str)]) -> BlockVerdict {
    let exits = all_call(processes, |process| {
        let failure = failures.iter().find(|(failed, _)| *failed == process.id());
        let ended = failure.map_or(Ok(()), |(_, words)| Err((*words).to_owned()));
        async move { process.exit("step", block, ended, Deadline::never()).await }
    });
    one(exits.await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_has_its_verdict_at_its_exit_and_all_are_told_the_same() {
    let cluster = Cluster::start(3).await;
    let processes = four(&cluster).await;
    let block = enter(&processes).await;
    let verdict = exit(&processes, block, &[]).await;
    assert!(verdict.succeeded && verdict.against.is_empty(), "{verdict:?}");
    // A late exit gets it, too.
    let again = processes[0].exit("step", block, Ok(()), soon()).await.expect("a verdict");
    assert!(again.succeeded && again.against.is_empty(), "{again:?}");

    let block = enter(&processes).await;
    let verdict = exit(&processes, block, &[(2, "disk full")]).await;
    assert!(!verdict.succeeded);
    assert_eq!(verdict.against[0].process, 2);
    assert_eq!(block_failure(&verdict.against[0].why), "failed by disk full");

    // One that failed does not wait for the others, and they get its failure.
    let block = enter(&processes).await;
    processes[3].fail("step", block, "out of memory".to_owned()).await;
    let verdict = exit(&processes[..3], block, &[]).await;
    assert_eq!(block_failure(&verdict.against[0].why), "failed by out of memory");

    // One that died in the block makes it fail, whenever the others come.
    let block = enter(&processes).await;
    processes[3].end(Cause::Signaled { signal: 9 }).await.expect("an end");
    let verdict = exit(&processes[..3], block, &[]).await;
    assert_eq!(block_failure(&verdict.against[0].why), "killed by signal 9");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_that_was_given_up_makes_the_block_fail_for_all() {
    let cluster = Cluster::start(1).await;
    let processes = four(&cluster).await;
    let block = enter(&processes).await;
    let patience = Deadline::after(Duration::from_secs(1));
    let given_up = processes[0].exit("step", block, Ok(()), patience).await;
    let given_up = given_up.expect_err("the others are not there");
    assert!(matches!(given_up, Error::Withdrawn { .. }), "{given_up:?}");
    // It enters again, where it waits for the others: they leave the first block.
    let (first, mut entering) = (processes[0].clone(), JoinSet::new());
    entering.spawn(async move { first.enter("step", Deadline::never()).await });
    let verdict = exit(&processes[1..], block, &[]).await;
    assert!(!verdict.succeeded);
    assert_eq!(verdict.against[0].process, 0);
    let why = &verdict.against[0].why;
    assert!(matches!(why, AgainstWhy::Withdrawn | AgainstWhy::EnteredAgain), "{why:?}");
    let next = enter(&processes[1..]).await;
    let entered = patiently("the first", entering.join_next()).await.expect("a task");
    let entered = entered.expect("it does not panic").expect("an entry");
    assert_eq!(entered.generation, next);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_waits_for_a_store_that_is_away() {
    let mut cluster = Cluster::start(1).await;
    let processes = four(&cluster).await;
    let block = enter(&processes).await;
    let mut first = JoinSet::new();
    let early = processes[0].clone();
    first.spawn(async move { early.exit("step", block, Ok(()), Deadline::never()).await });
    eventually("the first to be at the exit", async || {
        let rounds = processes[1].rounds(soon()).await.expect("the open rounds");
        (rounds.len() == 1).then_some(())
    })
    .await;
    cluster.kill(1);
    let mut others = JoinSet::new();
    for process in &processes[1..] {
        let process = process.clone();
        others.spawn(async move { process.exit("step", block, Ok(()), Deadline::never()).await });
    }
    cluster.restart(1).await;
    let verdict = patiently("the first", first.join_all()).await.remove(0).expect("a verdict");
    assert!(verdict.succeeded, "{verdict:?}");
    assert_eq!(one(patiently("the others", others.join_all()).await), verdict);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_goes_to_an_advance_instead_makes_the_block_fail() {
    let cluster = Cluster::start(1).await;
    let processes = four(&cluster).await;
    advance_all(&processes).await;
    let block = enter(&processes).await;
    let (gone, mut advancing) = (processes[3].clone(), JoinSet::new());
    advancing.spawn(async move { gone.advance(None, Deadline::never()).await });
    let verdict = exit(&processes[..3], block, &[]).await;
    assert!(!verdict.succeeded);
    assert_eq!((verdict.against[0].process, &verdict.against[0].why), (3, &AgainstWhy::NotThere));
    let part_over = processes[3].exit("step", block, Ok(()), soon()).await;
    assert_eq!(part_over.expect_err("its part is over").code(), Code::Conflict);
    // A round over all of them cannot close without it: they go there, too.
    let regroup = processes[0].live_processes("r", Among::Active, soon()).await;
    let regroup = regroup.expect_err("the fourth waits in an advance");
    assert!(matches!(regroup, Error::Regroup { .. }), "{regroup:?}");
    assert_eq!((regroup.code(), regroup.is_retryable()), (Code::Regroup, true));
    assert!(regroup.to_string().contains("process 3"), "{regroup}");
    let begun = advance_all(&processes[..3]).await;
    let last = patiently("the fourth", advancing.join_next()).await.expect("a task");
    let last = last.expect("it does not panic").expect("an iteration");
    assert_eq!(last.generation, begun[0].generation);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spare_hears_that_the_job_is_over() {
    let cluster = Cluster::start(1).await;
    let here = host(cluster.client(), "here", TTL).await;
    let only = join(&here, 0).await;
    let spare = Join { process: Some(1), role: Role::Standby, ..Join::default() };
    let spare = join_with(&here, spare).await;
    let mut waiting = JoinSet::new();
    let waits = spare.clone();
    waiting.spawn(async move { waits.advance(None, Deadline::never()).await });
    advance_all(std::slice::from_ref(&only)).await;
    only.leave().await.expect("it leaves");
    let over = patiently("the spare", waiting.join_next()).await.expect("a task");
    let over = over.expect("it does not panic").expect_err("nobody is left");
    assert!(matches!(over, Error::Over { .. }), "{over:?}");
    assert_eq!((over.code(), over.is_retryable()), (Code::Over, false));
    let late = spare.advance(None, soon()).await.expect_err("nobody is left");
    assert!(matches!(late, Error::Over { .. }), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_own_minimum_is_not_met_leaves_and_says_so() {
    let cluster = Cluster::start(1).await;
    let here = host(cluster.client(), "here", TTL).await;
    let mut processes = Vec::new();
    for (n, members_min) in [(0, 1), (1, 1), (2, 4)] {
        let policy = Policy { members_min, ..Policy::default() };
        let join = Join { process: Some(n), policy, ..Join::default() };
        processes.push(join_with(&here, join).await);
    }
    let begun =
        all_call(
            &processes,
            |process| async move { process.advance(None, Deadline::never()).await },
        );
    let mut begun = begun.await;
    let leaves = begun.pop().expect("three").expect_err("its minimum is not met");
    assert!(
        matches!(leaves, Error::TooFewMembers { members: 3, members_min: 4, .. }),
        "{leaves:?}"
    );
    assert!(!leaves.is_retryable() && leaves.to_string().contains("members_min 4"), "{leaves}");
    assert!(
        begun.iter().all(|one| one.as_ref().is_ok_and(|it| it.members.len() == 3)),
        "{begun:?}"
    );
    // The others go on without it, and get the reason why it left.
    let next = advance_all(&processes[..2]).await;
    assert_eq!(next[0].dropped[0].process, 2);
    let DroppedWhy::Ended(cause) = &next[0].dropped[0].why else { panic!("{next:?}") };
    assert!(cause.to_string().contains("members_min 4"), "{cause}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_given_up_is_withdrawn_and_a_later_one_counts() {
    let cluster = Cluster::start(1).await;
    let processes = four(&cluster).await;
    let alone =
        processes[0].live_processes("r", Among::Active, Deadline::after(Duration::from_secs(3)));
    let given_up = alone.await.expect_err("the others are not there");
    assert!(matches!(given_up, Error::Withdrawn { .. }), "{given_up:?}");
    // A future that is dropped withdraws, too.
    let dropped = processes[1].live_processes("r", Among::Active, Deadline::never());
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
        calls.spawn(async move { process.live_processes("r", Among::Active, soon()).await });
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
    let proxy = format!("127.0.0.1:{}", cluster.port());
    let proxy = DelayProxy::open(proxy, cluster.address(1).to_owned(), gate).await;
    // It keeps to its connection however late the answers are.
    let options = Options::new(vec![proxy.address().to_owned()]);
    let far = Client::new(Options { probe_after: Duration::from_secs(3_600), ..options });
    let far = join(&host(far, "far", TTL).await, 0).await;
    let near = join(&host(cluster.client(), "near", TTL).await, 1).await;
    let (first, mut waiting) = (near.clone(), JoinSet::new());
    waiting.spawn(async move { first.live_processes("r", Among::Active, soon()).await });
    eventually("the first to wait", async || {
        let rounds = near.rounds(soon()).await.expect("the open rounds");
        (rounds.len() == 1).then_some(())
    })
    .await;
    hold.send(true).expect("the way is there");
    // On a slow machine it takes a while until the node has its call.
    let deadline = Deadline::after(Duration::from_secs(5));
    let mut calling = JoinSet::new();
    calling.spawn(async move { far.live_processes("r", Among::Active, deadline).await });
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
    let fenced =
        first.live_processes("r", Among::Active, soon()).await.expect_err("it was replaced");
    assert!(matches!(fenced, Error::Fenced { .. }), "{fenced:?}");
    let live = patiently("a roll", Box::pin(taken.live_processes("r", Among::Active, soon())))
        .await
        .expect("a roll");
    assert!(live.members.contains(0, taken.incarnation()));
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_of_many_hosts_share_entries_of_the_log() {
    let cluster = Cluster::start(1).await;
    let mut hosts = Vec::new();
    for n in 0..64 {
        hosts.push(host(cluster.client(), &format!("host-{n}"), TTL_BRIEF).await);
    }
    let last_log = async || {
        let status = cluster.client().status(soon()).await.expect("the status");
        status.nodes[0].last_log.expect("it runs")
    };
    let (began, first) = (Instant::now(), last_log().await);
    tokio::time::sleep(TTL_BRIEF).await;
    let (took, entries) = (began.elapsed(), last_log().await - first);
    // Each of them renews four times in a TTL. The leader looks 20 times in a second.
    let renewals = 64 * 4 * took.as_millis() / TTL_BRIEF.as_millis();
    assert!(entries < took.as_millis() as u64 / 40, "{entries} entries for {renewals} renewals");
    for host in &hosts {
        // A lease that has ended is never valid again.
        let valid = async || host.valid_for().map(|_| ());
        eventually(&format!("the lease of {host:?} to be renewed"), valid).await;
    }
}
