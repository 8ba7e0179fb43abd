//! One node, from its empty folder to its clean end.

mod signals;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::NodeId;
use holdfast_net::Listener;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

pub use self::signals::Signals;
use self::signals::raise_file_limit;
use crate::config::{ServeOptions, is_loopback};
use crate::formation::{self, FormationError, Place, Plan};
use crate::free_space;
use crate::http::metrics::Metrics;
use crate::http::{self, App, HandedOver, Running, StartedWith};
use crate::node::effects::Effects;
use crate::node::room::Gauge;
use crate::node::witness::Witnessing;
use crate::node::{Node, Parts, VERSION};
use crate::raft::tcp::{Tcp, TcpTransport};
use crate::raft::{Consensus, LogStore, StateMachine, View};
use crate::recurring::Recurring;
use crate::storage::offload::Offload;
use crate::storage::stats::WriteStats;
use crate::storage::{Log, Opened, Options, Storage, StorageError};

/// Longest time for the node's own tasks to end when it stops.
const TASKS_TIME_MAX: Duration = Duration::from_secs(5);

/// Longest time for the storage to close after a second stop request.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(10);

/// Pause between two attempts to continue a founding.
const FOUNDING_PAUSE: Duration = Duration::from_millis(500);

/// Why a node did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its folder cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// It found no place in a cluster.
    #[error(transparent)]
    Formation(#[from] FormationError),
    /// Its address cannot be used.
    #[error("cannot listen on {address}: {why}{}", hint(why))]
    Listen {
        /// Address to listen on, `host:port`.
        address: String,
        /// The operating system's error.
        why: std::io::Error,
    },
    /// The folder is empty and no cluster was named.
    #[error(
        "{data_dir} is empty: say which cluster this node is to found, `holdfast-store serve --node-id {node} --data-dir {data_dir} --listen {listen} --initial-cluster {node}=HOST:PORT,…` with all of its nodes, or which it is to join, `… --join HOST:PORT` with any node of it", data_dir = data_dir.display()
    )]
    NoPlan {
        /// The empty data folder.
        data_dir: std::path::PathBuf,
        /// Id of this node.
        node: NodeId,
        /// The address that it was to listen on.
        listen: String,
    },
    /// The node must not, or cannot, go on.
    #[error("{0}")]
    Fatal(String),
    /// Its port accepts no more connections; started again, it may serve.
    #[error("{0}")]
    AcceptsNobody(String),
    /// An operating system error.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

fn hint(why: &std::io::Error) -> &'static str {
    match why.kind() {
        std::io::ErrorKind::AddrInUse => {
            " (another process listens there; choose another --listen, or stop it)"
        }
        std::io::ErrorKind::AddrNotAvailable => " (this host has no such address)",
        std::io::ErrorKind::PermissionDenied => " (ports below 1024 need a privilege)",
        _ => "",
    }
}

/// Runs one node until it is stopped or cannot go on. It always closes the
/// storage first: the process must not end while the log's writer is at work.
/// Consensus runs on threads of its own, which no client request can keep busy.
pub async fn run(options: ServeOptions, consensus: Handle) -> Result<(), ServeError> {
    let mut signals = Signals::new()?;
    raise_file_limit();
    if let Some(warning) = options.access.warning() {
        tracing::warn!("{warning}");
    }
    if options.access.tls().acceptor().is_none()
        && options.access.is_guarded()
        && !is_loopback(&options.listen)
    {
        tracing::warn!(
            "--listen {} can be reached from other machines, and everything travels as it is, the token included: add TLS (`holdfast-store tls init DIR --nodes LIST`), or keep the port on a network that you trust",
            options.listen
        );
    }
    let (dir, node_id) = (options.data_dir.clone(), options.node_id);
    tracing::info!(node = node_id, version = VERSION, data_dir = %dir.display(), "starting");
    let metrics = Arc::new(Metrics::new());
    let stats = {
        let metrics = metrics.clone();
        WriteStats::observed(move |written| {
            if written.synced {
                metrics.observe_fsync(written.took);
            }
        })
    };
    let storage_options = Options { stats, ..Options::default() };
    let open = move || Storage::open(&dir, node_id, storage_options);
    let opened = Offload::Threads.run(open).await??;
    if matches!((&opened, &options.plan), (Opened::Empty(_), None)) {
        let ServeOptions { data_dir, listen, .. } = options;
        return Err(ServeError::NoPlan { data_dir, node: node_id, listen });
    }
    let listener = match Listener::bind(&options.listen).await {
        Ok(listener) => listener,
        Err(why) => {
            if let Opened::Existing(storage) = opened {
                storage.close().await;
            }
            return Err(ServeError::Listen { address: options.listen.clone(), why });
        }
    };
    let gauge = free_space::of(&options.data_dir);
    let rim = Rim { opened, listener, metrics, gauge, started: Box::new(|_| {}) };
    run_on(&options, rim, &consensus, &mut signals).await
}

/// Resources of a node.
pub struct Rim {
    /// The opened data folder, or a simulated disk.
    pub opened: Opened,
    /// The port it accepts connections on.
    pub listener: Listener,
    /// The node's counters, shared with those that count.
    pub metrics: Arc<Metrics>,
    /// Measures the free disk and memory that the node reports and acts on.
    pub gauge: Gauge,
    /// Gets the node once it has its place.
    pub started: Box<dyn FnOnce(&Node) + Send>,
}

/// Runs one node on the disk and the port that it is given, as [`run`] does on
/// those of this machine.
pub async fn run_on(
    options: &ServeOptions,
    rim: Rim,
    consensus: &Handle,
    signals: &mut Signals,
) -> Result<(), ServeError> {
    let Rim { opened, listener, metrics, gauge, started: tell } = rim;
    let node_id = options.node_id;
    let (tasks, stop, accepting) =
        (TaskTracker::new(), CancellationToken::new(), CancellationToken::new());
    let initial = match &options.plan {
        Some(Plan::Found { initial }) => initial.clone(),
        Some(Plan::Join { .. }) | None => BTreeMap::new(),
    };
    let started_with = StartedWith {
        id: node_id,
        initial: initial.clone(),
        advertise: options.advertise.clone(),
        access: options.access.clone(),
        allow_host: options.allow_host.clone(),
    };
    let app = App::new(started_with, metrics, tasks.clone(), stop.clone());
    let serving = http::accept::serve(
        listener,
        http::accept::Serving {
            router: http::router(app.clone()),
            activity: app.activity(),
            tasks: tasks.clone(),
            tls: options.access.tls().clone(),
        },
        accepting.clone(),
        options.shutdown_grace,
    );
    let mut serving = tasks.spawn(serving);
    let following = options.access.clone().follow_file();
    tasks.spawn(stop.clone().run_until_cancelled_owned(following));
    tracing::info!(listen = %options.listen, "listening");

    let placed = tokio::select! {
        // A folder that has its place needs no waiting, and its storage is closed below.
        biased;
        placed = take_place(options, opened, &app) => placed?,
        () = signals.received() => {
            tracing::info!("stopped before it had a place in the cluster");
            accepting.cancel();
            stop.cancel();
            return Ok(());
        }
        why = http::accept::ended(&mut serving) => {
            stop.cancel();
            return Err(ServeError::AcceptsNobody(why));
        }
    };
    let started = tokio::select! {
        started = start(options, &placed, &app, (consensus, gauge), (&tasks, &stop)) => started.map(Some),
        () = signals.received() => Ok(None),
        why = http::accept::ended(&mut serving) => Err(ServeError::AcceptsNobody(why)),
    };
    let Placed { storage, written, .. } = placed;
    let (node, witnessing, fatal) = match started {
        Ok(Some(started)) => started,
        ended => {
            accepting.cancel();
            stop.cancel();
            storage.close().await;
            return ended.map(drop);
        }
    };
    if let Some(written) = written {
        // A founder that is gone asks again.
        let _ = written.send(());
    }
    tell(&node);
    let mut started = Started { node, storage, witnessing, fatal, serving };
    let ended = watch_over(&mut started, &initial, signals).await;
    stop_node(started, ended.is_ok(), options, signals, (tasks, stop, accepting)).await;
    ended
}

/// Signals that stop a node.
struct Started {
    node: Node,
    storage: Storage,
    witnessing: Arc<Witnessing>,
    fatal: mpsc::Receiver<String>,
    serving: JoinHandle<()>,
}

/// A folder with its place in a cluster.
struct Placed {
    storage: Storage,
    /// Whether this node founds the cluster.
    founder: bool,
    /// To notify when the cluster's id is on the disk.
    written: Option<oneshot::Sender<()>>,
}

/// Finds the node's place, if it has none yet.
async fn take_place(
    options: &ServeOptions,
    opened: Opened,
    app: &App,
) -> Result<Placed, ServeError> {
    let mut written = None;
    let (storage, founder) = match opened {
        Opened::Existing(storage) => (storage, false),
        Opened::Empty(empty) => {
            let plan = options.plan.as_ref().expect("checked before listening");
            let place = find_place(options, plan, app, &mut written).await?;
            let (cluster_id, founder) = match place {
                Place::Founder { cluster_id } => (cluster_id, true),
                Place::Member { cluster_id } => (cluster_id, false),
            };
            (empty.offload().run(move || empty.create(cluster_id)).await??, founder)
        }
    };
    tracing::info!(cluster = %storage.identity().cluster_id, "this node's cluster");
    Ok(Placed { storage, founder, written })
}

/// Starts the node in its place.
async fn start(
    options: &ServeOptions,
    placed: &Placed,
    app: &App,
    (threads, gauge): (&Handle, Gauge),
    (tasks, stop): (&TaskTracker, &CancellationToken),
) -> Result<(Node, Arc<Witnessing>, mpsc::Receiver<String>), ServeError> {
    let Placed { storage, founder, .. } = placed;
    let identity = storage.identity().clone();
    let (fatal, fatal_received) = mpsc::channel(1);
    let effects = Arc::new(Effects::new(storage.snapshots().offload()));
    let log = LogStore::open(storage)?;
    let state = StateMachine::open(storage.snapshots(), effects.clone()).await?;
    let shared = state.state();
    let witnessing = Witnessing::new(
        identity.cluster_id.clone(),
        identity.node_id,
        rand::random(),
        storage.last_index(),
        &log,
        Arc::new(move |why| drop(fatal.try_send(why))),
    );
    let transport = Tcp(TcpTransport::new(witnessing.clone(), options.access.clone()));
    let starting = Consensus::start(
        identity.node_id,
        identity.cluster_id.clone(),
        options.consensus.clone(),
        Arc::new(transport),
        (log.clone(), state, storage.snapshots()),
    );
    let starting = AbortOnDropHandle::new(threads.spawn(starting));
    let consensus = starting.await.map_err(|error| error.to_string());
    let consensus = consensus.and_then(|started| started).map_err(ServeError::Fatal)?;
    let parts = Parts {
        id: identity.node_id,
        cluster_id: identity.cluster_id.clone(),
        access: options.access.clone(),
        ended_runs_kept: options.ended_runs_kept,
        reserves: options.reserves,
        consensus: consensus.clone(),
        state: shared,
        effects,
        offload: storage.snapshots().offload(),
    };
    let node = Node::start(parts, tasks.clone(), stop.clone());
    app.run(Running { node: node.clone(), introduction: witnessing.clone() });
    let (seen, counted) = (app.clone(), consensus.clone());
    tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
        let count = |view: View| {
            if let Some(leader) = view.leader {
                seen.metrics().leader_seen(view.term, leader.node);
            }
        };
        counted.watch(count).await;
    }));
    if let Some(every) = options.scrub_every {
        let scrubbing = node.clone().scrub(log.clone(), storage.snapshots(), every);
        tasks.spawn(stop.clone().run_until_cancelled_owned(scrubbing));
    }
    let bounding = node.clone().bound_log(log);
    tasks.spawn(stop.clone().run_until_cancelled_owned(bounding));
    tasks.spawn(witnessing.clone().run(consensus.clone(), stop.clone()));
    let watching_leader = node.clone().watch_leader(storage.log());
    tasks.spawn_on(stop.clone().run_until_cancelled_owned(watching_leader), threads);
    let watching_disk = node.clone().hand_over_when_stalled(storage.log());
    tasks.spawn_on(stop.clone().run_until_cancelled_owned(watching_disk), threads);
    let watching_itself = node.clone().hand_over_when_gray(app.activity());
    tasks.spawn_on(stop.clone().run_until_cancelled_owned(watching_itself), threads);
    let watching_room = node.clone().watch_room(gauge);
    tasks.spawn(stop.clone().run_until_cancelled_owned(watching_room));
    tasks.spawn(stop.clone().run_until_cancelled_owned(node.clone().look_after()));
    tasks.spawn(stop.clone().run_until_cancelled_owned(node.clone().watch_majority()));
    tasks.spawn(stop.clone().run_until_cancelled_owned(node.clone().watch_members()));
    say_what_counts(options, &consensus, &identity.cluster_id).await?;
    found_if_due(options, &consensus, &identity.cluster_id, *founder).await?;
    Ok((node, witnessing, fatal_received))
}

async fn find_place(
    options: &ServeOptions,
    plan: &Plan,
    app: &App,
    written: &mut Option<oneshot::Sender<()>>,
) -> Result<Place, FormationError> {
    let handed = app.handed_over();
    let handed = async {
        match handed.await {
            Ok(HandedOver { cluster_id, written: tell }) => {
                *written = Some(tell);
                cluster_id
            }
            Err(_) => std::future::pending().await,
        }
    };
    let here = options.advertise.as_ref().unwrap_or(&options.listen);
    let waits = |what: &str| app.waits_for(what);
    formation::find_place(options.node_id, here, plan, &options.access, handed, waits).await
}

/// Reports settings that no longer count, and what an operator must do about a
/// node that waits.
async fn say_what_counts(
    options: &ServeOptions,
    consensus: &Consensus,
    cluster_id: &str,
) -> Result<(), ServeError> {
    let founded = consensus.is_founded().await.map_err(ServeError::Fatal)?;
    let node = options.node_id;
    match &options.plan {
        Some(plan) if founded => tracing::info!(
            "{} is ignored: the data folder belongs to cluster {cluster_id} already, whose log knows its nodes (`holdfast node list`)",
            plan.flag()
        ),
        Some(Plan::Join { known }) => {
            let (store, address) = (known.join(","), options.advertise.as_deref());
            let address = address.unwrap_or(&options.listen);
            tracing::info!(
                "waiting to be added: `holdfast --store {store} node add {node} {address}`, then `holdfast --store {store} node promote {node}`; or in the place of a lost node: `holdfast --store {store} node replace OLD {node} {address}`"
            );
        }
        Some(Plan::Found { .. }) | None => {}
    }
    let known = consensus.view().nodes.remove(&node);
    if let (Some(known), Some(advertised)) = (known, &options.advertise)
        && known != *advertised
    {
        tracing::warn!(
            "the others know this node as {known} and go on connecting there, not to {advertised}: a node's address stays; start with --advertise {known}, or replace this node by a new one: `holdfast node replace {node} NEW-ID {advertised}`"
        );
    }
    Ok(())
}

/// Makes the cluster's first entry, if this node founds it and has not done so
/// before.
async fn found_if_due(
    options: &ServeOptions,
    consensus: &Consensus,
    cluster_id: &str,
    founder: bool,
) -> Result<(), ServeError> {
    let Some(Plan::Found { initial }) = &options.plan else { return Ok(()) };
    let lowest = initial.keys().next() == Some(&options.node_id);
    if !lowest || consensus.is_founded().await.map_err(ServeError::Fatal)? {
        return Ok(());
    }
    if !founder {
        resume_founding(options, initial, cluster_id).await?;
    }
    tracing::info!(cluster = cluster_id, nodes = %formation::written(initial), "founding the cluster");
    consensus.found(initial).await.map_err(ServeError::Fatal)
}

/// A founding interrupted between the id and the first entry continues here,
/// unless the others have a history that this disk has lost.
async fn resume_founding(
    options: &ServeOptions,
    initial: &BTreeMap<NodeId, String>,
    cluster_id: &str,
) -> Result<(), ServeError> {
    let (node, access) = (options.node_id, &options.access);
    let mut waiting = Recurring::repeating();
    loop {
        let others = formation::ask_others(node, initial, access).await;
        if let Some((id, other)) = others.iter().find(|(_, other)| !other.members.is_empty()) {
            let (cluster_id, ask) = (cluster_id.to_owned(), initial[id].clone());
            let (address, new_id) = (initial[&node].clone(), other.unused_id());
            let lost = FormationError::DiskLost { node, cluster_id, address, ask, new_id };
            return Err(lost.into());
        }
        match formation::hand_over(node, initial, cluster_id, access).await {
            Ok(()) => return Ok(()),
            Err(why) if waiting.met(&why, Instant::now()) => {
                tracing::info!("the founding of the cluster waits: {why}");
            }
            Err(_) => {}
        }
        tokio::time::sleep(FOUNDING_PAUSE).await;
    }
}

/// Returns when the node is asked to stop, or why it cannot go on.
async fn watch_over(
    started: &mut Started,
    initial: &BTreeMap<NodeId, String>,
    signals: &mut Signals,
) -> Result<(), ServeError> {
    let Started { node, storage, witnessing, fatal, serving } = started;
    let log = storage.log();
    let error = tokio::select! {
        () = signals.received() => return Ok(()),
        Some(why) = fatal.recv() => ServeError::Fatal(why),
        why = log_failed(&log) => ServeError::Fatal(why),
        why = http::accept::ended(serving) => ServeError::AcceptsNobody(why),
        why = node.consensus().stopped() => {
            // The log's own error is more precise than that of consensus.
            let failure = log.failure().borrow().as_ref().map(ToString::to_string);
            ServeError::Fatal(failure.unwrap_or(why))
        }
        why = mark_formed(node.consensus(), storage) => ServeError::Fatal(why),
        error = node.cast_out(initial, witnessing.as_ref()) => ServeError::Fatal(error.to_string()),
    };
    tracing::error!("this node stops: {error}");
    Err(error)
}

async fn log_failed(log: &Log) -> String {
    let mut failure = log.failure();
    let failed = failure.wait_for(Option::is_some).await.ok();
    match failed.and_then(|failure| failure.as_ref().map(ToString::to_string)) {
        Some(why) => why,
        None => std::future::pending().await,
    }
}

/// Records on the disk that this node has taken part in its cluster: an empty log
/// is a lost one from then on. Returns only on failure.
async fn mark_formed(consensus: &Consensus, storage: &mut Storage) -> String {
    let (say, mut said) = mpsc::channel(1);
    let watching = consensus.watch(move |view| {
        if !view.nodes.is_empty() {
            let _ = say.try_send(());
        }
    });
    tokio::select! {
        () = watching => {}
        _ = said.recv() => {}
    }
    match storage.mark_formed().await {
        Ok(()) => std::future::pending().await,
        Err(error) => error.to_string(),
    }
}

/// Hands over, drains, stops. A second signal interrupts that; the storage is
/// closed all the same.
async fn stop_node(
    started: Started,
    cleanly: bool,
    options: &ServeOptions,
    signals: &mut Signals,
    (tasks, stop, accepting): (TaskTracker, CancellationToken, CancellationToken),
) {
    let Started { node, storage, .. } = started;
    let log = storage.log();
    let stopping = async {
        node.drain();
        if cleanly && node.consensus().leads() {
            match node.transfer_leader(None).await {
                Ok(()) => tracing::info!("handed leadership over"),
                Err(problem) => tracing::warn!(%problem, "stopping without handing over"),
            }
        }
        accepting.cancel();
        node.effects().end_all(&node.referral());
        // Clients follow the new leader now; requests under way here may finish.
        tokio::time::sleep(Duration::from_millis(50).min(options.shutdown_grace)).await;
        stop.cancel();
        tasks.close();
        if tokio::time::timeout(TASKS_TIME_MAX, tasks.wait()).await.is_err() {
            tracing::warn!("some connections were cut off");
        }
        node.consensus().stop().await;
        log.close().await;
    };
    let told_again = tokio::select! {
        () = stopping => false,
        () = signals.received() => true,
    };
    if told_again {
        tracing::warn!("received a second stop signal; closing the storage at once");
        if tokio::time::timeout(CLOSE_TIME_MAX, log.close()).await.is_err() {
            die();
        }
    }
    drop(storage);
    tracing::info!("stopped");
}

/// Ends the process like a crash, for which the storage is made: what was
/// acknowledged is on the disk. An orderly end would take the database down
/// while its writer is still at work.
fn die() {
    tracing::error!("the disk has not finished the last writes; ending without them");
    if let Err(error) = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL) {
        tracing::error!(%error, "cannot end");
    }
}
