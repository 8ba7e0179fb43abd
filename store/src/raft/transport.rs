//! How messages reach other nodes: a trait, so that the same node runs on TCP
//! and inside a simulated network.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use holdfast_api::NodeId;

use super::wire::{Append, Appended, Ask, Channel, PeerAnswer, SnapshotOffer};
use crate::foreign_text::shown;
use crate::storage::SnapshotFile;
use crate::storage::record::{LogIdRecord, LogRecord, VoteRecord};

/// Why a message got no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum TransportError {
    /// No connection to the node could be made.
    #[error("node {node} at {address} cannot be reached: {why}")]
    Unreachable {
        /// Node that was called.
        node: NodeId,
        /// Address of the node that was called, `host:port`.
        address: String,
        why: String,
    },
    /// The connection broke, or what came is not an answer.
    #[error("the connection to node {node} broke: {why}")]
    Broken {
        /// Node that was called.
        node: NodeId,
        why: String,
    },
    /// No answer in time.
    #[error("node {node} did not answer within {after:?}")]
    Timeout {
        /// Node that was called.
        node: NodeId,
        after: Duration,
    },
}

/// The node that a message goes to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// Id of the node, chosen by the operator, never 0.
    pub node: NodeId,
    /// Where the node is called, `host:port`.
    pub address: String,
}

/// Carries messages to other nodes. Every call is bounded in time by its
/// `limit` and may be dropped at any moment.
pub(crate) trait Transport: Send + Sync + 'static {
    /// One request, one answer.
    fn ask(
        &self,
        target: Target,
        channel: Channel,
        ask: Ask,
        limit: Duration,
    ) -> BoxFuture<'static, Result<PeerAnswer, TransportError>>;

    /// Appends, pipelined: answers come in the order of the requests. Ends
    /// after the last answer once the requests end.
    fn append(
        &self,
        target: Target,
        requests: BoxStream<'static, Append>,
    ) -> BoxFuture<
        'static,
        Result<BoxStream<'static, Result<Appended, TransportError>>, TransportError>,
    >;

    /// Sends a whole snapshot; returns the follower's vote.
    fn snapshot(
        &self,
        target: Target,
        offer: SnapshotOffer,
        file: SnapshotFile,
        limit: Duration,
    ) -> BoxFuture<'static, Result<VoteRecord, TransportError>>;
}

/// Appends one at a time through [`Transport::ask`]: for heartbeats, and for
/// transports without a pipeline. Stops after an answer that is not a full
/// success.
pub(crate) fn append_one_by_one(
    transport: Arc<dyn Transport>,
    target: Target,
    channel: Channel,
    requests: BoxStream<'static, Append>,
    limit: Duration,
) -> BoxStream<'static, Result<Appended, TransportError>> {
    let state = Some((transport, requests));
    Box::pin(stream::unfold(state, move |state| {
        let target = target.clone();
        async move {
            let (transport, mut requests) = state?;
            let append = requests.next().await?;
            let prev = append.prev;
            let place = |e: &LogRecord| LogIdRecord { term: e.term, node: e.node, index: e.index };
            let last = append.entries.last().map(place).or(prev);
            let node = target.node;
            let told = transport.ask(target, channel, Ask::Append(append), limit).await;
            let next = Some((transport, requests));
            Some(match told {
                Ok(PeerAnswer::Append(Appended::All)) => (Ok(Appended::Matched(last)), next),
                Ok(PeerAnswer::Append(Appended::Conflict(None))) => {
                    (Ok(Appended::Conflict(prev)), None)
                }
                Ok(PeerAnswer::Append(appended)) => (Ok(appended), None),
                Ok(other) => {
                    let why = shown(&format_args!("{other:?}"));
                    (Err(TransportError::Broken { node, why }), None)
                }
                Err(error) => (Err(error), None),
            })
        }
    }))
}
