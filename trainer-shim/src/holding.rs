//! Generations held by the processes of this program, by rounds: the reason to watch over itself,
//! and what it must let go of.

use std::sync::atomic::Ordering;

use holdfast_api::{Blob, Generation, ProcessId};

use crate::host::Host;
use crate::self_fence;

impl Host {
    /// Generation that a process holds of a round; 0 = maybe something.
    pub(crate) fn holds_of(&self, whose: &(ProcessId, Blob)) -> Option<Generation> {
        self.shared.holding.lock().get(whose).copied()
    }

    /// A process arrives at a held round: it may hold something from now on.
    /// Answers what it held.
    pub(crate) fn may_hold(&self, whose: (ProcessId, Blob)) -> Option<Generation> {
        let held = self.shared.holding.lock().get(&whose).copied();
        self.hold(whose, Some(held.unwrap_or(0)));
        held
    }

    /// The rounds of which a process holds this generation.
    pub(crate) fn rounds_held(&self, process: ProcessId, generation: Generation) -> Vec<Blob> {
        let holding = self.shared.holding.lock();
        let such =
            holding.iter().filter(|((holder, _), held)| (*holder, **held) == (process, generation));
        such.map(|((_, round), _)| round.clone()).collect()
    }

    /// As before an arrival without an outcome, unless that was let go of since.
    pub(crate) fn restore(&self, whose: (ProcessId, Blob), before: Option<Generation>) {
        let is_there = self.shared.holding.lock().contains_key(&whose);
        if is_there {
            self.hold(whose, before);
        }
    }

    /// Sets the generation that a process holds of a round: this program watches
    /// over itself.
    pub(crate) fn hold(&self, whose: (ProcessId, Blob), generation: Option<Generation>) {
        let mut holding = self.shared.holding.lock();
        match generation {
            None => drop(holding.remove(&whose)),
            Some(generation) => {
                holding.insert(whose, generation);
                if !self.shared.fences.swap(true, Ordering::Relaxed) {
                    self_fence::watch(&self.shared);
                }
            }
        }
    }

    /// Whether a process holds anything.
    pub(crate) fn is_holding(&self, process: ProcessId) -> bool {
        self.shared.holding.lock().keys().any(|(holder, _)| *holder == process)
    }

    /// A process no longer holds a generation; 0 = it holds nothing.
    pub(crate) fn let_go(&self, process: ProcessId, released: Generation) {
        self.shared.holding.lock().retain(|(holder, _), generation| {
            *holder != process || released != 0 && *generation != released
        });
    }
}
