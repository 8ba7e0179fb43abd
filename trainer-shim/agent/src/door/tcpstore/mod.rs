//! The door that speaks PyTorch's TCPStore protocol (torch 2.2 and newer).
//!
//! ```text
//! socket ─bytes→ Decoder ─Message→ Connection ─Call→ store client
//! socket ←bytes─ Reply::encode ←─ Connection ←answer─ store client
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | [`codec`] | messages and replies as values, and as bytes |
//! | [`decoder`] | bytes in, complete messages out, at any segmentation |
//! | [`mapping`] | what each operation asks of the store, and how its answer reads |
//! | [`connection`] | the order of one connection: a state machine without I/O |
//! | `attempt` | which attempt of an in-place restart a client belongs to |
//! | `presence` | clients of each namespace, and which namespaces are over |
//! | `pace` | polls of one host, in step |
//! | `visibility` | what one connection wrote, the others see |
//! | `ending` | the end of the run, and draining |
//! | `limits` | every bound of the door, by name |
//! | `socket` | the socket loop of one connection |
//! | [`serve`] | the door itself: accepts connections, and what they share |
//!
//! # What holds on every connection
//!
//! * Operation n + 1 starts only after n is committed. SETs that have already
//!   arrived one after the other may travel as one command.
//! * What a client wrote without a reply is seen by every operation with a reply
//!   that came to this agent after its bytes, over whatever connection.
//! * An operation without a reply that cannot be committed closes the connection:
//!   TCPStore has no other notice for a client.
//! * CANCEL_WAIT is answered here and at once, with or without a quorum.
//! * The cluster ends the session of a host that it takes for dead, with its library processes:
//!   connections from before then write nothing more. A session that was merely forgotten, of a
//!   host without such processes, is followed by another, and only operations that may have been
//!   applied under it are lost.
//! * Only complete messages have an effect.

pub(crate) mod attempt;
pub mod codec;
pub mod connection;
pub mod decoder;
mod ending;
mod limits;
pub mod mapping;
mod pace;
pub(crate) mod presence;
pub mod serve;
mod socket;
mod visibility;

pub use limits::Limits;
