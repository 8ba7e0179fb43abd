//! The verdict on a history of the rounds of one job.
//!
//! # What is judged
//!
//! An incarnation starts at the moment of its registration, between request and answer, and
//! ends at one moment, its *end*, or goes on. A *generation* closes at one moment, and a
//! *run* is opened at one, which ends the run before. The history is valid iff all these
//! moments can be placed so that for every generation that any caller was notified of:
//!
//! 1. it closes within the calls of all members that were notified, and after the call of
//!    every other member, whose call must not have become void;
//! 2. every member has started before, and ends afterwards;
//! 3. the rest of its scope was not to be waited for:
//!    * among all active processes of a run: no other process has an incarnation that
//!      has started, is active and goes on: at that moment each is not started,
//!      ended, or a standby. A standby becomes active with the first such
//!      generation that it is a member of. In rounds other than advances it may
//!      also be in a call of an advance, if no such generation before had it as a
//!      member;
//!    * among a set: every other process of it has had an incarnation, and none that
//!      goes on, whatever its role. If the round requires all, there is no
//!      other;
//!    * among a generation: every other incarnation of it (of an iteration: with
//!      a rank) has ended, or has called an advance since. At the first exit of
//!      an atomic block it may also have withdrawn its exit, or called the entry
//!      of that block again;
//!    * a quorum waits for no process;
//! 4. generations of one round close in their order;
//! 5. it closes before the next run is opened.
//!
//! The end of an incarnation may be anywhere, with these bounds: it is after the
//! incarnation's start, and before the start of the process's next incarnation; before
//! the next run is opened; before the incarnation was notified that it is over, and
//! before it was notified that it has left; and not before anything that the incarnation
//! did while nothing could have ended it without its knowledge (see
//! [`story::Participant::suspect`](crate::story::Participant::suspect)): its calls and
//! their answers. An incarnation that was neither killed, nor notified that it is over,
//! nor left, nor was replaced, and whose run is the last, has no end. This is what JAX
//! says of failures: they may be moved, but not past another event of their process.
//!
//! Besides this, [`Rule`] by rule: all members get the same outcome of a generation, and
//! are members; none goes back; iterations grow by one; an incarnation is given once; no
//! process outside of a scope is named, and the absent ones are listed; a quorum has most
//! of the living members of the one before; the outcome of a gather is what was brought,
//! and of a vote what follows from that; after an atomic block all take the same branch;
//! of a group one generation is held at a time, and nothing closes on one that was revoked;
//! a run forms, at first and after all processes have ended, with the declared world, or
//! with the minimum after the last call, and never goes on with fewer than the minimum.
//!
//! # What the store says
//!
//! Its revisions and events are compared with all of that: in their order, the same rules
//! hold without any choice, and no moment is outside of the observations; every end has a
//! recorded cause. Only then are closings counted by kind.

mod agreement;
mod blocks;
mod formation;
mod holds;
mod iterations;
mod kinds;
mod payloads;
mod placement;
mod scopes;
mod sorts;
mod testimony;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use holdfast_api::Generation;

pub use self::kinds::Kind;
pub use self::sorts::Sort;
use crate::history::{History, Moment, Round};
use crate::story::Story;

/// The findings of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Generations that at least one member was notified of.
    pub rounds: usize,
    /// Runs with at least one registration.
    pub runs: usize,
    /// Incarnations that registered.
    pub participants: usize,
    /// How many closings were of each sort; one can be of several.
    pub sorts: BTreeMap<Sort, usize>,
    /// How many closings were of each kind; one can be of several.
    pub kinds: BTreeMap<Kind, usize>,
    /// The causes of ends that no recorded action explains: allowed, since a starved
    /// program looks like a dead one, and worth a look if there are many.
    pub unprovoked: Vec<&'static str>,
    /// Violations found. Empty = the history is valid.
    pub violations: Vec<Violation>,
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule that is broken.
    pub rule: Rule,
    /// Description of the violation.
    pub text: String,
}

/// A rule of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The records make sense, each program's in its order.
    Sense,
    /// All members get the same outcome, and are members.
    Agreement,
    /// No member goes back to an earlier generation.
    Growth,
    /// Every named member was inside, and had not ended.
    Presence,
    /// Every process that is alive and active is named.
    Absence,
    /// An incarnation that is reported over ends, once, before the next one starts.
    Finality,
    /// A new run ends the one before: no round closes there any more.
    Run,
    /// No round closes with fewer than the minimum; while no process is in, it waits for
    /// the declared world.
    Formation,
    /// No process outside of a set or a generation is named, and the absent ones are listed.
    Scope,
    /// The values of a gather are those that its members brought.
    Payload,
    /// A quorum has as many members as its callers said, most of the living ones of
    /// the one before among them.
    Quorum,
    /// A vote ends as its votes say.
    Vote,
    /// An atomic block ends as its members have left it.
    Block,
    /// After an atomic block all take the same branch.
    Branch,
    /// One generation of a group is held at a time, and nothing closes on one that is over.
    Hold,
    /// Iterations grow by one, have ranks that fit, and promote standbys up to the
    /// declared world.
    Iteration,
    /// The store's own account fits the observations.
    Testimony,
    /// The search for a placement was given up: not a pass.
    Undecided,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { rounds, runs, participants, sorts, kinds, unprovoked, violations } = self;
        writeln!(f, "{rounds:>8}  rounds closed, as their members were told")?;
        for (sort, count) in sorts {
            writeln!(f, "{count:>8}  {sort}")?;
        }
        for (kind, count) in kinds {
            writeln!(f, "{count:>8}  {kind}")?;
        }
        writeln!(f, "{runs:>8}  runs")?;
        writeln!(f, "{participants:>8}  incarnations")?;
        for cause in unprovoked.iter().collect::<BTreeSet<_>>() {
            let count = unprovoked.iter().filter(|other| *other == cause).count();
            writeln!(f, "{count:>8}  ends that nobody brought about: {cause}")?;
        }
        for violation in violations {
            writeln!(f, "{violation}")?;
        }
        match violations.len() {
            0 => write!(f, "valid"),
            wrong => write!(f, "NOT VALID: {wrong} violations"),
        }
    }
}

impl Report {
    /// Adds the report of another history.
    pub fn add(&mut self, other: Report) {
        let Report { rounds, runs, participants, sorts, kinds, unprovoked, violations } = other;
        self.rounds += rounds;
        self.runs += runs;
        self.participants += participants;
        for (sort, count) in sorts {
            *self.sorts.entry(sort).or_default() += count;
        }
        for (kind, count) in kinds {
            *self.kinds.entry(kind).or_default() += count;
        }
        self.unprovoked.extend(unprovoked);
        self.violations.extend(violations);
    }
}

/// Judges a history of rounds.
pub fn check(history: &History) -> Report {
    let story = Story::of(history);
    let mut findings = Findings::default();
    for text in &story.nonsense {
        findings.add(Rule::Sense, text.clone());
    }
    agreement::check(&story, &mut findings);
    let closings = placement::check(&story, &mut findings);
    iterations::check(&story, &closings, &mut findings);
    scopes::check(&story, &closings, &mut findings);
    payloads::check(&story, &closings, &mut findings);
    blocks::check(&story, &closings, &mut findings);
    holds::check(&story, &closings, &mut findings);
    testimony::check(&story, &closings, &mut findings);
    let (kinds, unprovoked) = kinds::count(&story, &closings, &mut findings);
    let with_participants: BTreeSet<usize> =
        story.participants.iter().map(|participant| participant.run).collect();
    Report {
        rounds: story.closings.len(),
        runs: with_participants.len(),
        participants: story.participants.len(),
        sorts: sorts::count(&story, &closings),
        kinds,
        unprovoked,
        violations: findings.violations,
    }
}

/// A generation, with the bounds of its closing by observation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Closing {
    /// The place of its run.
    run: usize,
    round: Round,
    /// The incarnations of its members.
    members: Vec<usize>,
    /// For each of them the call by which it is inside, if there is one.
    calls: Vec<Option<usize>>,
    /// It closed between these moments, by what was observed.
    observed: (Moment, Moment),
}

type Closings = BTreeMap<Generation, Closing>;

#[derive(Debug, Default)]
struct Findings {
    violations: Vec<Violation>,
}

impl Findings {
    fn add(&mut self, rule: Rule, text: String) {
        self.violations.push(Violation { rule, text });
    }
}

/// A moment, for people: milliseconds.
fn at(moment: Moment) -> String {
    match moment {
        crate::story::END | crate::story::NEVER => "the end".to_owned(),
        moment => format!("{}.{:03} ms", moment / 1_000_000, moment / 1_000 % 1_000),
    }
}
