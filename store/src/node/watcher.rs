//! One watch: reads the history at its own pace.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{Blob, Code, Problem, Refusal, Revision, Scope, WatchBatch};
use holdfast_machine::Machine;

use super::tenant::Tenant;
use super::watches::{Bell, Registration};
use super::{Node, parking, waits};

/// Bytes that a watch counts beyond its prefix: its task and its entry.
const WATCH_BYTES: u64 = 2 * 1024;

/// Revisions that are looked through at a time; a watch that has more of them before it
/// waits for its turn.
const REVISIONS_MAX: u64 = 8 * 1024;

/// Watches that look through many revisions at the same time, each tenant its part.
pub(super) const CATCHING_UP_MAX: u32 = 4;

/// Most changes returned to a watch at a time.
const WATCH_CHANGES_MAX: usize = 1_024;

/// One watch: reads the history at its own pace.
pub(crate) struct Watcher {
    node: Node,
    tenant: Tenant,
    run: holdfast_machine::RunKey,
    /// Whether its client named the run.
    named: bool,
    prefix: Blob,
    next: Revision,
    /// Whether there may be changes from `next` on for which the bell does not ring any more.
    behind: bool,
    registration: Registration,
    _room: parking::Room,
}

impl Node {
    /// Watches the changes of a prefix from a revision on.
    pub(super) fn watch(
        &self,
        scope: &Scope,
        prefix: Blob,
        from: Option<Revision>,
    ) -> Result<Watcher, Problem> {
        self.leads_or_refer()?;
        let state = self.inner.state.read();
        self.has_caught_up(&state)?;
        let machine = &state.machine;
        let run = machine.resolve(scope).map_err(Problem::from)?;
        let limits = machine.limits();
        let (size, limit) = (prefix.len() as u64, limits.key_bytes_max);
        if size > limit {
            let what = "key_bytes_max".to_owned();
            return Err(Refusal::LimitExceeded { what, size, limit }.into());
        }
        let parking = &self.inner.effects.parking;
        let job = Some(&run.job).filter(|job| machine.has_job(job));
        let room = parking.take(job, size + WATCH_BYTES, &limits.budget)?;
        let late = u64::from(holdfast_api::planted!(LateResume));
        let next = from.map_or_else(|| machine.revision() + 1, |from| from + late).max(1);
        drop(state);
        let registration = self.inner.effects.watches().register(run.clone(), prefix.clone());
        Ok(Watcher {
            node: self.clone(),
            tenant: Tenant::of(scope),
            run,
            named: scope.run.is_some(),
            prefix,
            next,
            // Changes before the registration did not ring the bell.
            behind: true,
            registration,
            _room: room,
        })
    }
}

impl Watcher {
    /// The next revisions with changes, whole and in order; waits for them. Without
    /// changes for `quiet`, if it is given, an empty batch that reports progress.
    /// After the last change of an ended run it is an error. What was returned before
    /// counts as handed on. A call that is cancelled loses nothing.
    pub(crate) async fn next(
        &mut self,
        quiet: Option<Duration>,
    ) -> Result<Vec<WatchBatch>, Problem> {
        loop {
            if self.registration.bell.is_ended() || !self.node.inner.consensus.leads() {
                return Err(self.node.referral());
            }
            self.behind |= self.registration.bell.take_stirred();
            if let Some(first) = self.registration.bell.take() {
                if !self.behind {
                    // Nothing lies in between, or the bell would have rung.
                    self.next = self.next.max(first);
                }
                // It does not ring for this again, also if this call is cancelled.
                self.behind = true;
            }
            if !self.behind {
                let heard = self.registration.bell.heard();
                let Some(quiet) = quiet else {
                    heard.await;
                    continue;
                };
                if tokio::time::timeout(quiet, heard).await.is_err()
                    && let Some(progress) = self.progress()
                {
                    return Ok(vec![progress]);
                }
                continue;
            }
            let batches = self.read_history().await?;
            if !batches.is_empty() {
                return Ok(batches);
            }
        }
    }

    /// Wakes it, and tracks its progress.
    pub(crate) fn bell(&self) -> Arc<Bell> {
        self.registration.bell.clone()
    }

    /// Goes back to this revision: later batches were not sent.
    pub(crate) fn rewind(&mut self, to: Revision) {
        self.next = self.next.min(to);
        self.behind = true;
    }

    /// What comes next in the history, or nothing if there is more to look through.
    async fn read_history(&mut self) -> Result<Vec<WatchBatch>, Problem> {
        let node = self.node.clone();
        let machine = node.inner.state.read().machine.clone();
        let is_far = machine.revision().saturating_sub(self.next) >= REVISIONS_MAX;
        if is_far {
            // What is no longer kept is refused at once.
            self.history(&machine, self.next)?;
        }
        drop(machine);
        let _turn = match is_far {
            true => Some(node.inner.catching_up.take(&self.tenant, 1).await),
            false => None,
        };
        if is_far {
            tokio::task::yield_now().await;
        }
        // Nothing may be awaited from here on: what was found would be lost with the call.
        self.look_through()
    }

    fn look_through(&mut self) -> Result<Vec<WatchBatch>, Problem> {
        // A copy: applying does not wait for this.
        let machine = self.node.inner.state.read().machine.clone();
        let last = self.next.saturating_add(REVISIONS_MAX - 1);
        let batches = self.history(&machine, last)?;
        match batches.last() {
            Some(last) => {
                self.next = last.revision + 1;
                self.behind = true;
            }
            None if last < machine.revision() => {
                self.next = last + 1;
                self.behind = true;
            }
            None => {
                match machine.fenced(&self.run) {
                    None => {}
                    Some(Refusal::RunNotFound { .. }) => {
                        return Err(waits::elsewhere(&self.run, self.named));
                    }
                    // Nothing comes any more, and all that came was handed on.
                    Some(refusal) => return Err(refusal.into()),
                }
                self.next = self.next.max(machine.revision() + 1);
                self.behind = false;
            }
        }
        Ok(batches)
    }

    /// The changes from its place up to a revision.
    fn history(&self, machine: &Machine, last: Revision) -> Result<Vec<WatchBatch>, Problem> {
        let (run, prefix) = (&self.run, self.prefix.as_bytes());
        let found = machine.history(run, prefix, self.next..=last, WATCH_CHANGES_MAX);
        found.map_err(|compacted| {
            let message = format!(
                "changes before revision {} are no longer kept; read the keys again and watch from there",
                compacted.oldest
            );
            Problem::refused(Code::Compacted, message)
        })
    }

    /// All revisions up to this one were delivered.
    fn progress(&mut self) -> Option<WatchBatch> {
        // Read the revision first: everything performed up to it has rung the bell.
        let revision = self.node.inner.effects.performed();
        if self.registration.bell.peek() || revision < self.next {
            return None;
        }
        self.next = revision + 1;
        Some(WatchBatch { revision, changes: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures::FutureExt;
    use holdfast_api::{Command, Entry, KvOp, Proposal};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::access::Access;
    use crate::node::Parts;
    use crate::node::effects::Effects;
    use crate::node::room::Reserves;
    use crate::raft::EffectSink;
    use crate::raft::server::tests::started;
    use crate::storage::Storage;
    use crate::storage::offload::Offload;

    const QUIET: Duration = Duration::from_secs(1);

    /// A node that is to lead its cluster of one.
    async fn node(stop: &CancellationToken) -> (Node, Storage) {
        let effects = Arc::new(Effects::new(Offload::Inline));
        let (consensus, state, storage) = started(effects.clone()).await;
        consensus.found(&BTreeMap::from([(1, "127.0.0.1:1".to_owned())])).await.unwrap();
        let parts = Parts {
            id: 1,
            cluster_id: "c".to_owned(),
            access: Access::open(),
            ended_runs_kept: Duration::from_secs(60),
            reserves: Reserves { disk: None, memory: None },
            consensus,
            state,
            effects,
            offload: Offload::Inline,
        };
        (Node::start(parts, TaskTracker::new(), stop.clone()), storage)
    }

    /// Applies so many changes, each a revision of its own.
    fn change(node: &Node, times: u64) {
        for _ in 0..times {
            let op = KvOp::Put { key: Blob::from("k"), value: Blob::from("v") };
            let command = Command::Kv { scope: Scope::default(), op };
            let mut state = node.inner.state.write();
            let time = state.machine.time();
            let commands = vec![Proposal { session: None, command }];
            let applied = state.machine.apply(&Entry { time, commands });
            drop(state);
            node.inner.effects.applied(applied.effects);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_cancelled_while_it_waits_for_its_turn_loses_nothing() {
        let stop = CancellationToken::new();
        let (node, storage) = node(&stop).await;
        change(&node, 1);
        let mut watcher = loop {
            match node.watch(&Scope::default(), Blob::default(), None) {
                Ok(watcher) => break watcher,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        assert!(watcher.next(None).now_or_never().is_none(), "it has seen all");
        let turns = node.inner.catching_up.take(&Tenant::Anybody, CATCHING_UP_MAX).await;
        change(&node, REVISIONS_MAX + 1);
        assert!(watcher.next(None).now_or_never().is_none(), "it waits for its turn");
        drop(turns);
        let mut seen = 0;
        while seen <= REVISIONS_MAX {
            let batches = watcher.next(Some(QUIET)).await.unwrap();
            let is_progress = |batch: &WatchBatch| batch.changes.is_empty();
            assert!(!batches.iter().any(is_progress), "it passes over changes");
            seen += batches.len() as u64;
        }
        assert_eq!(seen, REVISIONS_MAX + 1);
        drop(watcher);
        stop.cancel();
        node.consensus().stop().await;
        drop(node);
        storage.close().await;
    }
}
