//! The async runtime that the consensus library runs on: Tokio, with
//! randomness that a simulation can seed.
//!
//! The library's own deterministic wrapper panics outside a seeded scope, so
//! it cannot serve production. This one reads the seed if there is one and is
//! plain Tokio if there is none, so that one set of types serves both.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::time::Duration;

use openraft_rt::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::TokioRuntime;
use rand::SeedableRng;
use rand::rngs::SmallRng;

tokio::task_local! {
    static SEED: Cell<u64>;
}

/// Increments of two independent Weyl sequences: one leads to a spawned task,
/// one to the spawning task's own next number.
const CHILD: u64 = 0x9e37_79b9_7f4a_7c15;
const NEXT: u64 = 0x6a09_e667_f3bc_c908;

/// SplitMix64: a bijection on 64 bits in which each input bit moves about
/// half of the output (Steele, Lea, Flood 2014).
fn mix(seed: u64, increment: u64) -> u64 {
    let z = seed.wrapping_add(increment);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// This task's seed, if it runs in a seeded scope; the next one takes its place.
fn take_seed() -> Option<u64> {
    SEED.try_with(|seed| seed.replace(mix(seed.get(), NEXT))).ok()
}

/// Tokio, seeded inside [`NodeRuntime::seeded`] and random outside it.
#[derive(Debug)]
pub struct NodeRuntime(TokioRuntime);

impl NodeRuntime {
    /// Runs a future, and every task that the consensus library spawns from
    /// it, with randomness that follows from the seed alone.
    pub fn seeded<F: Future>(seed: u64, future: F) -> impl Future<Output = F::Output> {
        SEED.scope(Cell::new(seed), future)
    }
}

impl AsyncRuntime for NodeRuntime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> =
        <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = <TokioRuntime as AsyncRuntime>::Watch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        match take_seed() {
            Some(seed) => TokioRuntime::spawn(SEED.scope(Cell::new(mix(seed, CHILD)), future)),
            None => TokioRuntime::spawn(future),
        }
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        match take_seed() {
            Some(seed) => SmallRng::seed_from_u64(seed),
            None => SmallRng::seed_from_u64(rand::random()),
        }
    }

    fn new(threads: usize) -> Self {
        NodeRuntime(TokioRuntime::new(threads))
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        self.0.block_on(future)
    }

    fn spawn_blocking<F, T>(function: F) -> impl Future<Output = Result<T, io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        TokioRuntime::spawn_blocking(function)
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;

    fn draws(seed: u64) -> Vec<u64> {
        NodeRuntime::run(NodeRuntime::seeded(seed, async {
            let first = NodeRuntime::thread_rng().random();
            let child = NodeRuntime::spawn(async { NodeRuntime::thread_rng().random() });
            let second = NodeRuntime::thread_rng().random();
            vec![first, child.await.expect("the task does not panic"), second]
        }))
    }

    #[test]
    fn a_seed_fixes_what_a_task_and_its_children_draw() {
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }

    #[test]
    fn without_a_seed_the_library_s_runtime_suite_passes() {
        openraft_rt::testing::Suite::<NodeRuntime>::test_all();
    }
}
