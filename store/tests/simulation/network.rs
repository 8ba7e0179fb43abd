//! A network of messages that come late, break off, or fall into a hole.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use holdfast_api::NodeId;
use holdfast_store::raft::Consensus;
use holdfast_store::raft::record::VoteRecord;
use holdfast_store::raft::tcp::{framed, send_snapshot};
use holdfast_store::raft::transport::{Target, Transport, TransportError, append_one_by_one};
use holdfast_store::raft::wire::{Append, Appended, Ask, Channel, SnapshotOffer, Told};
use holdfast_store::storage::SnapshotFile;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Of so many messages one breaks its connection.
const BREAKS_ONE_IN: u32 = 300;
/// Longest silence while an answer to an append is due.
const APPEND_SILENCE_MAX: Duration = Duration::from_millis(500);
/// What a connection that carries a snapshot buffers.
const PIPE_BYTES: usize = 64 << 10;

/// One process of a node, as the network sees it.
#[derive(Clone)]
pub struct Port {
    pub consensus: Consensus,
    /// Its power. Without it nothing comes in and nothing goes out.
    pub dead: CancellationToken,
    pub tasks: TaskTracker,
}

pub struct Network {
    state: Mutex<State>,
}

struct State {
    random: SmallRng,
    ports: BTreeMap<NodeId, Port>,
    /// From, to: one direction each.
    cuts: BTreeSet<(NodeId, NodeId)>,
}

impl Network {
    pub fn new(seed: u64) -> Arc<Network> {
        let random = SmallRng::seed_from_u64(seed);
        let state = State { random, ports: BTreeMap::new(), cuts: BTreeSet::new() };
        Arc::new(Network { state: Mutex::new(state) })
    }

    pub fn connect(&self, node: NodeId, port: Port) {
        self.state.lock().ports.insert(node, port);
    }

    pub fn disconnect(&self, node: NodeId) {
        self.state.lock().ports.remove(&node);
    }

    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.state.lock().cuts.insert((from, to));
    }

    pub fn heal(&self) {
        self.state.lock().cuts.clear();
    }

    /// Brings one message to its receiver, who may be gone by then.
    async fn carry(&self, from: NodeId, to: NodeId) -> Result<(), TransportError> {
        let (delay, breaks) = {
            let random = &mut self.state.lock().random;
            let delay = Duration::from_micros(random.random_range(1_000..=10_000));
            (delay, random.random_range(0..BREAKS_ONE_IN) == 0)
        };
        tokio::time::sleep(delay).await;
        if self.state.lock().cuts.contains(&(from, to)) {
            // Nobody says no: only a timeout tells.
            return pending().await;
        }
        if breaks {
            return Err(TransportError::Broken { node: to, why: "it broke off".into() });
        }
        Ok(())
    }

    fn port(&self, target: &Target) -> Result<Port, TransportError> {
        let port = self.state.lock().ports.get(&target.node).cloned();
        port.ok_or_else(|| TransportError::Unreachable {
            node: target.node,
            address: target.address.clone(),
            why: "it is down".into(),
        })
    }

    async fn exchange(
        &self,
        from: NodeId,
        target: &Target,
        ask: Ask,
    ) -> Result<Told, TransportError> {
        let node = target.node;
        self.carry(from, node).await?;
        let Port { consensus, dead, tasks } = self.port(target)?;
        let (tell, told) = oneshot::channel();
        // The receiver goes on when the sender gives up.
        tasks.spawn(dead.run_until_cancelled_owned(async move {
            drop(tell.send(consensus.answer(ask).await));
        }));
        let broken = |why: String| TransportError::Broken { node, why };
        let told = told.await.map_err(|_| broken("it crashed".into()))?;
        let told = told.map_err(|error| broken(error.to_string()))?;
        self.carry(node, from).await?;
        Ok(told)
    }

    async fn transfer(
        &self,
        from: NodeId,
        target: &Target,
        offer: &SnapshotOffer,
        file: SnapshotFile,
    ) -> Result<VoteRecord, TransportError> {
        let node = target.node;
        self.carry(from, node).await?;
        let Port { consensus, dead, tasks } = self.port(target)?;
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        tasks.spawn(dead.run_until_cancelled_owned(async move {
            // What went wrong is what the sender hears.
            drop(consensus.serve_channel(Channel::Snapshot, framed(theirs), None).await);
        }));
        let vote = send_snapshot(&mut framed(ours), node, offer, file).await?;
        self.carry(node, from).await?;
        Ok(vote)
    }
}

/// One process's way into the network.
#[derive(Clone)]
pub struct Sender {
    pub from: NodeId,
    pub dead: CancellationToken,
    pub network: Arc<Network>,
}

impl Sender {
    async fn within<T>(
        self,
        node: NodeId,
        limit: Duration,
        message: impl Future<Output = Result<T, TransportError>>,
    ) -> Result<T, TransportError> {
        tokio::select! {
            biased;
            () = self.dead.cancelled() => {
                Err(TransportError::Broken { node, why: "the sender has no power".into() })
            }
            answer = tokio::time::timeout(limit, message) => {
                answer.unwrap_or(Err(TransportError::Timeout { node, after: limit }))
            }
        }
    }
}

impl Transport for Sender {
    fn ask(
        &self,
        target: Target,
        _: Channel,
        ask: Ask,
        limit: Duration,
    ) -> BoxFuture<'static, Result<Told, TransportError>> {
        let this = self.clone();
        Box::pin(async move {
            let (from, network) = (this.from, this.network.clone());
            this.within(target.node, limit, network.exchange(from, &target, ask)).await
        })
    }

    fn append(
        &self,
        target: Target,
        requests: BoxStream<'static, Append>,
    ) -> BoxFuture<
        'static,
        Result<BoxStream<'static, Result<Appended, TransportError>>, TransportError>,
    > {
        let this = Arc::new(self.clone());
        let answers =
            append_one_by_one(this, target, Channel::Append, requests, APPEND_SILENCE_MAX);
        Box::pin(std::future::ready(Ok(answers)))
    }

    fn snapshot(
        &self,
        target: Target,
        offer: SnapshotOffer,
        file: SnapshotFile,
        limit: Duration,
    ) -> BoxFuture<'static, Result<VoteRecord, TransportError>> {
        let this = self.clone();
        // A hole ends a real transfer within seconds: its connection notices.
        let limit = limit.min(APPEND_SILENCE_MAX * 4);
        Box::pin(async move {
            let (from, network) = (this.from, this.network.clone());
            this.within(target.node, limit, network.transfer(from, &target, &offer, file)).await
        })
    }
}
