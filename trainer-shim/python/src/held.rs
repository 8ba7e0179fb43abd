//! Held rounds, as Python uses them.

use std::time::Duration;

use holdfast_api::{Blob, Generation};
use holdfast_trainer_shim::{Formed, HoldState, Holding, Process};
use pyo3::prelude::*;

use crate::arguments::{deadline, seconds};
use crate::keys::Owner;
use crate::values::{IterationValue, Pairs};

/// See [`Formed`].
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
        let Formed { generation, again, witness, members, handles, rank } = formed;
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

/// What a process holds together with others.
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

    /// See [`Process::lock`]: the generation.
    fn lock(&self, py: Python<'_>, name: String, timeout: Option<f64>) -> PyResult<Generation> {
        let deadline = deadline(py, timeout)?;
        let process = self.process.clone();
        let asking = async move { process.lock(&name, deadline).await };
        Ok(self.owner.wait(py, asking)?.generation)
    }

    /// See [`Process::ready`].
    fn ready(&self, py: Python<'_>, generation: Generation, timeout: Option<f64>) -> PyResult<()> {
        let deadline = deadline(py, timeout)?;
        let process = self.process.clone();
        self.owner.wait(py, async move { process.ready(generation, deadline).await })
    }

    /// See [`Process::release`].
    fn release(
        &self,
        py: Python<'_>,
        generation: Generation,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = deadline(py, timeout)?;
        let process = self.process.clone();
        self.owner.wait(py, async move { process.release(generation, deadline).await })
    }

    /// See [`Process::revoke`].
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

    /// Waits until a generation must not be used any more, at most so many
    /// seconds: why, or none while it may be.
    fn revoked(
        &self,
        py: Python<'_>,
        generation: Generation,
        within: f64,
    ) -> PyResult<Option<String>> {
        let within: Duration = seconds(py, within)?;
        let mut states = self.process.hold_of(generation);
        self.owner.wait(py, async move {
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
