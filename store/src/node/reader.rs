//! Linearizable reads: one ReadIndex round for all waiting reads.

use std::time::Duration;

use holdfast_api::{Code, Problem};

use super::tenant::Tenant;
use super::tenant::queue::{self, Refused};
use crate::raft::Consensus;

/// Most reads waiting for a round; more are refused as `overloaded`.
pub(crate) const QUEUE_MAX: usize = 32_768;

/// Longest time for a round; a leader without a quorum gives up then.
const ROUND_TIME_MAX: Duration = Duration::from_secs(2);

/// Called once: the applied state may be read now, or the error.
pub type Ready = Box<dyn FnOnce(Result<(), Problem>) + Send>;

/// Queues reads for the reader. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Reader {
    queue: queue::Sender<Ready>,
}

impl Reader {
    /// A reader and its task, which runs until all handles are dropped.
    pub(crate) fn new(consensus: Consensus) -> (Reader, impl Future<Output = ()> + Send) {
        let (queue, waiting) = queue::channel(QUEUE_MAX);
        (Reader { queue }, run(consensus, waiting))
    }

    /// Queues a read of a tenant. Never blocks.
    pub(crate) fn submit(&self, tenant: Tenant, ready: Ready) {
        let (ready, problem) = match self.queue.try_send(tenant, 1, ready) {
            Ok(()) => return,
            Err(Refused::Full(ready)) => (ready, Problem::overloaded("too many reads are waiting")),
            Err(Refused::Closed(ready)) => {
                (ready, Problem::retryable(Code::Unavailable, "this node is stopping"))
            }
        };
        ready(Err(problem));
    }
}

async fn run(consensus: Consensus, mut waiting: queue::Receiver<Ready>) {
    let mut batch = Vec::new();
    while let Some(first) = waiting.recv().await {
        batch.push(first);
        batch.extend(std::iter::from_fn(|| waiting.try_recv()).take(QUEUE_MAX));
        let round = tokio::time::timeout(ROUND_TIME_MAX, consensus.linearize()).await;
        let result = round.unwrap_or_else(|_| {
            Err(Problem::retryable(Code::Unavailable, "no quorum confirmed this leader; retry"))
        });
        for ready in batch.drain(..) {
            ready(result.clone());
        }
    }
}
