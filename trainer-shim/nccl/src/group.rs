//! Several calls in one: collectives of several communicators of one thread
//! that must not wait for each other, and aborts.
#![expect(unsafe_code, reason = "NCCL is called through pointers")]

use std::cell::Cell;

use crate::communicator::{Communicator, Reduction};
use crate::device::{Buffer, Element};
use crate::error::NcclError;
use crate::load::Nccl;

thread_local! {
    /// Whether a group is open on this thread. Within one, calls are only noted,
    /// and begin when it ends: their buffers and states mean nothing before.
    static OPEN: Cell<bool> = const { Cell::new(false) };
}

/// Whether a group is open on this thread.
pub(crate) fn is_open() -> bool {
    OPEN.get()
}

/// Refuses what cannot be called within a group.
pub(crate) fn refuse(call: &'static str) -> Result<(), NcclError> {
    if is_open() { Err(NcclError::InGroup { call }) } else { Ok(()) }
}

/// Calls collectives of these communicators, all of which begin when `body`
/// returns, also with an error.
pub fn group<R>(
    communicators: &mut [&mut Communicator],
    body: impl FnOnce(&mut Group<'_, '_>) -> Result<R, NcclError>,
) -> Result<R, NcclError> {
    const CALL: &str = "ncclGroupStart";
    refuse(CALL)?;
    for communicator in communicators.iter_mut() {
        communicator.require_ready(CALL)?;
    }
    let nccl = match communicators.first() {
        Some(first) => first.nccl().clone(),
        None => return body(&mut Group { communicators }),
    };
    let open = Open::start(&nccl)?;
    let returned = body(&mut Group { communicators });
    open.end()?;
    returned
}

/// The communicators of a group, by their index in it.
pub struct Group<'g, 'c> {
    communicators: &'g mut [&'c mut Communicator],
}

impl Group<'_, '_> {
    /// As [`Communicator::all_reduce`], within the group.
    pub fn all_reduce<T: Element>(
        &mut self,
        index: usize,
        buffer: &Buffer<T>,
        reduction: Reduction,
    ) -> Result<(), NcclError> {
        self.find(index)?.submit_all_reduce(buffer, reduction)
    }

    /// As [`Communicator::broadcast`], within the group.
    pub fn broadcast<T: Element>(
        &mut self,
        index: usize,
        buffer: &Buffer<T>,
        root: u32,
    ) -> Result<(), NcclError> {
        self.find(index)?.submit_broadcast(buffer, root)
    }

    fn find(&mut self, index: usize) -> Result<&mut Communicator, NcclError> {
        let count = self.communicators.len();
        let found = self.communicators.get_mut(index);
        found.map(|one| &mut **one).ok_or(NcclError::NoSuchCommunicator { index, count })
    }
}

/// Aborts all of them in one group: each on a thread of NCCL's own.
pub(crate) fn abort(nccl: &Nccl, communicators: Vec<Communicator>) -> Result<(), NcclError> {
    refuse("ncclCommAbort")?;
    let open = Open::start(nccl)?;
    let (results, kept): (Vec<_>, Vec<_>) =
        communicators.into_iter().map(Communicator::abort_in_group).unzip();
    match open.end() {
        Ok(()) => drop(kept),
        // Kernels may still use it.
        Err(error) => {
            std::mem::forget(kept);
            return Err(error);
        }
    }
    results.into_iter().collect()
}

/// A group that is open on this thread. Dropped, as by a panic, it ends, too.
struct Open<'a> {
    nccl: &'a Nccl,
    ended: bool,
}

impl<'a> Open<'a> {
    fn start(nccl: &'a Nccl) -> Result<Open<'a>, NcclError> {
        // SAFETY: it takes no arguments; what it starts is ended by the value
        // that is returned.
        let code = unsafe { (nccl.symbols().group_start)() };
        nccl.check("ncclGroupStart", code)?;
        OPEN.set(true);
        Ok(Open { nccl, ended: false })
    }

    fn end(mut self) -> Result<(), NcclError> {
        self.close().map_err(NcclError::from)
    }

    fn close(&mut self) -> Result<(), crate::error::Failure> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        OPEN.set(false);
        // SAFETY: a group was started on this thread, which this value never
        // leaves.
        let code = unsafe { (self.nccl.symbols().group_end)() };
        self.nccl.check("ncclGroupEnd", code).map(drop)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "a group that a panic left is not ended");
        }
    }
}
