//! When the nodes were making snapshots, seen from outside: by the files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;

const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A span of time in which at least one node was making a snapshot.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// Begin of the span.
    pub from: Instant,
    /// End of the span.
    pub until: Instant,
}

impl Span {
    /// Whether something that lasted from one instant to another touched it.
    pub fn touches(&self, from: Instant, until: Instant) -> bool {
        from <= self.until && until >= self.from
    }
}

/// Looks at the folders of the nodes until it is dropped.
pub struct Lookout {
    stop: Arc<AtomicBool>,
    spans: Arc<Mutex<Vec<Span>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Lookout {
    /// Begins to look at these nodes' data folders.
    pub fn start(data: Vec<PathBuf>) -> Lookout {
        let stop = Arc::new(AtomicBool::new(false));
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let (stopped, noted) = (stop.clone(), spans.clone());
        let thread = std::thread::spawn(move || {
            let mut since = None;
            while !stopped.load(Ordering::Relaxed) {
                let now = Instant::now();
                let making = data.iter().any(|folder| is_making(folder));
                match (making, since) {
                    (true, None) => since = Some(now),
                    (false, Some(from)) => {
                        since = None;
                        let span = Span { from, until: now };
                        noted.lock().unwrap_or_else(PoisonError::into_inner).push(span);
                    }
                    _ => {}
                }
                std::thread::sleep(LOOK_EVERY);
            }
        });
        Lookout { stop, spans, thread: Some(thread) }
    }

    /// The spans that have ended up to now.
    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its result does not matter here.
            drop(thread.join());
        }
    }
}

fn files(data: &Path, extension: &str) -> Vec<PathBuf> {
    let list = std::fs::read_dir(data.join("snapshots")).into_iter().flatten().flatten();
    list.map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect()
}

fn is_making(data: &Path) -> bool {
    !files(data, "part").is_empty()
}

/// Bytes of a node's newest snapshot.
pub fn newest_bytes(data: &Path) -> anyhow::Result<u64> {
    let sizes = files(data, "snap").into_iter().filter_map(|path| {
        let metadata = path.metadata().ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    });
    let (_, bytes) = sizes.max().with_context(|| format!("no snapshot in {}", data.display()))?;
    Ok(bytes)
}
