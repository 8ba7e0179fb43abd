//! Linearizable reads: one ReadIndex round for all waiting reads.

use std::time::Duration;

use holdfast_api::{Code, Problem};

use super::tenant::Tenant;
use super::tenant::queue::{self, Refused};
use crate::raft::Consensus;

/// Most reads waiting for a round; more are refused as `overloaded`.
pub(crate) const QUEUE_MAX: usize = 32_768;

/// Cost of the reads of a round after which it takes no more: those of other tenants are
/// in the next one.
const ROUND_COST_MAX: u64 = 32 * 1024;

/// Longest time for a round; a leader without a quorum gives up then.
const ROUND_TIME_MAX: Duration = Duration::from_secs(2);

/// Called once: the applied state may be read now, or the error.
pub type Ready = Box<dyn FnOnce(Result<(), Problem>) + Send>;

/// Queues reads for the reader. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Reader {
    queue: queue::Sender<(u64, Ready)>,
}

impl Reader {
    /// A reader and its task, which runs until all handles are dropped.
    pub(crate) fn new(consensus: Consensus) -> (Reader, impl Future<Output = ()> + Send) {
        let (queue, waiting) = queue::channel(QUEUE_MAX);
        (Reader { queue }, run(consensus, waiting))
    }

    /// Queues a read of a tenant that looks at so many keys. Never blocks.
    pub(crate) fn submit(&self, tenant: Tenant, cost: u64, ready: Ready) {
        let ((_, ready), problem) = match self.queue.try_send(tenant, cost, (cost, ready)) {
            Ok(()) => return,
            Err(Refused::Full(ready)) => (ready, Problem::overloaded("too many reads are waiting")),
            Err(Refused::Closed(ready)) => {
                (ready, Problem::retryable(Code::Unavailable, "this node is stopping"))
            }
        };
        ready(Err(problem));
    }
}

async fn run(consensus: Consensus, mut waiting: queue::Receiver<(u64, Ready)>) {
    let mut batch = Vec::new();
    while let Some((mut cost, first)) = waiting.recv().await {
        batch.push(first);
        while cost < ROUND_COST_MAX && batch.len() < QUEUE_MAX {
            let Some((more, next)) = waiting.try_recv() else { break };
            cost += more;
            batch.push(next);
        }
        let round = tokio::time::timeout(ROUND_TIME_MAX, consensus.linearize()).await;
        let result = round.unwrap_or_else(|_| {
            Err(Problem::retryable(Code::Unavailable, "no quorum confirmed this leader; retry"))
        });
        for ready in batch.drain(..) {
            ready(result.clone());
        }
        tokio::task::yield_now().await;
    }
}
