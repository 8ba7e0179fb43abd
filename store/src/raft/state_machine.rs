//! The replicated state machine as the consensus library drives it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use holdfast_api::Answer;
use holdfast_machine::{Effect, FEATURE_LEVEL, Machine};
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use openraft::{OptionalSend, RaftSnapshotBuilder};
use parking_lot::RwLock;
use tokio::time::Instant;

use super::convert;
use super::types::{
    Done, LogId, RaftEntry, RaftPayload, Snapshot, SnapshotMeta, StoredMembership, TypeConfig,
};
use crate::storage::offload::{Offload, at_length};
use crate::storage::record::SnapshotMetaRecord;
use crate::storage::{SnapshotFile, SnapshotStore, StorageError};

/// Entries applied under one lock.
const APPLY_CHUNK: usize = 64;

/// Time after which no further entry is applied under that lock: then readers
/// have their turn, and the thread's other work, such as heartbeats.
const APPLY_TIME: Duration = Duration::from_millis(5);

/// How often it is looked whether what was applied has been performed.
const SINK_LOOK_EVERY: Duration = Duration::from_millis(1);

/// Bytes of entries whose applying may take long.
const LONG_BYTES_MIN: usize = 256 * 1024;

/// Performs what applying entries asks for.
pub trait EffectSink: Send + Sync + 'static {
    /// Effects of entries, in log order. Called outside the lock, before the
    /// next entries are applied; must not block.
    fn applied(&self, effects: Vec<Effect>);

    /// Whether so much is still to be performed that nothing more is to be applied.
    fn is_far_behind(&self) -> bool {
        false
    }

    /// The whole state was replaced.
    fn installed(&self);
}

/// The state and the last entry in it; one image.
#[derive(Clone, Default)]
pub struct AppliedState {
    /// The state after the last entry.
    pub machine: Machine,
    /// The last entry in it.
    pub last: Option<LogId>,
    /// The last membership in it.
    pub membership: StoredMembership,
}

impl AppliedState {
    /// Term and node of the leader that made the last entry in it. A term may have
    /// one leader after another.
    pub fn leader(&self) -> Option<(u64, u64)> {
        self.last.as_ref().map(|id| (id.leader_id.term, id.leader_id.node_id))
    }

    fn meta(&self) -> SnapshotMetaRecord {
        SnapshotMetaRecord {
            last: self.last.as_ref().map(Into::into),
            membership: (&self.membership).into(),
        }
    }
}

/// The state that all readers use.
pub type SharedState = Arc<RwLock<AppliedState>>;

/// Applies committed entries, makes and installs snapshots.
pub struct StateMachine {
    state: SharedState,
    snapshots: SnapshotStore,
    sink: Arc<dyn EffectSink>,
}

/// Reads a snapshot's state. Blocks.
fn decode(file: &SnapshotFile) -> Result<AppliedState, StorageError> {
    let machine = file.decode()?;
    let SnapshotMeta { last_log_id, last_membership } = convert::snapshot(file.clone())?.meta;
    Ok(AppliedState { machine, last: last_log_id, membership: last_membership })
}

impl StateMachine {
    /// The state of the newest snapshot. If that is damaged and the log still holds
    /// everything, the snapshot is set aside and the state begins empty; the log
    /// rebuilds it.
    pub async fn open(
        snapshots: SnapshotStore,
        sink: Arc<dyn EffectSink>,
    ) -> Result<StateMachine, StorageError> {
        let state = match snapshots.newest() {
            None => AppliedState::default(),
            Some(file) => match snapshots.offload().run(move || decode(&file)).await? {
                Ok(state) => state,
                Err(error) => {
                    snapshots.set_newest_aside(error)?;
                    AppliedState::default()
                }
            },
        };
        Ok(StateMachine { state: Arc::new(RwLock::new(state)), snapshots, sink })
    }

    /// The state, readable at any time.
    pub fn state(&self) -> SharedState {
        Arc::clone(&self.state)
    }

    /// The snapshots it makes.
    pub fn snapshots(&self) -> SnapshotStore {
        self.snapshots.clone()
    }

    fn offload(&self) -> Offload {
        self.snapshots.offload()
    }

    /// Applies entries of a chunk under one lock, as many as the time allows, then
    /// answers. Entries before one that cannot be applied are applied and answered,
    /// too.
    fn apply_some(&self, chunk: &mut Chunk) -> Result<(), io::Error> {
        let mut applied = Applied::default();
        let mut state = self.state.write();
        let result = state.apply_some(chunk, &mut applied);
        state.check_level()?;
        drop(state);
        self.tell(applied);
        result
    }

    /// The same for long entries, on a copy beside the shared state: none waits for
    /// the lock or the thread.
    fn apply_long(&self, chunk: &mut Chunk) -> Result<(), io::Error> {
        at_length(|| {
            let mut applied = Applied::default();
            let mut state = self.state.read().clone();
            let result = state.apply_some(chunk, &mut applied);
            state.check_level()?;
            let before = std::mem::replace(&mut *self.state.write(), state);
            applied.garbage.push(Box::new(before));
            self.tell(applied);
            result
        })
    }

    fn tell(&self, applied: Applied) {
        let Applied { effects, garbage, answers } = applied;
        if !effects.is_empty() {
            self.sink.applied(effects);
        }
        for (answers, done, responder) in answers {
            if let Some(done) = done {
                done.tell(Ok(answers));
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        if !garbage.is_empty() {
            self.offload().discard(garbage);
        }
    }
}

/// Entries to be applied.
type Chunk = VecDeque<Result<EntryResponder<TypeConfig>, io::Error>>;

/// Results of applied entries.
#[derive(Default)]
struct Applied {
    effects: Vec<Effect>,
    /// Values that take long to drop.
    garbage: Vec<Box<dyn Send>>,
    answers: Vec<Answered>,
}

/// The answers to an entry's commands, and their receiver.
type Answered = (Vec<Answer>, Option<Done>, Option<ApplyResponder<TypeConfig>>);

fn bytes(entry: &RaftEntry) -> usize {
    match &entry.payload {
        RaftPayload::Normal(entry) => entry.encoded().len(),
        RaftPayload::Blank | RaftPayload::Membership(_) => 0,
    }
}

/// Changes made by an entry.
enum Change {
    Nothing,
    Entry(holdfast_api::Entry),
    Membership(StoredMembership),
}

/// A decoded entry, so that nothing can fail under the lock.
struct Prepared {
    id: LogId,
    change: Change,
    done: Option<Done>,
    responder: Option<ApplyResponder<TypeConfig>>,
}

impl Prepared {
    fn new((entry, responder): EntryResponder<TypeConfig>) -> Result<Prepared, io::Error> {
        let id = entry.log_id;
        let mut done = None;
        let change = match entry.payload {
            RaftPayload::Blank => Change::Nothing,
            RaftPayload::Normal(entry) => {
                done = entry.take_done();
                Change::Entry(entry.take().map_err(|error| {
                    io::Error::other(format!(
                        "log entry {} cannot be read: {error}; install the version of \
                         holdfast-store that the other nodes run",
                        id.index
                    ))
                })?)
            }
            RaftPayload::Membership(membership) => {
                Change::Membership(StoredMembership::new(Some(id), membership))
            }
        };
        Ok(Prepared { id, change, done, responder })
    }
}

impl AppliedState {
    fn apply_some(&mut self, chunk: &mut Chunk, applied: &mut Applied) -> Result<(), io::Error> {
        let begun = Instant::now();
        let mut unreadable = Ok(());
        while let Some(item) = chunk.pop_front() {
            match item.and_then(Prepared::new) {
                Ok(Prepared { id, change, done, responder }) => {
                    let Applied { effects, garbage, answers } = applied;
                    answers.push((self.apply(id, change, effects, garbage), done, responder));
                }
                Err(error) => {
                    unreadable = Err(error);
                    // What follows is dropped, and its waiters are notified.
                    chunk.clear();
                }
            }
            if begun.elapsed() >= APPLY_TIME {
                break;
            }
        }
        unreadable
    }

    /// Nothing applied under rules that this version does not know is sent to
    /// anybody.
    fn check_level(&self) -> Result<(), io::Error> {
        let Some(level) = self.machine.unsupported_level() else { return Ok(()) };
        Err(io::Error::other(format!(
            "the cluster is at feature level {level}, this version of holdfast-store knows \
             {FEATURE_LEVEL}: install the version that the other nodes run"
        )))
    }

    fn apply(
        &mut self,
        id: LogId,
        change: Change,
        effects: &mut Vec<Effect>,
        garbage: &mut Vec<Box<dyn Send>>,
    ) -> Vec<Answer> {
        self.last = Some(id);
        match change {
            Change::Nothing => Vec::new(),
            Change::Membership(membership) => {
                self.membership = membership;
                Vec::new()
            }
            Change::Entry(entry) => {
                let applied = self.machine.apply(&entry);
                effects.extend(applied.effects);
                garbage.extend(applied.garbage);
                applied.answers
            }
        }
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let state = self.state.read();
        Ok((state.last, state.membership.clone()))
    }

    async fn apply<S>(&mut self, entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut chunks = entries.ready_chunks(APPLY_CHUNK);
        while let Some(chunk) = chunks.next().await {
            let mut chunk = VecDeque::from(chunk);
            while !chunk.is_empty() {
                let bytes: usize = chunk.iter().flatten().map(|(entry, _)| bytes(entry)).sum();
                if bytes < LONG_BYTES_MIN {
                    self.apply_some(&mut chunk)?;
                } else {
                    self.apply_long(&mut chunk)?;
                }
                tokio::task::yield_now().await;
                while self.sink.is_far_behind() {
                    tokio::time::sleep(SINK_LOOK_EVERY).await;
                }
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let state = self.state.read().clone();
        Builder { state: Some(state), snapshots: self.snapshots.clone() }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotFile,
    ) -> Result<(), io::Error> {
        if *snapshot.meta() != SnapshotMetaRecord::from(meta) {
            return Err(io::Error::other("the snapshot covers not what its sender says"));
        }
        let snapshots = self.snapshots.clone();
        let install = move || {
            let state = decode(&snapshot)?;
            holdfast_api::crash_point!(before SnapshotInstall);
            snapshots.publish(&snapshot)?;
            holdfast_api::crash_point!(after SnapshotInstall);
            Ok::<_, StorageError>(state)
        };
        let state = self.offload().run(install).await??;
        let old = std::mem::replace(&mut *self.state.write(), state);
        self.offload().discard(old);
        self.sink.installed();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        Ok(self.snapshots.newest().map(convert::snapshot).transpose()?)
    }
}

/// Makes a snapshot of the state as of the builder's creation.
pub struct Builder {
    state: Option<AppliedState>,
    snapshots: SnapshotStore,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let state = self.state.take();
        let state = state.ok_or_else(|| io::Error::other("a builder makes one snapshot"))?;
        let snapshots = self.snapshots.clone();
        // The clone is dropped on that thread too.
        let write = move || snapshots.write(&state.meta(), |out| state.machine.encode(out));
        let file = match self.snapshots.offload().run_slowly(write).await? {
            // This loses nothing: the log that it would have covered is kept.
            Err(error @ StorageError::Full { .. }) => {
                tracing::warn!(%error, "cannot make a snapshot; the previous one and the log are kept");
                let nothing = AppliedState::default();
                let none =
                    || self.snapshots.draft(&nothing.meta(), |out| nothing.machine.encode(out));
                // The library wants a snapshot. One that covers no entry drops none.
                self.snapshots.newest().map_or_else(none, Ok)?
            }
            made => made?,
        };
        Ok(convert::snapshot(file)?)
    }
}
