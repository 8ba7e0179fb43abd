//! Held rounds, as Python uses them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_api::{Blob, Generation};
use holdfast_client::Deadline;
use holdfast_trainer_shim::{Formed, HoldState, Holding, Process};
use pyo3::prelude::*;

use crate::arguments::{deadline, seconds};
use crate::keys::Owner;
use crate::values::{IterationValue, Pairs};

/// A [`Formed`] for Python.
#[derive(Debug, IntoPyObject)]
pub struct FormedValue {
    generation: u64,
    again: bool,
    witness: u64,
    members: Pairs,
    handles: Vec<Vec<u8>>,
    rank: Option<u32>,
}

impl From<Formed> for FormedValue {
    fn from(formed: Formed) -> Self {
        let Formed { generation, again, closing: _, witness, members, handles, rank } = formed;
        FormedValue {
            generation,
            again,
            witness,
            members: members.iter().map(|one| (one.process, one.incarnation)).collect(),
            handles: handles.iter().map(|handle| handle.as_bytes().to_vec()).collect(),
            rank,
        }
    }
}

/// What all members agree on, and in seconds: how long a holder may take to stop,
/// how long all may take to be ready, how long arrivals wait.
type HoldingValue = (Vec<u8>, f64, f64, f64);

fn holding(
    py: Python<'_>,
    (spec, stop_max, form_max, patience): HoldingValue,
) -> PyResult<Holding> {
    Ok(Holding {
        spec: Blob::from(spec),
        stop_max: seconds(py, stop_max)?,
        form_max: seconds(py, form_max)?,
        patience: seconds(py, patience)?,
    })
}

/// Held rounds of a process.
#[pyclass(frozen, name = "Holds", module = "_holdfast")]
pub struct NativeHolds {
    pub(crate) process: Process,
    pub(crate) owner: Owner,
}

#[pymethods]
impl NativeHolds {
    /// See [`Process::advance_held`]: the iteration, and what is held.
    fn advance(
        &self,
        py: Python<'_>,
        how: HoldingValue,
        brought: (Generation, Vec<u8>),
        evicts: bool,
        timeout: Option<f64>,
    ) -> PyResult<(IterationValue, Option<FormedValue>)> {
        let (holding, deadline) = (holding(py, how)?, deadline(py, timeout)?);
        let (holds, handle) = brought;
        let brought = (holds, Blob::from(handle));
        let process = self.process.clone();
        let asking = async move { process.advance_held(&holding, brought, evicts, deadline).await };
        let (iteration, formed) = self.owner.wait(py, asking)?;
        Ok((iteration.into(), formed.map(FormedValue::from)))
    }

    /// A lock that is yet to be taken.
    fn lock(&self, name: String) -> NativeLock {
        let (process, owner) = (self.process.clone(), self.owner.clone());
        NativeLock { process, owner, name, generation: Arc::default() }
    }

    /// Says that the generation is built here; see [`Process::ready`].
    fn ready(&self, py: Python<'_>, generation: Generation, timeout: Option<f64>) -> PyResult<()> {
        let deadline = deadline(py, timeout)?;
        let process = self.process.clone();
        self.owner.wait(py, async move { process.ready(generation, deadline).await })
    }

    /// Says that nothing of the generation runs here any more; see [`Process::release`].
    fn release(
        &self,
        py: Python<'_>,
        generation: Generation,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = deadline(py, timeout)?;
        release(py, &self.process, &self.owner, generation, deadline)
    }

    /// Revokes the generation for all its holders; see [`Process::revoke`].
    fn revoke(
        &self,
        py: Python<'_>,
        generation: Generation,
        reason: String,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = deadline(py, timeout)?;
        let process = self.process.clone();
        self.owner.wait(py, async move { process.revoke(generation, &reason, deadline).await })
    }

    /// Waits until a generation must not be used any more, at most this many
    /// seconds: why, or none while it may be.
    fn revoked(
        &self,
        py: Python<'_>,
        generation: Generation,
        within: f64,
    ) -> PyResult<Option<String>> {
        let within: Duration = seconds(py, within)?;
        let process = self.process.clone();
        self.owner.wait(py, async move {
            let mut states = process.hold_of(generation);
            let heard = states.wait_for(HoldState::is_over);
            Ok(match tokio::time::timeout(within, heard).await {
                Ok(Ok(state)) => Some(match &state.revoked {
                    Some(revoked) => revoked.cause.to_string(),
                    None => "the lease of its host is lost".to_owned(),
                }),
                Ok(Err(_)) | Err(_) => None,
            })
        })
    }
}

/// A lock, from before it is asked for.
#[pyclass(frozen, name = "Lock", module = "_holdfast")]
pub struct NativeLock {
    process: Process,
    owner: Owner,
    name: String,
    /// Known here before the program can be interrupted; 0 = it is not held.
    generation: Arc<AtomicU64>,
}

#[pymethods]
impl NativeLock {
    /// See [`Process::lock`]: the generation.
    fn take(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Generation> {
        let deadline = deadline(py, timeout)?;
        let (process, name, taken) =
            (self.process.clone(), self.name.clone(), self.generation.clone());
        let asking = async move {
            let generation = process.lock(&name, deadline).await?.generation;
            taken.store(generation, Ordering::Release);
            Ok(generation)
        };
        self.owner.wait(py, asking)
    }

    /// Gives it on, if it is held. An interruption of this call does not stop it.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        match self.generation.swap(0, Ordering::AcqRel) {
            0 => Ok(()),
            held => release(py, &self.process, &self.owner, held, Deadline::never()),
        }
    }
}

/// See [`Process::release`]. It goes on where the caller is interrupted.
fn release(
    py: Python<'_>,
    process: &Process,
    owner: &Owner,
    generation: Generation,
    deadline: Deadline,
) -> PyResult<()> {
    let process = process.clone();
    owner.wait(py, async move { process.release_to_the_end(generation, deadline).await })
}
