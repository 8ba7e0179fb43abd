//! What applying an entry wakes: waits, watches and feeds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_api::{Problem, Revision};
use holdfast_machine::Effect;
use parking_lot::Mutex;

use super::feeds::{Feeds, Topic};
use super::parking::Parking;
use super::waits::Waits;
use super::watches::Watches;
use crate::raft::EffectSink;

/// Performs the machine's effects on this node.
pub struct Effects {
    /// Limits for what is parked.
    pub(crate) parking: Arc<Parking>,
    /// The waits that are parked here: some of their conditions are not met.
    pub(crate) waits: Mutex<Waits>,
    /// The requests for feeds that are parked here, until there is something to tell.
    pub(crate) feeds: Mutex<Feeds>,
    /// The watches that are registered here, by run and prefix.
    pub(crate) watches: Arc<Watches>,
    performed: AtomicU64,
}

impl Default for Effects {
    fn default() -> Effects {
        let parking = Arc::new(Parking::default());
        Effects {
            waits: Mutex::new(Waits::new(parking.clone())),
            parking,
            feeds: Mutex::default(),
            watches: Arc::default(),
            performed: AtomicU64::default(),
        }
    }
}

impl Effects {
    /// The last revision whose effects were performed: all waits, watches and feeds
    /// that it or an earlier one concerns were notified.
    pub(crate) fn performed(&self) -> Revision {
        self.performed.load(Ordering::Acquire)
    }

    /// Ends everything parked here, because this node has stopped leading.
    pub(crate) fn end_all(&self, problem: &Problem) {
        self.waits.lock().end_all(problem);
        self.feeds.lock().end_all(problem);
        self.watches.end_all();
    }
}

impl EffectSink for Effects {
    fn applied(&self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Changed(batch) => {
                    self.waits.lock().changed(&batch);
                    self.watches.changed(&batch);
                    self.performed.store(batch.revision, Ordering::Release);
                }
                Effect::RunOpened { run } => {
                    self.waits.lock().run_opened(&run);
                    self.watches.run_opened(&run);
                }
                Effect::RunEnded { run, refusal } => {
                    self.waits.lock().run_ended(&run, &refusal);
                    self.watches.run_ended(&run);
                }
                Effect::Notify(leases) => {
                    self.feeds.lock().notify(leases.into_iter().map(Topic::Lease));
                }
                Effect::Recorded { job } => self.feeds.lock().notify([Topic::Events(job)]),
            }
        }
    }

    /// A whole image has replaced the state: what changed is unknown. Only a follower
    /// gets one, and a follower has nothing parked.
    fn installed(&self) {
        self.end_all(&Problem::not_leader(None));
    }
}
