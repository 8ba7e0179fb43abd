//! State that an agent needs of the one before it: its run, its lease, its name, the stores of its
//! programs, and the attempts of its clients. Rewritten at each change; changes are rare.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use holdfast_api::Name;
use holdfast_trainer_shim::{LeaseTerms, Met};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::error;

use super::journal::Journal;
use crate::door::tcpstore::attempt::AttemptNotes;
use crate::namespace::Namespace;
use crate::stores::StoreNotes;

const STATE: u8 = 1;

/// State in the notes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Distinguishes the agent from all others.
    pub id: String,
    /// Its run, and how it was met.
    pub run: Name,
    /// It was opened by this agent.
    pub opened: bool,
    /// The run that this ended.
    pub ended: Option<Name>,
    /// Other agents that were in it.
    pub others: u64,
    /// The lease with which it holds the run.
    pub lease: LeaseTerms,
    /// Its ports from the start, in their order.
    pub addresses: Vec<SocketAddr>,
    /// Programs have joined with the library: what is theirs ends with the agent.
    pub has_programs: bool,
    /// Stores that programs of this host use.
    pub stores: StoreNotes,
    /// Attempts of processes, and launchers; `None` if the agent took no note of them.
    #[serde(default)]
    pub attempts: Option<AttemptNotes>,
    /// Namespaces that had clients, and that are not deleted.
    #[serde(default)]
    pub namespaces: Vec<Namespace>,
}

impl State {
    /// How the run was met.
    pub fn met(&self) -> Met {
        let State { run, opened, ended, others, .. } = self.clone();
        Met { run, opened, ended, others }
    }
}

/// Where an agent writes what the next one has to know; without a keeper, nowhere. Cheap to
/// clone.
#[derive(Debug, Clone, Default)]
pub struct Notes(Option<Arc<Mutex<Written>>>);

#[derive(Debug)]
struct Written {
    journal: Journal,
    state: Option<State>,
    is_whole: bool,
}

impl Notes {
    /// Whether what was written made sense.
    pub fn is_whole(&self) -> bool {
        self.0.as_ref().is_none_or(|written| written.lock().is_whole)
    }

    /// Notes in this memory, and their state.
    pub fn open(memory: OwnedFd) -> io::Result<(Notes, Option<State>)> {
        let (journal, records) = Journal::open(memory)?;
        let read = records.last().map(|record| serde_json::from_slice(&record.bytes));
        let (state, is_whole): (Option<State>, bool) = match read {
            Some(Ok(state)) => (state, true),
            Some(Err(_)) => (None, false),
            None => (None, journal.is_believed()),
        };
        let written = Written { journal, state: state.clone(), is_whole };
        Ok((Notes(Some(Arc::new(Mutex::new(written)))), state))
    }

    /// Writes the agent's first state.
    pub fn begin(&self, state: State) {
        self.change(|now| *now = Some(state));
    }

    /// It holds the run with another lease.
    pub fn holds(&self, lease: LeaseTerms) {
        self.change_state(|state| state.lease = lease);
    }

    /// A program joins with the library.
    pub fn has_programs(&self) {
        self.change_state(|state| state.has_programs = true);
    }

    /// The stores of programs are these.
    pub fn stores(&self, stores: impl FnOnce() -> StoreNotes) {
        self.change_state(|state| state.stores = stores());
    }

    /// The attempts that are known are these.
    pub fn attempts(&self, attempts: impl FnOnce() -> AttemptNotes) {
        self.change_state(|state| state.attempts = Some(attempts()));
    }

    /// The namespaces that had clients are these.
    pub fn namespaces(&self, namespaces: impl FnOnce() -> Vec<Namespace>) {
        self.change_state(|state| state.namespaces = namespaces());
    }

    fn change_state(&self, change: impl FnOnce(&mut State)) {
        self.change(|state| {
            if let Some(state) = state {
                change(state);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Option<State>)) {
        let Some(written) = &self.0 else { return };
        let Written { journal, state, .. } = &mut *written.lock();
        let before = state.clone();
        change(state);
        if *state == before {
            return;
        }
        let bytes = serde_json::to_vec(state).expect("a state can be written");
        let written = journal.rewrite([(STATE, &bytes[..])]).and_then(|()| {
            // The earlier content was invalid.
            if journal.is_believed() { Ok(()) } else { journal.believe(true) }
        });
        if let Err(error) = written {
            error!(%error, "cannot record the agent's state: a replacement agent would start without it; free memory on this host");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_without_attempts_is_that_of_an_agent_that_took_no_note_of_them() {
        let text = r#"{"id":"a","run":"r1","opened":true,"ended":null,"others":0,
            "lease":{"id":1,"ttl":{"secs":5,"nanos":0},"store_lost_max":{"secs":5,"nanos":0}},
            "addresses":["127.0.0.1:29500"],"has_programs":false,
            "stores":{"stores":[],"untold":[]}}"#;
        let state: State = serde_json::from_str(text).unwrap();
        assert_eq!((state.attempts, state.namespaces), (None, Vec::new()));
    }
}
