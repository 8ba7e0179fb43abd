//! Reads that look at many things, on a thread of their own with a low priority
//! and on a copy of the state: listings take processor time, and no put, renewal
//! or heartbeat waits for them. Tenants are served in turn: a listing waits for
//! one of each other tenant. Small reads are no scans, and do not wait for scans
//! either.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use holdfast_api::{Problem, Read};
use holdfast_machine::Machine;
use parking_lot::Mutex;

use super::reader::Ready;
use super::tenant::Tenant;
use super::tenant::queue::Queue;
use crate::priority;
use crate::storage::offload::Offload;

/// Most scans waiting; more are refused as `overloaded`.
pub(crate) const QUEUE_MAX: usize = 1_024;

/// Scans served per turn.
const SCAN_COST: u64 = 16 * 1024;

/// A list of up to this many entries is no scan.
const FEW: u64 = 16;

/// A read of up to this many keys by name is no scan.
const KEYS_MAX: u64 = 4_096;

/// Processes and rounds that take as long to look at as a key.
const PER_KEY: u64 = 4;

/// What a read looks at that does not list things in pages, in keys.
pub(crate) fn looks_at(machine: &Machine, read: &Read) -> u64 {
    match read {
        Read::MultiGet { keys, .. } | Read::Check { keys, .. } => keys.len().max(1) as u64,
        _ => 1 + machine.looks_at(read) / PER_KEY,
    }
}

/// Whether so many keys are too many to look at beside other reads.
pub(crate) fn is_many(keys: u64) -> bool {
    keys > KEYS_MAX
}

/// Whether a read looks at many things.
pub(crate) fn is_scan(read: &Read) -> bool {
    let is_long = |limit: u64| limit == 0 || limit > FEW;
    match read {
        Read::Count { prefix, .. } => !prefix.is_empty(),
        Read::Rounds { round, .. } => round.is_none(),
        Read::List { limit, .. } | Read::Processes { limit, .. } | Read::Events { limit, .. } => {
            is_long(*limit)
        }
        Read::Jobs | Read::Runs { .. } | Read::Plan { .. } => true,
        Read::MultiGet { keys, .. } | Read::Check { keys, .. } => is_many(keys.len() as u64),
        _ => false,
    }
}

/// The thread, started by the first scan; it ends with this.
pub(crate) struct Scans {
    offload: Offload,
    queue: Arc<Mutex<Queue<Ready>>>,
    /// Sends scans to the thread.
    tell: Mutex<Option<Sender<()>>>,
}

impl Default for Scans {
    fn default() -> Self {
        Scans::new(Offload::default())
    }
}

impl Scans {
    /// Scans for the thread.
    pub(crate) fn new(offload: Offload) -> Scans {
        let queue = Arc::new(Mutex::new(Queue::new(QUEUE_MAX)));
        Scans { offload, queue, tell: Mutex::default() }
    }

    /// Queues a scan of a tenant. Never blocks.
    pub(crate) fn submit(&self, tenant: Tenant, scan: Ready) {
        if self.offload == Offload::Inline {
            return scan(Ok(()));
        }
        let mut tell = self.tell.lock();
        if tell.is_none() {
            match start(self.queue.clone()) {
                Ok(started) => *tell = Some(started),
                Err(error) => {
                    drop(tell);
                    let message = format!("no thread for listings can be started ({error}); retry");
                    return scan(Err(Problem::overloaded(message)));
                }
            }
        }
        let pushed = self.queue.lock().push(tenant, SCAN_COST, scan);
        match pushed {
            Ok(()) => {
                // The thread ends with this.
                let _ = tell.as_ref().map(|tell| tell.send(()));
            }
            Err(scan) => {
                drop(tell);
                let message = "too many listings are waiting; retry";
                scan(Err(Problem::overloaded(message)));
            }
        }
    }
}

fn start(queue: Arc<Mutex<Queue<Ready>>>) -> std::io::Result<Sender<()>> {
    let (tell, told) = channel();
    std::thread::Builder::new().name("scans".into()).spawn(move || run(&queue, &told))?;
    Ok(tell)
}

fn run(queue: &Mutex<Queue<Ready>>, told: &Receiver<()>) {
    priority::last();
    while let Ok(()) = told.recv() {
        let Some(scan) = queue.lock().pop() else { continue };
        // A failed listing must not end all others.
        if catch_unwind(AssertUnwindSafe(|| scan(Ok(())))).is_err() {
            tracing::error!("a listing failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use holdfast_api::{Blob, Code, Scope};

    use super::*;

    #[test]
    fn what_looks_at_many_things_is_a_scan() {
        let count = |prefix: &str| Read::Count { scope: Scope::default(), prefix: prefix.into() };
        assert!(is_scan(&count("a")) && !is_scan(&count("")));
        let rounds = |round| Read::Rounds { scope: Scope::default(), round, brief: true };
        assert!(is_scan(&rounds(None)) && !is_scan(&rounds(Some(Blob::from("next")))));
        let processes = |limit| Read::Processes { scope: Scope::default(), after: Some(6), limit };
        assert!(is_scan(&processes(0)) && is_scan(&processes(100)) && !is_scan(&processes(1)));
        let check = |count: usize| {
            let keys = vec![Blob::default(); count];
            Read::Check { scope: Scope::default(), keys }
        };
        assert!(!is_scan(&check(0)) && !is_scan(&check(4_096)) && is_scan(&check(4_097)));
    }

    #[test]
    fn a_scan_that_panics_takes_no_other_with_it() {
        let scans = Scans::default();
        let (tell, told) = channel();
        scans.submit(Tenant::Anybody, Box::new(|_| panic!("as if a listing could not be made")));
        scans.submit(Tenant::Anybody, Box::new(move |ready| tell.send(ready).unwrap()));
        assert_eq!(told.recv().unwrap(), Ok(()));
    }

    #[test]
    fn scans_are_made_one_after_the_other_and_those_beyond_the_queue_are_refused() {
        let scans = Scans::default();
        let (begun, has_begun) = channel();
        let (go, may_go) = channel();
        let (tell, told) = channel();
        scans.submit(
            Tenant::Anybody,
            Box::new(move |ready| {
                begun.send(()).unwrap();
                may_go.recv().unwrap();
                ready.unwrap();
            }),
        );
        has_begun.recv().unwrap();
        // One tenant has half of the places.
        let places = QUEUE_MAX / 2;
        for n in 0..=places {
            let tell = tell.clone();
            scans.submit(Tenant::Anybody, Box::new(move |ready| tell.send((n, ready)).unwrap()));
        }
        let (refused, why) = told.recv().unwrap();
        assert_eq!((refused, why.unwrap_err().code), (places, Code::Overloaded));
        let tell = tell.clone();
        let other = Tenant::Job("other".parse().unwrap());
        scans.submit(other, Box::new(move |ready| tell.send((usize::MAX, ready)).unwrap()));
        go.send(()).unwrap();
        let served: Vec<_> = (0..=places).map(|_| told.recv().unwrap().0).collect();
        assert!(served[..3].contains(&usize::MAX), "{:?}", &served[..3]);
        let rest = served.into_iter().filter(|n| *n != usize::MAX);
        assert!(rest.eq(0..places), "one after the other");
    }
}
