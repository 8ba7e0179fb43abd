//! Leaks in a process after communicators and minters: there are none. Alone in
//! its program, for it counts everything that the process has.

use std::time::{Duration, Instant};

use holdfast_trainer_shim::communicator::ring::{DeadPeer, Ring, RingOptions};
use holdfast_trainer_shim::communicator::{
    Backend, Communicator, InitOptions, MintOptions, Minter, Reduction,
};

/// How long a thread that was joined may still be listed by the kernel.
const PATIENCE: Duration = Duration::from_secs(60);

const NRANKS: u32 = 3;

/// Threads and descriptors of this process.
fn held() -> (usize, usize) {
    let count = |folder: &str| std::fs::read_dir(folder).expect("a folder of /proc").count();
    (count("/proc/self/task"), count("/proc/self/fd"))
}

fn comes_to(expected: (usize, usize), what: &str) {
    let end = Instant::now() + PATIENCE;
    while held() != expected {
        assert!(Instant::now() < end, "{what}: {:?} instead of {expected:?}", held());
        std::thread::yield_now();
    }
}

fn mint(backend: &Ring, generation: u64) -> Box<dyn Minter> {
    let options = MintOptions { group: "leaks".to_owned(), generation, nranks: NRANKS };
    backend.mint(&options).expect("an id")
}

/// The first ranks of a generation.
fn begin(
    backend: &Ring,
    minter: &dyn Minter,
    generation: u64,
    ranks: u32,
) -> Vec<Box<dyn Communicator>> {
    let options = |rank| InitOptions {
        group: "leaks".to_owned(),
        generation,
        incarnation: 1,
        nranks: NRANKS,
        rank,
        id: minter.id(),
    };
    (0..ranks).map(|rank| backend.begin_init(options(rank)).expect("a member")).collect()
}

#[test]
fn nothing_is_left_of_a_hundred_communicators() {
    let before = held();
    for dead_peer in [DeadPeer::Sockets, DeadPeer::Silent] {
        let options = RingOptions { dead_peer, connect_retries: 0, ..RingOptions::default() };
        let backend = Ring::new(options);
        for generation in 0..100 {
            let minter = mint(&backend, generation);
            let missing = u32::from(generation % 4 == 0);
            let members = begin(&backend, minter.as_ref(), generation, NRANKS - missing);
            match generation % 4 {
                // Aborted while a member is missing.
                0 => members.iter().for_each(|member| member.quiesce()),
                // Aborted at any point of its work.
                1 => {}
                // Aborted in a collective that one member is not in.
                2 => {
                    members.iter().for_each(|member| member.initialised().wait().unwrap());
                    for member in &members[1..] {
                        drop(member.all_reduce(vec![1_f64; 100_000].into(), Reduction::Sum));
                    }
                }
                // Closed in order.
                _ => {
                    members.iter().for_each(|member| member.initialised().wait().unwrap());
                    let closes: Vec<_> = members.iter().map(|member| member.close()).collect();
                    closes.into_iter().for_each(|close| close.wait().unwrap());
                }
            }
            members.iter().for_each(|member| member.release());
        }
    }
    comes_to(before, "after two hundred generations");

    let backend = Ring::default();
    let minters: Vec<_> = (0..10).map(|generation| mint(&backend, generation)).collect();
    comes_to((before.0 + 10, before.1 + 10), "ten ids");
    let members = begin(&backend, minters[0].as_ref(), 0, NRANKS);
    members.iter().for_each(|member| member.initialised().wait().unwrap());
    // An id that is used up costs nothing; a member one thread, two sockets and
    // what it is woken by.
    comes_to((before.0 + 9 + 3, before.1 + 9 + 9), "nine ids and three members");
    drop(minters);
    comes_to((before.0 + 3, before.1 + 9), "three members");
    drop(members);
    comes_to(before, "in the end");
}
