//! Rust's errors as Python's exceptions. `holdfast/_errors.py` chooses the class,
//! by the code.

use std::fmt::Display;

use holdfast_api::{Code, Effectiveness};
use pyo3::prelude::*;

/// An error of the library.
pub fn of_shim(py: Python<'_>, error: &holdfast_trainer_shim::Error) -> PyErr {
    raise(py, error.code().as_str(), error, error.is_retryable(), error.outcome())
}

/// An argument that cannot be understood.
pub fn invalid(py: Python<'_>, text: &dyn Display) -> PyErr {
    raise(py, Code::InvalidRequest.as_str(), text, false, Effectiveness::None)
}

/// A handle that was made before a fork.
pub fn forked(py: Python<'_>) -> PyErr {
    let text = "this job was joined before the process forked, and belongs to the parent: \
                join in the child, or start children with multiprocessing's \"spawn\"";
    raise(py, "forked", &text, false, Effectiveness::None)
}

fn raise(
    py: Python<'_>,
    code: &str,
    text: &dyn Display,
    retryable: bool,
    outcome: Effectiveness,
) -> PyErr {
    let outcome = match outcome {
        Effectiveness::None => "none",
        Effectiveness::Applied => "applied",
        Effectiveness::Unknown => "unknown",
    };
    let made = PyModule::import(py, "holdfast._errors")
        .and_then(|errors| errors.getattr("of"))
        .and_then(|of| of.call1((code, text.to_string(), retryable, outcome)));
    match made {
        Ok(made) => PyErr::from_value(made),
        Err(error) => error,
    }
}
