//! The agents of a run, as their clients know them: their addresses, and whether one was ended.

use parking_lot::Mutex;

/// Most failures that are reported.
const TOLD_MAX: usize = 10;

/// The agents of a run.
#[derive(Debug, Default)]
pub struct Agents {
    places: Mutex<Vec<Place>>,
    broken: Mutex<Vec<String>>,
}

#[derive(Debug)]
struct Place {
    address: String,
    /// How often it was ended.
    ends: u64,
    is_down: bool,
}

/// An agent between two ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AgentRun {
    agent: usize,
    pub(super) address: String,
    ends: u64,
}

impl Agents {
    /// They run at these addresses.
    pub fn set(&self, addresses: Vec<String>) {
        let place = |address| Place { address, ends: 0, is_down: false };
        *self.places.lock() = addresses.into_iter().map(place).collect();
    }

    /// One is about to be ended: its connections may break from here on, and no client
    /// makes a new one.
    pub fn ends(&self, agent: usize) {
        if let Some(place) = self.places.lock().get_mut(agent) {
            (place.ends, place.is_down) = (place.ends + 1, true);
        }
    }

    /// Notes that all agents run.
    pub fn are_back(&self) {
        self.places.lock().iter_mut().for_each(|place| place.is_down = false);
    }

    /// The agent for the client of this number, if it runs.
    pub(super) fn of(&self, client: usize) -> Option<AgentRun> {
        let places = self.places.lock();
        let agent = client % places.len().max(1);
        let Place { address, ends, is_down } = places.get(agent)?;
        (!is_down).then(|| AgentRun { agent, address: address.clone(), ends: *ends })
    }

    /// A connection to it broke. Only its end may break one.
    pub(super) fn broke(&self, agent_run: &AgentRun, client: &str, why: &std::io::Error) {
        let ended =
            self.places.lock().get(agent_run.agent).is_none_or(|it| it.ends != agent_run.ends);
        let mut broken = self.broken.lock();
        if !ended && broken.len() < TOLD_MAX {
            broken.push(format!(
                "agent {} broke a connection of {client}, and nobody had ended it: {why}",
                agent_run.agent + 1
            ));
        }
    }

    /// Unexpected breaks, in words.
    pub fn take_broken(&self) -> Vec<String> {
        std::mem::take(&mut self.broken.lock())
    }
}
