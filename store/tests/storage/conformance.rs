//! openraft's own suite for log stores and state machines.

use holdfast_store::raft::types::TypeConfig;
use holdfast_store::raft::{LogStore, StateMachine};
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tempfile::TempDir;

use crate::support::{Kept, folder, open, sink};

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, (Kept, TempDir)> for Builder {
    async fn build(
        &self,
    ) -> Result<((Kept, TempDir), LogStore, StateMachine), StorageError<TypeConfig>> {
        let dir = folder();
        let storage = open(dir.path()).unwrap();
        let machine = storage.state_machine(sink()).await.unwrap();
        let log = storage.log();
        Ok(((storage, dir), log, machine))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_library_s_suite_passes_on_rocksdb() {
    Suite::test_all(Builder).await.unwrap();
}
