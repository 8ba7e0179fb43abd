//! Ranks that are processes of their own, killed in the middle of a collective.
//! A child is this program again, in the test that started it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use holdfast_trainer_shim::communicator::ring::{DeadPeer, Ring};
use holdfast_trainer_shim::communicator::{
    Backend, Communicator, Failure, MintOptions, Minter, Reduction, UniqueId,
};

use crate::members::{GROUP, PATIENCE, ended, member, options};

/// Set in a child: its rank, generation and mode.
const RANK: &str = "HOLDFAST_TEST_RANK";

/// Prefix of a child's lines: others are the test harness's.
const SAYS: &str = "rank says ";

const NRANKS: u32 = 4;

/// The rank that is killed.
const VICTIM: u32 = 2;

/// Elements of an all-reduce: a kill meets one that is half done.
const ELEMENTS: usize = 1024 * 1024;

#[test]
fn a_killed_process_is_seen_by_its_neighbours_only() {
    if let Some(rank) = rank_of_child() {
        return child(rank, DeadPeer::Sockets);
    }
    let test = "processes::a_killed_process_is_seen_by_its_neighbours_only";
    let (_minter, mut ranks) = start(test);
    kill_victim(&mut ranks);
    for rank in [1, 3] {
        assert_eq!(ranks[rank].says(), "lost rank 2");
    }
    stop(&mut ranks, &[(0, "aborted"), (1, "released"), (3, "released")]);
}

#[test]
fn in_silent_mode_a_killed_process_is_seen_by_nobody() {
    if let Some(rank) = rank_of_child() {
        return child(rank, DeadPeer::Silent);
    }
    let test = "processes::in_silent_mode_a_killed_process_is_seen_by_nobody";
    let (_minter, mut ranks) = start(test);
    kill_victim(&mut ranks);
    // Had one noticed, it would have said so first.
    stop(&mut ranks, &[1, 3, 0].map(|rank| (rank, "aborted")));
}

/// A minter that is killed takes the id with it, and with it the generation.
#[test]
fn the_death_of_a_minter_is_told_to_nobody_who_has_checked_in() {
    if let Some(rank) = rank_of_child() {
        return minting_child(rank);
    }
    let test = "processes::the_death_of_a_minter_is_told_to_nobody_who_has_checked_in";
    let mut minter = Rank::start(test, 0, None);
    let id = from_hex(&minter.says());
    let backend = Ring::new(options(DeadPeer::Sockets));
    let waiting = backend.begin_init(member(id, 1, 0, NRANKS)).unwrap();
    let mut initialised = waiting.initialised();
    // It has checked in: the minter counts the connections that it has.
    writeln!(minter.stdin, "wait").unwrap();
    assert_eq!(minter.says(), "checked in");
    minter.child.kill().unwrap();
    minter.child.wait().unwrap();
    let late = backend.begin_init(member(id, 1, 1, NRANKS)).unwrap();
    assert!(matches!(ended(late.initialised()), Err(Failure::IdGone { .. })));
    assert_eq!(initialised.poll(), None);
    waiting.quiesce();
    assert_eq!(ended(initialised), Err(Failure::Aborted));
}

/// All ranks, in the middle of their collectives.
fn start(test: &str) -> (Box<dyn Minter>, Vec<Rank>) {
    let backend = Ring::default();
    let options = MintOptions { group: GROUP.to_owned(), generation: 1, nranks: NRANKS };
    let minter = backend.mint(&options).expect("an id");
    let mut ranks: Vec<Rank> =
        (0..NRANKS).map(|rank| Rank::start(test, rank, Some(minter.id()))).collect();
    for rank in &mut ranks {
        assert_eq!(rank.says(), "is ready");
        assert_eq!(rank.says(), "has a sum");
    }
    (minter, ranks)
}

fn kill_victim(ranks: &mut [Rank]) {
    let victim = &mut ranks[VICTIM as usize].child;
    victim.kill().expect("it runs");
    victim.wait().expect("it has ended");
}

/// Stops these ranks one after the other, each of which must then say this first.
fn stop(ranks: &mut [Rank], whom: &[(usize, &str)]) {
    for (rank, says) in whom {
        let rank = &mut ranks[*rank];
        writeln!(rank.stdin, "quiesce").expect("it reads");
        assert_eq!(rank.says(), *says);
        if *says != "released" {
            assert_eq!(rank.says(), "released");
        }
        assert!(rank.child.wait().expect("it ends").success());
    }
}

/// A child, killed with the test.
struct Rank {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Rank {
    fn start(test: &str, rank: u32, id: Option<UniqueId>) -> Rank {
        let mut command = Command::new(std::env::current_exe().expect("a file"));
        command.args(["--exact", test, "--nocapture"]).env(RANK, rank.to_string());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
        let mut stdin = child.stdin.take().expect("a pipe");
        if let Some(id) = id {
            writeln!(stdin, "{}", to_hex(&id)).expect("it reads");
        }
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (said, lines) = channel();
        thread::spawn(move || {
            // The harness may have begun a line of its own.
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once(SAYS) {
                    let _ = said.send(line.to_owned());
                }
            }
        });
        Rank { child, stdin, lines }
    }

    fn says(&mut self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it says something")
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rank_of_child() -> Option<u32> {
    std::env::var(RANK).ok().map(|rank| rank.parse().expect("a rank"))
}

fn say(what: &str) {
    println!("{SAYS}{what}");
}

fn line() -> Option<String> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a pipe");
    (!line.is_empty()).then(|| line.trim().to_owned())
}

/// A trainer: sums until something ends that, and is stopped from outside.
fn child(rank: u32, dead_peer: DeadPeer) {
    let id = from_hex(&line().expect("an id"));
    let backend = Ring::new(options(dead_peer));
    let communicator: Arc<dyn Communicator> =
        Arc::from(backend.begin_init(member(id, 1, rank, NRANKS)).expect("a member"));
    communicator.initialised().wait().expect("all are there");
    say("is ready");
    let stopped = communicator.clone();
    // As an agent would have it: the main thread sits in a collective.
    let control = thread::spawn(move || {
        let _ = line();
        stopped.quiesce();
    });
    let mut first = true;
    let failure = loop {
        let sum = communicator.all_reduce(vec![1_f32; ELEMENTS].into(), Reduction::Sum);
        match sum.wait() {
            Ok(_) if first => say("has a sum"),
            Ok(_) => {}
            Err(failure) => break failure,
        }
        first = false;
    };
    match failure {
        Failure::Aborted => say("aborted"),
        Failure::PeerLost { rank, .. } => say(&format!("lost rank {rank}")),
        other => say(&other.to_string()),
    }
    control.join().expect("it does not panic");
    communicator.release();
    say("released");
}

/// Mints, says when its root serves a member, and waits to be killed.
fn minting_child(_rank: u32) {
    let backend = Ring::default();
    let options = MintOptions { group: GROUP.to_owned(), generation: 1, nranks: NRANKS };
    let minter = backend.mint(&options).expect("an id");
    let before = sockets();
    say(&to_hex(&minter.id()));
    line().expect("a request");
    while sockets() == before {
        thread::yield_now();
    }
    say("checked in");
    line();
}

fn sockets() -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("a folder of /proc").flatten();
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

fn to_hex(id: &UniqueId) -> String {
    id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> UniqueId {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("digits");
    UniqueId::from_bytes(std::array::from_fn(byte))
}
