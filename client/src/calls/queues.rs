//! Where calls wait to be sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_api::{Name, Scope};

use super::reads::Reads;
use crate::call::{Call, CallId};

/// Calls that are to be sent. A call is in one queue at most.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// Commands that need no session: of leases, processes and rounds. No other
    /// call keeps them waiting.
    pub(super) first: BTreeSet<CallId>,
    /// Commands that have their sequence: they are sent before all others.
    pub(super) again: BTreeMap<u64, CallId>,
    /// Commands that have none yet, and go out alone.
    pub(super) fresh: BTreeSet<CallId>,
    /// Small commands on keys that have none yet, and may go out together.
    pub(super) small: Lines,
    /// Small reads that only the leader answers.
    pub(super) reads: Reads,
    /// Everything else that only the leader answers.
    pub(super) to_leader: BTreeSet<CallId>,
    /// What any node answers.
    pub(super) to_any: BTreeSet<CallId>,
}

impl Queues {
    /// Commands that may go out together, and all that only the leader answers.
    pub(super) fn waiting(&self) -> usize {
        self.small.waiting + self.reads.len() + self.to_leader.len()
    }

    /// Whether small commands or small reads are on the wire.
    pub(super) fn are_under_way(&self) -> bool {
        self.small.are_under_way() || self.reads.are_under_way()
    }

    /// Whether anything waits that takes a session.
    pub(super) fn want_session(&self) -> bool {
        !self.fresh.is_empty() || !self.small.is_empty()
    }

    /// The job of the oldest command that takes a session.
    pub(super) fn job_without_session<'o>(
        &self,
        open: &'o BTreeMap<CallId, Call>,
    ) -> Option<&'o Name> {
        let oldest = self.small.all().into_iter().chain(self.fresh.first().copied()).min()?;
        open.get(&oldest)?.ask.job()
    }
}

/// Which small commands may go together: those in one scope, under one session, and
/// alike in whether a lack of space refuses them.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    pub(super) scope: Scope,
    pub(super) bound: Option<u64>,
    pub(super) adds: bool,
}

/// Small commands: one line for each group. No line delays another.
#[derive(Debug)]
pub(super) struct Lines {
    lines: BTreeMap<Arc<Group>, Line>,
    /// The first of each line that may send one.
    ready: BTreeMap<CallId, Arc<Group>>,
    waiting: usize,
    /// Most of each line that are under way at a time.
    under_way_max: usize,
}

#[derive(Debug, Default)]
struct Line {
    waiting: BTreeSet<CallId>,
    under_way: usize,
    /// Whether its last pipeline had no room for all that waited.
    was_full: bool,
    /// Its entry in [`Lines::ready`].
    ready: Option<CallId>,
}

impl Default for Lines {
    fn default() -> Self {
        Lines {
            lines: BTreeMap::new(),
            ready: BTreeMap::new(),
            waiting: 0,
            under_way_max: usize::MAX,
        }
    }
}

impl Lines {
    pub(super) fn insert(&mut self, group: &Arc<Group>, id: CallId) {
        let waiting = &mut self.waiting;
        Self::change(&mut self.lines, &mut self.ready, self.under_way_max, group, |line| {
            *waiting += usize::from(line.waiting.insert(id));
        });
    }

    pub(super) fn remove(&mut self, group: &Arc<Group>, id: CallId) {
        let waiting = &mut self.waiting;
        Self::change(&mut self.lines, &mut self.ready, self.under_way_max, group, |line| {
            *waiting -= usize::from(line.waiting.remove(&id));
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether the pipeline that goes out now has no room for all that wait.
    pub(super) fn filled(&mut self, group: &Arc<Group>, is_full: bool) {
        Self::change(&mut self.lines, &mut self.ready, self.under_way_max, group, |line| {
            line.was_full = is_full;
        });
    }

    /// A command of this group went out.
    pub(super) fn went(&mut self, group: &Arc<Group>) {
        Self::change(&mut self.lines, &mut self.ready, self.under_way_max, group, |line| {
            line.under_way += 1;
        });
    }

    /// A command of this group is no longer on the wire.
    pub(super) fn came_back(&mut self, group: &Arc<Group>) {
        Self::change(&mut self.lines, &mut self.ready, self.under_way_max, group, |line| {
            line.under_way = line.under_way.saturating_sub(1);
        });
    }

    /// Whether any command is on the wire.
    fn are_under_way(&self) -> bool {
        self.lines.values().any(|line| line.under_way > 0)
    }

    /// The oldest that may go out now.
    pub(super) fn first(&self) -> Option<CallId> {
        self.ready.first_key_value().map(|(id, _)| *id)
    }

    /// The commands that wait in the same line, oldest first.
    pub(super) fn of(&self, group: &Group) -> impl Iterator<Item = CallId> {
        self.lines.get(group).into_iter().flat_map(|line| line.waiting.iter().copied())
    }

    /// Whether no command waits and none counts as under way.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.lines.is_empty() && self.ready.is_empty()
    }

    /// All commands that wait.
    pub(super) fn all(&self) -> Vec<CallId> {
        self.lines.values().flat_map(|line| line.waiting.iter().copied()).collect()
    }

    pub(super) fn bound(&mut self, under_way_max: usize) {
        self.under_way_max = under_way_max;
        let groups: Vec<Arc<Group>> = self.lines.keys().cloned().collect();
        for group in &groups {
            Self::change(&mut self.lines, &mut self.ready, under_way_max, group, |_| {});
        }
    }

    fn change(
        lines: &mut BTreeMap<Arc<Group>, Line>,
        ready: &mut BTreeMap<CallId, Arc<Group>>,
        under_way_max: usize,
        group: &Arc<Group>,
        change: impl FnOnce(&mut Line),
    ) {
        let line = lines.entry(group.clone()).or_default();
        change(line);
        let under_way_max = under_way_max.saturating_add(usize::from(line.was_full));
        let first = line.waiting.first().copied().filter(|_| line.under_way < under_way_max);
        if line.ready != first {
            if let Some(before) = std::mem::replace(&mut line.ready, first) {
                ready.remove(&before);
            }
            if let Some(first) = first {
                ready.insert(first, group.clone());
            }
        }
        if line.waiting.is_empty() && line.under_way == 0 {
            lines.remove(group);
        }
    }
}
