//! The answering side of the connections between nodes.

use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use holdfast_api::NodeId;
use holdfast_net::{Detached, Stream};
use openraft::async_runtime::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, TransferLeaderRequest};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

use super::consensus::Consensus;
use super::convert;
use super::evidence::OpenChannel;
use super::peer::TERMS_AHEAD_MAX;
use super::receiving;
use super::tcp::{Wire, framed};
use super::types::{LogId, TypeConfig, Vote};
use super::wire::{Append, Appended, Ask, Channel, PeerAnswer, SnapshotOffer, SnapshotTaken};
use crate::storage::record::{LogIdRecord, RecordError, VoteRecord, decode, encode};

/// Why a connection from another node ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    #[error("the connection broke: {0}")]
    Io(#[from] std::io::Error),
    /// What came is not a message.
    #[error("a message cannot be read: {0}")]
    Record(#[from] RecordError),
}

impl ServerError {
    /// Whether the other node sent something that is no message, or too long for one.
    fn is_refusal(&self) -> bool {
        match self {
            ServerError::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
            ServerError::Record(_) => true,
        }
    }
}

impl Consensus {
    /// Serves one connection of another node, of which some was read already, on the
    /// threads of consensus until it ends or this is dropped.
    pub(crate) async fn serve_connection(
        &self,
        channel: Channel,
        from: NodeId,
        stream: Detached,
        read: Bytes,
    ) -> Result<(), ServerError> {
        let consensus = self.clone();
        let serving = async move {
            let mut parts = framed(Stream::attach(stream)?).into_parts();
            parts.read_buf = BytesMut::from(read);
            let leads = matches!(channel, Channel::Append | Channel::Heartbeat);
            let open = leads.then(|| {
                consensus.evidence().keep(&consensus.view().nodes);
                consensus.evidence().opened(from)
            });
            consensus.serve_channel(channel, Wire::from_parts(parts), open).await
        };
        let serving = AbortOnDropHandle::new(self.threads().spawn(serving));
        let served = serving.await.unwrap_or_else(|error| Err(std::io::Error::from(error).into()));
        if let Err(error) = &served {
            self.note_refused(channel, Some(from), error);
        }
        served
    }

    /// Logs that what another node sent was no message.
    fn note_refused(&self, channel: Channel, from: Option<NodeId>, error: &ServerError) {
        if error.is_refusal() && self.troubles.met(channel.as_str(), error) {
            let channel = channel.as_str();
            tracing::warn!(%error, from, channel, "a node's connection is closed");
        }
    }

    /// Serves one connection of another node until it ends.
    pub(crate) async fn serve_channel<T>(
        &self,
        channel: Channel,
        wire: Wire<T>,
        open: Option<OpenChannel>,
    ) -> Result<(), ServerError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match channel {
            Channel::Append => self.serve_appends(wire, open).await,
            Channel::Snapshot => self.serve_snapshot(wire).await,
            Channel::Heartbeat | Channel::Control => self.serve_asks(wire, open).await,
        }
    }

    async fn serve_asks<T>(
        &self,
        mut wire: Wire<T>,
        open: Option<OpenChannel>,
    ) -> Result<(), ServerError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        while let Some(frame) = wire.next().await {
            let ask = decode::<Ask>(&frame?)?;
            if let Ask::Append(append) = &ask {
                self.hear(append, open.as_ref())?;
            }
            let told = self.answer(ask).await?;
            wire.send(Bytes::from(encode(&told))).await?;
        }
        Ok(())
    }

    /// Refuses a term that elections cannot have reached: it would use up the terms of the
    /// cluster, and no vote could follow.
    ///
    /// The sender's membership is not checked here: a lagging voter may not know the
    /// newest members, and its vote may be needed.
    fn believes(&self, claim: VoteRecord) -> Result<(), RecordError> {
        let (own, _) = self.leadership();
        if claim.term.saturating_sub(own) <= TERMS_AHEAD_MAX {
            return Ok(());
        }
        Err(RecordError::Impossible(format!(
            "it is of term {}, and this node is in term {own}",
            claim.term
        )))
    }

    /// Takes a leader's word for what is committed, if its claim to lead can be, and for
    /// its being there.
    fn hear(&self, append: &Append, open: Option<&OpenChannel>) -> Result<(), RecordError> {
        self.believes(append.vote)?;
        let (own, _) = self.leadership();
        if !claims_to_lead(append.vote, open.map(OpenChannel::from), own) {
            return Ok(());
        }
        open.into_iter().for_each(OpenChannel::heard);
        if let Some(commit) = &append.commit {
            self.evidence().committed((append.vote.term, append.vote.node), commit.index);
        }
        Ok(())
    }

    /// Pipelined appends: the next is received while the last is being flushed.
    async fn serve_appends<T>(
        &self,
        wire: Wire<T>,
        open: Option<OpenChannel>,
    ) -> Result<(), ServerError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sink, source) = wire.split();
        // An unreadable request ends the requests; earlier ones are answered.
        let (consensus, from) = (self.clone(), open.as_ref().map(OpenChannel::from));
        let requests = source.map(move |frame| {
            let read = || {
                let append = decode::<Append>(&frame?)?;
                consensus.hear(&append, open.as_ref())?;
                Ok(AppendEntriesRequest::try_from(append)?)
            };
            read().inspect_err(|error| consensus.note_refused(Channel::Append, from, error)).ok()
        });
        let requests = requests.take_while(|request| std::future::ready(request.is_some()));
        let requests = requests.filter_map(std::future::ready);
        let results = self.raft.stream_append(requests.fuse());
        let mut results = std::pin::pin!(results);
        while let Some(result) = results.next().await {
            let appended = match result {
                Ok(result) => Appended::from(result),
                Err(fatal) => Appended::Failed(fatal.to_string()),
            };
            let last = !matches!(appended, Appended::Matched(_));
            sink.send(Bytes::from(encode(&appended))).await?;
            if last {
                break;
            }
        }
        sink.close().await?;
        Ok(())
    }

    /// This node's vote.
    fn vote(&self) -> VoteRecord {
        let receiver = self.raft.server_metrics();
        let metrics = receiver.borrow_watched();
        VoteRecord::from(&metrics.vote)
    }

    async fn serve_snapshot<T>(&self, mut wire: Wire<T>) -> Result<(), ServerError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let first = tokio::time::timeout(receiving::SILENCE_MAX, wire.next()).await;
        let Ok(Some(frame)) = first else { return Ok(()) };
        let offer: SnapshotOffer = decode(&frame?)?;
        // Consensus would refuse it, too, but only when all of it is on the disk.
        let own = self.vote();
        if is_before(offer.vote, own) {
            wire.send(Bytes::from(encode(&SnapshotTaken::Vote(own)))).await?;
            return Ok(());
        }
        let taken = match self.take_snapshot(&mut wire, offer).await {
            Ok(vote) => {
                self.troubles.over("snapshot");
                SnapshotTaken::Vote(vote)
            }
            Err(why) => {
                if self.troubles.met("snapshot", &why) {
                    tracing::warn!(%why, "cannot install a snapshot from the leader");
                }
                SnapshotTaken::Failed(why)
            }
        };
        wire.send(Bytes::from(encode(&taken))).await?;
        Ok(())
    }

    async fn take_snapshot<T>(
        &self,
        wire: &mut Wire<T>,
        offer: SnapshotOffer,
    ) -> Result<VoteRecord, String>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        self.believes(offer.vote).map_err(|e| e.to_string())?;
        let vote = Vote::try_from(offer.vote).map_err(|e| e.to_string())?;
        let receiver = self.snapshots.receive(offer.meta).map_err(|e| e.to_string())?;
        let file = self.receiving.take(wire, receiver).await?;
        let snapshot = convert::snapshot(file).map_err(|e| e.to_string())?;
        let installed = self.raft.install_full_snapshot(vote, snapshot).await;
        installed.map(|response| (&response.vote).into()).map_err(|e| e.to_string())
    }

    /// Answers one request of another node.
    pub(crate) async fn answer(&self, ask: Ask) -> Result<PeerAnswer, RecordError> {
        let failed = |error: String| PeerAnswer::Failed(error);
        match &ask {
            Ask::Append(append) => self.believes(append.vote)?,
            Ask::Vote(ballot) | Ask::PreVote(ballot) => self.believes(ballot.vote)?,
            Ask::Transfer { from, .. } => self.believes(*from)?,
            Ask::Gone { .. } => {}
        }
        Ok(match ask {
            Ask::Append(append) => {
                let request = AppendEntriesRequest::try_from(append)?;
                let response = self.raft.append_entries(request).await;
                response.map_or_else(|e| failed(e.to_string()), |r| PeerAnswer::Append(r.into()))
            }
            Ask::Vote(ballot) => {
                let response = self.raft.vote(ballot.try_into()?).await;
                response.map_or_else(|e| failed(e.to_string()), PeerAnswer::from)
            }
            Ask::PreVote(ballot) => {
                let response = self.raft.pre_vote(ballot.try_into()?).await;
                response.map_or_else(|e| failed(e.to_string()), PeerAnswer::from)
            }
            Ask::Gone { leader, term } => {
                PeerAnswer::Gone { gone: self.has_lost(leader, term).await }
            }
            Ask::Transfer { from, to, last } => {
                let request = transfer(from, to, last)?;
                match self.raft.handle_transfer_leader(request).await {
                    Ok(result) => PeerAnswer::Transfer { accepted: result.is_ok() },
                    Err(error) => failed(error.to_string()),
                }
            }
        })
    }
}

/// Whether a claim to lead is older than another's vote.
fn is_before(claim: VoteRecord, vote: VoteRecord) -> bool {
    let rank = |vote: VoteRecord| (vote.term, vote.node, vote.committed);
    rank(claim) < rank(vote)
}

/// Whether this is the claim of its sender, if that is known, to lead in this node's own term
/// or a later one.
fn claims_to_lead(claim: VoteRecord, sender: Option<NodeId>, own: u64) -> bool {
    claim.committed && claim.term >= own && sender.is_none_or(|sender| sender == claim.node)
}

pub(crate) fn transfer(
    from: VoteRecord,
    to: NodeId,
    last: Option<LogIdRecord>,
) -> Result<TransferLeaderRequest<TypeConfig>, RecordError> {
    let last = last.map(LogId::try_from).transpose()?;
    Ok(TransferLeaderRequest::new(Vote::try_from(from)?, to, last))
}

#[cfg(test)]
pub(crate) mod tests;
