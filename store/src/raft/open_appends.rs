//! Which answers to appends the consensus library may get.
//!
//! The library matches answers to open requests by log ids alone, and counts each
//! answer as of the time of its request. An append without entries has the same
//! log id as the one before it. So the answer to an old request can pass for the
//! answer to a newer one, and a leader that was frozen, with old answers in its
//! socket, would take them for a fresh confirmation and serve stale reads.
//!
//! Answers come in the order of the requests, and each says how far the log
//! matches: one that also matches a newer open request is left out, and the newer
//! request's own answer says the same.

use std::collections::VecDeque;

use super::wire::{Append, Appended};
use crate::storage::record::LogIdRecord;

/// Orders log ids; a log without entries comes first.
type Place = Option<(u64, u64, u64)>;

/// Appends on one connection that are not answered yet, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct OpenAppends {
    open: VecDeque<Span>,
}

/// The entries of one append come after `prev`, up to `last`.
#[derive(Debug)]
struct Span {
    prev: Place,
    last: Place,
    /// Whether an answer will come. The library waits for one in any case, and takes
    /// a newer append's for it.
    sent: bool,
}

fn place(id: &LogIdRecord) -> Place {
    Some((id.term, id.node, id.index))
}

impl OpenAppends {
    /// The library made a request.
    pub(crate) fn made(&mut self, append: &Append) {
        let prev = append.prev.as_ref().and_then(place);
        let last = append.entries.last().map(|entry| (entry.term, entry.node, entry.index));
        self.open.push_back(Span { prev, last: last.or(prev), sent: true });
    }

    /// The newest request will not be sent.
    pub(crate) fn not_sent(&mut self) {
        if let Some(youngest) = self.open.back_mut() {
            youngest.sent = false;
        }
    }

    /// The oldest request that was sent was answered. Returns whether to pass the
    /// answer on.
    pub(crate) fn answered(&mut self, answer: &Appended) -> bool {
        while self.open.pop_front().is_some_and(|oldest| !oldest.sent) {}
        let Appended::Matched(matched) = answer else { return true };
        let matched = matched.as_ref().and_then(place);
        !self.open.iter().any(|younger| matched >= younger.last || matched > younger.prev)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::record::{LogRecord, PayloadRecord, VoteRecord};

    fn id(index: u64) -> LogIdRecord {
        LogIdRecord { term: 1, node: 1, index }
    }

    /// An append of the entries after `prev`, up to `last`.
    fn append(prev: u64, last: u64) -> Append {
        let entry = |index| LogRecord { index, term: 1, node: 1, payload: PayloadRecord::Blank };
        Append {
            vote: VoteRecord { term: 1, node: 1, committed: true },
            prev: Some(id(prev)),
            commit: None,
            entries: (prev + 1..=last).map(entry).collect(),
        }
    }

    fn matched(index: u64) -> Appended {
        Appended::Matched(Some(id(index)))
    }

    #[test]
    fn pipelined_entries_are_each_told() {
        let mut open = OpenAppends::default();
        open.made(&append(5, 7));
        open.made(&append(7, 9));
        assert!(open.answered(&matched(7)));
        assert!(open.answered(&matched(9)));
    }

    #[test]
    fn an_old_answer_does_not_speak_for_a_young_request() {
        let mut open = OpenAppends::default();
        open.made(&append(5, 7));
        open.made(&append(7, 7));
        assert!(!open.answered(&matched(7)), "the append without entries is not answered yet");
        assert!(open.answered(&matched(7)));
    }

    #[test]
    fn an_answer_that_reaches_into_a_younger_request_waits_for_it() {
        let mut open = OpenAppends::default();
        open.made(&append(5, 7));
        open.made(&append(7, 9));
        assert!(!open.answered(&matched(8)));
        assert!(open.answered(&matched(9)));
    }

    #[test]
    fn refusals_are_always_told() {
        let mut open = OpenAppends::default();
        open.made(&append(5, 7));
        open.made(&append(7, 7));
        assert!(open.answered(&Appended::Conflict(Some(id(5)))));
    }
}
