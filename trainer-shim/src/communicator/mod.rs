//! Communicators: what the members of one generation of a group exchange
//! gradients through, and how they are built, stopped and freed.
//!
//! A [`Backend`] mints ids and builds [`Communicator`]s. It decides nothing: its
//! caller passes the members, the generation and the deaths, and nothing in here
//! talks to the store or to an agent.
//!
//! ```
//! use holdfast_trainer_shim::communicator::ring::Ring;
//! use holdfast_trainer_shim::communicator::{
//!     Backend, Buffer, InitOptions, MintOptions, Reduction,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = Ring::default();
//! let group = "gradients".to_owned();
//! let minter = backend.mint(&MintOptions { group: group.clone(), generation: 1, nranks: 1 })?;
//!
//! // Each member, in its own process:
//! let (id, incarnation) = (minter.id(), 7);
//! let options = InitOptions { group, generation: 1, incarnation, nranks: 1, rank: 0, id };
//! let communicator = backend.begin_init(options)?;
//! communicator.initialised().wait()?;
//! let sum = communicator.all_reduce(Buffer::F32(vec![1.0, 2.0]), Reduction::Sum).wait()?;
//! assert_eq!(sum, Buffer::F32(vec![1.0, 2.0]));
//! communicator.close().wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | [`backend`] | the traits, and what an id, a member and a state are |
//! | [`buffer`] | what collectives work on |
//! | [`failure`] | why a communicator is of no use |
//! | [`work`] | work in progress, and its waiters |
//! | `lifecycle` | pure: how a communicator is doing, and what waits in it |
//! | `used_ids` | ids that serve no second time |
//! | [`ring`] | the backend without a GPU: TCP, with NCCL's failure modes |
//! | `nccl` | the backend for GPUs, with the feature `nccl` |
//!
//! # Architecture invariants
//!
//! * Every call returns at once, but for [`Backend::mint`], which may start a
//!   process, and [`Communicator::release`]; a caller that wants to wait waits on
//!   a [`Work`].
//! * There are no deadlines in here and no detection of deaths: both are the
//!   control plane's. An error of a peer is a hint, its absence means nothing.
//! * [`Communicator::quiesce`] ends every wait.
//! * One id, one generation, one communicator: a retry takes another generation.

pub mod backend;
pub mod buffer;
pub mod failure;
mod lifecycle;
#[cfg(feature = "nccl")]
pub mod nccl;
pub mod ring;
mod used_ids;
pub mod work;

pub use backend::{
    Backend, Capabilities, Communicator, GROUP_BYTES_MAX, InitOptions, MEMBERS_MAX, MintOptions,
    Minter, State, UNIQUE_ID_BYTES, UniqueId,
};
pub use buffer::{Buffer, Reduction};
pub use failure::{Failure, Refusal, Refuser};
pub use work::{Completer, Work};
