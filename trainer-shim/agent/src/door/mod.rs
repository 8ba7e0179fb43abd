//! Front doors: what a trainer that knows nothing of Holdfast can talk to.
//!
//! A door is a codec without I/O, a mapping of the foreign protocol onto
//! store commands, and a socket loop. A door decides nothing: every decision
//! is made by the store.

pub mod tcpstore;
