//! One client of a workload.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use holdfast_api::{NodeId, Scope};
use holdfast_client::Credentials;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;

use super::Workload;
use super::agents::Agents;
use super::door::Door;
use crate::cluster::system::System;
use crate::operation::{Action, Outcome};
use crate::recording::ClientFile;
use crate::run::ClientDescription;

/// Pause of a client after a refused call.
const AFTER_REFUSAL: Duration = Duration::from_millis(100);

/// Bound on the final calls on one key.
const FINAL_TIME_MAX: Duration = Duration::from_secs(40);

/// Between two kills of clients; most hit between two calls.
const BETWEEN_KILLS: Duration = Duration::from_millis(20);
/// Bound on all kills of one fault.
const KILLS_TIME_MAX: Duration = Duration::from_secs(2);

/// State that all clients of a run share.
#[derive(Debug)]
pub struct Shared {
    /// Set when no new calls are to be made.
    stop: AtomicBool,
    /// Operations that may still be made, if they are counted.
    left: AtomicI64,
    /// Whether operations are counted.
    counted: bool,
    /// Sends a new number when clients are killed.
    kills: watch::Sender<u64>,
    /// Operations by what is known of them.
    pub ok: AtomicU64,
    /// See [`Shared::ok`].
    pub refused: AtomicU64,
    /// See [`Shared::ok`].
    pub unknown: AtomicU64,
    /// Clients that were killed.
    pub killed: AtomicU64,
    next_element: AtomicU64,
    keys: Mutex<BTreeSet<(&'static str, String)>>,
    calls: Mutex<BTreeMap<String, u64>>,
    guarded: Mutex<Guarded>,
    addresses: Mutex<Vec<String>>,
    /// Keys that a client waits for.
    wanted: Mutex<VecDeque<String>>,
    /// Newest revision of an acknowledged write that watches must deliver.
    written: AtomicU64,
    /// The agents of the run, if it has some.
    pub agents: Agents,
}

/// A file that takes writes with tokens, and none with one that is older than
/// the latest.
#[derive(Debug)]
struct Guarded {
    file: File,
    latest: u64,
}

impl Shared {
    /// For a run into this folder, with this bound on operations if they are counted.
    pub fn new(folder: &Path, operations: Option<u64>) -> anyhow::Result<Arc<Shared>> {
        let path = folder.join("guarded.txt");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let left = operations.unwrap_or_default();
        Ok(Arc::new(Shared {
            stop: AtomicBool::new(false),
            left: AtomicI64::new(i64::try_from(left).context("so many operations")?),
            counted: operations.is_some(),
            kills: watch::channel(0).0,
            ok: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            killed: AtomicU64::new(0),
            next_element: AtomicU64::new(1),
            keys: Mutex::new(BTreeSet::new()),
            calls: Mutex::new(BTreeMap::new()),
            guarded: Mutex::new(Guarded { file, latest: 0 }),
            addresses: Mutex::new(Vec::new()),
            wanted: Mutex::new(VecDeque::new()),
            written: AtomicU64::new(0),
            agents: Agents::default(),
        }))
    }

    /// No new calls from here on.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Whether no new calls are to be made.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::SeqCst) || (self.counted && self.left.load(Ordering::SeqCst) <= 0)
    }

    /// Kills every other client that is in the middle of a call; each comes back as
    /// a new one.
    fn kill_clients(&self) {
        self.kills.send_modify(|number| *number += 1);
    }

    /// Kills clients in the middle of their calls, one half and the other in turns,
    /// until half of them have lost a call or the time is over; answers how many did.
    pub async fn kill_half(&self) -> u64 {
        let before = self.killed.load(Ordering::Relaxed);
        let half = self.kills.receiver_count().div_ceil(2) as u64;
        let began = tokio::time::Instant::now();
        loop {
            self.kill_clients();
            tokio::time::sleep(BETWEEN_KILLS).await;
            let killed = self.killed.load(Ordering::Relaxed) - before;
            if killed >= half || began.elapsed() > KILLS_TIME_MAX {
                return killed;
            }
        }
    }

    /// Number of operations so far.
    pub fn operations(&self) -> u64 {
        [&self.ok, &self.refused, &self.unknown].iter().map(|it| it.load(Ordering::Relaxed)).sum()
    }

    /// Sets the nodes' addresses from here on.
    pub fn set_addresses(&self, addresses: Vec<String>) {
        *self.addresses.lock() = addresses;
    }

    /// Addresses of the nodes.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.addresses.lock().clone()
    }

    /// Somebody is about to wait for a key.
    pub(super) fn want(&self, key: String) {
        self.wanted.lock().push_back(key);
    }

    /// A key that a client waits for, to be set.
    pub(super) fn wanted(&self) -> Option<String> {
        self.wanted.lock().pop_front()
    }

    /// Notes a write that watches must deliver, if it was acknowledged.
    pub(super) fn note_written(&self, outcome: &Outcome) {
        if let Outcome::Ok { revision: Some(revision), .. } = outcome {
            self.written.fetch_max(*revision, Ordering::SeqCst);
        }
    }

    /// Newest revision noted so.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// A text that is unique in the run.
    pub(super) fn element(&self) -> String {
        format!("e{}", self.next_element.fetch_add(1, Ordering::Relaxed))
    }

    /// The calls that each client has written down.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        self.calls.lock().clone()
    }

    /// All keys that a workload has used.
    pub(super) fn keys_of(&self, workload: Workload) -> Vec<String> {
        let keys = self.keys.lock();
        let own = keys.iter().filter(|(name, _)| *name == workload.as_str());
        own.map(|(_, key)| key.clone()).collect()
    }

    /// Offers a write to the guarded file; answers whether it was taken.
    pub(super) fn guarded_write(&self, token: u64, text: &str) -> std::io::Result<bool> {
        let mut guarded = self.guarded.lock();
        if token < guarded.latest {
            return Ok(false);
        }
        guarded.latest = token;
        writeln!(guarded.file, "{token} {text}")?;
        Ok(true)
    }
}

/// Where clients find the cluster.
#[derive(Debug, Clone)]
pub struct Site {
    /// Job and run that the keys belong to.
    pub scope: Scope,
    /// The folder of the recording.
    pub folder: std::path::PathBuf,
    /// Between two calls of one client.
    pub pause: Duration,
    /// The token, if the cluster asks for one, and how TLS is spoken, if it is.
    pub credentials: Credentials,
    /// Where clients of the whole cluster find it; empty = at all its nodes.
    pub endpoints: Vec<String>,
    /// What it is a cluster of.
    pub system: System,
}

/// How clients of a kind reach what they work on.
pub trait Way: Sized + Send {
    /// The class of a client in figures; it may be bound to a node.
    fn class(bound: Option<usize>) -> &'static str;

    /// Opens a new door, for the client of this number.
    fn open(client: usize, bound: Option<usize>, site: &Site, shared: &Shared) -> Self;

    /// A new connection and a new session in the place of those that it has.
    fn reopen(&mut self, client: usize, bound: Option<usize>, site: &Site, shared: &Shared);

    /// Whether the place that it leads to is gone for ever.
    fn is_gone(&self, shared: &Shared) -> bool;

    /// The next few calls.
    fn step(worker: &mut Worker<Self>) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Reads a key at the end, until it is read.
    fn last_look(
        worker: &mut Worker<Self>,
        key: &str,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Ends it in good order.
    fn close(worker: &mut Worker<Self>) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// One client: a task of its own.
#[derive(Debug)]
pub struct Worker<D = Door> {
    /// Its description in the report.
    pub description: ClientDescription,
    pub(super) workload: Workload,
    pub(super) place: usize,
    /// The node that it is bound to, by its place among all.
    bound: Option<usize>,
    pub(super) door: D,
    pub(super) site: Site,
    pub(super) shared: Arc<Shared>,
    pub(super) random: StdRng,
    file: ClientFile,
    kills: watch::Receiver<u64>,
    is_final: bool,
    /// Set when its session or watch is to be made anew.
    pub(super) fresh: bool,
}

impl<D: Way> Worker<D> {
    /// The client with this number among those of its workload.
    pub fn new(
        workload: Workload,
        place: usize,
        bound: Option<usize>,
        site: &Site,
        shared: &Arc<Shared>,
        seed: u64,
    ) -> anyhow::Result<Worker<D>> {
        let name = format!("{}-{place}", workload.as_str());
        Worker::make(workload, place, bound, site, shared, seed, name, D::class(bound))
    }

    /// The client that makes the final reads of a workload, under the leader's node if it
    /// is known.
    pub fn last(
        workload: Workload,
        site: &Site,
        shared: &Arc<Shared>,
        under: Option<NodeId>,
    ) -> anyhow::Result<Worker<D>> {
        let under = under.map_or_else(String::new, |id| format!("-{id}"));
        let name = format!("{}-final{under}", workload.as_str());
        let mut worker = Worker::make(workload, 0, None, site, shared, 0, name, "final")?;
        worker.is_final = true;
        Ok(worker)
    }

    #[expect(clippy::too_many_arguments, reason = "the two above are its only callers")]
    fn make(
        workload: Workload,
        place: usize,
        bound: Option<usize>,
        site: &Site,
        shared: &Arc<Shared>,
        seed: u64,
        name: String,
        class: &str,
    ) -> anyhow::Result<Worker<D>> {
        let file = ClientFile::create(&site.folder, &name)
            .with_context(|| format!("cannot record in {}", site.folder.display()))?;
        shared.calls.lock().insert(name.clone(), 0);
        let description = ClientDescription {
            name,
            workload: workload.as_str().to_owned(),
            class: class.to_owned(),
        };
        Ok(Worker {
            description,
            workload,
            place,
            bound,
            door: D::open(place, bound, site, shared),
            site: site.clone(),
            shared: shared.clone(),
            random: StdRng::seed_from_u64(seed ^ ((place as u64) << 8) ^ ((workload as u64) << 40)),
            file,
            kills: shared.kills.subscribe(),
            is_final: false,
            fresh: true,
        })
    }

    /// Calls until no operation is left.
    pub async fn run(mut self) -> anyhow::Result<()> {
        // They do not all call at once.
        let pause = self.site.pause.mul_f64(self.random.random::<f64>());
        tokio::time::sleep(pause).await;
        while !self.shared.is_over() {
            let began = tokio::time::Instant::now();
            Box::pin(D::step(&mut self)).await?;
            tokio::time::sleep_until(began + self.site.pause).await;
        }
        D::close(&mut self).await
    }

    /// Makes the final reads of its workload.
    pub async fn finish(mut self) -> anyhow::Result<()> {
        let keys = self.shared.keys_of(self.workload);
        for key in keys {
            let reading = Box::pin(D::last_look(&mut self, &key));
            tokio::time::timeout(FINAL_TIME_MAX, reading).await.with_context(|| {
                format!("{key} could not be read at the end within {FINAL_TIME_MAX:?}")
            })??;
        }
        D::close(&mut self).await
    }

    /// Goes on with a new connection and a new session.
    pub(super) fn reopen(&mut self) {
        self.door.reopen(self.place, self.bound, &self.site, &self.shared);
    }

    /// Records a call and its outcome. It ends early if the client is killed during the call.
    pub(super) async fn call(
        &mut self,
        key: &str,
        action: Action,
        run: impl Future<Output = Outcome>,
    ) -> anyhow::Result<Outcome> {
        let id = self.begin(key, action)?;
        // A killed client loses a call in progress, not the next one.
        self.kills.mark_unchanged();
        let outcome = tokio::select! {
            biased;
            outcome = run => outcome,
            () = self.is_killed() => Outcome::Unknown { why: "the client was killed".to_owned() },
        };
        self.end(id, outcome.clone())?;
        if matches!(outcome, Outcome::Refused { .. }) {
            if self.door.is_gone(&self.shared) {
                self.reopen();
            }
            tokio::time::sleep(AFTER_REFUSAL).await;
        }
        Ok(outcome)
    }

    /// Waits until the client is killed; it continues as a new one.
    pub(super) async fn is_killed(&mut self) {
        loop {
            if self.is_final || self.kills.changed().await.is_err() {
                // Without a killer it waits for ever.
                std::future::pending::<()>().await;
            }
            if (*self.kills.borrow_and_update() ^ self.place as u64) & 1 == 0 {
                self.shared.killed.fetch_add(1, Ordering::Relaxed);
                self.reopen();
                self.fresh = true;
                return;
            }
        }
    }

    /// Writes down that a call begins.
    pub(super) fn begin(&mut self, key: &str, action: Action) -> anyhow::Result<u64> {
        self.shared.left.fetch_sub(1, Ordering::Relaxed);
        if !matches!(action, Action::Show { .. }) {
            self.shared.keys.lock().insert((self.workload.as_str(), key.to_owned()));
        }
        let call = self.file.call(self.workload.as_str(), key, action);
        let id = call.context("cannot record a call")?;
        self.shared.calls.lock().insert(self.description.name.clone(), id);
        Ok(id)
    }

    /// Writes down that it has ended.
    pub(super) fn end(&mut self, id: u64, outcome: Outcome) -> anyhow::Result<()> {
        let count = match &outcome {
            Outcome::Ok { .. } => &self.shared.ok,
            Outcome::Refused { .. } => &self.shared.refused,
            Outcome::Unknown { .. } => &self.shared.unknown,
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.file.returned(id, outcome).context("cannot record a return")
    }
}
