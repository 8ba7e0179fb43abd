//! Scenarios of a generation of ranks.

use std::path::Path;

use crate::gpu::Scenario;
use crate::ranks::{
    NOTHING_MS, PEERS_MS, Rank, all, assert_nothing_lost, begin, counts, form, minter, reduce,
    start,
};

/// All of them, with their names.
pub const ALL: &[(&str, Scenario)] = &[
    ("ranks_form_and_reduce", ranks_form_and_reduce),
    ("a_rank_is_killed_in_a_collective", a_rank_is_killed_in_a_collective),
    ("revoked_ranks_stop_before_they_abort", revoked_ranks_stop_before_they_abort),
    ("an_abort_ends_the_forming", an_abort_ends_the_forming),
    ("a_stale_joiner_disturbs_nobody", a_stale_joiner_disturbs_nobody),
    ("a_dead_minter_forms_nothing", a_dead_minter_forms_nothing),
    ("two_communicators_are_grouped", two_communicators_are_grouped),
    ("ten_cycles_leak_nothing", ten_cycles_leak_nothing),
];

fn ranks_form_and_reduce(library: &Path) {
    let mut ranks = start(library, 4);
    form(library, &mut ranks, 1);
    // 4 bytes to 64 MiB.
    for count in [1, 1 << 10, 1 << 18, 1 << 24] {
        reduce(&mut ranks, count);
    }
    all(&mut ranks, "broadcast 1024 2", "begun");
    all(&mut ranks, &format!("pending {PEERS_MS}"), "done");
    // Rank 2 has threes.
    all(&mut ranks, "values", "3");
    all(&mut ranks, "finalize", "finalizing");
    all(&mut ranks, &format!("wait {PEERS_MS}"), "ready");
    all(&mut ranks, "destroy", "destroyed");
}

/// All but the last begin a collective, and the last is killed: they hang.
fn hang(ranks: &mut Vec<Rank>) {
    let last = ranks.pop().expect("a rank");
    all(ranks, "reduce 1024", "begun");
    all(ranks, &format!("pending {NOTHING_MS}"), "pending");
    last.kill();
}

fn a_rank_is_killed_in_a_collective(library: &Path) {
    let mut ranks = start(library, 4);
    form(library, &mut ranks, 1);
    reduce(&mut ranks, 1024);
    hang(&mut ranks);
    all(&mut ranks, "abort", "aborted");
    // The same processes go on, one fewer.
    form(library, &mut ranks, 2);
    reduce(&mut ranks, 1024);
    all(&mut ranks, "abort", "aborted");
    // And with one that takes its place.
    ranks.push(Rank::start(library, 4));
    form(library, &mut ranks, 3);
    reduce(&mut ranks, 1024);
}

fn revoked_ranks_stop_before_they_abort(library: &Path) {
    let mut ranks = start(library, 4);
    if !ranks[0].ask("can").starts_with("revoke=true") {
        println!("SKIPPED: this NCCL cannot revoke");
        return;
    }
    form(library, &mut ranks, 1);
    reduce(&mut ranks, 1024);
    hang(&mut ranks);
    all(&mut ranks, "revoke", "revoked");
    for rank in &mut ranks {
        // A neighbour of the one that was killed has seen its connections end.
        let stopped = rank.ask(&format!("wait {PEERS_MS}"));
        assert!(stopped == "ready" || stopped.contains("ncclRemoteError"), "{stopped}");
    }
    let refused = ranks[0].ask("reduce 1024");
    assert!(refused.contains("was revoked: abort it"), "{refused}");
    all(&mut ranks, "abort", "aborted");
    form(library, &mut ranks, 2);
    reduce(&mut ranks, 1024);
}

fn an_abort_ends_the_forming(library: &Path) {
    let mut ranks = start(library, 4);
    let last = ranks.pop().expect("a rank");
    let minter = minter(library);
    begin(&mut ranks, minter.id(), 4, 1);
    all(&mut ranks, &format!("wait {NOTHING_MS}"), "in progress");
    let refused = ranks[0].ask("revoke");
    assert!(!refused.starts_with("revoked"), "{refused}");
    all(&mut ranks, "abort", "aborted");
    drop(minter);
    ranks.push(last);
    form(library, &mut ranks, 2);
    reduce(&mut ranks, 1024);
}

fn a_stale_joiner_disturbs_nobody(library: &Path) {
    let mut ranks = start(library, 4);
    let mut stale = ranks.pop().expect("a rank");
    // It got the id of a generation that was given up.
    let abandoned = minter(library);
    begin(&mut ranks, abandoned.id(), 4, 1);
    all(&mut ranks, "abort", "aborted");
    let old = abandoned.id().clone();
    drop(abandoned);
    form(library, &mut ranks, 2);
    assert_eq!(stale.ask(&format!("init {} 4 3 1", old.to_hex())), "begun");
    reduce(&mut ranks, 1024);
    let answer = stale.ask(&format!("wait {NOTHING_MS}"));
    assert!(answer == "in progress" || answer.starts_with("failed"), "{answer}");
    assert_eq!(stale.ask("abort"), "aborted");
    reduce(&mut ranks, 1024);
    all(&mut ranks, "abort", "aborted");
    ranks.push(stale);
    form(library, &mut ranks, 3);
    reduce(&mut ranks, 1024);
}

fn a_dead_minter_forms_nothing(library: &Path) {
    let mut ranks = start(library, 4);
    let dead = minter(library);
    let id = dead.id().clone();
    drop(dead);
    begin(&mut ranks, &id, 4, 1);
    for rank in &mut ranks {
        let answer = rank.ask(&format!("wait {NOTHING_MS}"));
        assert!(answer == "in progress" || answer.starts_with("failed"), "{answer}");
    }
    all(&mut ranks, "abort", "aborted");
    form(library, &mut ranks, 2);
    reduce(&mut ranks, 1024);
}

fn two_communicators_are_grouped(library: &Path) {
    let mut ranks = start(library, 3);
    form(library, &mut ranks, 1);
    form(library, &mut ranks, 2);
    reduce(&mut ranks, 1024);
    hang(&mut ranks);
    all(&mut ranks, "abort", "aborted");
    form(library, &mut ranks, 3);
    reduce(&mut ranks, 1024);
}

fn ten_cycles_leak_nothing(library: &Path) {
    let mut ranks = start(library, 4);
    let mut cycle = |generation: u64| -> Vec<(u64, u64, u64)> {
        form(library, &mut ranks, generation);
        reduce(&mut ranks, 1 << 16);
        all(&mut ranks, "abort", "aborted");
        ranks.iter_mut().map(|rank| counts(&rank.ask("counts"))).collect()
    };
    // The first ones load kernels, and start what NCCL keeps.
    let (_, before) = (cycle(1), cycle(2));
    let after = (3..=12).map(&mut cycle).last().expect("ten cycles");
    assert_nothing_lost(&before, &after);
}
