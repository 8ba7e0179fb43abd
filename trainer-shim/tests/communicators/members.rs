//! The members of one generation, each with its own end of the ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_trainer_shim::communicator::ring::{DeadPeer, Ring, RingOptions};
use holdfast_trainer_shim::communicator::{
    Backend, Communicator, Failure, InitOptions, MintOptions, UniqueId, Work,
};

/// How long anything may take before the test counts as hung.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub const GROUP: &str = "gradients";

pub fn options(dead_peer: DeadPeer) -> RingOptions {
    RingOptions { dead_peer, connect_retries: 0, ..RingOptions::default() }
}

/// The result of work that must end.
pub fn ended<T>(mut work: Work<T>) -> Result<T, Failure> {
    work.wait_for(PATIENCE).expect("it ends")
}

pub fn member(id: UniqueId, generation: u64, rank: u32, nranks: u32) -> InitOptions {
    let incarnation = 100 + u64::from(rank);
    InitOptions { group: GROUP.to_owned(), generation, incarnation, nranks, rank, id }
}

/// All members of a new generation, ready.
pub fn form(ring: &RingOptions, nranks: u32) -> Vec<Arc<dyn Communicator>> {
    static GENERATION: AtomicU64 = AtomicU64::new(1);
    let generation = GENERATION.fetch_add(1, Ordering::SeqCst);
    let backend = Ring::new(ring.clone());
    let options = MintOptions { group: GROUP.to_owned(), generation, nranks };
    let minter = backend.mint(&options).expect("an id");
    let members: Vec<Arc<dyn Communicator>> = (0..nranks)
        .map(|rank| backend.begin_init(member(minter.id(), generation, rank, nranks)))
        .map(|member| member.expect("a member"))
        .map(Arc::from)
        .collect();
    for member in &members {
        ended(member.initialised()).expect("all members are there");
    }
    assert_eq!(ended(minter.ended()), Ok(()));
    members
}
