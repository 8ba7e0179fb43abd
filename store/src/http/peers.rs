//! Routes for other nodes: identity, founding, and the channels of consensus.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use holdfast_api::{NodeId, NodeStatus, Problem};
use holdfast_net::{Detached, Stream};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::upgrade::downcast;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::accept::Place;
use super::agents::{OWN_AGENTS, own_agents};
use super::{App, HandedOver};
use crate::formation::{FOUND, Founding, IDENTITY, Identity};
use crate::node::Node;
use crate::node::status::OWN_STATUS;
pub(crate) use crate::raft::peer::PeerError;
use crate::raft::peer::{PEER_HEADER, PeerHello, Witness};
use crate::raft::tcp::PATH;
pub(crate) use crate::raft::tcp::{Introduction, UPGRADE};
use crate::raft::wire::Channel;

/// Channels of a kind that one member may have open here; it uses one of each, and opens the
/// next one when that falls silent.
const CHANNELS_MAX: usize = 8;

/// Channels of any kind that all nodes together may have open here that are no members as far
/// as this node knows. It knows none while it is being added, and not the newest while it lags.
const UNKNOWN_CHANNELS_MAX: usize = 32;

/// The routes between nodes.
pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route(IDENTITY, get(identity))
        .route(FOUND, post(found))
        .route(OWN_STATUS, get(own_status))
        .route(OWN_AGENTS, get(own_agents))
        .route(&format!("{PATH}{{channel}}"), get(channel))
        .with_state(app)
}

async fn identity(State(app): State<App>) -> Json<Identity> {
    let (cluster_id, members, retired) = match app.node() {
        Ok(node) => {
            let retired = node.machine().retired().collect();
            (Some(node.cluster_id().to_owned()), node.view().nodes, retired)
        }
        Err(_) => (None, BTreeMap::new(), Default::default()),
    };
    let reach = app.running().ok().and_then(|running| {
        let view = running.node.view();
        let boot = running.introduction.hello(app.inner.id).boot;
        Some(Witness { boot, index: view.own_reach()?, term: view.term })
    });
    let seen = app.running().map(|running| running.introduction.all_seen()).unwrap_or_default();
    let initial = app.inner.initial.clone();
    let advertise = app.inner.advertise.clone();
    let majority = app.node().ok().filter(|node| node.consensus().leads());
    let majority = majority.and_then(Node::majority);
    let node = app.inner.id;
    Json(Identity { node, cluster_id, initial, members, retired, advertise, reach, seen, majority })
}

/// A founder hands over the cluster id; answered once it is on the disk.
async fn found(State(app): State<App>, Json(founding): Json<Founding>) -> Response {
    let refuse = |why: &str| (StatusCode::CONFLICT, why.to_owned()).into_response();
    if founding.initial != app.inner.initial {
        return refuse("it was started with another --initial-cluster");
    }
    if let Ok(node) = app.node() {
        return if node.cluster_id() == founding.cluster_id && node.view().nodes.is_empty() {
            StatusCode::OK.into_response()
        } else {
            refuse("it belongs to a cluster that was founded before")
        };
    }
    let Some(handed) = app.inner.handed.lock().take() else {
        return refuse("it is taking its place just now");
    };
    let (written, done) = oneshot::channel();
    let handed_over = HandedOver { cluster_id: founding.cluster_id, written };
    if handed.send(handed_over).is_err() || done.await.is_err() {
        return refuse("it is stopping");
    }
    StatusCode::OK.into_response()
}

async fn own_status(State(app): State<App>) -> Result<Json<NodeStatus>, Unready> {
    Ok(Json(app.node().map_err(Unready)?.own_status()))
}

/// A problem between nodes, which read only its text.
struct Unready(Problem);

impl IntoResponse for Unready {
    fn into_response(self) -> Response {
        (StatusCode::SERVICE_UNAVAILABLE, self.0.message).into_response()
    }
}

/// Opens a channel of consensus: both nodes introduce themselves, then consensus
/// owns the connection.
async fn channel(
    State(app): State<App>,
    Path(name): Path<String>,
    headers: HeaderMap,
    request: Request,
) -> Response {
    let refuse = |status: StatusCode, why: String| (status, why).into_response();
    let Some(channel) = Channel::from_name(&name) else {
        return refuse(StatusCode::NOT_FOUND, format!("there is no channel {name}"));
    };
    let theirs = headers.get(PEER_HEADER).and_then(|value| value.to_str().ok());
    let theirs = theirs.and_then(|json| serde_json::from_str::<PeerHello>(json).ok());
    let Some(theirs) = theirs else {
        return refuse(StatusCode::BAD_REQUEST, "only for nodes of a cluster".to_owned());
    };
    let running = match app.running() {
        Ok(running) => running,
        Err(problem) => return refuse(StatusCode::SERVICE_UNAVAILABLE, problem.message),
    };
    let verdict = running.introduction.judge(&theirs);
    note_verdict(&app, &theirs, verdict.as_ref().err());
    if let Err(error) = verdict {
        return (StatusCode::CONFLICT, Json(error)).into_response();
    }
    let ours = serde_json::to_string(&running.introduction.hello(theirs.node));
    let ours = ours.ok().and_then(|json| HeaderValue::from_str(&json).ok());
    let (Some(ours), Some(upgrade)) = (ours, request.extensions().get::<OnUpgrade>().cloned())
    else {
        return refuse(StatusCode::BAD_REQUEST, "an upgrade is needed".to_owned());
    };
    if let Some(place) = Place::of(&request) {
        place.give_back();
    }
    let is_member =
        theirs.node != app.inner.id && running.node.view().nodes.contains_key(&theirs.node);
    let holder = if is_member { Holder::Member(theirs.node, channel) } else { Holder::Unknown };
    let place = app.inner.channels.open(holder, &app.inner.stop);
    let serving = serve_channel(app.clone(), channel, theirs.node, upgrade);
    app.inner.tasks.spawn(async move { place.ended.run_until_cancelled(serving).await });
    let headers = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static(UPGRADE)),
        (header::HeaderName::from_static(PEER_HEADER), ours),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

/// Logs a refused node with the reason, and when it is accepted again.
fn note_verdict(app: &App, theirs: &PeerHello, error: Option<&PeerError>) {
    let (node, now) = (theirs.node, Instant::now());
    let mut refused = app.inner.refused.lock();
    match error {
        None => {
            if let Some(lasted) = refused.over(&node, now) {
                tracing::info!(node, ?lasted, "another node is accepted again");
            }
        }
        Some(error) if refused.met(&node, error, now) => match error {
            // The others look for a member at this node's address.
            PeerError::OtherNode { meant, reached } if *reached == app.inner.id => tracing::info!(
                "node {node} looks for node {meant} at this address, where node {reached} is now; it does so until node {meant} is replaced or removed"
            ),
            error => tracing::warn!(%error, node, "refused another node"),
        },
        Some(_) => {}
    }
}

/// Who shares a bound on open channels. A node only claims its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Holder {
    Member(NodeId, Channel),
    Unknown,
}

impl Holder {
    fn channels_max(self) -> usize {
        match self {
            Holder::Member(..) => CHANNELS_MAX,
            Holder::Unknown => UNKNOWN_CHANNELS_MAX,
        }
    }
}

/// The channels that are open: who opens ever more of them loses its oldest one each time.
/// Each takes a descriptor.
#[derive(Clone, Default)]
pub(super) struct Channels(Arc<Mutex<HashMap<Holder, VecDeque<CancellationToken>>>>);

/// An open channel; ended and forgotten on drop.
struct ChannelPlace {
    channels: Channels,
    holder: Holder,
    ended: CancellationToken,
}

impl Channels {
    fn open(&self, holder: Holder, stop: &CancellationToken) -> ChannelPlace {
        let ended = stop.child_token();
        let mut all = self.0.lock();
        let open = all.entry(holder).or_default();
        if open.len() >= holder.channels_max()
            && let Some(oldest) = open.pop_front()
        {
            oldest.cancel();
        }
        open.push_back(ended.clone());
        ChannelPlace { channels: self.clone(), holder, ended }
    }
}

impl Drop for ChannelPlace {
    fn drop(&mut self) {
        self.ended.cancel();
        let mut all = self.channels.0.lock();
        if let Some(open) = all.get_mut(&self.holder) {
            open.retain(|other| !other.is_cancelled());
            if open.is_empty() {
                all.remove(&self.holder);
            }
        }
    }
}

async fn serve_channel(app: App, channel: Channel, from: NodeId, upgrade: OnUpgrade) {
    let Ok(node) = app.node() else { return };
    let opened = match upgrade.await {
        Ok(upgraded) => opened(upgraded),
        Err(error) => return tracing::debug!(%error, from, "a node went away"),
    };
    let served = match opened {
        Ok((stream, read)) => node.consensus().serve_connection(channel, from, stream, read).await,
        Err(error) => Err(error.into()),
    };
    if let Err(error) = served {
        tracing::debug!(%error, from, channel = channel.as_str(), "a channel closed");
    }
}

/// The raw connection, detached from the threads that accepted it, and the bytes
/// already read of it.
fn opened(upgraded: Upgraded) -> io::Result<(Detached, Bytes)> {
    let parts = downcast::<TokioIo<Stream>>(upgraded);
    let parts =
        parts.map_err(|_| io::Error::other("it is not a connection that was accepted here"))?;
    Ok((parts.io.into_inner().detach()?, parts.read_buf))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_opens_ever_more_channels_of_a_kind_loses_its_oldest() {
        let (channels, stop) = (Channels::default(), CancellationToken::new());
        let open = |from, channel| channels.open(Holder::Member(from, channel), &stop);
        let mut appends: Vec<ChannelPlace> =
            (0..CHANNELS_MAX).map(|_| open(2, Channel::Append)).collect();
        let others = [open(2, Channel::Heartbeat), open(3, Channel::Append)];
        let is_open = |place: &ChannelPlace| !place.ended.is_cancelled();
        assert!(appends.iter().chain(&others).all(is_open));
        let next = open(2, Channel::Append);
        assert!(!is_open(&appends[0]) && appends[1..].iter().all(is_open) && is_open(&next));
        // One that closes makes room.
        drop(appends.pop());
        let after = open(2, Channel::Append);
        assert!(appends[1..].iter().chain([&after, &next]).chain(&others).all(is_open));
        stop.cancel();
        assert!(!is_open(&next));
    }

    #[test]
    fn nodes_that_are_no_members_share_a_few_channels_whatever_ids_they_claim() {
        let (channels, stop) = (Channels::default(), CancellationToken::new());
        let is_open = |place: &ChannelPlace| !place.ended.is_cancelled();
        let member = channels.open(Holder::Member(2, Channel::Append), &stop);
        let unknown: Vec<ChannelPlace> =
            (0..3 * UNKNOWN_CHANNELS_MAX).map(|_| channels.open(Holder::Unknown, &stop)).collect();
        let open = unknown.iter().map(is_open).filter(|is_open| *is_open).count();
        assert_eq!(open, UNKNOWN_CHANNELS_MAX);
        assert!(is_open(&member) && unknown.last().is_some_and(is_open));
        drop((member, unknown));
        assert!(channels.0.lock().is_empty());
    }
}
