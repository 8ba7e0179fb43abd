use std::sync::Arc;
use std::time::Duration;

use futures::future::{self, BoxFuture};
use futures::stream::BoxStream;
use holdfast_machine::Effect;
use serde::de::DeserializeOwned;
use tokio::io::DuplexStream;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::*;
use crate::raft::convert::ORDINAL_MAX;
use crate::raft::transport::{Target, Transport, TransportError};
use crate::raft::{ConsensusOptions, EffectSink, LogStore, SharedState, StateMachine};
use crate::storage::memory::MemoryDisk;
use crate::storage::offload::Offload;
use crate::storage::record::SnapshotMetaRecord;
use crate::storage::snapshot::SnapshotOptions;
use crate::storage::writer::Writer;
use crate::storage::{Opened, Options, SnapshotFile, Storage};

const SILENCE: Duration = Duration::from_millis(150);

/// Reaches nobody.
struct Nowhere;

fn late<T: Send + 'static>(
    target: &Target,
    after: Duration,
) -> BoxFuture<'static, Result<T, TransportError>> {
    Box::pin(future::ready(Err(TransportError::Timeout { node: target.node, after })))
}

impl Transport for Nowhere {
    fn ask(
        &self,
        target: Target,
        _: Channel,
        _: Ask,
        limit: Duration,
    ) -> BoxFuture<'static, Result<PeerAnswer, TransportError>> {
        late(&target, limit)
    }

    fn append(
        &self,
        target: Target,
        _: BoxStream<'static, Append>,
    ) -> BoxFuture<
        'static,
        Result<BoxStream<'static, Result<Appended, TransportError>>, TransportError>,
    > {
        late(&target, Duration::ZERO)
    }

    fn snapshot(
        &self,
        target: Target,
        _: SnapshotOffer,
        _: SnapshotFile,
        limit: Duration,
    ) -> BoxFuture<'static, Result<VoteRecord, TransportError>> {
        late(&target, limit)
    }
}

struct NoEffects;

impl EffectSink for NoEffects {
    fn applied(&self, _: Vec<Effect>) {}
    fn installed(&self) {}
}

/// Node 1, which belongs to no cluster yet, and its storage.
async fn node() -> (Consensus, Storage) {
    let (consensus, _, storage) = started(Arc::new(NoEffects)).await;
    (consensus, storage)
}

/// The same with these effects, and its state. It reaches nobody.
pub(crate) async fn started(effects: Arc<dyn EffectSink>) -> (Consensus, SharedState, Storage) {
    let snapshots = SnapshotOptions { bytes_per_second: None, offload: Offload::Inline };
    let options = Options { snapshots, ..Options::default() };
    let latency = Box::new(|| Duration::ZERO);
    let writer = Writer::Task { tracker: TaskTracker::new(), latency };
    let Opened::Empty(empty) = Storage::open_memory(MemoryDisk::new(), 1, options, writer).unwrap()
    else {
        panic!("there is something on a new disk")
    };
    let storage = empty.create("c".to_owned()).unwrap();
    let log = LogStore::open(&storage).unwrap();
    let state = StateMachine::open(storage.snapshots(), effects).await.unwrap();
    let shared = state.state();
    let starting = Consensus::start(
        1,
        "c".to_owned(),
        ConsensusOptions::default(),
        Arc::new(Nowhere),
        (log, state, storage.snapshots()),
    );
    let starting = AbortOnDropHandle::new(Handle::current().spawn(starting));
    (starting.await.unwrap().unwrap(), shared, storage)
}

async fn stop(consensus: Consensus, storage: Storage) {
    consensus.stop().await;
    drop(consensus);
    storage.close().await;
}

type Serving = AbortOnDropHandle<Result<(), ServerError>>;

/// A channel to the node that claims to be node 2's.
fn channel(consensus: &Consensus, channel: Channel) -> (Wire<DuplexStream>, Serving) {
    let (here, there) = tokio::io::duplex(1 << 20);
    let leads = matches!(channel, Channel::Append | Channel::Heartbeat);
    let open = leads.then(|| consensus.evidence().opened(2));
    let served = consensus.clone();
    let serving = async move { served.serve_channel(channel, framed(there), open).await };
    (framed(here), AbortOnDropHandle::new(consensus.threads().spawn(serving)))
}

async fn send(wire: &mut Wire<DuplexStream>, message: Vec<u8>) {
    wire.send(Bytes::from(message)).await.unwrap();
}

async fn answer<T: DeserializeOwned>(wire: &mut Wire<DuplexStream>) -> T {
    decode(&wire.next().await.expect("an answer").unwrap()).unwrap()
}

fn leader(term: u64, node: NodeId) -> VoteRecord {
    VoteRecord { term, node, committed: true }
}

fn heartbeat(vote: VoteRecord) -> Ask {
    Ask::Append(Append { vote, prev: None, commit: None, entries: Vec::new() })
}

async fn asked(wire: &mut Wire<DuplexStream>, ask: &Ask) {
    send(wire, encode(ask)).await;
    let told: PeerAnswer = answer(wire).await;
    assert!(!matches!(told, PeerAnswer::Failed(_)), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_is_heard_by_its_own_heartbeats_alone() {
    let (consensus, storage) = node().await;
    let (mut wire, serving) = channel(&consensus, Channel::Heartbeat);
    tokio::time::advance(SILENCE).await;
    for other in [Ask::Gone { leader: 2, term: 1 }, heartbeat(leader(1, 3))] {
        asked(&mut wire, &other).await;
        assert!(!consensus.evidence().is_heard(2, SILENCE), "{other:?}");
    }
    asked(&mut wire, &heartbeat(leader(2, 2))).await;
    assert!(consensus.evidence().is_heard(2, SILENCE));
    tokio::time::advance(SILENCE).await;
    asked(&mut wire, &heartbeat(leader(1, 2))).await;
    assert!(!consensus.evidence().is_heard(2, SILENCE), "its term is over");
    drop((wire, serving));
    stop(consensus, storage).await;
}

#[test]
fn who_only_stands_for_election_does_not_lead() {
    assert!(claims_to_lead(leader(3, 2), Some(2), 3));
    assert!(claims_to_lead(leader(4, 2), None, 3));
    assert!(!claims_to_lead(VoteRecord { committed: false, ..leader(3, 2) }, Some(2), 3));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_an_old_leader_is_refused_before_its_body() {
    let (consensus, storage) = node().await;
    let (mut heartbeats, heard) = channel(&consensus, Channel::Heartbeat);
    asked(&mut heartbeats, &heartbeat(leader(2, 2))).await;
    let (mut wire, serving) = channel(&consensus, Channel::Snapshot);
    let offer = SnapshotOffer { vote: leader(1, 3), meta: SnapshotMetaRecord::default() };
    send(&mut wire, encode(&offer)).await;
    let taken: SnapshotTaken = answer(&mut wire).await;
    assert!(matches!(taken, SnapshotTaken::Vote(vote) if vote == leader(2, 2)), "{taken:?}");
    drop((heartbeats, heard, wire, serving));
    stop(consensus, storage).await;
}

#[test]
fn claims_to_lead_are_ordered_as_votes_are() {
    let candidate = VoteRecord { committed: false, ..leader(2, 2) };
    let ordered = [leader(1, 3), candidate, leader(2, 2), leader(2, 3), leader(3, 1)];
    for (place, vote) in ordered.iter().enumerate() {
        let before = ordered.iter().filter(|other| is_before(**other, *vote)).count();
        assert_eq!(before, place, "{vote:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn terms_cannot_be_used_up_by_claims() {
    const { assert!(ORDINAL_MAX / TERMS_AHEAD_MAX >= 1 << 32) };
    let (consensus, storage) = node().await;
    assert_eq!(consensus.believes(leader(TERMS_AHEAD_MAX, 2)), Ok(()));
    let error = consensus.believes(leader(TERMS_AHEAD_MAX + 1, 2)).unwrap_err();
    assert!(error.to_string().contains("this node is in term 0"), "{error}");
    stop(consensus, storage).await;
}
