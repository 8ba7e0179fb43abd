//! One host: a process with a runtime, a clock and a network of its own, which
//! is given a turn whenever something happens to it, and every few milliseconds.
//!
//! A process that is killed loses its runtime, and with it every task at once;
//! one that is paused gets no turns, while its kernel goes on; a clock that
//! drifts gets more or less time in its turns than passes.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use holdfast_net::simulated;
use holdfast_store::raft::runtime::NodeRuntime;
use tokio::runtime::{Builder, Runtime};

use crate::journal::Journal;
use crate::system;

/// A host, by the last number of its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u8);

/// The first host of trainers; nodes come before.
pub const FIRST_TRAINER: u8 = 20;

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            number @ ..FIRST_TRAINER => write!(f, "node-{number}"),
            number => write!(f, "host-{}", number - FIRST_TRAINER),
        }
    }
}

/// A simulated machine, with a clock and a source of randomness of its own.
pub struct Host {
    id: HostId,
    network: Arc<dyn simulated::Network>,
    journal: Journal,
    runtime: Option<Runtime>,
    /// Random bytes of this host.
    random: u64,
    /// Its clock, in milliseconds.
    clock: u64,
    /// Millionths of a millisecond that its clock owes.
    owed: i64,
    /// How much faster than time its clock goes, in millionths.
    drift_ppm: i64,
    /// It gets no turns.
    paused: bool,
    /// Milliseconds for which it got none.
    missed: u64,
    /// Milliseconds that its next turn lasts.
    waits: u64,
}

/// How late a turn may be, in milliseconds.
const LATE_MS: u64 = 4;

const MILLION: i64 = 1_000_000;

impl Host {
    /// A host without a process.
    pub fn new(
        id: HostId,
        network: Arc<dyn simulated::Network>,
        journal: Journal,
        random: u64,
    ) -> Host {
        Host {
            id,
            network,
            journal,
            runtime: None,
            random,
            clock: 0,
            owed: 0,
            drift_ppm: 0,
            paused: false,
            missed: 0,
            waits: 0,
        }
    }

    /// Whether a process runs here.
    pub fn is_up(&self) -> bool {
        self.runtime.is_some()
    }

    /// From now on its clock is faster than time by so many millionths.
    pub fn set_drift(&mut self, ppm: i64) {
        self.drift_ppm = ppm;
    }

    /// From now on its process gets no turns, or turns again.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Starts a process on the host.
    pub fn start(&mut self, seed: u64, process: impl Future<Output = ()> + Send + 'static) {
        self.kill();
        (self.paused, self.missed, self.waits) = (false, 0, 0);
        self.enter();
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without sockets starts");
        // Its tasks end with the runtime.
        drop(runtime.spawn(NodeRuntime::seeded(seed, process)));
        self.leave();
        self.runtime = Some(runtime);
    }

    /// Ends the process with everything that it had open.
    pub fn kill(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        self.enter();
        runtime.shutdown_background();
        self.leave();
    }

    /// Passes one millisecond. A host without events gets its turn a little later, and
    /// its timers with it.
    pub fn pass(&mut self, is_touched: bool) {
        let passed = MILLION + self.drift_ppm + self.owed;
        let whole = passed / MILLION;
        self.owed = passed % MILLION;
        let millis = u64::try_from(whole).unwrap_or(0);
        self.clock += millis;
        if self.paused || self.runtime.is_none() {
            self.missed += millis;
            return;
        }
        self.waits += millis;
        if is_touched || self.waits >= LATE_MS {
            self.turn();
        }
    }

    fn turn(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        let (missed, millis) = (std::mem::take(&mut self.missed), std::mem::take(&mut self.waits));
        self.enter();
        if missed > 0 {
            runtime.block_on(async { tokio::time::advance(Duration::from_millis(missed)).await });
        }
        if millis > 0 {
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(millis)).await });
        }
        self.leave();
        self.runtime = Some(runtime);
    }

    /// This thread is this host's from now on.
    fn enter(&self) {
        self.journal.set_turn(Some(self.id));
        system::simulate(self.random);
        system::set_clock(self.clock * 1_000_000);
        simulated::enter(Some(self.network.clone()));
    }

    fn leave(&mut self) {
        self.random = system::state();
        simulated::enter(None);
        self.journal.set_turn(None);
    }
}
