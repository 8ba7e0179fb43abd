//! The search: every state of a case, breadth first, so that an error is found on a shortest path.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::case::{Case, Tick};
use crate::clause::Clause;
use crate::judge::Violation;
use crate::server::{Event, Rules};
use crate::world::{Action, World};

/// More states than any case has: a search that meets them has run away.
const STATES_MAX: usize = 150_000;

/// Ticks and generations that must be left for things to become well again.
const TICKS_LEFT: Tick = 3;
const GENERATIONS_LEFT: u8 = 2;

/// What happened on the paths of a search, at least once each.
#[derive(Default, Debug)]
pub struct Seen {
    pub states: usize,
    pub transitions: usize,
    pub formed: usize,
    pub again: usize,
    pub left_out: usize,
    pub revoked: usize,
    pub failed: usize,
    pub ready: usize,
    pub freed: usize,
    pub verdicts: usize,
}

/// The path to a violation.
pub struct Counterexample {
    pub violation: Violation,
    pub way: Vec<Action>,
}

/// The states of a case, and how each was found first.
pub struct Graph {
    pub worlds: Vec<Rc<World>>,
    /// For each state but the first: the one before, and what happened there.
    pub before: Vec<Option<(usize, Action)>>,
    /// For each state, the states that reach it without a fault.
    reached_from: Vec<Vec<usize>>,
    pub seen: Seen,
}

/// Searches a case for whatever is wrong, or for one violation.
pub fn search(
    case: &Case,
    without: &'static [Clause],
    wanted: Option<Violation>,
) -> Result<Graph, Counterexample> {
    let is_wanted = |found: &Violation| wanted.is_none_or(|wanted| wanted == *found);
    let rules = Rules { case, without };
    let start = Rc::new(World::start(rules));
    let mut known = BTreeMap::from([(start.clone(), 0)]);
    let mut graph = Graph {
        worlds: vec![start],
        before: vec![None],
        reached_from: vec![Vec::new()],
        seen: Seen::default(),
    };
    let mut next = 0;
    while next < graph.worlds.len() {
        let world = graph.worlds[next].clone();
        for action in world.actions(rules) {
            let step = world.step(rules, action);
            graph.seen.note(&step.events);
            if let Some(violation) = step.violation.filter(is_wanted) {
                let mut way = graph.way(next);
                way.push(action);
                return Err(Counterexample { violation, way });
            }
            let to = match known.get(&step.world) {
                Some(to) => *to,
                None => {
                    let found = Rc::new(step.world);
                    known.insert(found.clone(), graph.worlds.len());
                    graph.worlds.push(found);
                    graph.before.push(Some((next, action)));
                    graph.reached_from.push(Vec::new());
                    assert!(graph.worlds.len() < STATES_MAX, "{}: it has no end", case.name);
                    graph.worlds.len() - 1
                }
            };
            if !World::is_fault(action) {
                graph.reached_from[to].push(next);
            }
        }
        next += 1;
    }
    graph.seen.states = graph.worlds.len();
    match graph.stuck(case).filter(|_| is_wanted(&Violation::Stuck)) {
        Some(at) => Err(Counterexample { violation: Violation::Stuck, way: graph.way(at) }),
        None => Ok(graph),
    }
}

impl Graph {
    /// The first state from which no path without faults leads to a state where all is well.
    fn stuck(&self, case: &Case) -> Option<usize> {
        let well = |at: &usize| self.worlds[*at].is_well(case);
        let mut todo: Vec<usize> = (0..self.worlds.len()).filter(well).collect();
        let mut is_fine = vec![false; self.worlds.len()];
        todo.iter().for_each(|at| is_fine[*at] = true);
        while let Some(at) = todo.pop() {
            for from in &self.reached_from[at] {
                if !std::mem::replace(&mut is_fine[*from], true) {
                    todo.push(*from);
                }
            }
        }
        // Where the case ends, a state cannot become well.
        let has_room = |at: &usize| {
            let server = &self.worlds[*at].server;
            let has_time = case.ticks == 0 || server.now + TICKS_LEFT <= case.ticks;
            server.generations + GENERATIONS_LEFT <= case.generations && has_time
        };
        // A process that never comes keeps the others waiting.
        let is_lively = case.away.is_empty();
        (0..self.worlds.len()).find(|at| is_lively && !is_fine[*at] && has_room(at))
    }

    /// The path to a state, and the action after it.
    pub fn tell(&self, at: usize, then: Option<Action>) -> String {
        let mut way = self.way(at);
        way.extend(then);
        tell(&way)
    }

    fn way(&self, mut to: usize) -> Vec<Action> {
        let mut way = Vec::new();
        while let Some((from, action)) = self.before[to] {
            way.push(action);
            to = from;
        }
        way.reverse();
        way
    }
}

/// A path, line by line.
pub fn tell(way: &[Action]) -> String {
    way.iter().zip(1..).map(|(action, n)| format!("{n:>4}. {action}\n")).collect()
}

impl Seen {
    fn note(&mut self, events: &[Event]) {
        self.transitions += 1;
        for event in events {
            match event {
                Event::Formed { again, left, .. } => {
                    self.formed += 1;
                    self.again += usize::from(*again);
                    self.left_out += usize::from(!left.is_empty());
                }
                Event::Revoked | Event::RevokedInVain => self.revoked += 1,
                Event::Failed { .. } => self.failed += 1,
                Event::AllReady { .. } => self.ready += 1,
                Event::Freed => self.freed += 1,
                Event::Verdict => self.verdicts += 1,
            }
        }
    }
}
