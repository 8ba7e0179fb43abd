//! Whether all starts, ends and closings can be placed: the rules of the
//! parent module, as points, bounds and orders.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::{Generation, Role};

use super::{Closing, Closings, Findings, Rule, at};
use crate::history::{Meaning, Moment};
use crate::order::{Before, Choice, Chosen, Order, Point, choose};
use crate::story::{ADVANCE_ROUND, Answer, Call, END, Life, NEVER, Story};

/// Most guesses at placements before the search is given up.
const GUESSES_MAX: usize = 100_000;

/// All points of a history.
struct Placement<'s> {
    story: &'s Story,
    order: Order,
    starts: Vec<Point>,
    ends: Vec<Point>,
    closings: BTreeMap<Generation, Point>,
    /// The first generation that names each life; with it a standby becomes
    /// active. None = never.
    activations: Vec<Option<Generation>>,
    /// When each life waits for an iteration.
    advances: Vec<Vec<(Point, Point)>>,
    /// Arrivals that a generation has counted.
    counted: BTreeSet<(usize, usize)>,
}

pub(super) fn check(story: &Story, findings: &mut Findings) -> Closings {
    let mut placement = Placement {
        story,
        order: Order::default(),
        starts: Vec::new(),
        ends: Vec::new(),
        closings: BTreeMap::new(),
        activations: activations(story),
        advances: Vec::new(),
        counted: BTreeSet::new(),
    };
    placement.lives(findings);
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
    for (generation, closing) in &mut closings {
        closing.within = placement.order.bounds(placement.closings[generation]);
    }
    closings
}

/// The first generation that names each life.
fn activations(story: &Story) -> Vec<Option<Generation>> {
    let mut activations = vec![None; story.lives.len()];
    for (generation, told) in &story.closings {
        for (process, incarnation) in &story.outcome(told[0]).members {
            if let Some(life) = story.find(*process, *incarnation) {
                activations[life].get_or_insert(*generation);
            }
        }
    }
    activations
}

/// Between which moments a life can end.
fn end_of(life: &Life, replaced: bool) -> (Moment, Moment) {
    let Life { leaves, over, lost, dies, contested, suspect, .. } = life;
    let ends = [leaves, over, lost, dies, contested].into_iter().any(Option::is_some) || replaced;
    if !ends {
        return (NEVER, NEVER);
    }
    let trusted = |at: &Moment| suspect.is_none_or(|suspect| *at < suspect);
    let events = life.calls.iter().flat_map(|Call { at, answer, .. }| match answer {
        None | Some((_, Answer::Failed(Meaning::Unknown))) => vec![*at],
        Some((_, Answer::Failed(Meaning::Ended | Meaning::Lost))) => vec![],
        Some((answered, _)) => vec![*at, *answered],
    });
    let earliest = events.filter(trusted).fold(life.registered.0, Moment::max);
    (earliest, over.unwrap_or(END))
}

impl Placement<'_> {
    fn lives(&mut self, findings: &mut Findings) {
        for (n, life) in self.story.lives.iter().enumerate() {
            let next = self.story.lives.get(n + 1);
            let replaced = next.is_some_and(|next| next.process == life.process);
            let (earliest, latest) = end_of(life, replaced);
            if earliest > latest {
                let text = format!(
                    "{life} went on until {} although it was over by {}",
                    at(earliest),
                    at(latest)
                );
                findings.add(Rule::Finality, text);
            }
            let (asked, told) = life.registered;
            self.starts.push(self.order.point(asked, told));
            self.ends.push(self.order.point(earliest.min(latest), latest));
            let advances = life.advances();
            let points =
                advances.map(|(from, to)| (self.order.point(from, from), self.order.point(to, to)));
            self.advances.push(points.collect());
        }
        for n in 0..self.story.lives.len() {
            let (start, end) = (self.starts[n], self.ends[n]);
            let life = &self.story.lives[n];
            if self.order.put(&[(start, end)]).is_err() {
                findings.add(Rule::Finality, format!("{life} was over before it began"));
            }
            let before =
                n.checked_sub(1).filter(|before| self.story.lives[*before].process == life.process);
            let Some(before) = before else { continue };
            if self.order.put(&[(self.ends[before], start)]).is_err() {
                let before = &self.story.lives[before];
                let text = format!("{before} went on after {life} had registered");
                findings.add(Rule::Finality, text);
            }
        }
    }

    /// A generation: its moment lies in the calls of its members and in their
    /// lives.
    fn closing(&mut self, generation: Generation, findings: &mut Findings) -> Closing {
        let told = &self.story.closings[&generation];
        let round = self.story.lives[told[0].0].calls[told[0].1].round.clone();
        let returned = told.iter().filter_map(|(life, call)| {
            self.story.lives[*life].calls[*call].answer.as_ref().map(|(at, _)| *at)
        });
        let latest = returned.min().unwrap_or(END);
        let mut earliest = 0;
        let mut members = Vec::new();
        for (process, incarnation) in &self.story.outcome(told[0]).members {
            let name = format!("incarnation {incarnation} of process {process}");
            let Some(member) = self.story.find(*process, *incarnation) else {
                let text = format!("generation {generation} names {name}, which nobody was");
                findings.add(Rule::Presence, text);
                continue;
            };
            members.push(member);
            let call = told.iter().find(|(life, _)| *life == member).map(|(_, call)| *call);
            let call = call.or_else(|| self.arrival(member, &round, generation));
            match call.filter(|call| self.counted.insert((member, *call))) {
                Some(call) => earliest = self.story.lives[member].calls[call].at.max(earliest),
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
        for &member in &members {
            self.inside(generation, point, member, findings);
        }
        let observed = (earliest, latest);
        Closing { round, members, observed, within: observed }
    }

    fn inside(
        &mut self,
        generation: Generation,
        point: Point,
        member: usize,
        findings: &mut Findings,
    ) {
        let life = &self.story.lives[member];
        if self.order.put(&[(self.starts[member], point)]).is_err() {
            let text = format!("generation {generation} names {life} before it had started");
            findings.add(Rule::Presence, text);
        }
        if self.order.put(&[(point, self.ends[member])]).is_err() {
            let (closed, _) = self.order.bounds(point);
            let (_, over) = self.order.bounds(self.ends[member]);
            let text = format!(
                "generation {generation}, closed at {} or later, names {life}, which had ended by {}",
                at(closed),
                at(over)
            );
            findings.add(Rule::Presence, text);
        }
    }

    /// The call by which a member that was not told came to be inside.
    fn arrival(&self, member: usize, round: &str, generation: Generation) -> Option<usize> {
        let mut found = None;
        for (n, call) in self.story.lives[member].calls.iter().enumerate() {
            match &call.answer {
                _ if call.round != round => {}
                Some((_, Answer::Outcome(outcome))) if outcome.generation < generation => {
                    found = None;
                }
                Some((_, Answer::Outcome(_))) => break,
                Some((_, Answer::Failed(Meaning::Void))) => {}
                _ if self.counted.contains(&(member, n)) => {}
                _ => found = found.or(Some(n)),
            }
        }
        found
    }

    fn rounds_in_order(&mut self, closings: &Closings, findings: &mut Findings) {
        let mut latest: BTreeMap<&str, Generation> = BTreeMap::new();
        for (generation, closing) in closings {
            let Some(before) = latest.insert(&closing.round, *generation) else { continue };
            let orders = [(self.closings[&before], self.closings[generation])];
            if self.order.put(&orders).is_err() {
                let round = &closing.round;
                let text = format!("generation {generation} of {round} closed before {before}");
                findings.add(Rule::Growth, text);
            }
        }
    }

    /// Everybody who is not named must not have been alive and active, or else
    /// have waited for its first iteration meanwhile.
    fn absent(&mut self, closings: &Closings, findings: &mut Findings) {
        let mut choices = Vec::new();
        let mut texts = Vec::new();
        for (generation, closing) in closings {
            let point = self.closings[generation];
            for process in self.story.processes() {
                let lives = self.story.lives_of(process);
                if closing.members.iter().any(|member| lives.contains(member)) {
                    continue;
                }
                let lives_again = lives.clone();
                let ways = self.gaps(*generation, point, lives);
                if ways.iter().any(Vec::is_empty) {
                    continue;
                }
                let mut ways = ways;
                if closing.round != ADVANCE_ROUND {
                    ways.extend(self.outside(point, lives_again));
                }
                ways.retain(|way| self.order.allows(way));
                choices.push(Choice { ways });
                let (from, to) = closing.within;
                texts.push(format!(
                    "generation {generation}, closed between {} and {}, does not name process {process}, of which {} was alive and active all the time",
                    at(from),
                    at(to),
                    self.suspects(process, from),
                ));
            }
        }
        let mut open: Vec<usize> = (0..choices.len()).collect();
        loop {
            let tried: Vec<Choice> = open.iter().map(|n| choices[*n].clone()).collect();
            let mark = self.order.mark();
            match choose(&mut self.order, &tried, GUESSES_MAX) {
                Chosen::All => return,
                Chosen::None(n) => {
                    self.order.undo(mark);
                    findings.add(Rule::Absence, texts[open.remove(n)].clone());
                }
                Chosen::NoCombination => {
                    self.order.undo(mark);
                    let n = self.first_that_does_not_fit(&tried);
                    let text = &texts[open.remove(n)];
                    findings.add(Rule::Absence, format!("{text}, given what was told before"));
                }
                Chosen::GivenUp => {
                    self.order.undo(mark);
                    let text = format!("no placement was found in {GUESSES_MAX} guesses");
                    return findings.add(Rule::Undecided, text);
                }
            }
        }
    }

    /// When a process has nobody who is alive and active: before its first such
    /// life, between two of them, after the last. An empty way is one that
    /// needs nothing.
    fn gaps(
        &self,
        generation: Generation,
        point: Point,
        lives: std::ops::Range<usize>,
    ) -> Vec<Vec<Before>> {
        let mut ways = Vec::new();
        let mut gap = Vec::new();
        for n in lives {
            let from = match self.story.lives[n].role {
                Role::Active => Some(self.starts[n]),
                Role::Standby => self.activations[n].map(|g| self.closings[&g]),
            };
            debug_assert_ne!(self.activations[n], Some(generation), "it is not named");
            let Some(from) = from else { continue };
            gap.push((point, from));
            ways.push(std::mem::take(&mut gap));
            gap.push((self.ends[n], point));
        }
        ways.push(gap);
        ways
    }

    /// When a life of a process waits in an advance and is no member yet: such
    /// a one counts in no other round.
    fn outside(&self, point: Point, lives: std::ops::Range<usize>) -> Vec<Vec<Before>> {
        let mut ways = Vec::new();
        for n in lives {
            let first = self.activations[n].map(|generation| (point, self.closings[&generation]));
            for (from, to) in &self.advances[n] {
                let within = [(*from, point), (point, *to), (point, self.ends[n])];
                ways.push(within.into_iter().chain(first).collect());
            }
        }
        ways
    }

    /// The shortest beginning of the choices that has no combination: its last.
    fn first_that_does_not_fit(&mut self, choices: &[Choice]) -> usize {
        let (mut fits, mut fails) = (0, choices.len());
        while fails - fits > 1 {
            let middle = (fits + fails) / 2;
            let mark = self.order.mark();
            match choose(&mut self.order, &choices[..middle], GUESSES_MAX) {
                Chosen::All => fits = middle,
                _ => fails = middle,
            }
            self.order.undo(mark);
        }
        fails - 1
    }

    /// Who of a process may have been alive at a moment, for people.
    fn suspects(&self, process: u32, moment: Moment) -> String {
        let mut lives = self.story.lives_of(process);
        match lives.rfind(|n| self.story.lives[*n].registered.0 <= moment) {
            Some(n) => format!("incarnation {}", self.story.lives[n].incarnation),
            None => "none".to_owned(),
        }
    }
}
