//! What another process has to know to go on with the session: which sequences are taken,
//! for which commands, and which answers their callers have not stored yet.

use std::time::Duration;

use holdfast_api::SessionId;

use super::Calls;
use crate::call::{Ask, CallId, Pipeline};
use crate::resume::Ledger;

impl Calls {
    /// From now on writes what the next process has to know to this ledger.
    pub(crate) fn keep(&mut self, ledger: Box<dyn Ledger>) {
        self.ledger = Some(ledger);
    }

    /// Commits to the ledger what goes out next.
    pub(crate) fn commit(&mut self) {
        if let Some(ledger) = &mut self.ledger {
            ledger.commit();
        }
    }

    /// A session was opened.
    pub(crate) fn note_opened(&mut self, session: SessionId, window: u64, ttl: Duration) {
        if let Some(ledger) = &mut self.ledger {
            ledger.opened(session, window, ttl);
        }
    }

    /// The answer of a marked call is stored, or no longer wanted.
    pub(crate) fn settled(&mut self, id: CallId) {
        let Some(sequence) = self.unsettled.remove(&id) else { return };
        let Some(left) = self.unsettled_of.get_mut(&sequence) else { return };
        *left -= 1;
        if *left == 0 {
            self.unsettled_of.remove(&sequence);
            self.release(sequence);
        }
    }

    /// This sequence is answered. It is held until its callers have stored the answer.
    pub(super) fn answered(&mut self, sequence: u64, callers: &[CallId]) {
        if callers.is_empty() {
            return self.release(sequence);
        }
        self.unsettled_of.insert(sequence, callers.len());
        self.unsettled.extend(callers.iter().map(|caller| (*caller, sequence)));
    }

    /// A sequence whose answer is no longer wanted.
    pub(crate) fn release(&mut self, sequence: u64) {
        self.session_keeper.release(sequence);
        if let Some(ledger) = &mut self.ledger {
            ledger.released(sequence);
        }
    }

    /// Writes a call that has a new sequence to the ledger.
    pub(super) fn write_down(&mut self, id: CallId) {
        let (Some(ledger), Some(call)) = (&mut self.ledger, self.open.get(&id)) else { return };
        let Some(sequence) = call.progress.sequence else { return };
        match &call.ask {
            Ask::Propose { command, .. } => ledger.takes(sequence, command, &[call.mark]),
            Ask::Pipeline(Pipeline { command, members }) => {
                let mark = |member: &CallId| self.open.get(member).and_then(|call| call.mark);
                let marks: Vec<_> = members.iter().map(|m| m.as_ref().and_then(mark)).collect();
                ledger.takes(sequence, command, &marks);
            }
            _ => {}
        }
    }
}
