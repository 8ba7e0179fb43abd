//! Front doors: what trainers talk to.
//!
//! A door is a codec without I/O, a mapping of the protocol onto store
//! commands, and a socket loop. A door decides nothing: every decision is made
//! by the store.
//!
//! | module | for |
//! | --- | --- |
//! | [`tcpstore`] | programs that know nothing of Holdfast: PyTorch's TCPStore |
//! | `process` | programs with the library, whose deaths are reported at once |
//! | `budget` | the memory that all connections of a door share |

mod budget;
pub(crate) mod process;
pub mod tcpstore;
