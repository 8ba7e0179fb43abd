//! What a node keeps on disk: its log and vote, its newest snapshot, and its
//! identity.
//!
//! Entry point: [`Storage::open`], which locks and checks a data folder and
//! hands out the parts: [`Storage::log`] with `Storage::take_image`, and
//! [`Storage::snapshots`]. It knows nothing of consensus, which stands on it.
//!
//! | module | holds |
//! | --- | --- |
//! | [`folder`] | the data folder, opened and checked at each start |
//! | [`identity`] | the identity of a folder |
//! | [`record`] | our own records of what is stored and sent |
//! | [`log`] | the log on disk, and what is kept beside its entries |
//! | [`writer`] | its one writer: group commit |
//! | [`backend`] | the interface between log and disk |
//! | [`rocks`], [`wal`], [`watermark`] | the disk in production |
//! | [`memory`] | the disk in a simulation |
//! | [`seal`] | checksum and version around each record |
//! | [`snapshot`] | snapshots: format, folder, sending and receiving |
//! | `survey` | reads a whole folder while no node uses it |
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
pub mod error;
pub mod folder;
pub mod identity;
pub mod log;
pub mod memory;
pub mod offload;
pub mod record;
pub mod rocks;
pub mod seal;
pub mod snapshot;
pub mod stats;
pub(crate) mod survey;
pub mod wal;
pub mod watermark;
pub mod writer;

pub use error::StorageError;
pub use folder::{EmptyStorage, Opened, Options, Storage};
pub use identity::Identity;
pub use log::{Log, WitnessStore};
pub use snapshot::{SnapshotFile, SnapshotStore};
