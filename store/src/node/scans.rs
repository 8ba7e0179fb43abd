//! Reads that look at many things, on a thread of their own with a low priority
//! and on a copy of the state: listings take processor time, and nobody's puts,
//! renewals or heartbeats wait for them.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use holdfast_api::{Code, Problem, Read};

use super::reader::Ready;

/// Most scans waiting; more are refused as `overloaded`.
pub const QUEUE_MAX: usize = 1_024;

/// How nice the thread is: everybody else goes first.
const NICE: i32 = 10;

/// Whether a read looks at many things.
pub fn is_scan(read: &Read) -> bool {
    match read {
        Read::Count { prefix, .. } => !prefix.is_empty(),
        Read::Rounds { round, .. } => round.is_none(),
        Read::List { .. }
        | Read::Jobs
        | Read::Runs { .. }
        | Read::Processes { .. }
        | Read::Events { .. }
        | Read::Plan { .. } => true,
        _ => false,
    }
}

/// The thread, started by the first scan; it ends with this.
#[derive(Default)]
pub struct Scans {
    queue: OnceLock<SyncSender<Ready>>,
}

impl Scans {
    /// Queues a scan. Never blocks.
    pub fn submit(&self, scan: Ready) {
        let (scan, problem) = match self.queue.get_or_init(start).try_send(scan) {
            Ok(()) => return,
            Err(TrySendError::Full(scan)) => {
                (scan, Problem::retryable(Code::Overloaded, "too many listings are waiting; retry"))
            }
            Err(TrySendError::Disconnected(scan)) => {
                let message = "this node has no thread for listings; retry elsewhere";
                (scan, Problem::retryable(Code::Unavailable, message))
            }
        };
        scan(Err(problem));
    }
}

fn start() -> SyncSender<Ready> {
    let (queue, waiting) = sync_channel(QUEUE_MAX);
    let started = std::thread::Builder::new().name("scans".into()).spawn(move || run(&waiting));
    if let Err(error) = started {
        tracing::error!(%error, "cannot start a thread: listings are refused");
    }
    queue
}

fn run(waiting: &Receiver<Ready>) {
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "the thread for listings keeps its priority");
    }
    while let Ok(scan) = waiting.recv() {
        scan(Ok(()));
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
        assert!(!is_scan(&Read::Check { scope: Scope::default(), keys: Vec::new() }));
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
