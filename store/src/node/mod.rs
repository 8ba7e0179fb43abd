//! The node: answers its connections' requests with consensus and the state
//! machine.
//!
//! | module | holds |
//! | --- | --- |
//! | `acting` | what a caller asks, with its rights |
//! | `membership_check` | a node notices that it was removed, or is in the wrong cluster |
//! | [`clock`] | log time as the leader counts it |
//! | `parking` | how many bytes of waits and watches are parked |
//! | `proposer` | commands packed into log entries |
//! | [`reader`], `reads` | linearizable reads, batched |
//! | [`room`] | room on the disk and in memory, and what is refused without it |
//! | [`scrub`] | the disk, read again and repaired |
//! | [`scans`] | reads that look at many things, on a thread of their own |
//! | [`waits`], `watches`, `feeds` | what is parked here, and what wakes it |
//! | `waiter` | one wait: compared with the state, parked, compared again |
//! | `watcher` | one watch: reads the history at its own pace |
//! | [`effects`] | applying wakes them, or a thread does if they are many |
//! | `gray` | a leader that does not serve hands over |
//! | [`majority`] | which voters answer, and since when others do not |
//! | [`membership`] | nodes added, promoted, removed; leadership handed over |
//! | [`status`] | the cluster as operators see it |
//! | `leader_death` | a dead leader is detected by its closed connections |
//! | `upkeep` | what the leader maintains by itself |
//! | `tenant` | tenants of a node, and how they share it |
//! | [`witness`] | how far other nodes' logs reach |

pub(crate) mod acting;
pub mod clock;
pub mod effects;
pub(crate) mod feeds;
pub(crate) mod gray;
mod leader_death;
pub mod majority;
pub mod membership;
mod membership_check;
pub(crate) mod parking;
mod proposer;
pub mod reader;
mod reads;
pub mod room;
mod sanity;
pub mod scans;
pub mod scrub;
pub mod status;
pub(crate) mod tenant;
mod upkeep;
pub(crate) mod waiter;
pub mod waits;
mod watcher;
pub(crate) mod watches;
pub mod witness;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_api::{
    Answer, Code, Command, LeaderHint, NodeId, Outcome, Problem, Proposal, Refusal, Revision, Size,
};
use holdfast_machine::Machine;
use parking_lot::{MappedRwLockReadGuard, Mutex, RwLockReadGuard};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Access;
pub use crate::raft::View;
use crate::raft::{AppliedState, Consensus, SharedState};
use crate::storage::offload::Offload;
pub(crate) use crate::storage::offload::at_length;
use effects::Effects;
use feeds::FeedId;
pub(crate) use feeds::Topic;
use proposer::{Done, Proposer};
use reader::Reader;
use room::{NodeRoom, Reserves};
use sanity::is_for_clients;
use scans::Scans;
use scrub::Scrubs;
use tenant::Tenant;
pub(crate) use waiter::ParkedWait;
pub(crate) use watcher::Watcher;

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A node at work. Cheap to clone.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    id: NodeId,
    cluster_id: String,
    access: Access,
    consensus: Consensus,
    state: SharedState,
    effects: Arc<Effects>,
    proposer: Proposer,
    reader: Reader,
    scans: Arc<Scans>,
    /// Watches that look through many revisions.
    catching_up: tenant::room::Room,
    /// The last document of the cluster's status.
    status: status::Last,
    /// One membership change at a time.
    membership: tokio::sync::Mutex<()>,
    contacts: Mutex<majority::Contacts>,
    room: NodeRoom,
    scrubs: Scrubs,
    /// The last leader that it knew, and its term.
    leader: watch::Sender<Option<(u64, LeaderHint)>>,
    /// Where its tasks are spawned, and what ends them.
    tasks: TaskTracker,
    stop: CancellationToken,
    draining: AtomicBool,
}

/// Parts that a node is made of.
pub(crate) struct Parts {
    /// Id of the node, chosen by the operator, never 0.
    pub id: NodeId,
    /// Id of the cluster that the node belongs to.
    pub cluster_id: String,
    /// How it introduces itself to other nodes.
    pub access: Access,
    /// Log time for which a run is kept after its end, while this node leads.
    pub ended_runs_kept: Duration,
    /// Reserves of disk and memory.
    pub reserves: Reserves,
    /// The node's part in the cluster's consensus.
    pub consensus: Consensus,
    /// The state as this node has applied it, shared with consensus.
    pub state: SharedState,
    /// What applied entries wake.
    pub effects: Arc<Effects>,
    /// Where long work runs.
    pub offload: Offload,
}

/// A parked feed; dropping it forgets the feed.
pub(crate) struct ParkedFeed {
    id: FeedId,
    effects: Arc<Effects>,
}

impl Drop for ParkedFeed {
    fn drop(&mut self) {
        self.effects.feeds().cancel(self.id);
    }
}

impl Node {
    /// Starts the node's own tasks; they end when `stop` is cancelled.
    pub(crate) fn start(parts: Parts, tasks: TaskTracker, stop: CancellationToken) -> Node {
        let Parts { id, cluster_id, access, ended_runs_kept, reserves, .. } = parts;
        let Parts { consensus, state, effects, offload, .. } = parts;
        let (proposer, proposing) =
            Proposer::new(id, consensus.clone(), state.clone(), ended_runs_kept);
        let (reader, reading) = Reader::new(consensus.clone());
        // Log time, expiries and renewals run on consensus's own threads: no load delays
        // them.
        let proposing = stop.clone().run_until_cancelled_owned(proposing);
        tasks.spawn_on(proposing, consensus.threads());
        tasks.spawn(stop.clone().run_until_cancelled_owned(reading));
        let inner = Inner {
            id,
            cluster_id,
            access,
            consensus,
            state,
            effects,
            proposer,
            reader,
            scans: Arc::new(Scans::new(offload)),
            status: status::Last::default(),
            catching_up: tenant::room::Room::new(watcher::CATCHING_UP_MAX),
            membership: tokio::sync::Mutex::default(),
            contacts: Mutex::new(majority::Contacts::new(Instant::now())),
            room: NodeRoom::new(reserves),
            scrubs: Scrubs::default(),
            leader: watch::Sender::default(),
            tasks: tasks.clone(),
            stop: stop.clone(),
            draining: AtomicBool::new(false),
        };
        let node = Node { inner: Arc::new(inner) };
        tasks.spawn(stop.run_until_cancelled_owned(node.clone().watch_leadership()));
        node
    }

    /// Id of this node, from 1.
    pub fn id(&self) -> NodeId {
        self.inner.id
    }

    /// How it introduces itself to other nodes.
    pub fn access(&self) -> &Access {
        &self.inner.access
    }

    /// Id of the cluster that this node belongs to.
    pub fn cluster_id(&self) -> &str {
        &self.inner.cluster_id
    }

    /// This node's part in the cluster's consensus.
    pub fn consensus(&self) -> &Consensus {
        &self.inner.consensus
    }

    /// The applied state, possibly stale; release the lock soon.
    pub fn machine(&self) -> MappedRwLockReadGuard<'_, Machine> {
        RwLockReadGuard::map(self.inner.state.read(), |state| &state.machine)
    }

    /// The same, with the last entry applied.
    pub fn applied(&self) -> RwLockReadGuard<'_, AppliedState> {
        self.inner.state.read()
    }

    /// Waits, watches and feeds parked here.
    pub fn effects(&self) -> &Effects {
        &self.inner.effects
    }

    /// Its view of the cluster.
    pub fn view(&self) -> View {
        self.inner.consensus.view()
    }

    /// The leader and its term, now and after each change.
    pub fn leaders(&self) -> watch::Receiver<Option<(u64, LeaderHint)>> {
        self.inner.leader.subscribe()
    }

    /// Its disk and memory.
    pub(crate) fn room(&self) -> &NodeRoom {
        &self.inner.room
    }

    /// Results of reading its disk again.
    pub(crate) fn scrubs(&self) -> &Scrubs {
        &self.inner.scrubs
    }

    /// Makes the node not ready: it is about to stop.
    pub fn drain(&self) {
        self.inner.draining.store(true, Ordering::Release);
    }

    /// Whether it is about to stop.
    pub(crate) fn is_draining(&self) -> bool {
        self.inner.draining.load(Ordering::Acquire)
    }

    /// Commits a command; `done` gets its outcome. Never blocks.
    fn submit(&self, proposal: Proposal, done: Done) {
        let size = proposal.command.size();
        let checked = is_for_clients(&proposal)
            .and_then(|()| self.leads_or_refer())
            .and_then(|()| self.is_known_to_all(&proposal))
            .and_then(|()| self.fits(&size))
            .and_then(|()| self.has_room(&proposal, &size));
        match checked {
            Ok(()) => {
                let tenant = Tenant::of_command(&self.machine(), &proposal.command);
                self.inner.proposer.submit(tenant, proposal, size, done);
            }
            Err(problem) => done(Err(problem)),
        }
    }

    fn has_room(&self, proposal: &Proposal, size: &Size) -> Result<(), Problem> {
        let admitted = self.inner.room.admit(size);
        // A command that was applied before adds nothing.
        let is_answered = |place| self.machine().is_answered(place);
        if admitted.is_err() && proposal.session.as_ref().is_some_and(is_answered) {
            return Ok(());
        }
        admitted
    }

    /// Commits a command. A refusal of the state machine is an answer here.
    async fn propose(&self, proposal: Proposal) -> Result<Answer, Problem> {
        let (done, answer) = oneshot::channel();
        self.submit(proposal, Box::new(|result| drop(done.send(result))));
        answer.await.unwrap_or_else(|_| Err(unheard()))
    }

    /// A command that must not enter the log.
    fn fits(&self, size: &Size) -> Result<(), Problem> {
        let size = size.weight as u64;
        let limit = self.machine().limits().command_bytes_max;
        if size <= limit.saturating_add(proposer::WEIGHT_SLACK) {
            return Ok(());
        }
        let what = "command_bytes_max".to_owned();
        Err(Refusal::LimitExceeded { what, size, limit }.into())
    }

    /// Waits until there is anything of a topic after a revision. `ended` is called
    /// once; read the topic then. Dropping what is returned forgets the wait.
    fn await_feed(
        &self,
        topic: &Topic,
        since: Revision,
        ended: feeds::Ended,
    ) -> Option<ParkedFeed> {
        if let Err(problem) = self.leads_or_refer() {
            ended(Err(problem));
            return None;
        }
        let state = self.inner.state.read();
        if let Err(problem) = self.has_caught_up(&state) {
            ended(Err(problem));
            return None;
        }
        let mut feeds = self.inner.effects.feeds();
        let registered = feeds.register(&state.machine, topic, since, ended);
        drop(feeds);
        drop(state);
        match registered {
            feeds::Registered::Parked(id) => {
                // As with a wait: leadership may be lost before the parking.
                if !self.inner.consensus.leads() {
                    self.inner.effects.feeds().end_all(&self.referral());
                }
                Some(ParkedFeed { id, effects: self.inner.effects.clone() })
            }
            feeds::Registered::Full(ended) => {
                ended(Err(Problem::overloaded(
                    "this lease has too many readers of its feed: its agent needs one, so close the others",
                )));
                None
            }
            feeds::Registered::Ready(ended) => {
                self.inner.reader.submit(topic.tenant(&self.machine()), 1, Box::new(ended));
                None
            }
        }
    }

    /// An error that names the leader, unless this node leads.
    pub(crate) fn leads_or_refer(&self) -> Result<(), Problem> {
        if self.inner.consensus.leads() { Ok(()) } else { Err(self.referral()) }
    }

    /// A new leader may not have applied yet what was acknowledged before its time.
    /// Nothing is parked on a state that old: old changes would wake it.
    fn has_caught_up(&self, state: &AppliedState) -> Result<(), Problem> {
        if state.leader() == Some((self.inner.consensus.leadership().0, self.inner.id)) {
            return Ok(());
        }
        Err(Problem::retryable(Code::Unavailable, "the new leader is still taking over; retry"))
    }

    /// The address to use instead.
    pub(crate) fn referral(&self) -> Problem {
        let view = self.view();
        Problem::not_leader(view.leader.filter(|leader| leader.node != view.id))
    }

    /// All nodes and their addresses.
    pub(crate) fn directory(&self) -> Vec<LeaderHint> {
        let nodes = self.view().nodes.into_iter();
        nodes.map(|(node, address)| LeaderHint { node, address }).collect()
    }

    /// Ends what is parked here when this node stops leading, and reports the leader.
    async fn watch_leadership(self) {
        let consensus = self.inner.consensus.clone();
        let (mut led, mut term, mut known) = (false, 0, None);
        consensus
            .watch(|view| {
                if led && (!view.is_leader() || view.term != term) {
                    self.inner.effects.end_all(&self.referral());
                }
                if let Some(leader) = &view.leader {
                    let now = Some((view.term, leader.clone()));
                    self.inner.leader.send_if_modified(|last| {
                        let is_news = *last != now;
                        *last = now;
                        is_news
                    });
                }
                let leader = view.leader.as_ref().map(|leader| leader.node);
                let leads = view.is_leader();
                match leader {
                    _ if leads && (!led || view.term != term) => {
                        tracing::info!(term = view.term, "this node leads");
                    }
                    Some(leader) if !leads && known != Some((view.term, leader)) => {
                        tracing::info!(term = view.term, leader, "this node follows");
                    }
                    None if led => {
                        tracing::info!(term = view.term, "this node is no longer the leader");
                    }
                    _ => {}
                }
                (led, term) = (leads, view.term);
                known = leader.map(|leader| (term, leader)).or(known);
            })
            .await;
    }

    /// Refuses a command that an older node in the cluster could not read.
    fn is_known_to_all(&self, proposal: &Proposal) -> Result<(), Problem> {
        let needed = proposal.command.facts().level;
        let level = self.machine().feature_level();
        if level >= needed { Ok(()) } else { Err(Refusal::FeatureLevel { level, needed }.into()) }
    }

    /// Proposes a command by this node.
    async fn propose_own(&self, command: Command) -> Result<(), Problem> {
        self.leads_or_refer()?;
        let (done, answer) = oneshot::channel();
        let (size, proposal) = (command.size(), Proposal { session: None, command });
        let done = Box::new(|result| drop(done.send(result)));
        self.inner.proposer.submit(Tenant::Anybody, proposal, size, done);
        let answer = answer.await.unwrap_or_else(|_| Err(unheard()))?;
        match answer.outcome {
            Outcome::Refused(refusal) => Err(refusal.into()),
            _ => Ok(()),
        }
    }
}

/// The outcome of a command is unknown: it may be in the log.
fn unheard() -> Problem {
    Problem::unknown(
        Code::Unavailable,
        "this node stopped while the command was under way; retry in the same session",
    )
}
