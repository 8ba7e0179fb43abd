//! Communicators over TCP among real processes, while members and leaders are
//! killed and paused: what they and their library wrote down may be.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_client::Deadline;
use holdfast_tests::cluster::job;
use holdfast_tests::communicators::{Entry, Event, EventLog, check, read, told_after};
use holdfast_tests::{Agent, Cluster, Process, binaries, eventually, soon};
use holdfast_trainer_shim::communicator::ring::Ring;
use holdfast_trainer_shim::communicator::{Buffer, Reduction};
use holdfast_trainer_shim::manager::{CommunicatorManager, Spec};
use holdfast_trainer_shim::{Host, HostOptions, Join};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const JOB: &str = "train";
const GROUP: &str = "gradients";
const MEMBERS: u32 = 4;

/// How many faults; more with HOLDFAST_COMMUNICATOR_FAULTS.
const FAULTS: u32 = 10;

/// In which a member must have stopped: less than some pauses last.
const STOP_MAX_MS: u64 = 2_000;

struct Group {
    cluster: Cluster,
    _agents: Vec<Agent>,
    controls: Vec<PathBuf>,
    members: Vec<Option<Process>>,
    file: PathBuf,
    log: EventLog,
}

impl Group {
    async fn start() -> Group {
        let mut cluster = Cluster::start(3).await;
        let (mut agents, mut controls) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let mut agent = Agent::start(&mut cluster, JOB).await;
            controls.push(agent.control().await);
            agents.push(agent);
        }
        let file = cluster.folder().join("events");
        let log = EventLog::open(&file, 0);
        let members = (0..MEMBERS).map(|_| None).collect();
        let mut group = Group { cluster, _agents: agents, controls, members, file, log };
        for process in 0..MEMBERS {
            group.launch(process);
        }
        group
    }

    fn launch(&mut self, process: u32) {
        let mut command = binaries::command("holdfast-test-member");
        let control = &self.controls[process as usize % self.controls.len()];
        command.env("HOLDFAST_CONTROL", control);
        command.arg(process.to_string()).arg(GROUP).arg(STOP_MAX_MS.to_string()).arg(&self.file);
        let log = self.cluster.keep_log(&format!("member-{process}"));
        let member = Process::start(&format!("member {process}"), command, &log);
        self.members[process as usize] = Some(member);
    }

    fn member(&mut self, process: u32) -> &mut Process {
        self.members[process as usize].as_mut().expect("it was launched")
    }

    /// All members have counted steps of one generation with all of them in it,
    /// which is answered.
    async fn whole(&mut self) -> u64 {
        let from = holdfast_tests::communicators::now();
        let file = self.file.clone();
        eventually("all members in one generation", async || {
            for process in 0..MEMBERS {
                self.launch_again(process);
            }
            generation_of_all(&read(&file), from)
        })
        .await
    }

    /// A member that the cluster declared dead is killed by its agent, or gives up.
    fn launch_again(&mut self, process: u32) {
        if self.member(process).end().is_some() {
            self.log.of_process(process).write(Event::Gone);
            self.launch(process);
        }
    }

    async fn kill(&mut self, process: u32) {
        self.launch_again(process);
        self.log.of_process(process).write(Event::Killed);
        self.member(process).kill();
        self.log.of_process(process).write(Event::Gone);
    }

    async fn pause(&mut self, process: u32, pause: Duration) {
        self.launch_again(process);
        self.member(process).signal(Signal::SIGSTOP);
        self.log.of_process(process).write(Event::Paused);
        tokio::time::sleep(pause).await;
        self.log.of_process(process).write(Event::Woken);
        self.member(process).signal(Signal::SIGCONT);
    }
}

/// The generation in which all members have counted a step since then.
fn generation_of_all(entries: &[Entry], from: u64) -> Option<u64> {
    let recent: Vec<&Entry> = entries.iter().filter(|entry| entry.at > from).collect();
    let last = |process: u32| {
        recent.iter().rev().find_map(|entry| match entry.event {
            Event::Step { generation } if entry.process == process => Some(generation),
            _ => None,
        })
    };
    let first = last(0)?;
    (1..MEMBERS).all(|process| last(process) == Some(first)).then_some(first)
}

fn seed() -> u64 {
    let named = std::env::var("HOLDFAST_COMMUNICATOR_SEED").ok();
    let seed = named.and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    eprintln!("HOLDFAST_COMMUNICATOR_SEED={seed}");
    seed
}

fn faults() -> u32 {
    let named = std::env::var("HOLDFAST_COMMUNICATOR_FAULTS").ok();
    named.and_then(|count| count.parse().ok()).unwrap_or(FAULTS)
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_killed_or_paused_no_two_generations_run_at_once() {
    let mut random = StdRng::seed_from_u64(seed());
    let mut group = Group::start().await;
    group.cluster.expect_error("this program still holds something");
    group.cluster.expect_error("no renewal of this host's lease");
    group.whole().await;
    for _ in 0..faults() {
        let victim = random.random_range(0..MEMBERS);
        let other = (victim + random.random_range(1..MEMBERS)) % MEMBERS;
        match random.random_range(0..5) {
            0 => group.kill(victim).await,
            1 => {
                let leader = group.cluster.leader().await;
                group.cluster.kill(leader);
                group.kill(victim).await;
                group.cluster.restart(leader).await;
            }
            2 => group.pause(victim, Duration::from_millis(500)).await,
            3 => {
                group.kill(other).await;
                // Longer than it may take to stop: it wakes dead.
                group.pause(victim, Duration::from_millis(STOP_MAX_MS + 1_500)).await;
            }
            _ => {
                group.kill(victim).await;
                group.launch(victim);
                // While the next generation is built.
                tokio::time::sleep(Duration::from_millis(random.random_range(0..300))).await;
                group.kill(other).await;
            }
        }
        if random.random_bool(0.5) {
            group.whole().await;
        }
    }
    group.whole().await;
    unchanged_costs_nothing(&group.file).await;
    for member in group.members.iter().flatten() {
        member.signal(Signal::SIGTERM);
    }
    for member in group.members.iter_mut().flatten() {
        assert!(member.ended().await.success(), "{}", member.said());
    }
    let entries = read(&group.file);
    assert_eq!(check(&entries), [], "{}", written(&entries));
    let disturbed = |entry: &Entry| {
        let own = |one: &&Entry| one.incarnation == entry.incarnation;
        entries.iter().filter(own).any(|one| matches!(one.event, Event::Killed | Event::Paused))
    };
    let gave_up = |entry: &&Entry| matches!(entry.event, Event::Ended { .. }) && !disturbed(entry);
    assert_eq!(entries.iter().find(gave_up), None, "{}", written(&entries));
    let left = entries.iter().filter(|entry| entry.event == Event::Left).count();
    assert_eq!(left, MEMBERS as usize, "all left in order");
    let mut told = told_after(&entries);
    told.sort_unstable();
    let killed = entries.iter().any(|entry| entry.event == Event::Killed);
    assert!(!killed || !told.is_empty(), "the survivors stop: {}", written(&entries));
    eprintln!("stopped after a kill: {told:?}");
}

/// I6: steps of one generation mint and open nothing.
async fn unchanged_costs_nothing(file: &Path) {
    eventually("the group to go on undisturbed", async || {
        let entries = read(file);
        let steps = entries.iter().rev().take_while(|one| matches!(one.event, Event::Step { .. }));
        (steps.count() > 50).then_some(())
    })
    .await;
}

fn written(entries: &[Entry]) -> String {
    let known = |entry: &&Entry| !matches!(entry.event, Event::Step { .. });
    entries.iter().filter(known).map(|entry| format!("{entry:?}\n")).collect()
}

/// A call that is given up may have reached a generation, or half a communicator.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_gives_up_acquiring_can_acquire_again() {
    let cluster = Cluster::start(1).await;
    let options = HostOptions { ttl: Duration::from_secs(60), ..HostOptions::default() };
    let granted = Host::grant(cluster.client(), job(JOB), options).await;
    let host = granted.expect("a lease");
    let mut managers = Vec::new();
    for process in 0..2 {
        let join = Join { process: Some(process), ..Join::default() };
        let process = host.join(join).await.expect("a registration");
        managers.push(CommunicatorManager::new(process, Arc::new(Ring::default())));
    }
    let spec = Spec::default();
    for pause in 0..30 {
        let patient = managers[0].acquire(GROUP, &spec, Deadline::never());
        let given_up = async {
            let hasty = Box::pin(managers[1].acquire(GROUP, &spec, Deadline::never()));
            let _ = tokio::time::timeout(Duration::from_millis(pause), hasty).await;
            managers[1].acquire(GROUP, &spec, soon()).await
        };
        let (first, second) = tokio::join!(Box::pin(patient), Box::pin(given_up));
        let mut groups = [first.expect("a communicator"), second.expect("a communicator")];
        // The first may have got what the second one gave up.
        while groups[0].generation() != groups[1].generation() {
            let again = managers.iter().map(|one| Box::pin(one.acquire(GROUP, &spec, soon())));
            let again = futures::future::try_join_all(again).await.expect("communicators");
            groups = again.try_into().expect("two of them");
        }
        let sums = groups.map(|one| one.all_reduce(Buffer::I64(vec![1]), Reduction::Sum));
        for sum in futures::future::join_all(sums).await {
            assert_eq!(sum.expect("both are there"), Buffer::I64(vec![2]));
        }
    }
    let closing = managers.iter().map(|one| one.close(GROUP, soon()));
    futures::future::try_join_all(closing).await.expect("both close");
}
