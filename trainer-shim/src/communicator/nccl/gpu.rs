//! The GPU that communicators of one backend share, and the library.

use std::path::PathBuf;

use holdfast_nccl::{Device, Nccl, Stream};
use parking_lot::Mutex;

use super::{device_failed, not_loaded};
use crate::communicator::failure::Failure;

/// One GPU, opened when it is needed first.
pub(super) struct Gpu {
    ordinal: u32,
    library: Option<PathBuf>,
    opened: Mutex<Option<Opened>>,
    /// Held in calls that put work on the device.
    pub(super) launching: Mutex<()>,
}

#[derive(Clone)]
pub(super) struct Opened {
    pub(super) nccl: Nccl,
    pub(super) device: Device,
    /// Kept, since the first stream of a device waits for all that runs there.
    _first: Stream,
}

impl Gpu {
    pub(super) fn new(ordinal: u32, library: Option<PathBuf>) -> Gpu {
        Gpu { ordinal, library, opened: Mutex::new(None), launching: Mutex::new(()) }
    }

    /// Opens it at the first call. A failed open is tried again by the next.
    pub(super) fn open(&self) -> Result<Opened, Failure> {
        let mut opened = self.opened.lock();
        if let Some(opened) = &*opened {
            return Ok(opened.clone());
        }
        let nccl = Nccl::load(self.library.as_deref()).map_err(not_loaded)?;
        let device = Device::open(self.ordinal).map_err(device_failed)?;
        let first = device.stream().map_err(device_failed)?;
        tracing::info!(
            version = %nccl.version(), library = %nccl.path().display(), device = self.ordinal,
            "NCCL is loaded"
        );
        Ok(opened.insert(Opened { nccl, device, _first: first }).clone())
    }
}
