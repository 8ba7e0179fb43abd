//! The consensus library's network on our `Transport`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use openraft::errors::{
    NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable,
};
use openraft::network::v2::RaftNetworkV2;
use openraft::network::{RPCOption, RPCTypes, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use parking_lot::Mutex;

use super::append_requests;
use super::open_appends::OpenAppends;
use super::transport::{Target, Transport, TransportError, append_one_by_one};
use super::types::{NodeAddress, TypeConfig, Vote};
use super::wire::{self, Append, Ask, Channel, PeerAnswer, SnapshotOffer};
use crate::foreign_text::shown;
use crate::storage::SnapshotFile;

/// Longest transfer of one snapshot.
pub(super) const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(600);

/// Makes connections to other nodes.
pub struct Network {
    /// Id of this node, which it names itself by.
    pub id: u64,
    /// What carries the messages.
    pub(crate) transport: Arc<dyn Transport>,
}

/// One connection of the consensus library to one node.
pub struct Peer {
    id: u64,
    target: Target,
    channel: Channel,
    transport: Arc<dyn Transport>,
}

impl Network {
    fn peer(&self, node: u64, address: &NodeAddress, channel: Channel) -> Peer {
        let target = Target { node, address: address.address.clone() };
        Peer { id: self.id, target, channel, transport: self.transport.clone() }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &NodeAddress) -> Peer {
        self.peer(target, node, Channel::Control)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &NodeAddress) -> Peer {
        self.peer(target, node, Channel::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &NodeAddress) -> Peer {
        self.peer(target, node, Channel::Snapshot)
    }
}

impl Peer {
    async fn ask(
        &self,
        action: RPCTypes,
        ask: Ask,
        option: &RPCOption,
    ) -> Result<PeerAnswer, RPCError<TypeConfig>> {
        let limit = option.hard_ttl();
        let told = self.transport.ask(self.target.clone(), self.channel, ask, limit).await;
        told.map_err(|error| self.rpc_error(action, error))
    }

    fn rpc_error(&self, action: RPCTypes, error: TransportError) -> RPCError<TypeConfig> {
        match error {
            TransportError::Unreachable { .. } => RPCError::Unreachable(Unreachable::new(&error)),
            TransportError::Broken { .. } => RPCError::Network(NetworkError::new(&error)),
            TransportError::Timeout { after, .. } => RPCError::Timeout(Timeout {
                action,
                id: self.id,
                target: self.target.node,
                timeout: after,
            }),
        }
    }
}

fn broken<E: std::error::Error + 'static>(error: E) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::new(&error))
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let ask = Ask::Append((&rpc).into());
        let told = self.ask(RPCTypes::AppendEntries, ask, &option).await?;
        wire::append_response(told).map_err(broken)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<
            BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>,
            RPCError<TypeConfig>,
        >,
    >
    where
        S: futures::Stream<Item = AppendEntriesRequest<TypeConfig>>
            + openraft::OptionalSend
            + Unpin
            + 'static,
    {
        Box::pin(async move {
            let open = Arc::new(Mutex::new(OpenAppends::default()));
            let made = input.map(|request| Append::from(&request));
            let (transport, target) = (self.transport.clone(), self.target.clone());
            let answers = if self.channel == Channel::Heartbeat {
                let noted = open.clone();
                let requests = made.inspect(move |append| noted.lock().made(append)).boxed();
                append_one_by_one(transport, target, self.channel, requests, option.hard_ttl())
            } else {
                let requests = append_requests::to_send(made, open.clone()).boxed();
                let answers = transport.append(target, requests).await;
                answers.map_err(|e| self.rpc_error(RPCTypes::AppendEntries, e))?
            };
            let this = &*self;
            let answers = answers.filter(move |answer| {
                let tell = answer.as_ref().map_or(true, |answer| open.lock().answered(answer));
                std::future::ready(tell || holdfast_api::planted!(OldAnswers))
            });
            let results = answers.map(move |answer| {
                let appended = answer.map_err(|e| this.rpc_error(RPCTypes::AppendEntries, e))?;
                wire::stream_result(appended).map_err(broken)
            });
            Ok(results.boxed())
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let told = self.ask(RPCTypes::Vote, Ask::Vote((&rpc).into()), &option).await?;
        wire::vote_response(told).map_err(broken)
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let told = self.ask(RPCTypes::Vote, Ask::PreVote((&rpc).into()), &option).await?;
        wire::vote_response(told).map_err(broken)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: openraft::alias::SnapshotOf<TypeConfig, SnapshotFile>,
        cancel: impl Future<Output = ReplicationClosed> + openraft::OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let offer = SnapshotOffer { vote: (&vote).into(), meta: (&snapshot.meta).into() };
        let transfer = self.transport.snapshot(
            self.target.clone(),
            offer,
            snapshot.snapshot,
            SNAPSHOT_TIME_MAX,
        );
        let vote = tokio::select! {
            closed = cancel => return Err(StreamingError::Closed(closed)),
            vote = transfer => vote.map_err(|e| StreamingError::Unreachable(Unreachable::new(&e)))?,
        };
        let vote =
            Vote::try_from(vote).map_err(|e| StreamingError::Network(NetworkError::new(&e)))?;
        Ok(SnapshotResponse::new(vote))
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.ask(RPCTypes::TransferLeader, (&request).into(), &option).await? {
            PeerAnswer::Transfer { accepted: true } => Ok(Ok(())),
            other => {
                let why = shown(&format_args!("{other:?}"));
                Err(RPCError::Network(NetworkError::from_string(why)))
            }
        }
    }
}
