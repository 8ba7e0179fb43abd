//! Something that ends later, and its waiters.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::failure::Failure;

/// Work in progress: polled, waited for or awaited. Its result is handed over
/// once. Work that is dropped goes on.
#[derive(Debug)]
#[must_use = "whether the work succeeded is known only to the caller that waits for it"]
pub struct Work<T> {
    slot: Arc<Slot<T>>,
}

/// The other end of a [`Work`]. Dropped, it fails the work as aborted: no work
/// outlives the thread that would complete it.
#[derive(Debug)]
pub struct Completer<T> {
    slot: Arc<Slot<T>>,
}

#[derive(Debug)]
struct Slot<T> {
    progress: Mutex<Progress<T>>,
    ended: Condvar,
}

#[derive(Debug)]
enum Progress<T> {
    Pending(Option<Waker>),
    Ended(Result<T, Failure>),
    Taken,
}

impl<T> Work<T> {
    /// Work that has not ended, and its other end.
    pub fn pending() -> (Work<T>, Completer<T>) {
        let progress = Mutex::new(Progress::Pending(None));
        let slot = Arc::new(Slot { progress, ended: Condvar::new() });
        (Work { slot: slot.clone() }, Completer { slot })
    }

    /// Work that has ended.
    pub fn ended(result: Result<T, Failure>) -> Work<T> {
        let (work, completer) = Work::pending();
        completer.complete(result);
        work
    }

    /// The result, if the work has ended. `None` also once that was handed over.
    pub fn poll(&mut self) -> Option<Result<T, Failure>> {
        self.slot.progress.lock().take()
    }

    /// Waits for its end, however long that takes.
    pub fn wait(self) -> Result<T, Failure> {
        let mut progress = self.slot.progress.lock();
        loop {
            if let Some(result) = progress.take() {
                return result;
            }
            if matches!(*progress, Progress::Taken) {
                return Err(Failure::Closed);
            }
            self.slot.ended.wait(&mut progress);
        }
    }

    /// Waits for its end, but no longer than this.
    pub fn wait_for(&mut self, timeout: Duration) -> Option<Result<T, Failure>> {
        let mut progress = self.slot.progress.lock();
        self.slot.ended.wait_while_for(
            &mut progress,
            |progress| matches!(progress, Progress::Pending(_)),
            timeout,
        );
        progress.take()
    }
}

impl<T> Future for Work<T> {
    type Output = Result<T, Failure>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut progress = self.slot.progress.lock();
        if let Progress::Pending(waker) = &mut *progress {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(progress.take().unwrap_or(Err(Failure::Closed)))
    }
}

impl<T> Progress<T> {
    fn take(&mut self) -> Option<Result<T, Failure>> {
        match std::mem::replace(self, Progress::Taken) {
            Progress::Ended(result) => Some(result),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl<T> Completer<T> {
    /// Ends the work with this result.
    pub fn complete(self, result: Result<T, Failure>) {
        self.slot.end(result);
    }

    fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.slot) == 1
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        self.slot.end(Err(Failure::Aborted));
    }
}

impl<T> Slot<T> {
    /// The first end counts.
    fn end(&self, result: Result<T, Failure>) {
        let mut progress = self.progress.lock();
        let Progress::Pending(waker) = &mut *progress else { return };
        let waker = waker.take();
        *progress = Progress::Ended(result);
        self.ended.notify_all();
        drop(progress);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// An event that any number of callers wait for.
#[derive(Debug)]
pub(super) enum Event {
    /// It has not happened; these callers wait for it.
    Awaited(Vec<Completer<()>>),
    /// It has happened, with this result.
    Happened(Result<(), Failure>),
}

impl Event {
    pub(super) fn new() -> Event {
        Event::Awaited(Vec::new())
    }

    pub(super) fn wait(&mut self) -> Work<()> {
        match self {
            Event::Happened(result) => Work::ended(result.clone()),
            Event::Awaited(waiting) => {
                waiting.retain(|completer| !completer.is_abandoned());
                let (work, completer) = Work::pending();
                waiting.push(completer);
                work
            }
        }
    }

    /// Only the first call counts. Returns the waiters, to notify once no lock is held.
    pub(super) fn happen(&mut self, result: Result<(), Failure>) -> Notified {
        match self {
            Event::Happened(_) => Notified(Vec::new(), result),
            Event::Awaited(waiting) => {
                let waiting = std::mem::take(waiting);
                *self = Event::Happened(result.clone());
                Notified(waiting, result)
            }
        }
    }
}

/// Waiters for an event that has happened.
#[must_use]
pub(super) struct Notified(Vec<Completer<()>>, Result<(), Failure>);

impl Notified {
    pub(super) fn tell(self) {
        for completer in self.0 {
            completer.complete(self.1.clone());
        }
    }
}
