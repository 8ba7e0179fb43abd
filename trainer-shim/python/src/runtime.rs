//! One tokio runtime per process, and waiting on it as Python wants it: without
//! the GIL, and with a look at signals.

use std::sync::Mutex;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::{log, main_thread};

/// How soon a wait notices a signal, as Ctrl-C.
pub const SIGNAL_POLL: Duration = Duration::from_millis(100);

/// A runtime and the process that it belongs to. Never ended: a task may be
/// running until the process is gone.
struct Owned {
    process: u32,
    runtime: &'static Runtime,
}

/// Taken with the GIL held alone, and so never held while another thread forks.
static OWNED: Mutex<Option<Owned>> = Mutex::new(None);

/// This process's runtime. A forked child gets one of its own: it has none of
/// its parent's threads.
pub fn handle(_gil: Python<'_>) -> PyResult<Handle> {
    let mut owned = OWNED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let process = std::process::id();
    if let Some(Owned { process: owner, runtime }) = owned.as_ref()
        && *owner == process
    {
        return Ok(runtime.handle().clone());
    }
    // One thread: what runs here waits for sockets, and a trainer needs its cores.
    let mut builder = Builder::new_multi_thread();
    let built = builder.worker_threads(1).thread_name("holdfast").enable_all().build();
    let runtime = built.map_err(|error| {
        PyRuntimeError::new_err(format!("holdfast cannot start its background thread: {error}"))
    })?;
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    *owned = Some(Owned { process, runtime });
    Ok(runtime.handle().clone())
}

/// Waits for the end of `work`, without the GIL. A signal whose handler raises,
/// as Ctrl-C does, drops it; so does what the program's `logging` raises: a
/// signal may come there, too.
///
/// Log lines are handed over before and during the wait, and not after it: once
/// the work is done its result reaches the caller.
pub fn wait<T: Send + 'static>(
    py: Python<'_>,
    handle: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> PyResult<T> {
    let mut work = Box::pin(work);
    loop {
        let answered = log::hand_over(py).and_then(|()| main_thread::answer(py));
        if let Err(raised) = answered.and_then(|()| py.check_signals()) {
            // Dropped values may log, and need the runtime for that.
            let _runtime = handle.enter();
            drop(work);
            return Err(raised);
        }
        let attempt = py.detach(|| {
            handle.block_on(async { tokio::time::timeout(SIGNAL_POLL, &mut work).await })
        });
        if let Ok(done) = attempt {
            return Ok(done);
        }
    }
}
