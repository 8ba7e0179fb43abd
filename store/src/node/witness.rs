//! How far other nodes' logs reach, as last seen, kept on disk.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use holdfast_api::NodeId;
use holdfast_machine::FEATURE_LEVEL;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::VERSION;
use crate::raft::Consensus;
use crate::raft::LogStore;
use crate::raft::peer::{self, PeerError, PeerHello, Witness, Witnesses};
use crate::raft::tcp::Introduction;
use crate::recurring::Troubles;
use crate::storage::WitnessStore;
use crate::storage::backend::WitnessRecord;

/// How often the leader's observations are written down.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// What this node tells others about itself, and what it remembers of them.
pub(crate) struct Witnessing {
    cluster_id: String,
    node: NodeId,
    boot: u64,
    log_at_boot: u64,
    term_at_boot: u64,
    store: WitnessStore,
    consensus: OnceLock<Consensus>,
    seen: Mutex<Witnesses>,
    /// The process that each node runs as, by its last introduction.
    boots: Mutex<BTreeMap<NodeId, u64>>,
    fatal: Arc<dyn Fn(String) + Send + Sync>,
    troubles: Troubles,
}

impl Witnessing {
    /// Starts with what was written down. `fatal` is called when this node must not
    /// go on.
    pub(crate) fn new(
        cluster_id: String,
        node: NodeId,
        boot: u64,
        log_at_boot: u64,
        log: &LogStore,
        fatal: Arc<dyn Fn(String) + Send + Sync>,
    ) -> Arc<Witnessing> {
        let store = log.disk().witnesses();
        let kept =
            |(node, WitnessRecord { boot, index, term })| (node, Witness { boot, index, term });
        let seen = store.load().into_iter().map(kept).collect();
        Arc::new(Witnessing {
            cluster_id,
            node,
            boot,
            log_at_boot,
            term_at_boot: log.vote_term(),
            store,
            consensus: OnceLock::new(),
            seen: Mutex::new(seen),
            boots: Mutex::default(),
            fatal,
            troubles: Troubles::default(),
        })
    }

    /// What this node has seen of another.
    pub(crate) fn of(&self, node: NodeId) -> Option<Witness> {
        self.seen.lock().get(&node).copied()
    }

    /// Records what the leader's replication shows, until `stop`.
    pub(crate) async fn run(self: Arc<Self>, consensus: Consensus, stop: CancellationToken) {
        let _ = self.consensus.set(consensus);
        while stop.run_until_cancelled(tokio::time::sleep(WRITE_EVERY)).await.is_some() {
            self.note();
        }
        self.note();
    }

    /// Records how far each follower's log is committed and durable.
    fn note(&self) {
        let Some(consensus) = self.consensus.get() else { return };
        // The view before the boots: a process seen later had at least this.
        let view = consensus.view();
        let boots = self.boots.lock().clone();
        for (node, matched) in view.matched {
            let index = matched.min(view.committed);
            let Some(boot) = boots.get(&node).copied().filter(|_| index > 0) else { continue };
            self.write_down(node, Witness { boot, index, term: view.term });
        }
    }

    fn write_down(&self, node: NodeId, witness: Witness) {
        let Witness { boot, index, term } = witness;
        let kept = {
            let mut seen = self.seen.lock();
            let known = seen.get(&node).copied();
            let (index, term) =
                known.map_or((index, term), |known| (known.index.max(index), known.term.max(term)));
            let kept = Witness { boot, index, term };
            if seen.insert(node, kept) == Some(kept) {
                return;
            }
            WitnessRecord { boot, index, term }
        };
        if let Err(error) = self.store.save(node, kept)
            && self.troubles.met("save", &error)
        {
            tracing::warn!(%error, node, "cannot note how far a node's log reaches");
        }
    }

    /// How far this node's own log reaches, and its term.
    fn reach(&self) -> (u64, u64) {
        let view = self.consensus.get().map(Consensus::view);
        view.map_or((0, 0), |view| (view.last_log, view.term))
    }
}

impl Introduction for Witnessing {
    fn hello(&self, to: NodeId) -> PeerHello {
        // What was seen since the last write counts, too.
        self.note();
        PeerHello {
            cluster_id: self.cluster_id.clone(),
            node: self.node,
            to,
            version: VERSION.to_owned(),
            feature_level: FEATURE_LEVEL,
            boot: self.boot,
            log_at_boot: self.log_at_boot,
            term_at_boot: Some(self.term_at_boot),
            witness: self.of(to),
        }
    }

    fn judge(&self, theirs: &PeerHello) -> Result<(), PeerError> {
        peer::check(&self.hello(theirs.node), theirs)
    }

    fn met(&self, theirs: &PeerHello) {
        self.boots.lock().insert(theirs.node, theirs.boot);
    }

    fn seen_as(&self, by: NodeId, witness: Option<Witness>) {
        if let Err(error) = peer::rolled_back(&self.hello(self.node), by, witness) {
            self.refused(by, &error);
        }
    }

    fn all_seen(&self) -> Witnesses {
        self.seen.lock().clone()
    }

    fn saw(&self, node: NodeId, witness: Witness) {
        let (index, term) = self.reach();
        if witness.index > 0 && witness.can_be(index, term) {
            self.write_down(node, witness);
        }
    }

    fn voted(&self, node: NodeId, term: u64) {
        let boot = self.boots.lock().get(&node).copied();
        if let Some(boot) = boot {
            self.write_down(node, Witness { boot, index: 0, term });
        }
    }

    fn refused(&self, by: NodeId, error: &PeerError) {
        if error.stops(&self.hello(self.node)) {
            return (self.fatal)(error.to_string());
        }
        let is_ours = error.forgetful() == Some(self.node);
        let cannot_be = is_ours || matches!(error, PeerError::Unbelievable { .. });
        if cannot_be && self.troubles.met("witness", error) {
            tracing::error!(
                by,
                %error,
                "a node is said to have been seen further than it can have come; this node goes on"
            );
        }
    }
}
