//! The native half of the Python package `holdfast`: one incarnation of a process
//! with its verbs, as plain values. The user's side (types, context managers,
//! defaults) is Python, in `holdfast/`; agreement comes from
//! [`holdfast_trainer_shim`].
//!
//! Entry points: [`process::NativeProcess`], which Python knows as
//! `_holdfast.Process`.
//!
//! | module | holds |
//! | --- | --- |
//! | [`process`] | the class, its verbs |
//! | `joining` | the arguments of a join |
//! | [`arguments`] | the arguments of the other verbs |
//! | `attachment` | what a process is attached to, given back however it ends |
//! | [`main_thread`] | whether the main thread still runs Python |
//! | [`keys`] | the keys of the run; what comes piece by piece |
//! | [`values`] | what they answer, as Python's own types |
//! | [`runtime`] | one tokio runtime per process; waiting without the GIL |
//! | [`log`] | what the library says by itself, for Python's `logging` |
//! | [`error`] | Rust's errors as `holdfast.HoldfastError` |
//!
//! # Architecture invariants
//!
//! * Nothing is decided here, and nothing is kept but handles.
//! * Every wait releases the GIL and notices signals: Ctrl-C ends it within
//!   [`runtime::SIGNAL_POLL`], and withdraws the call.
//! * Nothing that was made before a fork is used after it: a child has neither
//!   the threads nor the right to be the same process. Its calls fail with that.
//! * The only `unsafe` of our own is in [`main_thread`]: PyO3's macros bring the
//!   rest.
//! * No lease waits for the GIL.

use holdfast_api::variables::mistyped;
use pyo3::prelude::*;

pub mod arguments;
mod attachment;
pub mod error;
mod held;
mod joining;
pub mod keys;
pub mod log;
pub mod main_thread;
pub mod process;
pub mod runtime;
pub mod values;

/// Warnings for environment variables with a slip in their names.
#[pyfunction]
fn mistyped_variables() -> Vec<String> {
    mistyped(std::env::vars_os()).iter().map(ToString::to_string).collect()
}

/// The extension module, which the package `holdfast` wraps.
#[pymodule]
fn _holdfast(module: &Bound<'_, PyModule>) -> PyResult<()> {
    log::listen();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(arguments::check_assignment, module)?)?;
    module.add_function(wrap_pyfunction!(mistyped_variables, module)?)?;
    module.add_function(wrap_pyfunction!(main_thread::main_thread_silent, module)?)?;
    module.add_function(wrap_pyfunction!(main_thread::stop_watching, module)?)?;
    module.add_class::<process::NativeSection>()?;
    module.add_class::<keys::NativeKeys>()?;
    module.add_class::<held::NativeHolds>()?;
    module.add_class::<held::NativeLock>()?;
    module.add_class::<keys::NativeChanges>()?;
    module.add_class::<keys::NativeNews>()?;
    module.add_class::<process::NativeProcess>()
}
