//! A process in the scope of a closing that is not named was not there.

use std::ops::Range;

use holdfast_api::{Among, Generation, Incarnation, ProcessId, Role};

use super::Placement;
use crate::check::{Closing, Closings, Findings, Rule, at};
use crate::history::{Meaning, Verb};
use crate::order::{Before, Choice, Chosen, Point, choose};
use crate::story::{Answer, Call, END};

/// Most guesses at placements before the search is given up.
const GUESSES_MAX: usize = 100_000;

/// Somebody that a closing does not name.
struct Absent {
    /// The orders under which it holds.
    ways: Vec<Vec<Before>>,
    /// The violation if it cannot be.
    text: String,
}

impl Placement<'_> {
    pub(super) fn absent(&mut self, closings: &Closings, findings: &mut Findings) {
        let mut choices = Vec::new();
        let mut texts = Vec::new();
        for (generation, closing) in closings {
            let (from, to) = closing.observed;
            for Absent { mut ways, text } in self.absent_in(*generation, closing, closings) {
                // An alternative that needs no order.
                if ways.iter().any(Vec::is_empty) {
                    continue;
                }
                ways.retain(|way| self.order.allows(way));
                choices.push(Choice { ways });
                let (from, to) = (at(from), at(to));
                texts.push(format!(
                    "generation {generation}, closed between {from} and {to}, does not name {text}"
                ));
            }
        }
        self.choose(&choices, &texts, findings);
    }

    /// Makes all choices; those that cannot be made are wrong.
    fn choose(&mut self, choices: &[Choice], texts: &[String], findings: &mut Findings) {
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

    fn absent_in(
        &mut self,
        generation: Generation,
        closing: &Closing,
        closings: &Closings,
    ) -> Vec<Absent> {
        match &closing.round.among {
            _ if closing.round.verb == Verb::Quorum => Vec::new(),
            Among::Active => self.of_active(generation, closing),
            Among::Set(set) => self.of_set(generation, closing, set),
            Among::Generation(scope) => {
                // Once the verdict on a block is fixed, an exit waits for no process.
                let is_first = |(_, other): (&Generation, &Closing)| other.round != closing.round;
                let first = closings.range(..generation).all(is_first);
                if closing.round.verb == Verb::Exit && !first {
                    return Vec::new();
                }
                self.of_generation(generation, closing, *scope)
            }
        }
    }

    /// Unnamed processes must not have been alive and active, or must have waited for
    /// their first iteration at that time.
    fn of_active(&self, generation: Generation, closing: &Closing) -> Vec<Absent> {
        let point = self.closings[&generation];
        let mut found = Vec::new();
        for process in self.story.processes(closing.run) {
            let participants = self.story.participants_of(closing.run, process);
            if closing.members.iter().any(|member| participants.contains(member)) {
                continue;
            }
            let mut ways = self.gaps(generation, point, participants.clone());
            if closing.round.verb != Verb::Advance {
                ways.extend(self.outside(point, participants));
            }
            let suspect = self.suspect(closing, process);
            let suspect = suspect
                .map_or("none".to_owned(), |participant| format!("incarnation {participant}"));
            let text =
                format!("process {process}, of which {suspect} was alive and active all the time");
            found.push(Absent { ways, text });
        }
        found
    }

    /// A process of a set that is not named must have died or left. One that never joined
    /// is waited for, and so are all with `require_all`.
    fn of_set(
        &mut self,
        generation: Generation,
        closing: &Closing,
        set: &[ProcessId],
    ) -> Vec<Absent> {
        let point = self.closings[&generation];
        let required = self.requires_all(generation);
        let mut found = Vec::new();
        for &process in set {
            let participants = self.story.participants_of(closing.run, process);
            if closing.members.iter().any(|member| participants.contains(member)) {
                continue;
            }
            let mut ways = Vec::new();
            for n in participants.clone().filter(|_| !required) {
                let next = participants.contains(&(n + 1)).then(|| (point, self.starts[n + 1]));
                ways.push([(self.ends[n], point)].into_iter().chain(next).collect());
            }
            if !required {
                ways.extend(self.lived_unheard(closing.run, process, point));
            }
            let text = match self.suspect(closing, process) {
                _ if required => format!("process {process} of its set, of which all are required"),
                None => format!("process {process} of its set, which had not joined"),
                Some(participant) => format!(
                    "process {process} of its set, of which incarnation {participant} was alive all the time"
                ),
            };
            found.push(Absent { ways, text });
        }
        found
    }

    /// An unobserved incarnation may have begun and ended before a closing: before the
    /// first that is known.
    fn lived_unheard(&mut self, run: usize, process: ProcessId, point: Point) -> Vec<Vec<Before>> {
        let first = self.story.participants_of(run, process).next();
        let before = first.map_or(END, |n| self.story.participants[n].registered.1);
        let first = first.map(|n| (point, self.starts[n]));
        let mut ways = Vec::new();
        for (_, _, asked) in self
            .story
            .unheard
            .iter()
            .filter(|(of, who, asked)| (*of, *who) == (run, process) && *asked < before)
        {
            let asked = self.order.point(*asked, *asked);
            ways.push([(asked, point)].into_iter().chain(first).collect());
        }
        ways
    }

    /// A process of a generation that is not named must have ended, or have gone to an
    /// advance since.
    fn of_generation(
        &mut self,
        generation: Generation,
        closing: &Closing,
        scope: Generation,
    ) -> Vec<Absent> {
        let required = self.requires_all(generation);
        let mut found = Vec::new();
        for (process, incarnation) in self.story.scope_of(scope).unwrap_or_default() {
            let Some(participant) = self.story.find(process, incarnation) else { continue };
            if closing.members.contains(&participant) {
                continue;
            }
            let ways = match required {
                true => Vec::new(),
                false => self.parts_over(generation, closing, scope, participant),
            };
            let text = format!(
                "incarnation {incarnation} of process {process}, which had a part in generation {scope} all the time"
            );
            found.push(Absent { ways, text });
        }
        found
    }

    /// How the part of an incarnation in a generation can be over when a round among it
    /// closes; of an atomic block also by an exit that failed without a word.
    fn parts_over(
        &mut self,
        generation: Generation,
        closing: &Closing,
        scope: Generation,
        participant: usize,
    ) -> Vec<Vec<Before>> {
        let (began, point) = (self.closings.get(&scope).copied(), self.closings[&generation]);
        let mut ways = vec![vec![(self.ends[participant], point)]];
        for (n, Call { arrival, at, answer }) in
            self.story.participants[participant].calls.iter().enumerate()
        {
            let in_block =
                |verb| arrival.round.verb == verb && arrival.round.name == closing.round.name;
            let withdrawn = matches!(answer, Some((_, Answer::Failed(Meaning::Void))));
            let over = arrival.round.verb == Verb::Advance
                || closing.round.verb == Verb::Exit
                    && (in_block(Verb::Enter) || arrival.round == closing.round && withdrawn);
            if !over || self.counted.get(&(participant, n)) == Some(&scope) {
                continue;
            }
            let to = match answer {
                None | Some((_, Answer::Failed(Meaning::Unknown))) => END,
                Some((answered, _)) => *answered,
            };
            // Some moment of the call is after the one closing and before the other.
            let (from, to) = (self.order.point(*at, *at), self.order.point(to, to));
            let since = began.map(|began| (began, to));
            ways.push([(from, point)].into_iter().chain(since).collect());
        }
        ways
    }

    /// Whether all notified members say that the round waits for the dead, too.
    fn requires_all(&self, generation: Generation) -> bool {
        let mut told = self.story.closings[&generation].iter();
        told.all(|(participant, call)| {
            self.story.participants[*participant].calls[*call].arrival.require_all
        })
    }

    /// When a process has no incarnation that is alive and active: before its first such
    /// one, between two of them, after the last. An empty alternative needs no order.
    fn gaps(
        &self,
        generation: Generation,
        point: Point,
        participants: Range<usize>,
    ) -> Vec<Vec<Before>> {
        let mut ways = Vec::new();
        let mut gap = Vec::new();
        for n in participants {
            let from = match self.story.participants[n].role {
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

    /// When an incarnation of a process waits in an advance and is no member yet: such
    /// a one counts in no other round.
    fn outside(&self, point: Point, participants: Range<usize>) -> Vec<Vec<Before>> {
        let mut ways = Vec::new();
        for n in participants {
            let first = self.activations[n].map(|generation| (point, self.closings[&generation]));
            for (from, to) in &self.advances[n] {
                let within = [(*from, point), (point, *to), (point, self.ends[n])];
                ways.push(within.into_iter().chain(first).collect());
            }
        }
        ways
    }

    /// The incarnation of a process that may have been alive at a closing.
    fn suspect(&self, closing: &Closing, process: ProcessId) -> Option<Incarnation> {
        let by = closing.observed.0;
        let mut participants = self.story.participants_of(closing.run, process);
        let latest = participants.rfind(|n| self.story.participants[*n].registered.0 <= by);
        latest.map(|n| self.story.participants[n].incarnation)
    }
}
