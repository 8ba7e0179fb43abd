//! Everything on the node's one port.
//!
//! | module | serves |
//! | --- | --- |
//! | `coordination` | leases, processes and rounds as JSON |
//! | `kv`, [`cluster`], `limits` | JSON under `/v1/`, for people and scripts |
//! | [`tokens`] | revoked tokens |
//! | `agents` | what agents report |
//! | `answer` | JSON answers, and turns for long work |
//! | [`backup`] | the whole state as a stream |
//! | [`stream`] | the multiplexed stream of clients and agents |
//! | `peers` | other nodes, under `/raft/v1/` |
//! | [`health`], [`metrics`] | `/livez`, `/readyz`, `/metrics` |
//! | `openapi` | `/openapi.json`, and the router of all JSON routes |
//! | `strict` | requests that the description does not know are refused |
//! | [`forward`] | a follower passes a JSON call on to the leader |
//! | [`problem`] | errors as problem+json |
//! | `admission` | refuses requests without the shared token |
//! | [`host`] | refuses requests by a foreign name |
//! | [`accept`] | connections: accepted, bounded, drained |

pub mod accept;
mod admission;
pub(crate) mod agents;
pub(crate) mod answer;
pub mod backup;
pub mod cluster;
pub(crate) mod coordination;
pub mod forward;
pub mod health;
pub mod host;
pub(crate) mod kv;
pub(crate) mod limits;
pub mod metrics;
pub(crate) mod openapi;
pub(crate) mod peers;
pub mod problem;
pub mod stream;
pub(crate) mod strict;
pub mod tokens;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use axum::middleware::from_fn_with_state;
use holdfast_api::{Code, NodeId, Problem};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Access;
use crate::node::Node;
use crate::node::gray::PortActivity;
use crate::node::tenant::room::Room;
use crate::recurring::{RecurringWith, Troubles};
use metrics::Metrics;

/// Most other nodes whose refusals the log keeps apart.
const REFUSED_MAX: usize = 64;

/// Everything that the node serves.
pub(crate) fn router(app: App) -> axum::Router {
    let guard = from_fn_with_state(app.clone(), admission::admit);
    axum::Router::new()
        .merge(peers::router(app.clone()).layer(guard.clone()))
        .merge(stream::router(app.clone()).layer(guard))
        .merge(openapi::router(app))
}

/// What the handlers share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App {
    inner: Arc<Inner>,
}

struct Inner {
    id: NodeId,
    initial: BTreeMap<NodeId, String>,
    advertise: Option<String>,
    access: Access,
    allow_host: Vec<String>,
    metrics: Arc<Metrics>,
    activity: Arc<PortActivity>,
    running: OnceLock<Running>,
    /// Receives a founder's cluster id while this node has none.
    handed: Mutex<Option<oneshot::Sender<HandedOver>>>,
    /// What this node waits for, while it has no place yet.
    waiting_for: Mutex<Option<String>>,
    /// Other nodes that were refused, and why, as logged.
    refused: Mutex<RecurringWith<NodeId, peers::PeerError>>,
    /// Open channels of other nodes.
    channels: peers::Channels,
    /// Client errors, as logged.
    troubles: Troubles,
    /// Bounds the commands and long answers under way on all streams, in KiB.
    stream_room: Room,
    /// The same for commands of leases, processes and rounds.
    first_room: Room,
    /// KiB of large frames that are being read, likewise.
    frame_room: Room,
    /// Frames that take much memory once decoded, being decoded or handed on.
    dense_frames: Room,
    /// KiB of large frames of replies that are being written, likewise.
    reply_room: Room,
    /// Streams that may be passed on.
    through_places: stream::ThroughPlaces,
    /// Calls that may be passed on, likewise, shared out among tenants.
    passages: forward::Places,
    /// Backups that may run at once.
    backups: Arc<Semaphore>,
    /// Whether a request waits for one of these.
    pressure: stream::Pressure,
    reports: agents::Reports,
    /// What is collected of the reports of all nodes, for all who ask.
    collected: agents::Collected,
    /// What long bodies and answers of JSON calls share.
    answers: answer::Answers,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// What the node was started with.
pub(crate) struct StartedWith {
    /// Id of the node, chosen by the operator, never 0.
    pub id: NodeId,
    /// The nodes of a new cluster; none if it was started otherwise.
    pub initial: BTreeMap<NodeId, String>,
    /// Where others reach it, if that was set.
    pub advertise: Option<String>,
    /// Tokens and certificates that it accepts.
    pub access: Access,
    /// Names by which it may be called beside its own; `*` allows all.
    pub allow_host: Vec<String>,
}

/// A cluster id from a founder, and the sender to notify when it is on the disk.
pub(crate) struct HandedOver {
    /// Id of the new cluster.
    pub cluster_id: String,
    /// Notified once the id is on the disk.
    pub written: oneshot::Sender<()>,
}

/// A node that found its place.
pub(crate) struct Running {
    /// The running node: consensus, state and waits.
    pub node: Node,
    /// What it tells other nodes about itself.
    pub(crate) introduction: Arc<dyn peers::Introduction>,
}

impl App {
    /// An app whose node has yet to find its place.
    pub(crate) fn new(
        StartedWith { id, initial, advertise, access, allow_host }: StartedWith,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> App {
        let passed_on_max = accept::passed_on_max(accept::descriptors());
        let inner = Inner {
            id,
            initial,
            advertise,
            access,
            allow_host,
            metrics,
            activity: Arc::default(),
            running: OnceLock::new(),
            handed: Mutex::default(),
            waiting_for: Mutex::default(),
            refused: Mutex::new(RecurringWith::new(REFUSED_MAX)),
            channels: peers::Channels::default(),
            troubles: Troubles::default(),
            stream_room: Room::new(stream::UNDER_WAY_KIB_MAX),
            first_room: Room::new(stream::UNDER_WAY_KIB_MAX),
            frame_room: Room::new(stream::UNDER_WAY_KIB_MAX),
            dense_frames: Room::new(stream::DENSE_FRAMES_MAX),
            reply_room: Room::new(stream::UNDER_WAY_KIB_MAX),
            through_places: stream::ThroughPlaces::new(passed_on_max),
            passages: forward::Places::new(passed_on_max),
            backups: Arc::new(Semaphore::new(backup::BACKUPS_MAX)),
            pressure: stream::Pressure::default(),
            reports: agents::Reports::default(),
            collected: agents::Collected::default(),
            answers: answer::Answers::default(),
            tasks,
            stop,
        };
        App { inner: Arc::new(inner) }
    }

    /// The node, once it has found its place.
    pub(crate) fn node(&self) -> Result<&Node, Problem> {
        self.running().map(|running| &running.node)
    }

    /// The node and what it tells others.
    fn running(&self) -> Result<&Running, Problem> {
        self.inner.running.get().ok_or_else(|| {
            let node = self.inner.id;
            let why = match &*self.inner.waiting_for.lock() {
                Some(waiting_for) => format!("node {node}: {waiting_for}"),
                None => format!("node {node} is starting; retry"),
            };
            Problem::retryable(Code::Unavailable, why)
        })
    }

    /// This node has not found its place yet.
    pub(crate) fn waits_for(&self, what: &str) {
        *self.inner.waiting_for.lock() = Some(what.to_owned());
    }

    /// The node has found its place.
    pub(crate) fn run(&self, running: Running) {
        assert!(self.inner.running.set(running).is_ok(), "a node finds its place once");
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// What the port has done.
    pub(crate) fn activity(&self) -> Arc<PortActivity> {
        self.inner.activity.clone()
    }

    /// Receives a founder's cluster id.
    pub(crate) fn handed_over(&self) -> oneshot::Receiver<HandedOver> {
        let (sender, receiver) = oneshot::channel();
        *self.inner.handed.lock() = Some(sender);
        receiver
    }
}
