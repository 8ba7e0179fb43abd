//! What a node keeps on disk: its log and vote, its newest snapshot, and its
//! identity.
//!
//! Entry point: [`Storage::open`], which locks and checks a data folder and
//! hands out the parts: [`Storage::log`] and [`Storage::state_machine`] for
//! the consensus library, [`Storage::snapshots`] for the network.
//!
//! | module | holds |
//! | --- | --- |
//! | [`folder`] | the data folder, opened and checked at each start |
//! | [`identity`] | the identity of a folder |
//! | [`log`] | the Raft log in memory, as the consensus library sees it |
//! | [`writer`] | its one writer: group commit |
//! | [`backend`] | the interface between log and disk |
//! | [`rocks`], [`wal`], [`watermark`] | the disk in production |
//! | [`memory`] | the disk in a simulation |
//! | [`seal`] | checksum and version around each record |
//! | [`snapshot`] | snapshots: format, folder, sending and receiving |
//! | [`state`] | the state machine, as the consensus library sees it |
//! | [`survey`] | reads a whole folder while no node uses it |
//! | [`calendar`] | wall-clock time, for headers of files |
//! | [`offload`] | runs blocking work |
//! | [`stats`] | counters of the writer |
//! | [`error`] | errors, and what to do about them |
//!
//! # Architecture invariants
//!
//! * Nothing is acknowledged before it is on the disk, and all writes of the
//!   log go through one queue.
//! * After a failed write nothing more is written: the node exits with an error.
//! * Nothing that was acknowledged disappears silently: what is read from the
//!   disk is checked to the last byte and against the watermark, and a node in
//!   doubt refuses to start.
//! * The log is purged only up to what a durable snapshot covers.
//! * RocksDB is named only in [`rocks`].

pub mod backend;
pub mod calendar;
pub mod error;
pub mod folder;
pub mod identity;
pub mod log;
pub mod memory;
pub mod offload;
pub mod rocks;
pub mod seal;
pub mod snapshot;
pub mod state;
pub mod stats;
pub mod survey;
pub mod wal;
pub mod watermark;
pub mod writer;

pub use error::StorageError;
pub use folder::{EmptyStorage, Opened, Options, Storage};
pub use identity::Identity;
pub use log::{LogStore, WitnessStore};
pub use snapshot::{SnapshotFile, SnapshotStore};
pub use state::{AppliedState, EffectSink, SharedState, StateMachine};
