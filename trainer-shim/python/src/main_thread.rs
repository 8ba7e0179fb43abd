//! Whether the main thread still runs Python: the interpreter is asked once a
//! second to call a function there, which it does between two instructions of
//! bytecode and at no other time.
//!
//! A thread that waits for a lock, in a collective or in `time.sleep`, runs no
//! Python, and neither does one that compiles: from here they look the same. A
//! verb of this package answers for the thread that waits in it.
//!
//! Up to CPython 3.12 a thread that runs bytecode without a pause looks for
//! pending calls only when it gets the GIL anew. So a thread of our own takes the
//! GIL for a moment to ask, and no other waits for that thread: where the GIL is
//! not given up there is no answer, either.

#![expect(unsafe_code, reason = "PyO3 has no safe functions for pending calls")]

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use holdfast_trainer_shim::MainThread;
use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::arguments::milliseconds;

/// Interval of the questions.
const TICK: Duration = Duration::from_secs(1);

/// The watch over the main thread of one process. Never freed: the interpreter
/// may keep its address to the end.
struct Watch {
    /// The process that it belongs to: a forked child has none of its threads.
    process: u32,
    /// The interpreter ends, and is not asked any more.
    closed: AtomicBool,
    /// Held while it is asked, which can take as long as another thread keeps the GIL.
    asking: Mutex<()>,
    /// A call waits to be made; there is one at most.
    queued: AtomicBool,
    /// It was made since the last question.
    answered: AtomicBool,
    /// Time without an answer, in milliseconds, as far as this process ran.
    silent_ms: AtomicU64,
}

/// Taken with the GIL held alone, and so never held while another thread forks.
static WATCH: std::sync::Mutex<Option<&'static Watch>> = std::sync::Mutex::new(None);

/// Begins to watch the main thread, if it is not watched yet. `None` where there is nothing to
/// watch: in an interpreter other than the main one, or if no thread can be had.
pub fn watch(py: Python<'_>, handle: &Handle) -> Option<MainThread> {
    if !is_main_interpreter(py) {
        return None;
    }
    let mut known = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    let watch = match *known {
        Some(watch) if watch.process == process => watch,
        _ => {
            let watch: &'static Watch = Box::leak(Box::new(Watch {
                process,
                closed: AtomicBool::new(false),
                asking: Mutex::new(()),
                queued: AtomicBool::new(false),
                answered: AtomicBool::new(true),
                silent_ms: AtomicU64::new(0),
            }));
            let (due, questions) = sync_channel(1);
            let asker = std::thread::Builder::new().name("holdfast-watch".to_owned());
            if let Err(error) = asker.spawn(|| watch.ask(questions)) {
                tracing::warn!(%error, "the main thread is not watched");
                return None;
            }
            handle.spawn(watch.count(due));
            *known = Some(watch);
            watch
        }
    };
    Some(MainThread::new(|| watch.silent()))
}

/// For how long the main thread has run no Python; none where it is not watched.
#[pyfunction]
pub fn main_thread_silent(_py: Python<'_>) -> Option<f64> {
    let known = *WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let watch = known.filter(|watch| watch.process == std::process::id())?;
    Some(watch.silent()?.as_secs_f64())
}

/// The interpreter ends, and is not asked any more: not by a question that has
/// begun, either.
#[pyfunction]
pub fn stop_watching(py: Python<'_>) {
    let known = *WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(watch) = known.filter(|watch| watch.process == std::process::id()) {
        watch.closed.store(true, Ordering::Relaxed);
        // It may wait for the GIL.
        py.detach(|| drop(watch.asking.lock()));
    }
}

/// Makes the calls that wait, if this is the main thread: it waits in a verb, and
/// runs no bytecode during that.
pub fn answer(py: Python<'_>) -> PyResult<()> {
    // SAFETY: the GIL is held, as `py` says.
    match unsafe { ffi::Py_MakePendingCalls() } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(py)),
    }
}

impl Watch {
    /// Counts the time without an answer, and lets a question be asked.
    async fn count(&'static self, due: SyncSender<()>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        while !self.closed.load(Ordering::Relaxed) {
            let now = ticks.tick().await;
            // Time in which the whole process was frozen does not count.
            let passed = now.duration_since(last).min(TICK * 2);
            last = now;
            if self.answered.swap(false, Ordering::Relaxed) {
                self.silent_ms.store(0, Ordering::Relaxed);
            } else {
                self.silent_ms.fetch_add(milliseconds(passed), Ordering::Relaxed);
            }
            // A question that waits already is as good.
            let _ = due.try_send(());
        }
    }

    /// Asks whenever it is due.
    fn ask(&'static self, due: Receiver<()>) {
        while due.recv().is_ok() {
            let _asking = self.asking.lock();
            if self.closed.load(Ordering::Relaxed) {
                return;
            }
            if self.queued.load(Ordering::Relaxed) {
                continue;
            }
            // The interpreter is alive: `stop_watching` waits for this before it ends.
            Python::try_attach(|_py| {
                self.queued.store(true, Ordering::Relaxed);
                let watch = std::ptr::from_ref(self).cast_mut().cast::<c_void>();
                // SAFETY: the GIL is held. The callback is a function of this
                // module, which is never unloaded, and its argument is never
                // freed.
                if unsafe { ffi::Py_AddPendingCall(Some(answered), watch) } != 0 {
                    // As many wait as may: another time.
                    self.queued.store(false, Ordering::Relaxed);
                }
            });
        }
    }

    fn silent(&self) -> Option<Duration> {
        let closed = self.closed.load(Ordering::Relaxed);
        (!closed).then(|| Duration::from_millis(self.silent_ms.load(Ordering::Relaxed)))
    }
}

/// The main thread runs Python.
extern "C" fn answered(watch: *mut c_void) -> c_int {
    // SAFETY: `Watch::ask` gives the address of one that is never freed, and to
    // which no exclusive reference exists.
    let watch = unsafe { &*watch.cast_const().cast::<Watch>() };
    watch.queued.store(false, Ordering::Relaxed);
    watch.answered.store(true, Ordering::Relaxed);
    watch.silent_ms.store(0, Ordering::Relaxed);
    0
}

fn is_main_interpreter(_py: Python<'_>) -> bool {
    // SAFETY: the GIL is held, so that there is an interpreter to ask.
    unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) == 0 }
}
