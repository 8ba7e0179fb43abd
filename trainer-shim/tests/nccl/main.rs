//! The backend for NCCL without a GPU: what it makes of calls, on a small library
//! and a small driver of the tests' own, and what it logs and leaves over with
//! the real library and no driver.

#[path = "../../nccl/tests/support/build.rs"]
mod build;
mod conduct;
mod library;
mod minting;
#[path = "../../nccl/tests/support/mod.rs"]
mod support;

use std::time::Instant;

use holdfast_trainer_shim::communicator::{Failure, InitOptions, UniqueId, Work};

use self::support::{Counts, PATIENCE};

const NRANKS: u32 = 4;
const RANK: u32 = 1;

fn member(id: UniqueId, generation: u64) -> InitOptions {
    let group = "world".to_owned();
    InitOptions { group, generation, incarnation: 9, nranks: NRANKS, rank: RANK, id }
}

/// The result of work that must end.
fn ended<T>(mut work: Work<T>) -> Result<T, Failure> {
    work.wait_for(PATIENCE).expect("it ends")
}

/// Waits until the process has so much again: a thread that was joined is in
/// `/proc` for a moment.
fn comes_to(expected: Counts) {
    let end = Instant::now() + PATIENCE;
    while Counts::now() != expected {
        assert!(Instant::now() < end, "{:?} instead of {expected:?}", Counts::now());
        std::thread::yield_now();
    }
}

fn call_and_reason(failure: &Failure) -> (&'static str, &str) {
    match failure {
        Failure::System { call, reason } => (call, reason),
        other => panic!("{other:?}"),
    }
}
