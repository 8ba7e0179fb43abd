//! Durable state.

pub mod backend;
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
pub mod watermark;
pub mod writer;

pub use error::StorageError;
pub use folder::{EmptyStorage, Opened, Options, Storage};
pub use identity::Identity;
pub use log::{LogStore, WitnessStore};
pub use snapshot::{SnapshotFile, SnapshotStore};
pub use state::{AppliedState, EffectSink, SharedState, StateMachine};
