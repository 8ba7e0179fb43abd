//! Whether all starts, ends, closings and openings of runs can be placed: the
//! rules of the parent module, as points, bounds and orders.

mod absence;
mod quorums;

use std::collections::BTreeMap;

use holdfast_api::Generation;

use super::{Closing, Closings, Findings, Rule, at};
use crate::history::{Meaning, Moment, Round};
use crate::order::{Order, Point};
use crate::story::{Answer, Call, END, NEVER, Participant, Story};

/// All points of a history.
struct Placement<'s> {
    story: &'s Story,
    order: Order,
    starts: Vec<Point>,
    ends: Vec<Point>,
    closings: BTreeMap<Generation, Point>,
    /// When each run was opened, which ended the one before; none of the first.
    fences: Vec<Option<Point>>,
    /// The first generation among all active processes that names each incarnation;
    /// with it a standby becomes active. None = never.
    activations: Vec<Option<Generation>>,
    /// When each incarnation waits for an iteration.
    advances: Vec<Vec<(Point, Point)>>,
    /// Which generation has counted an incarnation's call.
    counted: BTreeMap<(usize, usize), Generation>,
}

pub(super) fn check(story: &Story, findings: &mut Findings) -> Closings {
    let mut placement = Placement {
        story,
        order: Order::default(),
        starts: Vec::new(),
        ends: Vec::new(),
        closings: BTreeMap::new(),
        fences: Vec::new(),
        activations: activations(story),
        advances: Vec::new(),
        counted: BTreeMap::new(),
    };
    placement.runs();
    placement.participants(findings);
    let mut closings = Closings::new();
    for generation in story.closings.keys() {
        let closing = placement.closing(*generation, findings);
        closings.insert(*generation, closing);
    }
    placement.rounds_in_order(&closings, findings);
    for (generation, closing) in &mut closings {
        closing.observed = placement.order.bounds(placement.closings[generation]);
    }
    placement.absent(&closings, findings);
    placement.quorums(&closings, findings);
    super::formation::check(story, &closings, findings, |first, second| {
        let orders = [(placement.closings[&first], placement.closings[&second])];
        placement.order.allows(&orders)
    });
    closings
}

/// The first generation among all active processes that names each incarnation.
pub(super) fn activations(story: &Story) -> Vec<Option<Generation>> {
    let mut activations = vec![None; story.participants.len()];
    for (generation, told) in &story.closings {
        if !story.round(*generation).is_of_all() {
            continue;
        }
        for (process, incarnation) in &story.outcome(told[0]).members {
            if let Some(participant) = story.find(*process, *incarnation) {
                activations[participant].get_or_insert(*generation);
            }
        }
    }
    activations
}

/// Between which moments an incarnation can end. `succeeded`: by a later incarnation of its
/// process, or by a later run.
fn end_of(participant: &Participant, succeeded: bool) -> (Moment, Moment) {
    let Participant { leaves, over, lost, dies, contested, suspect, .. } = participant;
    let ends = [leaves, over, lost, dies, contested].into_iter().any(Option::is_some) || succeeded;
    if !ends {
        return (NEVER, NEVER);
    }
    let trusted = |at: &Moment| suspect.is_none_or(|suspect| *at < suspect);
    let events = participant.calls.iter().flat_map(|Call { at, answer, .. }| match answer {
        None | Some((_, Answer::Failed(Meaning::Unknown))) => vec![*at],
        Some((_, Answer::Failed(Meaning::Ended | Meaning::Lost))) => vec![],
        Some((answered, _)) => vec![*at, *answered],
    });
    let earliest = events.filter(trusted).fold(participant.registered.0, Moment::max);
    (earliest, over.unwrap_or(END))
}

impl Placement<'_> {
    /// A run is opened between the moment from which on that is possible and the first
    /// registration in it or in a later one; in their order.
    fn runs(&mut self) {
        for (n, run) in self.story.runs.iter().enumerate() {
            let participants =
                self.story.participants.iter().filter(|participant| participant.run >= n);
            let latest =
                participants.map(|participant| participant.registered.1).min().unwrap_or(END);
            let fence = (n > 0).then(|| self.order.point(run.opens.min(latest), latest));
            if let (Some(before), Some(fence)) = (self.fences.last().copied().flatten(), fence) {
                let placed = self.order.put(&[(before, fence)]);
                placed.expect("runs are in the order in which they may be opened");
            }
            self.fences.push(fence);
        }
    }

    fn participants(&mut self, findings: &mut Findings) {
        for (n, participant) in self.story.participants.iter().enumerate() {
            let next = self.story.participants.get(n + 1);
            let replaced = next.is_some_and(|next| {
                (next.run, next.process) == (participant.run, participant.process)
            });
            let (earliest, latest) =
                end_of(participant, replaced || self.story.is_followed(participant.run));
            if earliest > latest {
                let text = format!(
                    "{participant} went on until {} although it was over by {}",
                    at(earliest),
                    at(latest)
                );
                findings.add(Rule::Finality, text);
            }
            let (asked, told) = participant.registered;
            self.starts.push(self.order.point(asked, told));
            self.ends.push(self.order.point(earliest.min(latest), latest));
            let advances = participant.advances();
            let points =
                advances.map(|(from, to)| (self.order.point(from, from), self.order.point(to, to)));
            self.advances.push(points.collect());
        }
        for n in 0..self.story.participants.len() {
            let (start, end) = (self.starts[n], self.ends[n]);
            let participant = &self.story.participants[n];
            if self.order.put(&[(start, end)]).is_err() {
                findings.add(Rule::Finality, format!("{participant} was over before it began"));
            }
            self.within_its_run(n, findings);
            let of_same = |before: &usize| {
                let before = &self.story.participants[*before];
                (before.run, before.process) == (participant.run, participant.process)
            };
            let Some(before) = n.checked_sub(1).filter(of_same) else { continue };
            if self.order.put(&[(self.ends[before], start)]).is_err() {
                let before = &self.story.participants[before];
                let text = format!("{before} went on after {participant} had registered");
                findings.add(Rule::Finality, text);
            }
        }
    }

    /// An incarnation begins after its run was opened, and ends when the next one is.
    fn within_its_run(&mut self, n: usize, findings: &mut Findings) {
        let participant = &self.story.participants[n];
        let name = |run: usize| &self.story.runs[run].name;
        let too_soon = participant.registered.1 < self.story.runs[participant.run].opens;
        if let Some(opened) = self.fences[participant.run]
            && (too_soon || self.order.put(&[(opened, self.starts[n])]).is_err())
        {
            let run = name(participant.run);
            findings
                .add(Rule::Run, format!("{participant} registered before run {run} was opened"));
        }
        if let Some(next) = self.fences.get(participant.run + 1).copied().flatten()
            && self.order.put(&[(self.ends[n], next)]).is_err()
        {
            let (run, next) = (name(participant.run), name(participant.run + 1));
            let text = format!("{participant} of run {run} went on after run {next} was opened");
            findings.add(Rule::Run, text);
        }
    }

    /// A generation: its moment lies in the calls of its members, in their
    /// is alive and in its run.
    fn closing(&mut self, generation: Generation, findings: &mut Findings) -> Closing {
        let told = &self.story.closings[&generation];
        let round = self.story.round(generation).clone();
        let run = self.story.participants[told[0].0].run;
        let returned = told.iter().filter_map(|(participant, call)| {
            self.story.participants[*participant].calls[*call].answer.as_ref().map(|(at, _)| *at)
        });
        let latest = returned.min().unwrap_or(END);
        let mut earliest = 0;
        let (mut members, mut calls) = (Vec::new(), Vec::new());
        for (process, incarnation) in &self.story.outcome(told[0]).members {
            let name = format!("incarnation {incarnation} of process {process}");
            let Some(member) = self.story.find(*process, *incarnation) else {
                let text = format!("generation {generation} names {name}, which nobody was");
                findings.add(Rule::Presence, text);
                continue;
            };
            members.push(member);
            if self.story.participants[member].run != run {
                let (run, other) = (&self.story.runs[run], self.story.participants[member].run);
                let (run, other) = (&run.name, &self.story.runs[other].name);
                let text = format!("generation {generation} of run {run} names {name} of {other}");
                findings.add(Rule::Run, text);
            }
            let call =
                told.iter().find(|(participant, _)| *participant == member).map(|(_, call)| *call);
            let call = call.or_else(|| self.arrival(member, &round, generation));
            let fresh = call.filter(|call| !self.counted.contains_key(&(member, *call)));
            let call = fresh.inspect(|call| {
                self.counted.insert((member, *call), generation);
            });
            calls.push(call);
            match call {
                Some(call) => {
                    earliest = self.story.participants[member].calls[call].at.max(earliest)
                }
                None => {
                    let text = format!(
                        "generation {generation} names {name}, which had no open call on {round}"
                    );
                    findings.add(Rule::Presence, text);
                }
            }
        }
        if earliest > latest {
            let text = format!(
                "generation {generation}: a member called at {}, when another had its answer by {}",
                at(earliest),
                at(latest)
            );
            findings.add(Rule::Presence, text);
        }
        let point = self.order.point(earliest.min(latest), latest);
        self.closings.insert(generation, point);
        self.before_the_next_run(generation, point, run, findings);
        for &member in &members {
            self.inside(generation, point, member, findings);
        }
        let observed = (earliest, latest);
        Closing { run, round, members, calls, observed }
    }

    /// No process of a run is notified of a closing after the next run was opened.
    fn before_the_next_run(
        &mut self,
        generation: Generation,
        point: Point,
        run: usize,
        findings: &mut Findings,
    ) {
        let Some(next) = self.fences.get(run + 1).copied().flatten() else { return };
        if self.order.put(&[(point, next)]).is_err() {
            let (closed, _) = self.order.bounds(point);
            let (_, opened) = self.order.bounds(next);
            let name = |run: usize| &self.story.runs[run].name;
            let text = format!(
                "generation {generation} of run {} closed at {} or later, when run {} had been opened by {}",
                name(run),
                at(closed),
                name(run + 1),
                at(opened)
            );
            findings.add(Rule::Run, text);
        }
    }

    fn inside(
        &mut self,
        generation: Generation,
        point: Point,
        member: usize,
        findings: &mut Findings,
    ) {
        let participant = &self.story.participants[member];
        if self.order.put(&[(self.starts[member], point)]).is_err() {
            let text = format!("generation {generation} names {participant} before it had started");
            findings.add(Rule::Presence, text);
        }
        if self.order.put(&[(point, self.ends[member])]).is_err() {
            let (closed, _) = self.order.bounds(point);
            let (_, over) = self.order.bounds(self.ends[member]);
            let text = format!(
                "generation {generation}, closed at {} or later, names {participant}, which had ended by {}",
                at(closed),
                at(over)
            );
            findings.add(Rule::Presence, text);
        }
    }

    /// The call by which a member without an answer came to be inside.
    fn arrival(&self, member: usize, round: &Round, generation: Generation) -> Option<usize> {
        let mut found = None;
        for (n, call) in self.story.participants[member].calls.iter().enumerate() {
            match &call.answer {
                _ if call.arrival.round != *round => {}
                Some((_, Answer::Outcome(outcome))) if outcome.generation < generation => {
                    found = None;
                }
                Some((_, Answer::Outcome(_))) => break,
                Some((_, Answer::Failed(Meaning::Void))) => {}
                _ if self.counted.contains_key(&(member, n)) => {}
                _ => found = found.or(Some(n)),
            }
        }
        found
    }

    fn rounds_in_order(&mut self, closings: &Closings, findings: &mut Findings) {
        let mut latest: BTreeMap<(usize, &Round), Generation> = BTreeMap::new();
        for (generation, closing) in closings {
            let key = (closing.run, &closing.round);
            let Some(before) = latest.insert(key, *generation) else { continue };
            let orders = [(self.closings[&before], self.closings[generation])];
            if self.order.put(&orders).is_err() {
                let round = &closing.round;
                let text = format!("generation {generation} of {round} closed before {before}");
                findings.add(Rule::Growth, text);
            }
        }
    }
}
