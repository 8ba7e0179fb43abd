//! Members of the next iteration and their ranks.
//!
//! The steps and their results are those of NVRx's in-process restart
//! (`nvidia_resiliency_ext/inprocess/rank_assignment.py`). There each rank
//! computes them from its own view of who is gone; here one log entry decides for
//! all. What differs, and why:
//!
//! * Steps work in the order of the list; NVRx composes functions, whose last
//!   one is called first.
//! * There are newcomers: processes without a rank in the latest iteration. They
//!   come after all others, in order of their processes, so that `FillGaps` gives
//!   them the free ranks first.
//! * `MaxActive` and `DivisibleBy` count processes, not ranks: with gaps, too,
//!   they keep that many.
//! * `FillGaps` does what NVRx's picture of it shows. Its code hands out a rank
//!   outside of the new world when one of the highest ranks is among the lost.
//! * Where NVRx follows the order in which a dictionary was filled, the lowest
//!   process goes first.
//! * A world has the ranks 0 to its size without gaps. Gaps that the last step
//!   leaves are closed as `Shift` does.

use std::collections::BTreeMap;

use holdfast_api::{AssignmentStep, Labels, ProcessId, TreeLayer};

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
mod tree;

/// Most steps of one assignment.
const STEPS_MAX: usize = 16;
/// Most layers of a tree.
const LAYERS_MAX: usize = 8;
/// Longest label in a step, in bytes.
const LABEL_BYTES_MAX: usize = 128;

/// A process that can take part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'m> {
    pub process: ProcessId,
    /// Its rank in the latest iteration; none for a newcomer.
    pub previous: Option<u32>,
    pub labels: &'m Labels,
}

/// A rank of the latest iteration that no candidate has. A tree looks for a
/// stand-in near its old holder; other steps do not use it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lost<'m> {
    pub rank: u32,
    /// The labels of its old holder.
    pub labels: &'m Labels,
}

/// The result: each candidate has a rank, or was left out by one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assigned {
    /// One for each candidate, in order.
    pub ranks: Vec<Option<u32>>,
    /// Positions of candidates, ascending, with the step that left each out.
    pub left_out: Vec<(usize, u32)>,
}

/// A candidate that no step has left out yet. Ranks can be far apart while
/// steps are at work, but no two are equal.
#[derive(Debug, Clone, Copy)]
struct Candidacy {
    place: usize,
    rank: u64,
    /// It has had no rank, and `rank` only keeps the order.
    newcomer: bool,
}

/// Gives ranks to candidates, which come in growing order of their processes.
/// Without steps the ranks are in that order, whatever they were.
///
/// Takes O(n log n) time for each step, n being the number of candidates and lost
/// ranks. For any input the ranks are 0 to their number.
pub(crate) fn assign(
    steps: &[AssignmentStep],
    candidates: &[Candidate<'_>],
    lost: &[Lost<'_>],
) -> Assigned {
    let mut candidacies = candidacies(candidates, steps.is_empty());
    let mut left_out = Vec::new();
    for (number, step) in (0..).zip(steps) {
        let mut out = Vec::new();
        match step {
            AssignmentStep::Shift => shift(&mut candidacies),
            AssignmentStep::FillGaps => fill_gaps(&mut candidacies),
            AssignmentStep::FilterGrouped { label, min, max } => {
                out = filter_grouped(
                    &mut candidacies,
                    candidates,
                    label,
                    (*min).into(),
                    (*max).into(),
                );
            }
            AssignmentStep::MaxActive { max } => out = keep_lowest(&mut candidacies, *max as usize),
            AssignmentStep::DivisibleBy { divisor } => {
                let rest = candidacies.len().checked_rem(*divisor as usize).unwrap_or(0);
                let number = candidacies.len() - rest;
                out = keep_lowest(&mut candidacies, number);
            }
            AssignmentStep::Tree { layers } => {
                out = tree::assign(layers, candidates, lost, &mut candidacies);
            }
        }
        left_out.extend(out.into_iter().map(|place| (place, number)));
    }
    left_out.sort_unstable();
    let mut ranks = vec![None; candidates.len()];
    for (rank, candidacy) in (0..).zip(candidacies) {
        ranks[candidacy.place] = Some(rank);
    }
    Assigned { ranks, left_out }
}

/// All candidates in the order of their earlier ranks, which they keep, then the
/// newcomers; or all as newcomers.
fn candidacies(candidates: &[Candidate<'_>], afresh: bool) -> Vec<Candidacy> {
    let previous = |place: usize| candidates[place].previous.filter(|_| !afresh);
    let mut places: Vec<usize> = (0..candidates.len()).collect();
    places.sort_by_key(|place| {
        let rank = previous(*place);
        (rank.is_none(), rank, candidates[*place].process)
    });
    let mut free = 0;
    let candidacy = |place| {
        let rank = previous(place).map_or(free, |rank| free.max(rank.into()));
        free = rank + 1;
        Candidacy { place, rank, newcomer: previous(place).is_none() }
    };
    places.into_iter().map(candidacy).collect()
}

/// Closes the gaps and keeps the order.
fn shift(candidacies: &mut [Candidacy]) {
    for (rank, candidacy) in (0..).zip(candidacies) {
        (candidacy.rank, candidacy.newcomer) = (rank, false);
    }
}

/// Moves the highest ranks into the gaps, in their order; a rank below the number
/// of candidates stays.
fn fill_gaps(candidacies: &mut [Candidacy]) {
    let world = candidacies.len() as u64;
    let stay = candidacies.partition_point(|candidacy| candidacy.rank < world);
    let (staying, moving) = candidacies.split_at_mut(stay);
    let mut held = staying.iter().map(|candidacy| candidacy.rank).peekable();
    let gaps = (0..world).filter(|rank| held.next_if_eq(rank).is_none());
    for (candidacy, gap) in moving.iter_mut().zip(gaps) {
        candidacy.rank = gap;
    }
    candidacies.sort_unstable_by_key(|candidacy| candidacy.rank);
    candidacies.iter_mut().for_each(|candidacy| candidacy.newcomer = false);
}

/// Leaves out groups that are too small or too big. Those without the label form
/// one group. Gaps stay.
fn filter_grouped(
    candidacies: &mut Vec<Candidacy>,
    candidates: &[Candidate<'_>],
    label: &str,
    min: u64,
    max: u64,
) -> Vec<usize> {
    let mut groups: BTreeMap<Option<&String>, u64> = BTreeMap::new();
    for candidacy in &*candidacies {
        *groups.entry(candidates[candidacy.place].labels.get(label)).or_default() += 1;
    }
    let suits = |number: u64| min <= number && (max == 0 || number <= max);
    let goes = |candidacy: &mut Candidacy| {
        !groups.get(&candidates[candidacy.place].labels.get(label)).is_some_and(|n| suits(*n))
    };
    candidacies.extract_if(.., goes).map(|candidacy| candidacy.place).collect()
}

/// Leaves out all but this many.
fn keep_lowest(candidacies: &mut Vec<Candidacy>, number: usize) -> Vec<usize> {
    candidacies.drain(number.min(candidacies.len())..).map(|candidacy| candidacy.place).collect()
}

/// Reports an invalid step of an assignment, and what to do about it.
pub(crate) fn check(steps: &[AssignmentStep]) -> Result<(), String> {
    if steps.len() > STEPS_MAX {
        return Err(format!("{} assignment steps: give at most {STEPS_MAX}", steps.len()));
    }
    for (number, step) in steps.iter().enumerate() {
        let wrong = match step {
            AssignmentStep::Shift | AssignmentStep::FillGaps => Ok(()),
            AssignmentStep::FilterGrouped { label, min, max } => {
                check_label(label).and_then(|()| check_range("min", *min, "max", *max))
            }
            AssignmentStep::MaxActive { max: 0 } => {
                Err("max is 0: give at least 1, or leave out the step for no limit".to_owned())
            }
            AssignmentStep::DivisibleBy { divisor: 0 } => {
                Err("divisor is 0: give at least 1".to_owned())
            }
            AssignmentStep::MaxActive { .. } | AssignmentStep::DivisibleBy { .. } => Ok(()),
            AssignmentStep::Tree { .. } if number > 0 => Err("a tree builds on the ranks of the \
                 latest iteration: make it the first step, and the only tree"
                .to_owned()),
            AssignmentStep::Tree { layers } => check_layers(layers),
        };
        wrong.map_err(|why| format!("assignment step {number}: {why}"))?;
    }
    Ok(())
}

fn check_layers(layers: &[TreeLayer]) -> Result<(), String> {
    match layers.first() {
        None => return Err("a tree without layers: give at least the root".to_owned()),
        Some(root) if root.label.is_some() => {
            return Err("the first layer is the root, which takes in everybody: leave out its \
                 label, or put a layer without one before it"
                .to_owned());
        }
        Some(_) => {}
    }
    if layers.len() > LAYERS_MAX {
        return Err(format!("{} layers: give at most {LAYERS_MAX}", layers.len()));
    }
    for (depth, layer) in layers.iter().enumerate() {
        layer
            .label
            .as_deref()
            .map_or(Ok(()), check_label)
            .and_then(|()| check_range("ranks_min", layer.ranks_min, "ranks_max", layer.ranks_max))
            .map_err(|why| format!("layer {depth}: {why}"))?;
    }
    Ok(())
}

fn check_label(label: &str) -> Result<(), String> {
    match label.len() {
        0 => Err("the label is empty: name a label of the processes".to_owned()),
        1..=LABEL_BYTES_MAX => Ok(()),
        long => Err(format!("a label of {long} bytes: give at most {LABEL_BYTES_MAX}")),
    }
}

fn check_range(min_name: &str, min: u32, max_name: &str, max: u32) -> Result<(), String> {
    if max != 0 && min > max {
        return Err(format!(
            "{min_name} {min} is above {max_name} {max}: lower it, or give {max_name} 0 for no limit"
        ));
    }
    Ok(())
}
