//! Invariants at every moment: one log, one state for each index, leaders with a complete
//! log, leases that last.
//!
//! The committed entries are gathered from the disks of the nodes that applied them, and a
//! separate state machine applies them, too: every node must hold the same state at an index.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Write};

use holdfast_api::{
    Command, EventKind, Generation, Incarnation, LeaseCommand, LeaseId, LeaseOutcome, NodeId,
    Outcome, ProcessId, Read, ReadOutcome, Revision,
};
use holdfast_machine::{Machine, decode_entry};
use holdfast_store::node::Node;
use holdfast_store::storage::memory::MemoryDisk;
use holdfast_store::storage::record::{LogIdRecord, LogRecord, PayloadRecord, VoteRecord};

use crate::journal::Journal;
use crate::violation::Violation;
use crate::workload::{JOB, Record};

/// States of the past that are kept for nodes that lag.
const STATES_MAX: usize = 4_096;

/// A node as the checks see it.
pub struct Subject {
    /// Id of the node.
    pub id: NodeId,
    /// Counts the processes that it ran as.
    pub boot: u64,
    /// The node as it runs.
    pub node: Node,
    /// The disk that the node writes to.
    pub disk: MemoryDisk,
}

/// The vote that a node's disk keeps through a loss of power.
pub type DurableVote<'a> = &'a dyn Fn(NodeId) -> Option<VoteRecord>;

/// Index of the first entry that a log has or is to get, and its entries.
type Log<'a> = (u64, &'a [LogRecord]);

struct Renewed {
    at_ms: u64,
    ttl_ms: u64,
}

/// The known state of the cluster.
pub struct Checks {
    journal: Journal,
    committed: Vec<LogRecord>,
    /// The state after each of the latest entries, by index.
    states: BTreeMap<u64, Machine>,
    machine: Machine,
    leases: BTreeMap<LeaseId, Renewed>,
    /// As which processes the nodes led, by term and node: the consensus library
    /// orders leaders by both, so that a term can have several, one after the other.
    leaders: BTreeMap<(u64, NodeId), BTreeSet<u64>>,
    /// Entries of each node that were held against the committed ones.
    applied: BTreeMap<NodeId, u64>,
    /// Index of each node's state that was compared last.
    compared: BTreeMap<NodeId, u64>,
    ended: BTreeMap<(ProcessId, Incarnation), Revision>,
    events_upto: Revision,
    judged: BTreeSet<Generation>,
    /// Answers that came from the table of sessions.
    replayed: u64,
    /// The highest index that a snapshot reached.
    snapshot: u64,
    /// Violations found so far.
    pub violations: Vec<Violation>,
}

impl Checks {
    /// Of a cluster that has no entries yet.
    pub fn new(journal: Journal) -> Checks {
        Checks {
            journal,
            committed: Vec::new(),
            states: BTreeMap::new(),
            machine: Machine::default(),
            leases: BTreeMap::new(),
            leaders: BTreeMap::new(),
            applied: BTreeMap::new(),
            compared: BTreeMap::new(),
            ended: BTreeMap::new(),
            events_upto: 0,
            judged: BTreeSet::new(),
            replayed: 0,
            snapshot: 0,
            violations: Vec::new(),
        }
    }

    /// Notes what is wrong, once.
    pub fn report(&mut self, violation: Violation) {
        if !self.violations.contains(&violation) {
            self.journal.note(format_args!("VIOLATION {violation}"));
            self.violations.push(violation);
        }
    }

    /// Number of leaders so far.
    pub fn leaders(&self) -> usize {
        self.leaders.len()
    }

    /// Number of committed entries so far.
    pub fn entries(&self) -> usize {
        self.committed.len()
    }

    /// Answers that came from the table of sessions, and how far snapshots reached.
    pub fn seen(&self) -> (u64, u64) {
        (self.replayed, self.snapshot)
    }

    /// The state that all nodes must reach.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Checks leader and applied entries; cheap enough for every moment. `vote` knows the disks
    /// of all nodes, also of those that are down; none if they do not sync.
    pub fn look(&mut self, subjects: &[Subject], vote: Option<DurableVote<'_>>) {
        for subject in subjects {
            self.look_at_leader(subject, vote);
            let last = subject.node.applied().last.as_ref().map(LogIdRecord::from);
            let Some(last) = last else { continue };
            if self.applied.get(&subject.id) != Some(&last.index) && self.gather(subject, last) {
                self.applied.insert(subject.id, last.index);
            }
        }
    }

    fn look_at_leader(&mut self, subject: &Subject, vote: Option<DurableVote<'_>>) {
        let (term, leads) = subject.node.consensus().leadership();
        let leader = (term, subject.id);
        if !leads || !self.leaders.entry(leader).or_default().insert(subject.boot) {
            return;
        }
        self.journal.note(format_args!("node {} leads term {term}", subject.id));
        if self.leaders[&leader].len() > 1 {
            self.report(Violation::LeadsAgain { term, node: subject.id });
        }
        if let Some(vote) = vote {
            self.look_at_votes(leader, subject, vote);
        }
        let image = subject.disk.image();
        let missing = self.committed.iter().find(|entry| {
            (entry.term, entry.node) < leader
                && entry.index >= image.first_index()
                && image.id_at(entry.index) != Some(entry.id())
        });
        if let Some(entry) = missing {
            let index = entry.index;
            self.report(Violation::Incomplete { node: subject.id, term, index });
        }
    }

    /// A majority of the voters has its vote for a new leader on the disk: none of them can
    /// forget it and vote for another in the same term.
    fn look_at_votes(&mut self, leader: (u64, NodeId), subject: &Subject, vote: DurableVote<'_>) {
        let view = subject.node.view();
        // During a change of voters two sets count.
        if view.joint.is_some() || view.voters.is_empty() {
            return;
        }
        let has_voted =
            |voter: &&NodeId| vote(**voter).is_some_and(|vote| (vote.term, vote.node) >= leader);
        let kept: Vec<NodeId> = view.voters.iter().filter(has_voted).copied().collect();
        if kept.len() <= view.voters.len() / 2 {
            self.report(Violation::VotesNotSynced { term: leader.0, node: leader.1, kept });
        }
    }

    /// Takes over what a node applied, from its disk; false if earlier entries are not
    /// known yet, because the node that applied them first is down.
    fn gather(&mut self, subject: &Subject, last: LogIdRecord) -> bool {
        let before = self.applied.get(&subject.id).copied().unwrap_or(0);
        let known = self.committed.len() as u64;
        let (node, from) = (subject.id, before.min(last.index).min(known));
        let take_over = |_, entries: &[LogRecord]| self.take_over(node, last, entries);
        if !subject.disk.with_entries(from, take_over) {
            return false;
        }
        let known = usize::try_from(last.index).ok().and_then(|place| self.committed.get(place));
        if known.is_some_and(|known| known.id() != last) {
            self.report(Violation::OtherEntry { node, index: last.index });
        }
        true
    }

    fn take_over(&mut self, node: NodeId, last: LogIdRecord, entries: &[LogRecord]) -> bool {
        // What it has from a snapshot, the log may not have yet, or otherwise.
        let from_log = entries.iter().any(|entry| entry.id() == last);
        let entries = entries.iter().filter(|_| from_log);
        for entry in entries.take_while(|entry| entry.index <= last.index) {
            let place = usize::try_from(entry.index).unwrap_or(usize::MAX);
            match self.committed.get(place) {
                Some(known) if known == entry => {}
                Some(_) => self.report(Violation::OtherEntry { node, index: entry.index }),
                None if place == self.committed.len() => {
                    self.apply(entry);
                    self.committed.push(entry.clone());
                }
                None => return false,
            }
        }
        true
    }

    /// Whether all committed entries are known.
    pub fn is_whole(&self) -> bool {
        !self.violations.iter().any(|wrong| matches!(wrong, Violation::Unknown { .. }))
    }

    /// Notes that entries were applied which were never seen, if so.
    pub fn find_gap(&mut self, subjects: &[Subject]) {
        let index = |subject: &Subject| subject.node.applied().last.as_ref().map(|last| last.index);
        let applied = subjects.iter().filter_map(index).max();
        if applied.is_some_and(|applied| applied >= self.committed.len() as u64) {
            let what = format!("entry {} was gone before it was seen", self.committed.len());
            self.report(Violation::Unknown { what });
        }
    }

    fn apply(&mut self, record: &LogRecord) {
        if let PayloadRecord::Entry(encoded) = &record.payload {
            match decode_entry(encoded) {
                Ok(entry) => {
                    let applied = self.machine.apply(&entry);
                    let now = self.machine.time();
                    self.note_renewals(&entry.commands, now);
                    for (proposal, answer) in entry.commands.iter().zip(&applied.answers) {
                        self.note_lease(&proposal.command, &answer.outcome, now);
                        self.replayed += u64::from(answer.replayed);
                    }
                    self.note_ends();
                }
                Err(error) => self.report(Violation::Unknown { what: error.to_string() }),
            }
        }
        self.states.insert(record.index, self.machine.clone());
        if self.states.len() > STATES_MAX {
            self.states.pop_first();
        }
    }

    fn note_renewals(&mut self, commands: &[holdfast_api::Proposal], now: u64) {
        for proposal in commands {
            if let Command::Lease(LeaseCommand::KeepAlive { lease }) = &proposal.command
                && let Some(renewed) = self.leases.get_mut(lease)
            {
                renewed.at_ms = now;
            }
        }
    }

    fn note_lease(&mut self, command: &Command, outcome: &Outcome, now: u64) {
        match (command, outcome) {
            (_, Outcome::Lease(LeaseOutcome::Granted { lease, ttl_ms, .. })) => {
                self.leases.insert(*lease, Renewed { at_ms: now, ttl_ms: *ttl_ms });
            }
            (
                Command::Lease(LeaseCommand::Expire { lease, .. }),
                Outcome::Lease(LeaseOutcome::Ended),
            ) => {
                let Some(Renewed { at_ms, ttl_ms }) = self.leases.remove(lease) else { return };
                self.journal.note(format_args!("lease {lease} expires"));
                if now < at_ms + ttl_ms {
                    let (lease, renewed_ms, ended_ms) = (*lease, at_ms, now);
                    let violation =
                        Violation::LeaseTooShort { lease, renewed_ms, ttl_ms, ended_ms };
                    self.report(violation);
                }
            }
            _ => {}
        }
    }

    fn note_ends(&mut self) {
        let job = JOB.parse().expect("it is a name");
        let read = Read::Events { job, after: self.events_upto, limit: 0 };
        if let ReadOutcome::Events { events, upto, .. } = self.machine.read(&read).outcome {
            self.events_upto = upto;
            for event in events {
                if let EventKind::Ended { process, incarnation, .. } = event.what {
                    self.ended.insert((process, incarnation), event.revision);
                }
            }
        }
    }

    /// The checks too costly for every moment: compares logs and states of all nodes, and
    /// the outcomes that members got.
    pub fn compare(&mut self, subjects: &[Subject], record: &Record) {
        for (at, one) in subjects.iter().enumerate() {
            for other in &subjects[at + 1..] {
                let index = one.disk.with_entries(0, |first, entries| {
                    let log = (first, entries);
                    other.disk.with_entries(0, |first, entries| mismatch(log, (first, entries)))
                });
                if let Some(index) = index {
                    self.report(Violation::LogsDiffer { one: one.id, other: other.id, index });
                }
            }
        }
        let mut images = BTreeMap::new();
        for subject in subjects {
            self.snapshot = self.snapshot.max(subject.node.view().snapshot.unwrap_or(0));
            self.compare_state(subject, &mut images);
        }
        for violation in &record.violations {
            self.report(violation.clone());
        }
        self.judge(record);
    }

    /// `images` holds what was expected of the nodes before, by index: most are equally far.
    fn compare_state(&mut self, subject: &Subject, images: &mut BTreeMap<u64, Vec<u8>>) {
        let node = subject.id;
        let state = subject.node.applied();
        let Some(index) = state.last.as_ref().map(|last| last.index) else { return };
        if self.compared.get(&node) == Some(&index) {
            return;
        }
        let Some(expected) = self.states.get(&index) else { return };
        self.compared.insert(node, index);
        let expected = images.entry(index).or_insert_with(|| image(expected));
        if !has_image(&state.machine, expected) {
            self.report(Violation::Diverged { node, index });
        }
    }

    /// No dead incarnation is named in an outcome.
    fn judge(&mut self, record: &Record) {
        let mut dead = Vec::new();
        for (generation, told) in &record.advanced {
            let Some(told) = told.first().filter(|_| self.judged.insert(*generation)) else {
                continue;
            };
            for (process, incarnation) in told.members.iter() {
                let ended = self.ended.get(&(process, incarnation));
                if ended.is_some_and(|ended| *ended < told.witness) {
                    let generation = *generation;
                    dead.push(Violation::DeadInOutcome { generation, process, incarnation });
                }
            }
        }
        dead.into_iter().for_each(|violation| self.report(violation));
    }
}

/// The first entry in which two logs differ that have a later one in common.
fn mismatch(one: Log<'_>, other: Log<'_>) -> Option<u64> {
    let from = one.0.max(other.0);
    let (one, other) = (entries_from(from, one), entries_from(from, other));
    let shared = one.iter().zip(other).rposition(|(one, other)| one.id() == other.id())?;
    let differs = |at: &usize| one[*at] != other[*at];
    (0..=shared).find(differs).map(|at| from + at as u64)
}

/// The entries of a log from this index on.
fn entries_from(from: u64, (first, entries): Log<'_>) -> &[LogRecord] {
    let skipped = usize::try_from(from - first).unwrap_or(usize::MAX);
    entries.get(skipped..).unwrap_or_default()
}

fn image(machine: &Machine) -> Vec<u8> {
    let mut image = Vec::new();
    machine.encode(&mut image).expect("memory takes all bytes");
    image
}

/// Whether this is the image of a state, which is not kept: it is compared as it is written.
fn has_image(machine: &Machine, image: &[u8]) -> bool {
    let mut expected = Expected(image);
    machine.encode(&mut expected).is_ok() && expected.0.is_empty()
}

/// Takes these bytes and no others.
struct Expected<'a>(&'a [u8]);

impl Write for Expected<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.strip_prefix(bytes).ok_or(ErrorKind::InvalidData)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::Entry;

    use super::*;

    fn log(terms: &[u64]) -> Vec<LogRecord> {
        let record = |(index, term): (u64, &u64)| LogRecord {
            index,
            term: *term,
            node: 1,
            payload: PayloadRecord::Blank,
        };
        (0..).zip(terms).map(record).collect()
    }

    #[test]
    fn logs_may_differ_only_after_all_that_they_share() {
        let one = log(&[1, 1, 2, 2]);
        assert_eq!(mismatch((0, &one), (0, &log(&[1, 1, 2]))), None);
        assert_eq!(mismatch((0, &one), (0, &log(&[1, 1, 3]))), None, "the ends may differ");
        assert_eq!(mismatch((0, &one), (0, &log(&[1, 3, 2]))), Some(1));
        assert_eq!(mismatch((0, &one), (2, &log(&[1, 3, 2])[2..])), None, "that is purged");
        assert_eq!(mismatch((0, &one), (7, &[])), None);
        let mut other = one.clone();
        other[2].payload = PayloadRecord::Entry(bytes::Bytes::from_static(b"other"));
        assert_eq!(mismatch((0, &one), (1, &other[1..])), Some(2));
    }

    #[test]
    fn a_state_has_its_image_and_no_other() {
        let (mut one, other) = (Machine::default(), Machine::default());
        assert!(has_image(&one, &image(&other)));
        one.apply(&Entry { time: 7, commands: Vec::new() });
        assert!(!has_image(&one, &image(&other)));
        assert!(has_image(&one, &image(&one.clone())));
        assert!(!has_image(&one, &[image(&one), vec![0]].concat()), "it ends too early");
    }
}
