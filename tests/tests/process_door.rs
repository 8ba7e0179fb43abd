//! Programs with the library under one agent: their deaths are reported at once, and an
//! agent that is frozen, killed or sent garbage does no harm.

use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_api::{
    Among, Arrival, Cause, Command, LeaseCommand, LeaseId, Nonce, Outcome, ProcessCommand,
    ProcessEnd, ProcessId, ProcessOutcome, Read, Role, RoundCommand, Scope,
};
use holdfast_client::{Client, Deadline};
use holdfast_tests::cluster::job;
use holdfast_tests::command::{Command as Launched, process_at};
use holdfast_tests::link::{Heard, Over};
use holdfast_tests::tcpstore::{TcpStore, key, op};
use holdfast_tests::{
    Agent, Cluster, Ended, RawLink, Script, binaries, eventually, patiently, soon,
};
use holdfast_trainer_shim::exception::block_failure;
use holdfast_trainer_shim::{Error, Host, HostOptions, Join, Process, Wanted};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::task::JoinSet;

/// A TTL that does not end during a test.
const LONG: Duration = Duration::from_secs(60);
/// Far below it, on any machine.
const FAR_BELOW: Duration = Duration::from_secs(20);

fn start(cluster: &mut Cluster, control: &Path, process: u32, arguments: &[&str]) -> Script {
    let mut command = binaries::command("holdfast-test-trainer");
    command.arg(process.to_string()).args(arguments).env("HOLDFAST_CONTROL", control);
    Script::start_command(cluster, &format!("trainer-{process}"), command)
}

/// A program that has joined.
async fn trainer(cluster: &mut Cluster, control: &Path, process: u32) -> Script {
    let mut script = start(cluster, control, process, &[]);
    script.says("joined ").await;
    script
}

async fn trainers(cluster: &mut Cluster, control: &Path, of: std::ops::Range<u32>) -> Vec<Script> {
    let mut all: Vec<Script> = of.map(|n| start(cluster, control, n, &[])).collect();
    for script in &mut all {
        script.says("joined ").await;
    }
    all
}

/// All of them wait in a round at which another process has not arrived.
async fn wait_in(cluster: &Cluster, round: &str, waiting: &mut [Script]) {
    for script in waiting.iter_mut() {
        script.order(&format!("roll {round}")).await;
    }
    let client = cluster.client();
    eventually("all to wait", async || {
        let rounds = client.read(Read::rounds(job("train")), Default::default(), soon());
        let found = rounds.await.expect("open rounds").outcome;
        let text = format!("{found:?}");
        let holdfast_api::ReadOutcome::Rounds(rounds) = found else { panic!("{text}") };
        let found = rounds.into_iter().find(|open| open.round == round.into())?;
        (found.arrived.len() == waiting.len()).then_some(())
    })
    .await;
}

/// How a process ended, as the command line shows it; null while it is alive.
async fn end_of(cluster: &Cluster, process: u32) -> Value {
    let list = ["-o", "json", "--job", "train", "processes"];
    let all: Value = serde_json::from_str(&cluster.cli_ok(&list).await).expect("JSON");
    let found = all["processes"].as_array().expect("a list").iter();
    let mut found = found.filter(|one| one["process"] == process);
    found.next().expect("it was there")["end"]["cause"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn survivors_hear_of_a_killed_process_at_once() {
    let mut cluster = Cluster::start(3).await;
    let mut agent = Agent::start_with(&mut cluster, "train", &["--lease-ttl", "60s"]).await;
    let control = agent.control().await;
    let mut survivors = trainers(&mut cluster, &control, 0..3).await;
    for (round, with_child) in [("one", false), ("two", true)] {
        let mut killed = match with_child {
            false => trainer(&mut cluster, &control, 3).await,
            true => start(&mut cluster, &control, 4, &["--child"]),
        };
        let child = match with_child {
            false => None,
            true => {
                let line = killed.says("joined ").await;
                let (_, child) = line.split_once(' ').expect("an incarnation and a child");
                Some(Pid::from_raw(child.parse().expect("a process id")))
            }
        };
        wait_in(&cluster, round, &mut survivors).await;
        let began = Instant::now();
        killed.kill();
        for script in &mut survivors {
            assert_eq!(script.says(&format!("rolled {round} ")).await, "0,1,2");
        }
        let took = began.elapsed();
        println!("MEASURED killed process, child holds its socket: {with_child}: {took:?}");
        assert!(took < FAR_BELOW, "{took:?} is as long as the lease, {LONG:?}");
        if let Some(child) = child {
            kill(child, Signal::SIGKILL).expect("the child holds the socket all the time");
        }
    }
    assert_eq!(end_of(&cluster, 3).await, "gone");
    assert_eq!(end_of(&cluster, 4).await, "gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_and_the_leader_are_killed_at_once() {
    let mut cluster = Cluster::start(3).await;
    let mut agent = Agent::start_with(&mut cluster, "train", &["--lease-ttl", "60s"]).await;
    let control = agent.control().await;
    let mut all = trainers(&mut cluster, &control, 0..4).await;
    let mut killed = all.pop().expect("four");
    wait_in(&cluster, "r", &mut all).await;
    let leader = cluster.leader().await;
    let began = Instant::now();
    cluster.kill(leader);
    killed.kill();
    for script in &mut all {
        assert_eq!(script.says("rolled r ").await, "0,1,2");
    }
    println!("MEASURED killed process and leader: {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn deaths_that_wait_for_the_store_are_told_in_one_command() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start_with(&mut cluster, "train", &["--lease-ttl", "60s"]).await;
    let control = agent.control().await;
    let mut all = trainers(&mut cluster, &control, 0..4).await;
    wait_in(&cluster, "r", &mut all[..1]).await;
    cluster.pause(1);
    // The first is in progress when the others die.
    for (process, script) in all.iter_mut().enumerate().skip(1) {
        script.kill();
        agent.process.says(&format!("processes {process} (")).await;
    }
    cluster.resume(1);
    assert_eq!(all[0].says("rolled r ").await, "0");
    let events = cluster.cli_ok(&["-o", "json", "--job", "train", "events"]).await;
    let ends = events.lines().filter_map(|line| {
        let event: Value = serde_json::from_str(line).expect("JSON, line by line");
        let process = event["what"]["ended"]["process"].as_u64()?;
        Some((process, event["revision"].as_u64()?))
    });
    let ends: std::collections::BTreeMap<u64, u64> = ends.collect();
    assert_eq!(ends.len(), 3, "{events}");
    assert_eq!(ends[&2], ends[&3], "{ends:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_arrive_together_are_few_commands() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start_with(&mut cluster, "train", &["--lease-ttl", "60s"]).await;
    let control = agent.control().await;
    let mut all = trainers(&mut cluster, &control, 0..8).await;
    // A machine may be too busy for all of them to arrive together.
    let mut rounds = 0..5;
    eventually("8 programs to arrive in 3 commands", async || {
        let round = rounds.next().expect("not one of five rounds took 3 commands");
        let before = revision(&cluster).await;
        cluster.pause(1);
        for script in &mut all {
            script.order(&format!("roll r{round}")).await;
        }
        // The first is in flight to the store, and the others come after it.
        tokio::time::sleep(Duration::from_secs(3)).await;
        cluster.resume(1);
        for script in &mut all {
            let rolled = script.says(&format!("rolled r{round} ")).await;
            assert_eq!(rolled, "0,1,2,3,4,5,6,7");
        }
        let commands = revision(&cluster).await - before;
        println!("MEASURED {commands} commands for 8 programs");
        (commands <= 3).then_some(())
    })
    .await;
}

async fn revision(cluster: &Cluster) -> u64 {
    let ask = ["-o", "json", "--timeout", "1m", "status"];
    let status: Value = serde_json::from_str(&cluster.cli_ok(&ask).await).expect("JSON");
    status["revision"].as_u64().expect("a revision")
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_has_left_and_an_agent_that_ends_says_so() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start_with(&mut cluster, "train", &["--lease-ttl", "60s"]).await;
    let control = agent.control().await;
    let mut all = trainers(&mut cluster, &control, 0..2).await;
    let mut leaver = all.remove(0);
    wait_in(&cluster, "r", &mut all).await;
    leaver.order("leave").await;
    leaver.says("left").await;
    leaver.succeeds().await;
    assert_eq!(all[0].says("rolled r ").await, "1");
    assert_eq!(end_of(&cluster, 0).await, "left");
    let stays = trainer(&mut cluster, &control, 7).await;
    wait_in(&cluster, "s", &mut all).await;
    assert!(agent.process.stop().await.success());
    let failed = all[0].says("failed s lease_ended ").await;
    assert!(failed.contains("it was stopped"), "{failed}");
    eventually("the lease to be given back", async || {
        (end_of(&cluster, 1).await == "lease_revoked").then_some(())
    })
    .await;
    assert_eq!(end_of(&cluster, 0).await, "left");
    assert!(!control.exists(), "{} is left behind", control.display());
    drop(stays);
}

/// A process of the test itself, with a lease of its own.
async fn own(client: Client, process: u32) -> Process {
    let options = HostOptions { host: "test".to_owned(), ttl: LONG, ..HostOptions::default() };
    let host = Host::grant(client, job("train"), options).await.expect("a lease");
    let join = Join { process: Some(process), ..Join::default() };
    host.join(join).await.expect("a registration")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_does_next_does_not_come_before_its_arrival() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start_with(&mut cluster, "train", &["--lease-ttl", "60s"]).await;
    let control = agent.control().await;
    let attached = async |process| {
        let host = Host::attach(&control, Wanted::default(), LONG).await.expect("an agent");
        let join = Join { process: Some(process), ..Join::default() };
        host.join(join).await.expect("a registration")
    };
    let (first, second) = (attached(0).await, attached(1).await);
    let enter = |process: &Process| {
        let process = process.clone();
        async move { process.enter("step", soon()).await.expect("an entry").generation }
    };
    let (block, same) = tokio::join!(enter(&first), enter(&second));
    assert_eq!(block, same);
    cluster.pause(1);
    let (mut exiting, mut ending) = (JoinSet::new(), JoinSet::new());
    exiting.spawn(async move {
        first.exit("step", block, Ok(()), Deadline::never()).await.expect("a verdict")
    });
    // It is on its way to the store, so that the other one's waits for its turn.
    tokio::time::sleep(Duration::from_millis(300)).await;
    second.fail("step", block, "disk full".to_owned()).await;
    ending.spawn(async move { second.end(Cause::Left).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.resume(1);
    patiently("its end", ending.join_all()).await.remove(0).expect("it ends");
    let verdict = patiently("a verdict", exiting.join_all()).await.remove(0);
    let against: Vec<String> =
        verdict.against.iter().map(|against| block_failure(&against.why)).collect();
    assert_eq!(against, ["failed by disk full"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_agent_fences_its_processes() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start_with(&mut cluster, "train", &["--lease-ttl", "10s"]).await;
    let control = agent.control().await;
    let mut all = trainers(&mut cluster, &control, 0..3).await;
    let other = own(cluster.client(), 9).await;
    for script in &mut all {
        eventually("a token", async || {
            script.order("fence").await;
            (script.says("fence ").await == "1").then_some(())
        })
        .await;
    }
    wait_in(&cluster, "r", &mut all).await;
    // Unmodified programs of the host, with connections to its keys.
    let mut busy = TcpStore::connect(agent.address()).await;
    let mut idle = TcpStore::connect(agent.address()).await;
    assert_eq!((busy.add("n", 1).await, idle.add("n", 1).await), (1, 2));
    agent.process.signal(Signal::SIGSTOP);
    // Requests that arrive before it has stopped may still be carried out.
    let threads = format!("/proc/{}/task", agent.process.pid());
    eventually("all threads of the agent to stand still", async || {
        let states = std::fs::read_dir(&threads).ok()?.map(|thread| {
            let path = thread.ok()?.path().join("stat");
            let stat = std::fs::read_to_string(path).ok()?;
            stat.rsplit_once(") ").map(|(_, state)| state.starts_with('T'))
        });
        states.collect::<Option<Vec<bool>>>()?.iter().all(|stopped| *stopped).then_some(())
    })
    .await;
    let began = Instant::now();
    busy.send(op::ADD, &[&key("n"), &1_i64.to_le_bytes()]).await;
    // The round closes with all of them, and the agent cannot notify them.
    let live = patiently("a roll", Box::pin(other.live_processes("r", Among::Active, soon())))
        .await
        .expect("a roll");
    let members: Vec<ProcessId> = live.members.iter().map(|(process, _)| process).collect();
    assert_eq!(members, [0, 1, 2, 9]);
    for script in &mut all {
        eventually("no token any more", async || {
            script.order("fence").await;
            (script.says("fence ").await == "none").then_some(())
        })
        .await;
    }
    println!("MEASURED no token after {:?} of a lease of 10 s", began.elapsed());
    eventually("the lease to expire", async || {
        (end_of(&cluster, 0).await == "lease_expired").then_some(())
    })
    .await;
    cluster.expect_error("the lease of this host has ended");
    agent.process.signal(Signal::SIGCONT);
    for script in &mut all {
        let before = script.says_all("failed r lease_ended ").await;
        assert!(!before.iter().any(|line| line.starts_with("rolled")), "{before:?}");
    }
    // The rest of the lost host writes nothing: others have gone on without it.
    assert!(busy.is_closed().await, "it was on its way when the host was lost");
    idle.send(op::ADD, &[&key("n"), &1_i64.to_le_bytes()]).await;
    assert!(idle.is_closed().await, "it was connected when the host was lost");
    let mut new = TcpStore::connect(agent.address()).await;
    assert_eq!(new.add("n", 1).await, 3);
    // The agent goes on, with another lease.
    let mut again = trainer(&mut cluster, &control, 0).await;
    again.order("roll again").await;
    other.live_processes("again", Among::Active, soon()).await.expect("a roll");
    again.says("rolled again 0,9").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_killed_is_heard_of_and_its_successor_takes_the_processes() {
    let mut cluster = Cluster::start(1).await;
    let flags = ["--job", "train", "--lease-ttl", "6s"];
    let command = Launched::start(&mut cluster, "killed", &flags).await;
    let mut all = trainers(&mut cluster, &command.control, 0..2).await;
    let other = own(cluster.client(), 9).await;
    wait_in(&cluster, "r", &mut all).await;
    let agent = process_at(&command.control).await;
    kill(Pid::from_raw(agent), Signal::SIGKILL).expect("it is ours");
    for script in &mut all {
        let failed = script.says("failed r lease_ended ").await;
        for words in ["the agent of this host", "start it again", "join anew"] {
            assert!(failed.contains(words), "{words:?} is missing: {failed}");
        }
    }
    eventually("another agent", async || {
        (process_at(&command.control).await != agent).then_some(())
    })
    .await;
    let mut again = trainers(&mut cluster, &command.control, 0..2).await;
    for script in &mut again {
        script.order("roll s").await;
    }
    other.live_processes("s", Among::Active, Deadline::never()).await.expect("a roll");
    for script in &mut again {
        assert_eq!(script.says("rolled s ").await, "0,1,9");
    }
    command.end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_lives_is_replaced_under_its_agent_by_takeover_alone() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, "train").await;
    let control = agent.control().await;
    let mut first = trainer(&mut cluster, &control, 0).await;
    let host = Host::attach(&control, Wanted::default(), LONG).await.expect("an agent");
    let join = Join { process: Some(0), ..Join::default() };
    let refused = host.join(join.clone()).await.expect_err("it is alive");
    assert!(refused.to_string().contains("register with takeover"), "{refused}");
    first.order("roll alone").await;
    assert_eq!(first.says("rolled alone ").await, "0", "it goes on");
    // A patient client joins when it has ended.
    let patient = host.clone();
    let wanted = Join { patience: Some(soon()), ..join.clone() };
    let mut joining = JoinSet::new();
    joining.spawn(async move { patient.join(wanted).await });
    first.kill();
    let second = joining.join_all().await.remove(0).expect("a registration");
    // A program replaces its own as it likes.
    let third = host.join(join.clone()).await.expect("a registration");
    let fenced =
        second.live_processes("r", Among::Active, soon()).await.expect_err("it was replaced");
    assert!(matches!(fenced, Error::Fenced { .. }), "{fenced:?}");
    let other = Host::attach(&control, Wanted::default(), LONG).await.expect("an agent");
    let taken = other.join(Join { takeover: true, ..join }).await.expect("a takeover");
    assert!(taken.incarnation() > third.incarnation());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_control_socket_has_one_agent_which_drains_to_the_last_program() {
    let mut cluster = Cluster::start(1).await;
    let path = cluster.folder().join("control.sock");
    let named = path.display().to_string();
    let mut agent = Agent::start_with(&mut cluster, "train", &["--control", &named]).await;
    assert_eq!(agent.control().await, path);
    let mut second = binaries::command("holdfast-agent");
    second.args(["serve", "--store", &cluster.list(), "--job", "other", "--control", &named]);
    second.args(["--tcpstore", &format!("127.0.0.1:{}", cluster.port())]);
    let advice = ["another agent serves at", "control.sock", "another path with --control"];
    Ended::of(second).await.failed(125, &advice);
    let mut last = trainer(&mut cluster, &path, 0).await;
    agent.process.signal(Signal::SIGUSR1);
    agent.process.says("draining").await;
    let refused = start(&mut cluster, &path, 1, &[]).says("refused unavailable ").await;
    assert!(refused.contains("it drains"), "{refused}");
    last.order("roll r").await;
    assert_eq!(last.says("rolled r ").await, "0");
    last.order("leave").await;
    last.says("left").await;
    assert!(agent.process.ended().await.success());
    assert_eq!(end_of(&cluster, 0).await, "left");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_agent_the_error_says_what_to_do() {
    let mut cluster = Cluster::start(1).await;
    let nowhere = cluster.folder().join("nowhere.sock");
    let mut alone = start(&mut cluster, &nowhere, 0, &[]);
    let refused = alone.says("refused unavailable ").await;
    for words in ["nowhere.sock", "holdfast-agent run", "HOLDFAST_CONTROL"] {
        assert!(refused.contains(words), "{words:?} is missing: {refused}");
    }
}

fn register(lease: LeaseId, process: ProcessId, nonce: u64) -> Command {
    Command::Process(ProcessCommand::Register {
        lease,
        process: Some(process),
        nonce: Nonce(nonce, 7),
        replaces: 0,
        takeover: false,
        role: Role::Active,
        labels: Default::default(),
        policy: Default::default(),
    })
}

fn arrive(lease: LeaseId, process: ProcessId, incarnation: u64) -> Command {
    let arrival = Arrival { process, incarnation, call: 1, ack: 0, payload: "".into(), holds: 0 };
    let (round, terms) = ("hostile".into(), Default::default());
    Command::Round(RoundCommand::Arrive { lease, round, terms, arrivals: vec![arrival] })
}

fn end(lease: LeaseId, process: ProcessId, incarnation: u64) -> Command {
    let ends = vec![ProcessEnd { process, incarnation, cause: Cause::Left, exit_seen: false }];
    Command::Process(ProcessCommand::End { lease, ends })
}

/// The incarnation that a registration was answered with.
fn registered(heard: Heard) -> u64 {
    match heard {
        Heard::Answer { answer, .. } => match answer.outcome {
            Outcome::Process(ProcessOutcome::Registered { incarnation, .. }) => incarnation,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_and_lies_are_refused_and_touch_nobody_else() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start_with(&mut cluster, "train", &["--lease-ttl", "60s"]).await;
    let control = agent.control().await;
    let mut honest = start(&mut cluster, &control, 0, &[]);
    let incarnation: u64 = honest.says("joined ").await.parse().expect("a number");

    let hostile = control.clone();
    let talk = tokio::task::spawn_blocking(move || {
        let mut link = RawLink::open(&hostile).expect("an agent");
        let lease = link.lease();
        let another = LeaseId::from_u128(lease.to_u128() + 1);
        let own = registered(link.propose(1, register(lease, 5, 1)).expect("an answer"));
        for (command, words) in [
            (arrive(lease, 0, incarnation), "was not registered on this connection"),
            (arrive(lease, 5, own + 1), "was not registered on this connection"),
            (arrive(another, 5, own), "is not that of this host's agent"),
            (end(lease, 0, incarnation), "was not registered on this connection"),
            (end(another, 5, own), "is not that of this host's agent"),
            (register(another, 6, 2), "is not that of this host's agent"),
            (Command::Lease(LeaseCommand::Revoke { lease }), "and nothing else"),
        ] {
            match link.propose(2, command.clone()).expect("an answer") {
                Heard::Problem { seq: 2, problem } => {
                    assert!(problem.message.contains(words), "{command:?}: {problem}");
                }
                other => panic!("{command:?}: {other:?}"),
            }
        }
        // A registration of another client is not sent to this one.
        let mut second = RawLink::open(&hostile).expect("an agent");
        let mut again = register(lease, 5, 1);
        for words in ["is alive on host", "on another connection"] {
            match second.propose(1, again.clone()).expect("an answer") {
                Heard::Problem { problem, .. } => {
                    assert!(problem.message.contains(words), "{problem}");
                }
                other => panic!("{other:?}"),
            }
            let Command::Process(ProcessCommand::Register { takeover, .. }) = &mut again else {
                panic!("{again:?}")
            };
            *takeover = true;
        }
        for read in [Read::Jobs, Read::rounds(Scope::default())] {
            let heard = link.ask(3, read).expect("an answer");
            assert!(matches!(heard, Heard::Problem { seq: 3, .. }), "{heard:?}");
        }
        let heard = link.ask(4, Read::rounds(job("train"))).expect("an answer");
        assert!(matches!(heard, Heard::ReadAnswer { seq: 4 }), "{heard:?}");
        let send = |bytes: &[u8]| {
            let mut link = RawLink::open(&hostile).expect("an agent");
            link.send_bytes(bytes).expect("the agent reads");
            match link.hear().expect("a last word") {
                Heard::Over(Over::Refused { reason }) => reason,
                other => panic!("{other:?}"),
            }
        };
        assert!(send(&[3, 0, 0, 0, 0xc1, 0xc1, 0xc1]).contains("cannot be understood"));
        assert!(send(&[0, 0, 0, 0]).contains("an empty frame"));
        assert!(send(&u32::MAX.to_le_bytes()).contains("is longer than"));
        // Half a frame, and the connection and its process end.
        link.send_bytes(&[200, 0, 0, 0, 1, 2]).expect("the agent reads");
    });
    talk.await.expect("all was refused");
    eventually("the liar to be gone", async || (end_of(&cluster, 5).await == "gone").then_some(()))
        .await;
    honest.order("roll r").await;
    assert_eq!(honest.says("rolled r ").await, "0");
    assert_eq!(end_of(&cluster, 0).await, Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_ended_is_watched_no_more_and_nobody_is_watched_twice() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start_with(&mut cluster, "train", &["--lease-ttl", "60s"]).await;
    let control = agent.control().await;
    let talk = tokio::task::spawn_blocking(move || {
        let mut one = RawLink::open(&control).expect("an agent");
        let mut other = RawLink::open(&control).expect("an agent");
        let lease = one.lease();
        let first = registered(one.propose(1, register(lease, 5, 1)).expect("an answer"));
        let Command::Process(mut next) = register(lease, 5, 2) else { panic!("it was made here") };
        if let ProcessCommand::Register { replaces, .. } = &mut next {
            *replaces = first;
        }
        let next = registered(one.propose(2, Command::Process(next)).expect("an answer"));
        // It belongs to another client, and is not given to this one.
        let heard = other.propose(1, register(lease, 5, 2)).expect("an answer");
        assert!(matches!(heard, Heard::Problem { .. }), "{heard:?}");
        (one, other, next)
    });
    let (_one, _other, incarnation) = talk.await.expect("all was answered");
    eventually("one life to be watched", async || {
        let list = ["-o", "json", "--job", "train", "agent", "list"];
        let all: Value = serde_json::from_str(&cluster.cli_ok(&list).await).expect("JSON");
        let watched = all["agents"][0]["processes"].as_array()?;
        let participants: Vec<_> =
            watched.iter().map(|one| (&one["process"], &one["incarnation"])).collect();
        (participants == [(&Value::from(5), &Value::from(incarnation))]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_program_does_not_shut_the_door_for_the_others() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, "train").await;
    let control = agent.control().await;
    let hostile = control.clone();
    let talk = tokio::task::spawn_blocking(move || {
        let connect = || RawLink::connect(&hostile).expect("an agent");
        let refused = |link: &mut RawLink, text: &str| {
            let heard = link.say(text).expect("a line");
            heard["refused"]["reason"].as_str().map(str::to_owned).expect("a refusal")
        };
        let long = refused(&mut connect(), &"x".repeat(1024 * 1024));
        assert!(long.contains("a line is longer than"), "{long}");
        // None of them says anything: the first unserved one is one too many.
        let mut idle: Vec<RawLink> = Vec::new();
        loop {
            let mut link = connect();
            if idle.len() == 256 {
                break (refused(&mut link, "{\"process\":{}}\n"), idle);
            }
            link.send_bytes(b"{\"pro").expect("the agent reads");
            idle.push(link);
        }
    });
    let (reason, mut idle) = talk.await.expect("all was answered");
    for words in ["holds 256 connections already", "one connection serves many processes"] {
        assert!(reason.contains(words), "{words:?} is missing: {reason}");
    }
    let honest = trainer(&mut cluster, &control, 0).await;
    let heard = tokio::task::spawn_blocking(move || idle[0].say("").expect("a line"));
    let heard = heard.await.expect("it was heard");
    let reason = heard["refused"]["reason"].as_str().expect("a refusal");
    assert!(reason.contains("no line came in"), "{reason}");
    drop(honest);
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_that_were_refused_are_not_kept() {
    let mut cluster = Cluster::start(1).await;
    let mut agent = Agent::start(&mut cluster, "train").await;
    let control = agent.control().await;
    let [free, other] = [(); 2].map(|()| format!("127.0.0.1:{}", cluster.port()));
    let taken = std::net::TcpListener::bind(&other).expect("a port of the test");
    let attach = |ports: Vec<String>| {
        let control = control.clone();
        let talk = tokio::task::spawn_blocking(move || {
            let request = serde_json::json!({ "attach": { "tcpstore": ports } });
            RawLink::connect(&control)?.say(&format!("{request}\n"))
        });
        async move { talk.await.expect("no panic").expect("a line") }
    };
    let many = (0..64).map(|n| format!("127.0.0.2:{}", 20_000 + n));
    for (ports, words) in [
        (vec![free.clone(), other.clone()], "is in use"),
        ([free.clone()].into_iter().chain(many).collect(), "at most 64 ports"),
        (vec![free.clone(), "0.0.0.0:29999".to_owned()], "listens on loopback alone"),
    ] {
        let heard = attach(ports).await;
        let reason = heard["refused"]["reason"].as_str().expect("a refusal");
        assert!(reason.contains(words), "{reason}");
        drop(std::net::TcpListener::bind(&free).expect("it is free again"));
    }
    drop(taken);
    let heard = attach(vec![free.clone(), other]).await;
    assert_eq!(heard["attached"]["address"], *free, "{heard}");
}
