//! Reads that look at many things, on a thread of their own with a low priority
//! and on a copy of the state: listings take processor time, and nobody's puts,
//! renewals or heartbeats wait for them. What looks at a few things is no scan,
//! and does not wait for them either.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use holdfast_api::{Code, Problem, Read};
use parking_lot::Mutex;

use super::reader::Ready;
use crate::storage::offload::Offload;

/// Most scans waiting; more are refused as `overloaded`.
pub const QUEUE_MAX: usize = 1_024;

/// Up to so many entries a list is no scan.
const FEW: u64 = 16;

/// How nice the thread is: everybody else goes first.
const NICE: i32 = 10;

/// Whether a read looks at many things.
pub fn is_scan(read: &Read) -> bool {
    let is_long = |limit: u64| limit == 0 || limit > FEW;
    match read {
        Read::Count { prefix, .. } => !prefix.is_empty(),
        Read::Rounds { round, .. } => round.is_none(),
        Read::List { limit, .. } | Read::Processes { limit, .. } | Read::Events { limit, .. } => {
            is_long(*limit)
        }
        Read::Jobs | Read::Runs { .. } | Read::Plan { .. } => true,
        _ => false,
    }
}

/// The thread, started by the first scan; it ends with this.
#[derive(Default)]
pub struct Scans {
    offload: Offload,
    queue: Mutex<Option<SyncSender<Ready>>>,
}

impl Scans {
    /// Scans that are made there.
    pub fn new(offload: Offload) -> Scans {
        Scans { offload, queue: Mutex::default() }
    }

    /// Queues a scan. Never blocks.
    pub fn submit(&self, scan: Ready) {
        if self.offload == Offload::Inline {
            return scan(Ok(()));
        }
        let mut queue = self.queue.lock();
        let sent = match queue.as_ref() {
            Some(queue) => queue.try_send(scan),
            None => Err(TrySendError::Disconnected(scan)),
        };
        let sent = match sent {
            Err(TrySendError::Disconnected(scan)) => match start() {
                Ok(started) => queue.insert(started).try_send(scan),
                Err(error) => {
                    drop(queue);
                    let message = format!("no thread for listings can be started ({error}); retry");
                    return scan(Err(Problem::retryable(Code::Overloaded, message)));
                }
            },
            sent => sent,
        };
        drop(queue);
        if let Err(TrySendError::Full(scan) | TrySendError::Disconnected(scan)) = sent {
            let message = "too many listings are waiting; retry";
            scan(Err(Problem::retryable(Code::Overloaded, message)));
        }
    }
}

fn start() -> std::io::Result<SyncSender<Ready>> {
    let (queue, waiting) = sync_channel(QUEUE_MAX);
    std::thread::Builder::new().name("scans".into()).spawn(move || run(&waiting))?;
    Ok(queue)
}

fn run(waiting: &Receiver<Ready>) {
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "the thread for listings keeps its priority");
    }
    while let Ok(scan) = waiting.recv() {
        // One listing that cannot be made must not end all others.
        if catch_unwind(AssertUnwindSafe(|| scan(Ok(())))).is_err() {
            tracing::error!("a listing failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use holdfast_api::{Blob, Scope};

    use super::*;

    #[test]
    fn what_looks_at_many_things_is_a_scan() {
        let count = |prefix: &str| Read::Count { scope: Scope::default(), prefix: prefix.into() };
        assert!(is_scan(&count("a")) && !is_scan(&count("")));
        let rounds = |round| Read::Rounds { scope: Scope::default(), round, brief: true };
        assert!(is_scan(&rounds(None)) && !is_scan(&rounds(Some(Blob::from("next")))));
        let processes = |limit| Read::Processes { scope: Scope::default(), after: Some(6), limit };
        assert!(is_scan(&processes(0)) && is_scan(&processes(100)) && !is_scan(&processes(1)));
        assert!(!is_scan(&Read::Check { scope: Scope::default(), keys: Vec::new() }));
    }

    #[test]
    fn a_scan_that_panics_takes_no_other_with_it() {
        let scans = Scans::default();
        let (tell, told) = channel();
        scans.submit(Box::new(|_| panic!("as if a listing could not be made")));
        scans.submit(Box::new(move |ready| tell.send(ready).unwrap()));
        assert_eq!(told.recv().unwrap(), Ok(()));
    }

    #[test]
    fn scans_are_made_one_after_the_other_and_those_beyond_the_queue_are_refused() {
        let scans = Scans::default();
        let (begun, has_begun) = channel();
        let (go, may_go) = channel();
        let (tell, told) = channel();
        scans.submit(Box::new(move |ready| {
            begun.send(()).unwrap();
            may_go.recv().unwrap();
            ready.unwrap();
        }));
        has_begun.recv().unwrap();
        for n in 0..=QUEUE_MAX {
            let tell = tell.clone();
            scans.submit(Box::new(move |ready| tell.send((n, ready)).unwrap()));
        }
        let (refused, why) = told.recv().unwrap();
        assert_eq!((refused, why.unwrap_err().code), (QUEUE_MAX, Code::Overloaded));
        go.send(()).unwrap();
        for n in 0..QUEUE_MAX {
            assert_eq!(told.recv().unwrap(), (n, Ok(())));
        }
    }
}
