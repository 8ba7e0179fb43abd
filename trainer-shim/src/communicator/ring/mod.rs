//! Communicators over TCP, without a GPU: a ring that fails as NCCL does.
//!
//! A lifecycle that is tested only on a well-behaved library hangs on the real
//! one. So this one does the real work (all-reduce, broadcast and barrier over
//! two sockets for each rank), and fails in the same forms as NCCL:
//!
//! | manner | here |
//! | --- | --- |
//! | An id serves once, and is valid while the process that minted it runs. | A thread and a listening socket; both end with the last check-in, the first failed one, or the minter. |
//! | A member that dies during its check-in kills the id. | After the handshake, an end of the connection or a wrong introduction ends the root. The member at fault gets the reason, the others do not. |
//! | A silent member blocks the root. | Members are served one after the other, each without a limit. |
//! | Nothing times out. | Nothing here has a deadline; a connection to a root that is gone is tried again as NCCL does, then fails. |
//! | A dead member is an error at its neighbours, or nowhere. | [`DeadPeer`]. An idle communicator does not look at all, and a member that has failed keeps its sockets, so that its own neighbours go on waiting. |
//! | Destroying waits for all members. | A close is a barrier. |
//! | Destroying after an abort need never end. | In strict mode such a close fails at once; otherwise it waits, until quiesce. |
//! | An abort joins a running initialisation. | It interrupts it at any point; release waits for the thread. |
//!
//! In one thing it is stricter: introductions carry the group, the generation,
//! the number of members, the rank and the incarnation, and a member that differs
//! is refused, with the difference. NCCL would let it in.
//!
//! # Architecture invariants
//!
//! * One thread owns a communicator, and it alone reads and writes its sockets.
//!   It sleeps in `poll` on them and on a descriptor by which callers wake it.
//!   Only a root blocks in a socket, and a kill shuts that down.
//! * An abort waits for no command and no peer: a flag, a shutdown of the
//!   sockets, a wakeup. Nothing is sent after [`quiesce`](super::Communicator::quiesce)
//!   has returned.
//! * A communicator is ready at no member before all have joined.
//! * No length from a socket is used before it is compared with a bound.
//!   How many elements are received is only ever counted from one's own buffer.
//! * All ranks get the same bytes from an all-reduce, and the same ones each
//!   time: see `plan`.
//! * Nothing is left of a communicator that was released or dropped, or of a
//!   minter that was dropped: neither a thread nor a descriptor.
//!
//! `id`, `wire`, `heading`, `element`, `plan` and `transfer` are pure; `root`,
//! `bootstrap`, `links` and `owner` move their bytes; `shared` is where callers
//! and owner meet.

mod bootstrap;
mod communicator;
mod element;
#[cfg(fuzzing)]
pub mod fuzzing;
mod heading;
mod id;
mod links;
mod owner;
mod plan;
mod root;
mod shared;
mod socket;
mod transfer;
mod wire;

use std::net::{IpAddr, Ipv4Addr};

use self::communicator::RingCommunicator;
use self::id::Id;
use self::root::RingMinter;
use super::backend::{
    Backend, Capabilities, Communicator, InitOptions, MintOptions, Minter, check_group, check_rank,
};
use super::failure::Failure;
pub use super::lifecycle::OPERATIONS_WAITING_MAX;
use super::used_ids::UsedIds;

/// How often a connection to a root is tried again by default: NCCL's figure.
pub const CONNECT_RETRIES_DEFAULT: u32 = 34;

/// Which members notice a dead member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadPeer {
    /// Its two neighbours, in their next operation: NCCL over sockets.
    Sockets,
    /// None: NCCL over NVLink or shared memory.
    Silent,
}

/// How rings are built.
#[derive(Debug, Clone)]
pub struct RingOptions {
    /// The address of this host at which the other members reach it.
    pub address: IpAddr,
    /// Which members notice a dead member.
    pub dead_peer: DeadPeer,
    /// A close after an abort or a failure fails instead of waiting for ever.
    pub strict: bool,
    /// How often a connection to a root that is not there is tried again.
    pub connect_retries: u32,
}

impl Default for RingOptions {
    fn default() -> RingOptions {
        RingOptions {
            address: Ipv4Addr::LOCALHOST.into(),
            dead_peer: DeadPeer::Sockets,
            strict: true,
            connect_retries: CONNECT_RETRIES_DEFAULT,
        }
    }
}

/// Backend over TCP sockets, without a GPU.
#[derive(Default)]
pub struct Ring {
    options: RingOptions,
    used: UsedIds,
}

impl Ring {
    /// A backend with these options.
    pub fn new(options: RingOptions) -> Ring {
        Ring { options, used: UsedIds::default() }
    }
}

impl Backend for Ring {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "ring", shrink: false, revoke: false, grow: false }
    }

    fn mint(&self, options: &MintOptions) -> Result<Box<dyn Minter>, Failure> {
        check_group(&options.group, options.nranks)?;
        Ok(Box::new(RingMinter::mint(&self.options, options)?))
    }

    fn begin_init(&self, options: InitOptions) -> Result<Box<dyn Communicator>, Failure> {
        check_group(&options.group, options.nranks)?;
        check_rank(options.rank, options.nranks)?;
        let id = Id::decode(&options.id)?;
        if id.generation != options.generation {
            let (expected, actual) = (options.generation, id.generation);
            return Err(Failure::Invalid {
                what: "unique id",
                reason: format!("it is of generation {actual}, not {expected}"),
            });
        }
        self.used.use_up(options.id, options.rank)?;
        Ok(Box::new(RingCommunicator::begin(self.options.clone(), options, id)?))
    }
}

#[cfg(test)]
mod tests;
