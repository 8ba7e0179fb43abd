//! One communicator: from the beginning of its forming to its end.
#![expect(unsafe_code, reason = "NCCL is called through pointers")]

use std::ffi::{CString, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::codes::{IN_PROGRESS, INTERNAL_ERROR, ResultCode, SUCCESS};
use crate::device::{Buffer, Device, Element, InFlight};
use crate::error::{Failure, NcclError};
use crate::group;
use crate::load::{Nccl, refuse_comm_id};
use crate::sys::{Config, RawCommunicator};
use crate::unique_id::UniqueId;
use crate::version::REVOKE;

/// Most ranks of a communicator: far more than were ever formed.
pub const RANKS_MAX: u32 = 1 << 20;

/// Longest name of a group in bytes; it appears in NCCL's log.
pub const GROUP_BYTES_MAX: usize = 256;

/// Most collectives of one communicator that have not ended.
pub const COLLECTIVES_PENDING_MAX: usize = 1_024;

/// One membership in one generation of a group.
#[derive(Debug, Clone, Copy)]
pub struct Membership<'a> {
    /// Name of the group, at most [`GROUP_BYTES_MAX`] bytes.
    pub group: &'a str,
    /// Number of the generation.
    pub generation: u64,
    /// How many ranks it has.
    pub ranks: u32,
    /// Which of them this is.
    pub rank: u32,
}

/// How a communicator is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// A call is in progress: ask again.
    InProgress,
    /// Nothing goes on in NCCL; collectives may still run on the device.
    Ready,
    /// It has failed, for good: abort it. The absence of this does not mean that
    /// all peers are alive: only neighbours see a closed connection, and over
    /// NVLink and shared memory no rank does.
    Failed(Failure),
}

/// How the values of all ranks are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The values are added up.
    Sum,
    /// The values are multiplied.
    Product,
    /// The largest value is taken.
    Max,
    /// The smallest value is taken.
    Min,
}

impl Reduction {
    /// Its number in NCCL's `ncclRedOp_t`.
    fn code(self) -> c_int {
        match self {
            Reduction::Sum => 0,
            Reduction::Product => 1,
            Reduction::Max => 2,
            Reduction::Min => 3,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Forming,
    Active,
    Revoked,
    Finalizing,
}

/// A communicator whose calls return at once; its state says when what they began
/// has ended. It has no deadlines: NCCL waits for a silent peer for ever, and the
/// owner of the communicator counts the time and aborts it.
///
/// It can be sent to another thread, but one thread at a time owns it, and no
/// two threads work on communicators of the same device. **Abort is a message to
/// the owner**, not a call from another thread: since no other call waits, the
/// owner is always free to obey it. After one member has aborted, all others
/// must: NCCL may free memory that a peer still uses, and [`Communicator::finalize`]
/// and [`Communicator::destroy`] wait for peers.
///
/// Dropping one aborts it.
pub struct Communicator {
    nccl: Nccl,
    /// None once it was freed: nothing can be called after that.
    raw: Option<NonNull<RawCommunicator>>,
    stage: Stage,
    /// NCCL keeps a pointer to it.
    name: Arc<CString>,
    in_flight: Vec<InFlight>,
}

// SAFETY: NCCL binds a communicator to no thread: it asks for one thread at a
// time, which ownership gives. It is not `Sync`.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Begins to form a communicator, on the device, or if none is given on the
    /// one that is current on this thread. Returns at once; [`Communicator::state`]
    /// is [`State::Ready`] when all ranks are there, and may never be.
    ///
    /// The id is used up in any case: another try needs a new
    /// generation with a new id.
    pub fn begin_init(
        nccl: &Nccl,
        device: Option<&Device>,
        id: &UniqueId,
        membership: Membership<'_>,
    ) -> Result<Communicator, NcclError> {
        const CALL: &str = "ncclCommInitRankConfig";
        group::refuse(CALL)?;
        refuse_comm_id().map_err(NcclError::CommIdSet)?;
        let (name, ranks, rank) = checked(membership)?;
        if let Some(device) = device {
            device.make_current()?;
        }
        let mut config = Config::non_blocking(&name);
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointers are to values that the function may write, the
        // config has the layout that its version says, and the name in it is
        // valid as long as the communicator.
        let code =
            unsafe { (nccl.symbols().init_rank)(&mut raw, ranks, id.raw(), rank, &mut config) };
        let result = nccl.check(CALL, code);
        let Some(raw) = NonNull::new(raw) else {
            // Where there is no GPU it returns in the middle of a group of its
            // own. Left open, it would swallow this thread's next calls. Where
            // none is open this changes nothing.
            // SAFETY: it takes no arguments and may be called at any time.
            unsafe { (nccl.symbols().group_end)() };
            let failure = result.err().unwrap_or_else(|| nccl.failure(CALL, INTERNAL_ERROR));
            return Err(failure.into());
        };
        // From here on a failure aborts it.
        let communicator = Communicator {
            nccl: nccl.clone(),
            raw: Some(raw),
            stage: Stage::Forming,
            name: Arc::new(name),
            in_flight: Vec::new(),
        };
        result?;
        Ok(communicator)
    }

    /// How it is doing, without waiting.
    pub fn state(&mut self) -> Result<State, NcclError> {
        const CALL: &str = "ncclCommGetAsyncError";
        group::refuse(CALL)?;
        let mut state: c_int = IN_PROGRESS.0;
        // SAFETY: the communicator is there, and the pointer is to a number that
        // the function may write.
        let code = unsafe { (self.nccl.symbols().async_error)(self.raw(), &mut state) };
        self.nccl.check(CALL, code)?;
        match ResultCode(state) {
            SUCCESS => {
                if self.stage == Stage::Forming {
                    self.stage = Stage::Active;
                }
                Ok(State::Ready)
            }
            IN_PROGRESS => Ok(State::InProgress),
            code => Ok(State::Failed(self.nccl.failure("an operation in the background", code))),
        }
    }

    /// Begins to reduce the values of all ranks; each has the result in its
    /// buffer when [`Communicator::pending`] is 0.
    pub fn all_reduce<T: Element>(
        &mut self,
        buffer: &Buffer<T>,
        reduction: Reduction,
    ) -> Result<(), NcclError> {
        group::refuse("ncclAllReduce")?;
        self.require_ready("ncclAllReduce")?;
        self.submit_all_reduce(buffer, reduction)
    }

    /// Begins to copy the values of one rank to all; they are in their buffers
    /// when [`Communicator::pending`] is 0.
    pub fn broadcast<T: Element>(
        &mut self,
        buffer: &Buffer<T>,
        root: u32,
    ) -> Result<(), NcclError> {
        group::refuse("ncclBroadcast")?;
        self.require_ready("ncclBroadcast")?;
        self.submit_broadcast(buffer, root)
    }

    /// How many collectives have not ended on the device, without waiting. Once
    /// it is 0 the values of their buffers can be read.
    pub fn pending(&mut self) -> Result<usize, NcclError> {
        match self.state()? {
            State::InProgress => {}
            State::Failed(failure) => return Err(failure.into()),
            // All of them are on their streams.
            State::Ready => {
                let mut failed = None;
                self.in_flight.retain_mut(|one| match one.has_ended() {
                    Ok(ended) => !ended,
                    Err(error) => {
                        failed = Some(error);
                        true
                    }
                });
                if let Some(error) = failed {
                    return Err(error.into());
                }
            }
        }
        Ok(self.in_flight.len())
    }

    /// Stops what runs and keeps the communicator, so that all members can stop
    /// before the first one frees memory. It has stopped when
    /// [`Communicator::state`] is [`State::Ready`], or [`State::Failed`] in a member that
    /// has seen a peer's connection end; then abort it. Needs the capability, and a
    /// communicator that was formed: one that is still being formed can be aborted only.
    /// Revoked again, it stays revoked.
    pub fn revoke(&mut self) -> Result<(), NcclError> {
        const CALL: &str = "ncclCommRevoke";
        group::refuse(CALL)?;
        let symbol = self.nccl.symbols().revoke.filter(|_| self.nccl.capabilities().revoke);
        let Some(revoke) = symbol else {
            let version = self.nccl.version();
            return Err(NcclError::Unsupported { call: CALL, version, since: REVOKE });
        };
        if self.stage == Stage::Forming {
            // It may just have been formed.
            self.state()?;
        }
        match self.stage {
            Stage::Active => {}
            Stage::Revoked => return Ok(()),
            Stage::Forming => return Err(not_ready(CALL, "is being formed: abort it")),
            Stage::Finalizing => return Err(not_ready(CALL, "is being finalised: abort it")),
        }
        self.stage = Stage::Revoked;
        // SAFETY: the communicator is there and was formed, and 0 is the only flag.
        let code = unsafe { revoke(self.raw(), 0) };
        self.nccl.check(CALL, code)?;
        Ok(())
    }

    /// Begins to end it, together with all other members: only where all of them
    /// are alive and none has aborted. Ended, when the state is [`State::Ready`].
    pub fn finalize(&mut self) -> Result<(), NcclError> {
        const CALL: &str = "ncclCommFinalize";
        group::refuse(CALL)?;
        self.require_ready(CALL)?;
        self.stage = Stage::Finalizing;
        // SAFETY: the communicator is there, and this is its first finalisation.
        let code = unsafe { (self.nccl.symbols().finalize)(self.raw()) };
        self.nccl.check(CALL, code)?;
        Ok(())
    }

    /// Frees a communicator that was finalised. Any other one is aborted
    /// instead, which is the error: destroyed, it would wait for peers.
    pub fn destroy(mut self) -> Result<(), NcclError> {
        const CALL: &str = "ncclCommDestroy";
        group::refuse(CALL)?;
        if self.stage != Stage::Finalizing || self.state()? != State::Ready {
            return Err(not_ready(CALL, "was not finalised: it was aborted instead"));
        }
        self.free(CALL, self.nccl.symbols().destroy)
    }

    /// Stops what runs and frees the communicator, in any state: also while it
    /// is being formed. Waits until that is done: milliseconds, or as long as a
    /// joiner sleeps between its tries to reach the minter (see
    /// [`RECOMMENDED`](crate::environment::RECOMMENDED)). If it fails the memory
    /// of collectives that may still run is kept for ever.
    pub fn abort(mut self) -> Result<(), NcclError> {
        self.free("ncclCommAbort", self.nccl.symbols().abort)
    }

    /// Aborts several at the same time. One after the other, the first of one
    /// device could wait for a kernel of the second.
    pub fn abort_all(communicators: Vec<Communicator>) -> Result<(), NcclError> {
        let Some(first) = communicators.first() else { return Ok(()) };
        group::abort(&first.nccl.clone(), communicators)
    }

    /// Its name in NCCL's log: the group, a slash, the generation.
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    pub(crate) fn nccl(&self) -> &Nccl {
        &self.nccl
    }

    /// Refuses in time what NCCL would refuse without a reason.
    pub(crate) fn require_ready(&mut self, call: &'static str) -> Result<(), NcclError> {
        if self.stage == Stage::Revoked {
            return Err(not_ready(call, "was revoked: abort it"));
        }
        match self.state()? {
            State::Failed(failure) => return Err(failure.into()),
            State::InProgress if self.stage == Stage::Forming => {
                return Err(not_ready(call, "is being formed: wait until its state is ready"));
            }
            State::InProgress => {
                return Err(not_ready(call, "is still busy: wait until its state is ready"));
            }
            State::Ready => {}
        }
        match self.stage {
            Stage::Finalizing => Err(not_ready(call, "was finalised: destroy it")),
            Stage::Forming | Stage::Active | Stage::Revoked => Ok(()),
        }
    }

    pub(crate) fn submit_all_reduce<T: Element>(
        &mut self,
        buffer: &Buffer<T>,
        reduction: Reduction,
    ) -> Result<(), NcclError> {
        self.submit("ncclAllReduce", buffer, self.nccl.symbols().all_reduce, reduction.code())
    }

    pub(crate) fn submit_broadcast<T: Element>(
        &mut self,
        buffer: &Buffer<T>,
        root: u32,
    ) -> Result<(), NcclError> {
        let root = c_int::try_from(root).unwrap_or(c_int::MAX);
        self.submit("ncclBroadcast", buffer, self.nccl.symbols().broadcast, root)
    }

    /// Collectives in place: what is sent is where the result goes.
    fn submit<T: Element>(
        &mut self,
        call: &'static str,
        buffer: &Buffer<T>,
        function: Collective,
        argument: c_int,
    ) -> Result<(), NcclError> {
        if self.in_flight.len() >= COLLECTIVES_PENDING_MAX {
            return Err(NcclError::TooManyPending);
        }
        let place = buffer.place();
        let address = place.address as *mut c_void;
        // Kept from before the call, also if it fails: a part may be in progress.
        self.in_flight.push(InFlight::new(buffer));
        // SAFETY: the communicator is there; the memory has as many values of
        // this type as are named and is kept in `in_flight`, as the stream is,
        // until the collective has ended or the communicator is freed.
        let code = unsafe {
            function(
                address,
                address,
                buffer.len(),
                T::DATA_TYPE,
                argument,
                self.raw(),
                place.stream.cu_stream().cast(),
            )
        };
        self.nccl.check(call, code)?;
        Ok(())
    }

    fn raw(&self) -> *mut RawCommunicator {
        self.raw.expect("it is taken by what consumes the communicator only").as_ptr()
    }

    fn free(
        &mut self,
        call: &'static str,
        function: unsafe extern "C" fn(*mut RawCommunicator) -> c_int,
    ) -> Result<(), NcclError> {
        if self.raw.is_none() {
            return Ok(());
        }
        let kept = self.take_kept();
        let result = self.call_last(call, function);
        if result.is_err() || group::is_open() {
            // It is not freed, or not yet.
            std::mem::forget(kept);
        }
        result
    }

    /// Aborts it within an open group. It is freed when that ends; until then the
    /// caller must keep the returned buffers.
    pub(crate) fn abort_in_group(mut self) -> (Result<(), NcclError>, Kept) {
        let kept = self.take_kept();
        (self.call_last("ncclCommAbort", self.nccl.symbols().abort), kept)
    }

    fn take_kept(&mut self) -> Kept {
        if self.stage == Stage::Forming {
            // NCCL frees one that was not formed in part only, and the rest has
            // the pointer: this one is never freed.
            std::mem::forget(Arc::clone(&self.name));
        }
        let in_flight = std::mem::take(&mut self.in_flight);
        Kept { _in_flight: in_flight, _name: Arc::clone(&self.name) }
    }

    fn call_last(
        &mut self,
        call: &'static str,
        function: unsafe extern "C" fn(*mut RawCommunicator) -> c_int,
    ) -> Result<(), NcclError> {
        let Some(raw) = self.raw.take() else { return Ok(()) };
        // SAFETY: it was taken out, so that nothing is called on it after this.
        let code = unsafe { function(raw.as_ptr()) };
        self.nccl.check(call, code)?;
        Ok(())
    }
}

/// Values that NCCL may use until an abort has ended: the memory and the streams
/// of kernels that may run, and the name.
pub(crate) struct Kept {
    _in_flight: Vec<InFlight>,
    _name: Arc<CString>,
}

type Collective = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    *mut RawCommunicator,
    *mut c_void,
) -> c_int;

impl Drop for Communicator {
    fn drop(&mut self) {
        if let Err(error) = self.free("ncclCommAbort", self.nccl.symbols().abort) {
            tracing::error!(%error, communicator = self.name(), "a dropped communicator is not freed");
        }
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, stage) = (self.name(), &self.stage);
        f.debug_struct("Communicator")
            .field("name", &name)
            .field("stage", stage)
            .finish_non_exhaustive()
    }
}

fn not_ready(call: &'static str, reason: &'static str) -> NcclError {
    NcclError::NotReady { call, reason }
}

/// The name, the number of ranks and the rank, as NCCL takes them.
fn checked(membership: Membership<'_>) -> Result<(CString, c_int, c_int), NcclError> {
    let Membership { group, generation, ranks, rank } = membership;
    let no_such_rank = NcclError::NoSuchRank { rank, ranks };
    if ranks > RANKS_MAX || rank >= ranks {
        return Err(no_such_rank);
    }
    let bad_name = NcclError::BadName { bytes: group.len() };
    if group.is_empty() || group.len() > GROUP_BYTES_MAX {
        return Err(bad_name);
    }
    let name = CString::new(format!("{group}/{generation}")).map_err(|_| bad_name)?;
    match (c_int::try_from(ranks), c_int::try_from(rank)) {
        (Ok(ranks), Ok(rank)) => Ok((name, ranks, rank)),
        _ => Err(no_such_rank),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_checked_before_nccl_sees_them() {
        let membership = Membership { group: "world", generation: 7, ranks: 4, rank: 3 };
        let (name, ranks, rank) = checked(membership).expect("a rank");
        assert_eq!((name.as_bytes(), ranks, rank), (b"world/7".as_slice(), 4, 3));

        for (ranks, rank) in [(4, 4), (0, 0), (RANKS_MAX + 1, 0), (u32::MAX, u32::MAX - 1)] {
            let error = checked(Membership { ranks, rank, ..membership }).expect_err("no rank");
            assert_eq!(error, NcclError::NoSuchRank { rank, ranks });
        }
        let long = "x".repeat(1 << 20);
        for group in ["", "a\0b", &long] {
            let error = checked(Membership { group, ..membership }).expect_err("no name");
            assert_eq!(error, NcclError::BadName { bytes: group.len() });
        }
    }

    /// Where NCCL finds no GPU it returns from the middle of a group, in which
    /// the next calls of this thread would wait for ever.
    #[test]
    fn a_failed_forming_leaves_no_group_open() {
        let library = std::env::var_os("HOLDFAST_TEST_NCCL").unwrap_or_default();
        assert!(!library.is_empty(), "run `tests/prepare nccl` and source target/environment");
        if library == "none" || Device::count().is_ok_and(|count| count > 0) {
            eprintln!("SKIPPED: there is no library, or there is a GPU");
            return;
        }
        let nccl = Nccl::load(Some(library.as_ref())).expect("a library");
        let id = UniqueId::from_bytes([0; UniqueId::BYTES]);
        let membership = Membership { group: "world", generation: 7, ranks: 2, rank: 0 };
        Communicator::begin_init(&nccl, None, &id, membership).expect_err("there is no GPU");
        // SAFETY: it takes no arguments and may be called at any time.
        let code = unsafe { (nccl.symbols().group_end)() };
        assert_eq!(ResultCode(code), crate::codes::INVALID_USAGE, "a group was open");
    }
}
