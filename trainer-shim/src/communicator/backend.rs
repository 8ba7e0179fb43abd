//! The interface of a communicator library, in the terms of the control plane.

use super::buffer::{Buffer, Reduction};
use super::failure::{Failure, Refusal, Refuser};
use super::work::Work;

/// Bytes of a unique id, as in NCCL.
pub const UNIQUE_ID_BYTES: usize = 128;

/// Longest name of a group, in bytes.
pub const GROUP_BYTES_MAX: usize = 256;

/// Most members of one communicator.
pub const MEMBERS_MAX: u32 = 1024;

/// A library that makes communicators. All calls but [`Backend::mint`] return at
/// once.
pub trait Backend: Send + Sync {
    /// Optional functions beyond the calls of [`Communicator`].
    fn capabilities(&self) -> Capabilities;

    /// Mints the unique id of one generation. The id is good for one
    /// communicator, and for as long as its [`Minter`] exists. May wait for a
    /// process to start, never for a peer: not to be called where tasks run.
    fn mint(&self, options: &MintOptions) -> Result<Box<dyn Minter>, Failure>;

    /// Begins to build a communicator. [`Communicator::state`] and
    /// [`Communicator::initialised`] report whether that succeeds; an error here
    /// means that nothing was begun.
    fn begin_init(&self, options: InitOptions) -> Result<Box<dyn Communicator>, Failure>;
}

/// Optional functions of a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name, for people.
    pub name: &'static str,
    /// Survivors can go on without some members, and need no new id.
    pub shrink: bool,
    /// A communicator can be stopped and used for a shrink afterwards.
    pub revoke: bool,
    /// Members can be added to a communicator that exists.
    pub grow: bool,
}

/// The communicator that an id is minted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MintOptions {
    /// The group, of at most [`GROUP_BYTES_MAX`] bytes.
    pub group: String,
    /// The generation of the group.
    pub generation: u64,
    /// How many members it has, 1 to [`MEMBERS_MAX`].
    pub nranks: u32,
}

/// Which communicator is built, and this process's rank in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitOptions {
    /// The group, of at most [`GROUP_BYTES_MAX`] bytes.
    pub group: String,
    /// The generation of the group.
    pub generation: u64,
    /// The incarnation of this process.
    pub incarnation: u64,
    /// How many members there are, 1 to [`MEMBERS_MAX`].
    pub nranks: u32,
    /// Which of them this process is, from 0.
    pub rank: u32,
    /// The id that was minted for this generation.
    pub id: UniqueId,
}

/// What the members of one communicator find each other by. A process that has it
/// can take a member's place, so it does not appear in logs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; UNIQUE_ID_BYTES]);

impl UniqueId {
    /// An id that was published. Whether it is one is found when it is used.
    pub fn from_bytes(bytes: [u8; UNIQUE_ID_BYTES]) -> UniqueId {
        UniqueId(bytes)
    }

    /// The id as it is published.
    pub fn as_bytes(&self) -> &[u8; UNIQUE_ID_BYTES] {
        &self.0
    }
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("UniqueId(..)")
    }
}

/// Keeps an id alive. When it is dropped, the id is dead and nothing of it is
/// left in this process.
pub trait Minter: Send + Sync {
    /// The id that this keeps alive.
    fn id(&self) -> UniqueId;

    /// Completes when the id can be used no more: with Ok if all members have
    /// found each other through it, otherwise with the reason as far as it is
    /// known.
    fn ended(&self) -> Work<()>;

    /// Takes the id back, at any time and any number of times.
    fn kill(&self);
}

/// How a communicator is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Not all members have joined.
    InProgress,
    /// All members have joined. A member that has died since does not change
    /// this by itself: liveness is not judged here.
    Ready,
    /// It is of no use any more; only quiesce and release are left.
    Failed(Failure),
    /// All members have closed it.
    Closed,
}

/// One member's end of a communicator. All calls may come from any thread, and
/// all but [`Communicator::release`] return at once. All members call the same
/// operations in the same order.
///
/// There are no deadlines: work whose peer has died may never end by itself. On a
/// known death, call [`Communicator::quiesce`]. A communicator that is dropped is
/// quiesced and released.
pub trait Communicator: Send + Sync {
    /// The options that it was built with.
    fn options(&self) -> &InitOptions;

    /// How it is doing.
    fn state(&self) -> State;

    /// Completes when the state is no longer [`State::InProgress`]: with the
    /// failure if it is [`State::Failed`].
    fn initialised(&self) -> Work<()>;

    /// Combines the elements of all members; all get the same bytes. Fails if
    /// it is called before the communicator is ready.
    fn all_reduce(&self, data: Buffer, reduction: Reduction) -> Work<Buffer>;

    /// Gives the elements of rank `root` to all. The others bring a buffer of
    /// the same type and length.
    fn broadcast(&self, data: Buffer, root: u32) -> Work<Buffer>;

    /// Completes when all members have called it.
    fn barrier(&self) -> Work<()>;

    /// Stops everything, also an initialisation: pending calls fail with
    /// [`Failure::Aborted`], and nothing is begun afterwards. Work in progress on
    /// a device has stopped when [`Communicator::release`] returns. At any time,
    /// any number of times; without effect on a closed communicator.
    fn quiesce(&self);

    /// Frees what the communicator holds, and waits for its threads; quiesces
    /// it first if it is neither closed nor quiesced. Any number of times.
    ///
    /// # Panics
    ///
    /// If the library could not free it: something of it may run on, and nothing
    /// may follow it in this process.
    fn release(&self);

    /// Ends it in order: completes when all members have called it. Must not be
    /// called once any member has aborted or died, for then it need never end.
    fn close(&self) -> Work<()>;
}

/// Refuses names and numbers of members that are out of bounds.
pub(super) fn check_group(group: &str, nranks: u32) -> Result<(), Failure> {
    if group.len() > GROUP_BYTES_MAX {
        let reason = format!("{} bytes, where {GROUP_BYTES_MAX} are allowed", group.len());
        return Err(Failure::Invalid { what: "name of the group", reason });
    }
    if !(1..=MEMBERS_MAX).contains(&nranks) {
        let reason = format!("{nranks}, where 1 to {MEMBERS_MAX} are allowed");
        return Err(Failure::Invalid { what: "number of members", reason });
    }
    Ok(())
}

pub(super) fn check_rank(rank: u32, nranks: u32) -> Result<(), Failure> {
    if rank < nranks {
        return Ok(());
    }
    Err(Failure::Refused { by: Refuser::Own, refusal: Refusal::Rank { actual: rank, nranks } })
}

pub(super) fn check_root(root: u32, nranks: u32) -> Result<(), Failure> {
    if root < nranks {
        return Ok(());
    }
    let reason = format!("{root}, where {nranks} members are numbered from 0");
    Err(Failure::Invalid { what: "root", reason })
}
