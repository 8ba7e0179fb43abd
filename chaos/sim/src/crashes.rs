//! Nodes that lose their power at a crash point: what they had not synced by then is gone,
//! and nothing that they do after it is seen by anybody.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use holdfast_api::{NodeId, crash};
use holdfast_store::storage::memory::MemoryDisk;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::host::HostId;
use crate::journal::Journal;
use crate::network::Network;
use crate::node::host_of;
use crate::simulation::{Power, RESTART_MS, Simulation};

/// The crash point of a seed, and the nodes that are to end there. Cheap to clone.
#[derive(Clone)]
pub struct Crashes(Rc<RefCell<State>>);

struct State {
    journal: Journal,
    network: Network,
    random: SmallRng,
    disks: BTreeMap<HostId, (NodeId, MemoryDisk)>,
    /// The node that is to end, if not the first that comes, and how often it still passes.
    armed: Option<(Option<HostId>, u32)>,
    crashed: Vec<NodeId>,
    /// How often a node ended at the point.
    hits: u32,
}

impl Crashes {
    /// Looks at the point of this name, on this thread.
    pub fn at(
        point: &str,
        seed: u64,
        network: Network,
        journal: Journal,
    ) -> Result<Crashes, String> {
        let crashes = Crashes(Rc::new(RefCell::new(State {
            journal,
            network,
            random: SmallRng::seed_from_u64(seed),
            disks: BTreeMap::new(),
            armed: None,
            crashed: Vec::new(),
            hits: 0,
        })));
        let passed = crashes.clone();
        crash::observe(point, move || passed.0.borrow_mut().passed())?;
        Ok(crashes)
    }

    /// A node has this disk.
    pub fn add(&self, node: NodeId, disk: MemoryDisk) {
        self.0.borrow_mut().disks.insert(host_of(node), (node, disk));
    }

    /// Arms the point for this node, or for the first node that passes it. The node ends
    /// at its next pass, or a few passes later.
    pub fn arm(&self, node: NodeId) {
        let mut state = self.0.borrow_mut();
        let host = state.random.random_bool(0.5).then(|| host_of(node));
        let left = if state.random.random_bool(0.5) { 1 } else { state.random.random_range(2..12) };
        state.armed = Some((host, left));
    }

    /// The nodes that have ended since the last call.
    pub fn take(&self) -> Vec<NodeId> {
        std::mem::take(&mut self.0.borrow_mut().crashed)
    }

    /// How often a node ended at the point, in words.
    pub fn told(&self) -> String {
        format!(" ({} at the crash point)", self.0.borrow().hits)
    }
}

impl Simulation {
    /// A node is to end at the crash point of this seed, if there is one.
    pub fn arm(&mut self) {
        if self.crash_point.is_some() {
            let leader = self.random.random_bool(0.5);
            let node = self.victim(leader);
            self.crash_point.iter().for_each(|point| point.arm(node));
        }
    }

    /// Ends the nodes that have lost their power at the crash point.
    pub fn bury_crashed(&mut self) {
        let crashed = self.crash_point.as_ref().map(Crashes::take).unwrap_or_default();
        let starts_at = Some(self.journal.now() + RESTART_MS);
        for id in crashed {
            // What lay in its disk's cache is gone already.
            self.stop_node(id, Power::Kept);
            self.nodes.entry(id).and_modify(|machine| machine.starts_at = starts_at);
        }
    }
}

impl State {
    fn passed(&mut self) {
        let Some(host) = self.journal.turn() else { return };
        let Some((node, disk)) = self.disks.get(&host) else { return };
        let Some((wanted, left)) = &mut self.armed else { return };
        if wanted.is_some_and(|wanted| wanted != host) || self.crashed.contains(node) {
            return;
        }
        *left -= 1;
        if *left > 0 {
            return;
        }
        // From here on it writes nothing, and is not heard: it is a matter of form that its
        // process still has the rest of this turn.
        let random = &mut self.random;
        disk.crash_keeping(|pending| random.random_range(0..=pending));
        self.network.power_off(host);
        self.crashed.push(*node);
        self.hits += 1;
        self.armed = None;
        self.journal.note("CRASHED at the crash point");
    }
}
