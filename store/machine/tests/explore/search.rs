//! The search: every state of a case, breadth first, so that what is found
//! wrong is found on a shortest way.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::case::Case;
use crate::clause::Clause;
use crate::judge::Violation;
use crate::server::{Event, Rules};
use crate::world::{Action, World};

/// More states than any case has: a search that meets them has run away.
const STATES_MAX: usize = 2_000_000;

/// What happened on the ways of a search, at least once each.
#[derive(Default, Debug)]
pub struct Seen {
    pub states: usize,
    pub transitions: usize,
    pub closed: usize,
    pub failed: usize,
    pub evicted: usize,
    pub promoted: usize,
    pub withdrawn: usize,
}

/// How something came to be wrong.
pub struct Counterexample {
    pub violation: Violation,
    pub way: Vec<Action>,
}

/// The states of a case, and how each was found first.
pub struct Graph {
    pub worlds: Vec<Rc<World>>,
    /// For each state but the first: the one before, and what happened there.
    pub before: Vec<Option<(usize, Action)>>,
    pub seen: Seen,
}

pub fn search(case: &Case, without: Option<Clause>) -> Result<Graph, Counterexample> {
    let rules = Rules { case, without };
    let start = Rc::new(World::default());
    let mut known = BTreeMap::from([(start.clone(), ())]);
    let mut graph = Graph { worlds: vec![start], before: vec![None], seen: Seen::default() };
    let mut next = 0;
    while next < graph.worlds.len() {
        let world = graph.worlds[next].clone();
        for action in world.actions(case) {
            let step = world.step(rules, action);
            graph.seen.note(&step.events);
            if let Some(violation) = step.violation {
                let mut way = graph.way(next);
                way.push(action);
                return Err(Counterexample { violation, way });
            }
            if step.world == *world || known.contains_key(&step.world) {
                continue;
            }
            let found = Rc::new(step.world);
            known.insert(found.clone(), ());
            graph.worlds.push(found);
            graph.before.push(Some((next, action)));
            assert!(graph.worlds.len() < STATES_MAX, "{}: the search has no end", case.name);
        }
        next += 1;
    }
    graph.seen.states = graph.worlds.len();
    Ok(graph)
}

impl Graph {
    /// How a state came to be, and what happens then.
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

/// A way, line by line.
pub fn tell(way: &[Action]) -> String {
    way.iter().zip(1..).map(|(action, n)| format!("{n:>4}. {action}\n")).collect()
}

impl Seen {
    fn note(&mut self, events: &[Event]) {
        self.transitions += 1;
        for event in events {
            match event {
                Event::Registered { .. } => {}
                Event::Withdrawn { .. } => self.withdrawn += 1,
                Event::Failed { .. } => self.failed += 1,
                Event::Closed(outcome) => {
                    self.closed += 1;
                    self.evicted += usize::from(outcome.evicted.contains(&true));
                    self.promoted += usize::from(outcome.promoted.contains(&true));
                }
            }
        }
    }
}
