//! No round among all active processes closes with fewer members than the minimum. While no
//! process is in, it waits for the declared world, or for the minimum once the last call is over.
//!
//! A process is in from the first such closing that names it until it ends. So
//! one with too few members for a formation has a member that an earlier one
//! of the same run names.

use std::collections::BTreeSet;

use holdfast_api::Generation;

use super::{Closing, Closings, Findings, Rule, at};
use crate::history::Moment;
use crate::story::{Participant, Story};

/// Whether the members of a run form anew with this closing: none of them was in.
pub(super) fn is_one(story: &Story, closings: &Closings, generation: Generation) -> bool {
    let closing = &closings[&generation];
    closing.round.is_of_all() && former(story, closings, generation).next().is_none()
}

/// `allows`: whether one closing may have been before another.
pub(super) fn check(
    story: &Story,
    closings: &Closings,
    findings: &mut Findings,
    mut allows: impl FnMut(Generation, Generation) -> bool,
) {
    for (generation, closing) in closings {
        if !closing.round.is_of_all() {
            continue;
        }
        let members =
            || closing.members.iter().map(|participant| &story.participants[*participant]);
        let count = closing.members.len();
        // Members may differ in their numbers: what all of them agree to.
        let least = least_of(members().map(|participant| participant.policy.members_min));
        if count < least as usize {
            let text = format!("generation {generation} has {count} members, of at least {least}");
            findings.add(Rule::Formation, text);
            continue;
        }
        let was_in = may_be_in(story, closing)
            || former(story, closings, *generation).any(|former| allows(former, *generation));
        let world = least_of(members().map(|participant| participant.policy.world));
        if was_in || count >= world as usize {
            continue;
        }
        let last_call_ms =
            members().map(|participant| participant.policy.last_call_ms).min().unwrap_or(0);
        let (_, closed) = closing.observed;
        let text = if last_call_ms == 0 {
            format!(
                "generation {generation} has {count} members, none of which was in before, of a world of {world}"
            )
        } else if let Some(early) = too_early(members(), last_call_ms, closed) {
            format!(
                "generation {generation} has {count} members of a world of {world}, and closed by {}, before the last call was over at {}",
                at(closed),
                at(early)
            )
        } else {
            continue;
        };
        findings.add(Rule::Formation, text);
    }
}

fn least_of(numbers: impl Iterator<Item = u32>) -> u32 {
    numbers.min().unwrap_or(0).max(1)
}

/// When the last call is over at the earliest, if that is after the closing: log time is
/// never faster than the clock.
fn too_early<'s>(
    members: impl Iterator<Item = &'s Participant>,
    last_call_ms: u64,
    closed: Moment,
) -> Option<Moment> {
    let since = members.map(|participant| participant.registered.0).min()?;
    Some(since.saturating_add(last_call_ms.saturating_mul(1_000_000))).filter(|over| *over > closed)
}

/// Earlier closings among all active processes, by their revisions, that name
/// one of these members.
fn former<'s>(
    story: &'s Story,
    closings: &'s Closings,
    generation: Generation,
) -> impl Iterator<Item = Generation> + 's {
    let witness = |generation| story.told(generation).map_or(0, |told| told.witness);
    let (closing, before) = (&closings[&generation], witness(generation));
    let members: BTreeSet<usize> = closing.members.iter().copied().collect();
    let others = closings.iter().rev().filter(move |(other, former)| {
        former.round.is_of_all()
            && former.run == closing.run
            && witness(**other) < before
            && former.members.iter().any(|member| members.contains(member))
    });
    others.map(|(other, _)| *other)
}

/// Whether a member may have been in without any record of it: before, it made a call of
/// unknown outcome.
fn may_be_in(story: &Story, closing: &Closing) -> bool {
    closing.members.iter().zip(&closing.calls).any(|(member, call)| {
        let before = &story.participants[*member].calls[..call.unwrap_or(0)];
        before.iter().any(|call| call.arrival.round.is_of_all() && call.is_open())
    })
}
