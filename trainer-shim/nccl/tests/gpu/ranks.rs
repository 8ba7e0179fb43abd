//! Commands that all ranks of a generation get.

use std::path::Path;

use holdfast_nccl::{Minter, UniqueId};

use crate::mint::minter_options;
pub use crate::rank_processes::{
    NOTHING_MS, PEERS_MS, Rank, all, assert_nothing_lost, counts, start,
};

/// A minter, which has to run until its generation is formed.
pub fn minter(library: &Path) -> Minter {
    Minter::start(&minter_options(Some(library.to_owned()))).expect("a minter")
}

/// Begins to form a generation of these ranks; `of` may name more.
pub fn begin(ranks: &mut [Rank], id: &UniqueId, of: usize, generation: u64) {
    let command = |at: usize| format!("init {} {of} {at} {generation}", id.to_hex());
    ranks.iter_mut().enumerate().for_each(|(at, rank)| rank.tell(&command(at)));
    for rank in ranks {
        assert_eq!(rank.answer("init"), "begun", "rank {}", rank.what);
    }
}

/// Forms a generation of these ranks by an id of its own.
pub fn form(library: &Path, ranks: &mut [Rank], generation: u64) {
    let minter = minter(library);
    let of = ranks.len();
    begin(ranks, minter.id(), of, generation);
    all(ranks, &format!("wait {PEERS_MS}"), "ready");
}

/// Reduces, and looks at each value.
pub fn reduce(ranks: &mut [Rank], count: usize) {
    all(ranks, &format!("reduce {count}"), "begun");
    all(ranks, &format!("pending {PEERS_MS}"), "done");
    let sum = ranks.len() * (ranks.len() + 1) / 2;
    all(ranks, "values", &sum.to_string());
}
