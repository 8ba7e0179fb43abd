//! Reads: linearizable, or of this node's own state.

use holdfast_api::{Code, Problem, Read, ReadAnswer, ReadOutcome};
use tokio::sync::oneshot;

use super::Node;
use super::scans::{is_many, is_scan, looks_at};
use super::tenant::Tenant;
use crate::raft::SharedState;
use crate::storage::offload::at_length;

impl Node {
    /// Answers a read; `done` gets the answer. Never blocks.
    pub(super) fn submit_read(
        &self,
        read: Read,
        stale: bool,
        done: impl FnOnce(Result<ReadAnswer, Problem>) + Send + 'static,
    ) {
        let state = self.inner.state.clone();
        let machine = self.machine();
        let (tenant, cost) = (Tenant::of_read(&machine, &read), looks_at(&machine, &read));
        drop(machine);
        if is_scan(&read) {
            let scan = move |ready: Result<(), Problem>| {
                done(ready.map(|()| {
                    // A copy: applying does not wait for this thread.
                    let machine = state.read().machine.clone();
                    machine.read(&read)
                }));
            };
            let (scans, whose) = (self.inner.scans.clone(), tenant.clone());
            return self.when_ready(stale, tenant, 1, move |ready| match ready {
                Ok(()) => scans.submit(whose, Box::new(scan)),
                Err(problem) => scan(Err(problem)),
            });
        }
        self.when_ready(stale, tenant, cost, move |ready| {
            done(ready.map(|()| read_now(&state, &read)));
        });
    }

    /// Answers a read from the state as it is.
    pub(crate) fn read_now(&self, read: &Read) -> ReadAnswer {
        read_now(&self.inner.state, read)
    }

    /// Calls back once the applied state is linearizable; `stale`: at once.
    fn when_ready(
        &self,
        stale: bool,
        tenant: Tenant,
        cost: u64,
        ready: impl FnOnce(Result<(), Problem>) + Send + 'static,
    ) {
        if stale || (holdfast_api::planted!(FollowerRead) && !self.consensus().leads()) {
            return ready(Ok(()));
        }
        match self.leads_or_refer() {
            Ok(()) => self.inner.reader.submit(tenant, cost, Box::new(ready)),
            Err(problem) => ready(Err(problem)),
        }
    }

    pub(super) async fn read(&self, read: Read, stale: bool) -> Result<ReadAnswer, Problem> {
        let (done, answer) = oneshot::channel();
        self.submit_read(read, stale, |result| drop(done.send(result)));
        let answer = answer.await.unwrap_or_else(|_| {
            Err(Problem::retryable(Code::Unavailable, "this node is stopping; retry elsewhere"))
        })?;
        match answer.outcome {
            ReadOutcome::Refused(refusal) => Err(refusal.into()),
            _ => Ok(answer),
        }
    }

    /// Returns once the applied state is linearizable.
    pub(crate) async fn linearize(&self) -> Result<(), Problem> {
        let (done, ready) = oneshot::channel();
        self.when_ready(false, Tenant::Anybody, 1, |result| drop(done.send(result)));
        ready.await.unwrap_or_else(|_| Err(Problem::not_leader(None)))
    }
}

/// Answers a read from the state as it is. If it looks at many things, neither applying nor other
/// work of this thread waits for it.
fn read_now(state: &SharedState, read: &Read) -> ReadAnswer {
    let state = state.read();
    if !is_many(looks_at(&state.machine, read)) {
        return state.machine.read(read);
    }
    let copy = state.machine.clone();
    drop(state);
    at_length(|| copy.read(read))
}
