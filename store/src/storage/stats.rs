//! Counters of the log writer, for metrics.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    /// Log entries in it.
    pub entries: usize,
    /// Bytes of those entries.
    pub bytes: usize,
    /// Whether it was made durable before its callbacks ran.
    pub synced: bool,
    /// How long the backend took.
    pub took: Duration,
}

type Observer = Box<dyn Fn(&Written) + Send + Sync>;

/// Counters of the log writer; cheap to read at any time.
#[derive(Default)]
pub struct WriteStats {
    /// Batches whose write returned only when they were durable.
    pub syncs: AtomicU64,
    /// Batches that did not wait for the disk.
    unsynced: AtomicU64,
    /// Entries appended. Divided by `syncs` it is the size of a group.
    pub entries: AtomicU64,
    /// Bytes of those entries.
    pub bytes: AtomicU64,
    observer: Option<Observer>,
}

impl WriteStats {
    /// Counters that also pass each batch to `observer`, for instance for a
    /// histogram. It runs on the writer and must not block.
    pub(crate) fn observed(observer: impl Fn(&Written) + Send + Sync + 'static) -> Arc<WriteStats> {
        Arc::new(WriteStats { observer: Some(Box::new(observer)), ..WriteStats::default() })
    }

    pub(super) fn record(&self, written: &Written) {
        if written.synced { &self.syncs } else { &self.unsynced }.fetch_add(1, Relaxed);
        self.entries.fetch_add(written.entries as u64, Relaxed);
        self.bytes.fetch_add(written.bytes as u64, Relaxed);
        if let Some(observer) = &self.observer {
            observer(written);
        }
    }
}

impl fmt::Debug for WriteStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteStats")
            .field("syncs", &self.syncs)
            .field("unsynced", &self.unsynced)
            .field("entries", &self.entries)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
