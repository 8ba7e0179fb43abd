//! State that the agent before left with the keeper, and whether this agent can continue it.

use std::os::fd::OwnedFd;

use holdfast_client::{Client, Resumed, Unclaimed};
use tracing::{info, warn};

use crate::keeper::ledger::SessionLedger;
use crate::keeper::link::{HandedPort, Keeper};
use crate::keeper::state::{Notes, State};

/// What the keeper handed to this agent.
#[derive(Debug)]
pub struct Kept {
    pub(super) keeper: Keeper,
    pub(super) notes: Notes,
    ledger: SessionLedger,
    resumed: Option<Resumed>,
    /// The agent before, if this one is the same.
    pub(super) same: Option<State>,
    /// The agent before, if it is not.
    pub(super) other: Option<State>,
    pub(super) ports: Vec<HandedPort>,
}

impl Kept {
    /// Reads what there is. Memory that makes no sense is not believed.
    pub fn read(
        keeper: Keeper,
        (state, session): (OwnedFd, OwnedFd),
        mut ports: Vec<HandedPort>,
    ) -> std::io::Result<Kept> {
        let (notes, state) = Notes::open(state)?;
        let (ledger, resumed) = SessionLedger::open(session)?;
        let connections: usize = ports.iter().map(|port| port.connections.len()).sum();
        // An agent with a state had opened a session. Without that, calls of these connections
        // would be carried out twice. A keeper that gives up the session closes them all.
        let has_session = resumed.is_some() || state.is_none() || connections == 0;
        let is_whole = notes.is_whole() && ledger.is_whole() && has_session;
        let goes_on = |state: &State| is_whole && !state.has_programs;
        let (same, other) = match state {
            Some(state) if goes_on(&state) => (Some(state), None),
            state => (None, state),
        };
        match (&same, &other) {
            (Some(state), _) => {
                info!("replaced the previous agent: run {}, {connections} connections", state.run);
            }
            (None, Some(state)) if state.has_programs => warn!(
                "programs had joined the previous agent with the library: they end with it, \
                 and so do the connections of this host"
            ),
            // The agent before was not ready yet: one with connections had written something.
            (None, None) if is_whole && connections == 0 => {}
            (None, _) => warn!(
                "the records of the previous agent cannot be read: this one starts without them, and \
                 connections are closed"
            ),
        }
        if same.is_none() {
            // Closed with that.
            keeper.begins();
            ports.clear();
        }
        Ok(Kept { keeper, notes, ledger, resumed, same, other, ports })
    }

    /// Whether this agent goes on in the place of the one before, without asking the store.
    pub fn goes_on(&self) -> bool {
        self.same.is_some()
    }

    /// The keeper that started this agent.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// The client: with the session of the agent before, if this is the same.
    pub(super) fn client(
        self,
        options: holdfast_client::Options,
    ) -> (Client, Unclaimed, KeptParts) {
        let Kept { keeper, notes, ledger, resumed, same, other: _, ports } = self;
        let resumed = resumed.filter(|_| same.is_some());
        let (client, unclaimed) = Client::kept(options, Box::new(ledger), resumed);
        (client, unclaimed, KeptParts { keeper, notes, same, ports })
    }
}

/// The rest, once there is a client.
#[derive(Debug)]
pub(super) struct KeptParts {
    pub(super) keeper: Keeper,
    pub(super) notes: Notes,
    pub(super) same: Option<State>,
    pub(super) ports: Vec<HandedPort>,
}
