//! Byte streams between hosts: TCP in production, a simulated network in
//! simulations.
//!
//! Entry points: [`Stream::connect`] and [`Listener::bind`], to open or accept
//! connections between hosts; [`tls::Dialer`] and [`tls::Acceptor`], where
//! nothing in between may read them; [`simulated::enter`], for a simulation.
//! [`regular_file`] reads files that users name: certificates, tokens, settings.
//!
//! # Architecture invariants
//!
//! * Without a simulated network on the thread everything here is TCP as Tokio
//!   has it; a read or a write costs one more branch.
//! * Nothing is decided here: no retries, no time limits, no framing.
//! * Data written with TLS is sent only after a flush.
//!
//! # Modules that know each other
//!
//! * `stream`, `tls`: `tls` makes a secured `Stream` of a plain one, and a `Stream` may
//!   hold a secured connection.

mod listener;
pub mod regular_file;
pub mod simulated;
mod stream;
pub mod tls;

pub use listener::Listener;
pub use stream::{Detached, ReadHalf, Stream, WriteHalf};
