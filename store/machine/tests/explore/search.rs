//! The search: every state of a case, breadth first, so that an error is found on a shortest path.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::case::Case;
use crate::clause::Clause;
use crate::judge::Violation;
use crate::server::{Event, Rules, Why};
use crate::world::{Action, Arrivals, Step, World};

/// More states than any case has: a search that meets them has run away.
const STATES_MAX: usize = 150_000;

/// What happened on the paths of a search, at least once each.
#[derive(Default, Debug)]
pub struct Seen {
    pub states: usize,
    pub transitions: usize,
    pub closed: usize,
    pub failed: usize,
    pub regrouped: usize,
    pub over: usize,
    pub evicted: usize,
    pub promoted: usize,
    pub withdrawn: usize,
    pub succeeded: usize,
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
    pub seen: Seen,
}

/// Searches a case for whatever is wrong, or for one violation.
pub fn search(
    case: &Case,
    without: Option<Clause>,
    wanted: Option<Violation>,
) -> Result<Graph, Counterexample> {
    let is_wanted = |found: &Violation| wanted.is_none_or(|wanted| wanted == *found);
    let rules = Rules { case, without };
    let start = Rc::new(World::start(rules));
    let mut known = BTreeMap::from([(start.clone(), ())]);
    let mut outcomes = BTreeMap::new();
    let mut graph = Graph { worlds: vec![start], before: vec![None], seen: Seen::default() };
    let mut next = 0;
    while next < graph.worlds.len() {
        let world = graph.worlds[next].clone();
        let mut goes_on = false;
        for action in world.actions(rules) {
            let step = world.step(rules, action);
            graph.seen.note(&step.events);
            let differs = differs(&mut outcomes, &step);
            let mut found = step.violation.into_iter().chain(differs);
            if let Some(violation) = found.find(is_wanted) {
                let mut way = graph.way(next);
                way.push(action);
                return Err(Counterexample { violation, way });
            }
            if step.world == *world {
                continue;
            }
            goes_on |= !world.is_fault(case, action);
            if known.contains_key(&step.world) {
                continue;
            }
            let found = Rc::new(step.world);
            known.insert(found.clone(), ());
            graph.worlds.push(found);
            graph.before.push(Some((next, action)));
            assert!(graph.worlds.len() < STATES_MAX, "{}: the search has no end", case.name);
        }
        if let Some(violation) = world.is_stuck(rules, goes_on).filter(is_wanted) {
            return Err(Counterexample { violation, way: graph.way(next) });
        }
        next += 1;
    }
    graph.seen.states = graph.worlds.len();
    Ok(graph)
}

/// Whether the same arrivals had another outcome in another order.
fn differs(outcomes: &mut BTreeMap<Arrivals, Vec<Event>>, step: &Step) -> Option<Violation> {
    let arrivals = step.arrivals.clone()?;
    let events = step.events.iter();
    let events: Vec<Event> = events
        .filter(|event| matches!(event, Event::Closed(_) | Event::Failed { .. }))
        .cloned()
        .collect();
    let first = outcomes.entry(arrivals).or_insert_with(|| events.clone());
    (*first != events).then_some(Violation::OutcomeDependsOnOrder)
}

impl World {
    /// Whether a process waits, and only a fault can still happen.
    fn is_stuck(&self, rules: Rules<'_>, goes_on: bool) -> Option<Violation> {
        let waiting = self.waiting(rules.case);
        let waits = !goes_on && !waiting.is_empty() && !self.waits_for_time(rules);
        // A process that has made its calls and stays keeps others waiting.
        let stays = rules.case.participants().any(|participant| {
            self.ghost.is_alive(participant) && self.is_done(rules.case, participant)
        });
        if !waits || stays || !rules.case.lively {
            return None;
        }
        let is_spare = |participant: &usize| self.ghost.is_spare(rules.case, *participant);
        Some(match waiting.iter().all(is_spare) {
            true => Violation::SparesWaitForEver,
            false => Violation::Deadlock,
        })
    }
}

impl Graph {
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
                Event::Registered { .. } | Event::Late { .. } => {}
                Event::Withdrawn { .. } => self.withdrawn += 1,
                Event::Failed { why, .. } => match why {
                    Why::Deadline => self.failed += 1,
                    Why::Regroup => self.regrouped += 1,
                    Why::Over => self.over += 1,
                },
                Event::Closed(outcome) => {
                    self.closed += 1;
                    self.evicted += usize::from(!outcome.evicted.is_empty());
                    self.promoted += usize::from(!outcome.promoted.is_empty());
                    self.succeeded += usize::from(outcome.succeeded == Some(true));
                }
            }
        }
    }
}
