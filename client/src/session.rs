//! The bookkeeping of one session: which numbers commands get, and what the
//! client acknowledges.
//!
//! The state machine accepts any sequence in `[ack, ack + window)` once and
//! keeps its answer until `ack` has passed it. So `ack` must never pass a
//! command whose answer is still wanted, and should pass everything else.

use std::collections::BTreeSet;

use holdfast_api::{SessionId, SessionRef};

#[derive(Debug)]
pub(crate) struct Session {
    id: SessionId,
    window: u64,
    /// The lowest sequence that was never used.
    next: u64,
    /// Sequences whose answers are still wanted.
    outstanding: BTreeSet<u64>,
}

impl Session {
    /// A session as the cluster opened it. A window of 0 would allow nothing
    /// at all and counts as 1.
    pub(crate) fn new(id: SessionId, window: u64) -> Self {
        Session { id, window: window.max(1), next: 1, outstanding: BTreeSet::new() }
    }

    /// One that another process used up to `next`; of these commands the answers are
    /// still wanted.
    pub(crate) fn resumed(id: SessionId, window: u64, next: u64, wanted: BTreeSet<u64>) -> Self {
        Session { id, window: window.max(1), next: next.max(1), outstanding: wanted }
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    /// The lowest sequence whose answer is still wanted.
    pub(crate) fn ack(&self) -> u64 {
        self.outstanding.first().copied().unwrap_or(self.next)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.next - self.ack() < self.window
    }

    /// The next sequence; none while the window is full.
    pub(crate) fn allocate(&mut self) -> Option<u64> {
        if !self.has_room() {
            return None;
        }
        let sequence = self.next;
        self.next += 1;
        self.outstanding.insert(sequence);
        Some(sequence)
    }

    /// The answer is there, or no longer wanted.
    pub(crate) fn release(&mut self, sequence: u64) {
        self.outstanding.remove(&sequence);
    }

    /// How a command with this sequence is sent now.
    pub(crate) fn reference(&self, sequence: u64) -> SessionRef {
        SessionRef { id: self.id, sequence, ack: self.ack() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_gap_holds_the_acknowledgement_back() {
        let mut session = Session::new(7.into(), 3);
        assert_eq!([1, 2, 3].map(|_| session.allocate()), [Some(1), Some(2), Some(3)]);
        session.release(2);
        session.release(3);
        assert_eq!(session.reference(1), SessionRef { id: 7.into(), sequence: 1, ack: 1 });
        assert_eq!(session.allocate(), None, "4 lies outside of [1, 4)");
        session.release(1);
        assert_eq!(session.ack(), 4);
        assert_eq!(session.allocate(), Some(4));
    }

    #[test]
    fn a_window_of_nothing_still_lets_one_through() {
        let mut session = Session::new(1.into(), 0);
        assert_eq!((session.allocate(), session.allocate()), (Some(1), None));
    }

    proptest! {
        /// For any order of commands and answers: a sequence is used once, the
        /// acknowledgement is the lowest outstanding one and never goes back,
        /// and nothing lies outside of the window.
        #[test]
        fn sequences_obey_the_session_table(
            window in 1_u64..20,
            steps in prop::collection::vec(prop::option::of(0_usize..20), 0..200),
        ) {
            let mut session = Session::new(1.into(), window);
            let mut used = BTreeSet::new();
            let mut outstanding = Vec::new();
            let mut ack_before = session.ack();
            for step in steps {
                match step {
                    None => match session.allocate() {
                        Some(sequence) => {
                            prop_assert!(used.insert(sequence), "{sequence} was used twice");
                            outstanding.push(sequence);
                        }
                        None => {
                            let lowest = outstanding.iter().min().copied().unwrap();
                            prop_assert_eq!(used.last().copied().unwrap() + 1, lowest + window);
                        }
                    },
                    Some(pick) if !outstanding.is_empty() => {
                        session.release(outstanding.swap_remove(pick % outstanding.len()));
                    }
                    Some(_) => {}
                }
                let lowest = outstanding.iter().min().copied();
                prop_assert_eq!(session.ack(), lowest.unwrap_or(used.len() as u64 + 1));
                prop_assert!(session.ack() >= ack_before);
                prop_assert!(outstanding.iter().all(|s| *s < session.ack() + window));
                ack_before = session.ack();
            }
        }
    }
}
