//! A watch as its consumer sees it.

use std::sync::Arc;

use crate::client::CallGuard;
use crate::error::Error;
use crate::mailbox::{Mailbox, Parcel};
use holdfast_api::{ChangeKind, Revision, WatchBatch};

/// Changes, every one once and in order, across failovers.
///
/// A slow consumer delays no one else and misses nothing: its watch is cut and
/// resumed from where it stopped. If it falls so far behind that the cluster no
/// longer keeps the changes, the watch ends with
/// [`Code::Compacted`](holdfast_api::Code::Compacted). When its run has ended,
/// and every change of it was handed out, it ends with
/// [`Code::Fenced`](holdfast_api::Code::Fenced); the refusal names the run that
/// took its place. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    mailbox: Arc<Mailbox<WatchBatch>>,
    guard: CallGuard,
    seen: Revision,
}

impl Watch {
    pub(crate) fn new(
        mailbox: Arc<Mailbox<WatchBatch>>,
        guard: CallGuard,
        from: Revision,
    ) -> Watch {
        Watch { mailbox, guard, seen: from.saturating_sub(1) }
    }

    /// The next batch; none after the watch has ended. An error is the last
    /// item. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<WatchBatch, Error>> {
        let batch = self.mailbox.next(|| self.guard.has_room()).await?;
        if let Ok(WatchBatch { revision, .. }) = &batch {
            self.seen = *revision;
        }
        Some(batch)
    }

    /// Everything up to this revision was handed out by [`Watch::next`]; a
    /// watch that goes on later starts from the revision after it.
    pub fn revision(&self) -> Revision {
        self.seen
    }
}

impl Parcel for WatchBatch {
    fn bytes(&self) -> usize {
        const OVERHEAD: usize = 128;
        let change = |change: &holdfast_api::Change| {
            let value = match &change.kind {
                ChangeKind::Put { value, .. } => value.len(),
                ChangeKind::Delete | ChangeKind::Push { .. } | ChangeKind::Pop { .. } => 0,
            };
            OVERHEAD + change.key.len() + value
        };
        OVERHEAD + self.changes.iter().map(change).sum::<usize>()
    }
}
