//! The cause of each closing: named by the store's events, and counted only if the
//! observations allow it.

use std::collections::BTreeMap;
use std::fmt;

use holdfast_api::{Cause, EventKind, Revision};

use super::testimony::Word;
use super::{Closings, Findings, Rule};
use crate::history::Moment;
use crate::story::{Participant, Story};

/// The cause of a closing, or an event during it. One closing can be of several kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The last awaited process arrived.
    Arrival,
    /// The agent of a missing process reported it dead.
    ProcessDeath,
    /// The lease of a process that was missing expired.
    LeaseExpiry,
    /// A missing process was evicted at the deadline.
    Eviction,
    /// A missing process left.
    Leave,
    /// A standby became active with it.
    Promotion,
    /// While it gathered, a live incarnation was superseded.
    Supersession,
}

impl Kind {
    /// All kinds of causes.
    pub const ALL: [Kind; 7] = [
        Kind::Arrival,
        Kind::ProcessDeath,
        Kind::LeaseExpiry,
        Kind::Eviction,
        Kind::Leave,
        Kind::Promotion,
        Kind::Supersession,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Arrival => "closed by an arrival",
            Kind::ProcessDeath => "closed by the death of a process, told by its agent",
            Kind::LeaseExpiry => "closed by the expiry of a lease",
            Kind::Eviction => "closed by an eviction",
            Kind::Leave => "closed by a leave",
            Kind::Promotion => "promoted a standby",
            Kind::Supersession => "saw a supersession",
        })
    }
}

/// Counts closings by kind; also answers the ends without a recorded cause.
pub(super) fn count(
    story: &Story,
    closings: &Closings,
    findings: &mut Findings,
) -> (BTreeMap<Kind, usize>, Vec<&'static str>) {
    let word = Word::of(story);
    let mut unprovoked = Vec::new();
    let mut ends: BTreeMap<Revision, Vec<Kind>> = BTreeMap::new();
    for (id, (revision, cause)) in &word.ends {
        let Some(kind) = kind_of(cause) else { continue };
        // An incarnation that is not known was killed before it got its number.
        let Some(participant) = story.find(id.0, id.1).map(|n| &story.participants[n]) else {
            continue;
        };
        // The moment of an end is bounded by the closings at or after it.
        let closed = closings.iter().filter_map(|(generation, closing)| {
            let witness = story.outcome(story.closings[generation][0]).witness;
            (witness >= *revision).then_some(closing.observed.1)
        });
        let by = closed.min().unwrap_or(Moment::MAX);
        match brought_about(participant, cause, by) {
            true => ends.entry(*revision).or_default().push(kind),
            false if kind == Kind::LeaseExpiry => unprovoked.push("a lease expired"),
            false if kind == Kind::Eviction => unprovoked.push("an eviction"),
            false => {
                let text = format!("the store says of {participant}: {cause}; nobody did that");
                findings.add(Rule::Testimony, text);
            }
        }
    }
    (tally(story, &word, &ends), unprovoked)
}

fn tally(
    story: &Story,
    word: &Word<'_>,
    ends: &BTreeMap<Revision, Vec<Kind>>,
) -> BTreeMap<Kind, usize> {
    let ended: Vec<Revision> = word.ends.values().map(|(revision, _)| *revision).collect();
    let mut by_witness: Vec<(Revision, bool)> = Vec::new();
    for told in story.closings.values() {
        let outcome = story.outcome(told[0]);
        let promoted = outcome.advance.as_ref().is_some_and(|a| !a.promoted.is_empty());
        by_witness.push((outcome.witness, promoted));
    }
    by_witness.sort_unstable();
    let mut kinds: BTreeMap<Kind, usize> = BTreeMap::new();
    let mut before = 0;
    for (witness, promoted) in by_witness {
        let mut found: Vec<Kind> = ends.get(&witness).cloned().unwrap_or_default();
        found.retain(|kind| *kind != Kind::Supersession);
        if !ended.contains(&witness) {
            found.push(Kind::Arrival);
        }
        let open = ends.range(before + 1..=witness).flat_map(|(_, kinds)| kinds);
        if open.into_iter().any(|kind| *kind == Kind::Supersession) {
            found.push(Kind::Supersession);
        }
        if promoted && said_promoted(story, witness) {
            found.push(Kind::Promotion);
        }
        found.sort_unstable();
        found.dedup();
        for kind in found {
            *kinds.entry(kind).or_default() += 1;
        }
        before = witness;
    }
    kinds
}

fn said_promoted(story: &Story, witness: Revision) -> bool {
    let promoted = |what: &EventKind| matches!(what, EventKind::Promoted { .. });
    story.testimony.iter().any(|event| event.revision == witness && promoted(&event.what))
}

fn kind_of(cause: &Cause) -> Option<Kind> {
    match cause {
        Cause::Exited { .. } | Cause::Signaled { .. } | Cause::Gone => Some(Kind::ProcessDeath),
        Cause::LeaseExpired => Some(Kind::LeaseExpiry),
        Cause::Evicted { .. } => Some(Kind::Eviction),
        Cause::Left | Cause::Raised { .. } => Some(Kind::Leave),
        Cause::Superseded { .. } => Some(Kind::Supersession),
        Cause::Unresponsive { .. }
        | Cause::LeaseRevoked
        | Cause::Removed { .. }
        | Cause::NotStopped { .. }
        | Cause::RunEnded => None,
    }
}

/// Whether some action, by a moment, can have ended an incarnation for this cause.
fn brought_about(participant: &Participant, cause: &Cause, by: Moment) -> bool {
    let Participant { leaves, dies, disturbed, contested, .. } = participant;
    let done: &[&Option<Moment>] = match cause {
        Cause::Left | Cause::Raised { .. } => &[leaves],
        Cause::Superseded { .. } => &[contested],
        Cause::LeaseExpired | Cause::Evicted { .. } => &[dies, disturbed],
        // An agent may take a paused rank for dead only if it is.
        _ => &[dies],
    };
    done.iter().any(|done| done.is_some_and(|done| done <= by))
}
