//! Byte streams between hosts: the seam at which a simulation puts a network of
//! its own in place of TCP.
//!
//! Entry points: [`Stream::connect`] and [`Listener::bind`], for whoever opens or
//! accepts connections between hosts; [`tls::Dialer`] and [`tls::Acceptor`], where
//! nobody on the way may read them; [`simulated::enter`], for a simulation.
//!
//! # Architecture invariants
//!
//! * Without a simulated network on the thread everything here is TCP as Tokio
//!   has it; a read or a write costs one branch more.
//! * Nothing is decided here: no retries, no time limits, no framing.
//! * What is written with TLS is on its way only after a flush.

mod listener;
pub mod simulated;
mod stream;
pub mod tls;

pub use listener::Listener;
pub use stream::{Detached, ReadHalf, Stream, WriteHalf};
