//! Scenarios of a generation of ranks.

use std::path::Path;

use holdfast_trainer_shim::communicator::nccl::NcclBackend;
use holdfast_trainer_shim::communicator::{Backend, MintOptions, Minter};

use crate::gpu::Scenario;
use crate::minting;
use crate::rank_processes::{NOTHING_MS, PEERS_MS, Rank, all, assert_nothing_lost, counts, start};

/// All of them, with their names.
pub const ALL: &[(&str, Scenario)] = &[
    ("ranks_form_reduce_and_close", ranks_form_reduce_and_close),
    ("a_rank_is_killed_in_a_collective", a_rank_is_killed_in_a_collective),
    ("an_abort_ends_the_forming", an_abort_ends_the_forming),
    ("a_dead_minter_forms_nothing", a_dead_minter_forms_nothing),
    ("ten_cycles_leak_nothing", ten_cycles_leak_nothing),
];

fn ranks_form_reduce_and_close(library: &Path) {
    let mut ranks = start(library, 4);
    form(library, &mut ranks, 1);
    // 8 bytes to 8 MiB.
    for count in [1, 1 << 10, 1 << 20] {
        reduce(&mut ranks, count);
    }
    all(&mut ranks, "broadcast 1024 2", "begun");
    // Rank 2 has threes.
    all(&mut ranks, &format!("values {PEERS_MS}"), "3");
    all(&mut ranks, &format!("barrier {PEERS_MS}"), "met");
    all(&mut ranks, &format!("close {PEERS_MS}"), "closed");
    all(&mut ranks, "release", "released");
}

fn a_rank_is_killed_in_a_collective(library: &Path) {
    let mut ranks = start(library, 4);
    form(library, &mut ranks, 1);
    reduce(&mut ranks, 1024);
    let last = ranks.pop().expect("a rank");
    all(&mut ranks, "reduce 1024", "begun");
    all(&mut ranks, &format!("values {NOTHING_MS}"), "in progress");
    last.kill();
    stop(&mut ranks);
    // The same processes go on, one fewer.
    form(library, &mut ranks, 2);
    reduce(&mut ranks, 1024);
    stop(&mut ranks);
    // And with one that takes its place.
    ranks.push(Rank::start(library, 4));
    form(library, &mut ranks, 3);
    reduce(&mut ranks, 1024);
}

fn an_abort_ends_the_forming(library: &Path) {
    let mut ranks = start(library, 4);
    let last = ranks.pop().expect("a rank");
    let minter = mint(library, 1);
    begin(&mut ranks, minter.as_ref(), 4, 1);
    all(&mut ranks, &format!("wait {NOTHING_MS}"), "in progress");
    stop(&mut ranks);
    drop(minter);
    ranks.push(last);
    form(library, &mut ranks, 2);
    reduce(&mut ranks, 1024);
}

fn a_dead_minter_forms_nothing(library: &Path) {
    let mut ranks = start(library, 4);
    let minter = mint(library, 1);
    minter.kill();
    minter.ended().wait().expect_err("it was killed");
    begin(&mut ranks, minter.as_ref(), 4, 1);
    for rank in &mut ranks {
        let answer = rank.ask(&format!("wait {NOTHING_MS}"));
        assert!(answer == "in progress" || answer.starts_with("failed"), "{answer}");
    }
    stop(&mut ranks);
    form(library, &mut ranks, 2);
    reduce(&mut ranks, 1024);
}

fn ten_cycles_leak_nothing(library: &Path) {
    let mut ranks = start(library, 4);
    let mut cycle = |generation: u64| -> Vec<(u64, u64, u64)> {
        form(library, &mut ranks, generation);
        reduce(&mut ranks, 1 << 16);
        stop(&mut ranks);
        ranks.iter_mut().map(|rank| counts(&rank.ask("counts"))).collect()
    };
    // The first ones load kernels, and start what NCCL keeps.
    let (_, before) = (cycle(1), cycle(2));
    let after = (3..=12).map(&mut cycle).last().expect("ten cycles");
    assert_nothing_lost(&before, &after);
}

/// In this process, which needs no GPU for it.
fn mint(library: &Path, generation: u64) -> Box<dyn Minter> {
    let backend = NcclBackend::new(minting::options(library.to_owned()));
    let options = MintOptions { group: "gpu".to_owned(), generation, nranks: 4 };
    backend.mint(&options).expect("an id")
}

/// Begins to form a generation of these ranks, which has more if `of` says so.
fn begin(ranks: &mut [Rank], minter: &dyn Minter, of: usize, generation: u64) {
    let id = holdfast_nccl::UniqueId::from_bytes(*minter.id().as_bytes()).to_hex();
    let command = |at: usize| format!("init {id} {of} {at} {generation}");
    ranks.iter_mut().enumerate().for_each(|(at, rank)| rank.tell(&command(at)));
    for rank in ranks {
        assert_eq!(rank.answer("init"), "begun", "rank {}", rank.what);
    }
}

/// Forms a generation of these ranks by an id of its own.
fn form(library: &Path, ranks: &mut [Rank], generation: u64) {
    let minter = mint(library, generation);
    let of = ranks.len();
    begin(ranks, minter.as_ref(), of, generation);
    all(ranks, &format!("wait {PEERS_MS}"), "ready");
}

/// Reduces, and looks at each value.
fn reduce(ranks: &mut [Rank], count: usize) {
    all(ranks, &format!("reduce {count}"), "begun");
    let sum = ranks.len() * (ranks.len() + 1) / 2;
    all(ranks, &format!("values {PEERS_MS}"), &sum.to_string());
}

/// As when a generation is revoked: all stop, then all free.
fn stop(ranks: &mut [Rank]) {
    all(ranks, "quiesce", "quiesced");
    all(ranks, "release", "released");
}
