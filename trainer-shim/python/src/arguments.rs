//! The arguments of a verb, as the library wants them.

use std::time::Duration;

use holdfast_api::{Among, AssignmentStep, Generation, ProcessId};
use holdfast_client::Deadline;
use pyo3::prelude::*;

use crate::error;

/// Processes of a round; none = all active processes.
#[derive(FromPyObject)]
pub enum Whose {
    /// Members of a generation.
    Generation(Generation),
    /// These, in growing order.
    Set(Vec<ProcessId>),
}

/// Scope of a round.
pub fn among(whose: Option<Whose>) -> Among {
    match whose {
        Some(Whose::Set(processes)) => Among::Set(processes),
        Some(Whose::Generation(generation)) => Among::Generation(generation),
        None => Among::Active,
    }
}

/// Whether these are steps of the rank assignment.
#[pyfunction]
pub fn check_assignment(py: Python<'_>, assignment: &str) -> PyResult<()> {
    steps(py, assignment).map(drop)
}

/// Steps of the rank assignment, from JSON.
pub fn steps(py: Python<'_>, assignment: &str) -> PyResult<Vec<AssignmentStep>> {
    serde_json::from_str(assignment).map_err(|error| refused(py, "assignment", &error))
}

/// An argument that cannot be what was given.
pub fn refused(py: Python<'_>, what: &str, why: &dyn std::fmt::Display) -> PyErr {
    error::invalid(py, &format!("{what}: {why}"))
}

/// A length of time.
pub fn seconds(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    let bad = |_| error::invalid(py, &format!("{seconds} is not a duration in seconds"));
    Duration::try_from_secs_f64(seconds).map_err(bad)
}

/// A length of time, or none.
pub fn limit(py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Duration>> {
    timeout.map(|timeout| seconds(py, timeout)).transpose()
}

/// Deadline of a call that may take so long; none = as long as it takes.
pub fn deadline(py: Python<'_>, timeout: Option<f64>) -> PyResult<Deadline> {
    Ok(limit(py, timeout)?.map_or_else(Deadline::never, Deadline::after))
}

/// A length of time as it travels.
pub fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
