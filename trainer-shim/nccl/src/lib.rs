//! NCCL, loaded at run time, and as much of CUDA as its collectives need: a thin
//! and safe layer over both.
//!
//! ```no_run
//! use holdfast_nccl::{Communicator, Device, Membership, Nccl, Reduction, State};
//!
//! # fn example(id: holdfast_nccl::UniqueId) -> Result<(), Box<dyn std::error::Error>> {
//! let nccl = Nccl::load(None)?;
//! let device = Device::open(0)?;
//! let membership = Membership { group: "world", generation: 7, ranks: 4, rank: 1 };
//! let mut communicator = Communicator::begin_init(&nccl, Some(&device), &id, membership)?;
//! while communicator.state()? == State::InProgress {
//!     // If the control plane revokes generation 7: `communicator.abort()`.
//! }
//! let buffer = device.stream()?.buffer(&[1.0f32; 1024])?;
//! communicator.all_reduce(&buffer, Reduction::Sum)?;
//! while communicator.pending()? > 0 {
//!     // The same here.
//! }
//! assert_eq!(buffer.values()?, vec![4.0; 1024]);
//! # Ok(())
//! # }
//! ```
//!
//! Entry points: [`Nccl::load`], [`Communicator::begin_init`], [`Device::open`],
//! and [`Minter::start`] for the process that hands out ids.
//!
//! | module | holds |
//! | --- | --- |
//! | [`load`] | the library: found, checked, its version |
//! | [`version`] | versions, and what each can do |
//! | [`environment`] | variables that NCCL must not and should have |
//! | [`unique_id`] | the id of one generation |
//! | [`minter`] | a process that mints one, and can be killed |
//! | [`communicator`] | one communicator, from its forming to its end |
//! | [`mod@group`] | calls on several communicators at once |
//! | [`device`] | devices, streams and memory of CUDA |
//! | [`codes`] | result codes, as integers |
//! | [`error`] | why something failed |
//! | `sys` | NCCL's header, as far as it is used |
//!
//! # Architecture invariants
//!
//! * It decides nothing, and knows no other crate of Holdfast: its caller knows
//!   the generation, its members and its end.
//! * All `unsafe` that calls NCCL is here, and each block says why it is sound.
//! * No call waits for a peer. There are no deadlines, no threads and no retries
//!   here: the owner of a communicator counts the time, and aborts.
//! * What is freed cannot be called: abort and destroy consume the communicator.
//! * Memory outlives the kernels that use it: a communicator keeps the buffers of
//!   its collectives until they have ended on the device, or the abort has.
//! * A machine without driver, GPU or library gets an error that says so, and no
//!   panic. Nothing is linked: the same program runs everywhere.
//! * A result code is a number. Functions that not every accepted version has
//!   are asked for by [`Capabilities`].
//! * Nothing changes the environment of the process.
//!
//! # What is absent
//!
//! `ncclCommShrink` and `ncclCommGrow` are reported and not called: a generation
//! is formed by an id. NCCL has no barrier: an all-reduce of one value is one.
//!
//! # Modules that know each other
//!
//! * `communicator`, `device`, `error`, `group`, `load`: a group makes one call of
//!   several communicators' calls, and a communicator refuses calls while a group is
//!   open. Both need NCCL (`load`) and buffers (`device`). All of these return errors,
//!   whose texts name the limits of `communicator`.

pub mod codes;
pub mod communicator;
pub mod device;
pub mod environment;
pub mod error;
pub mod group;
pub mod load;
pub mod minter;
#[expect(unsafe_code, reason = "it is the interface of a C library")]
mod sys;
pub mod unique_id;
pub mod version;

pub use codes::ResultCode;
pub use communicator::{Communicator, Membership, Reduction, State};
pub use device::{Buffer, Device, Element, Stream};
pub use error::{DeviceError, Failure, LoadError, MintError, NcclError};
pub use group::{Group, group};
pub use load::Nccl;
pub use minter::Minter;
pub use unique_id::UniqueId;
pub use version::{Capabilities, Version};
