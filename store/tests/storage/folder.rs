//! Identity of a folder: every way in which it can be wrong.

use std::fs;

use holdfast_store::storage::{Opened, Options, Storage, StorageError};
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;

use crate::support::{
    CLUSTER, all, append, copy, entry, fill, folder, kill_image, open, refused, reopen, vote,
};

#[tokio::test]
async fn a_new_folder_becomes_the_node_s_and_stays_it() {
    let dir = folder();
    let data = dir.path().join("deep/data");
    let storage = open(&data).unwrap();
    let made = storage.identity().clone();
    assert_eq!((made.node_id, made.cluster_id.as_str(), made.formed), (1, CLUSTER, false));
    storage.close().await;
    let back = reopen(&data).unwrap();
    assert_eq!(*back.identity(), made);
    back.close().await;

    let other = folder();
    let storage = open(other.path()).unwrap();
    assert_ne!(storage.identity().generation, made.generation, "each folder has its own");
    storage.close().await;
}

#[tokio::test]
async fn another_process_is_kept_out() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    let error = refused(open(dir.path()));
    assert!(matches!(error, StorageError::InUse { .. }), "{error}");
    assert!(error.to_string().starts_with("another holdfast-store is using"), "{error}");
    storage.close().await;
    open(dir.path()).unwrap().close().await;
}

#[tokio::test]
async fn a_folder_of_another_node_or_cluster_is_refused() {
    let dir = folder();
    open(dir.path()).unwrap().close().await;

    let error = refused(Storage::open(dir.path(), 2, Options::default()));
    assert!(matches!(error, StorageError::OtherNode { found: 1, wanted: 2, .. }), "{error}");

    let options = || Options { cluster_id: Some("theirs".into()), ..Options::default() };
    let error = refused(Storage::open(dir.path(), 1, options()));
    assert!(matches!(error, StorageError::OtherCluster { .. }), "{error}");

    let empty = folder();
    let Opened::Empty(empty) = Storage::open(empty.path(), 1, options()).unwrap() else {
        panic!("an empty folder");
    };
    assert!(matches!(refused(empty.create("ours".into())), StorageError::OtherCluster { .. }));
}

#[tokio::test]
async fn an_identity_without_its_log_is_refused() {
    let dir = folder();
    open(dir.path()).unwrap().close().await;
    fs::remove_dir_all(dir.path().join("log")).unwrap();
    let error = refused(reopen(dir.path()));
    assert!(matches!(error, StorageError::LogMissing { node: 1, .. }), "{error}");
    assert!(error.to_string().contains("holdfast node remove"), "{error}");
}

#[tokio::test]
async fn a_log_without_its_identity_is_refused() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    storage.log().save_vote(&vote(1)).await.unwrap();
    storage.close().await;
    fs::remove_file(dir.path().join("identity.json")).unwrap();
    let error = refused(Storage::open(dir.path(), 1, Options::default()));
    assert!(matches!(error, StorageError::IdentityMissing { .. }), "{error}");
}

#[tokio::test]
async fn a_creation_that_was_cut_short_is_begun_again() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    let first = storage.identity().generation;
    storage.close().await;
    fs::remove_file(dir.path().join("identity.json")).unwrap();
    let storage = open(dir.path()).unwrap();
    assert_ne!(storage.identity().generation, first);
    storage.close().await;

    // Before the database was complete.
    let dir = folder();
    fs::create_dir(dir.path().join("log")).unwrap();
    fs::write(dir.path().join("log/000001.log"), "").unwrap();
    open(dir.path()).unwrap().close().await;
}

#[tokio::test]
async fn a_folder_put_together_from_two_is_refused() {
    let (one, two) = (folder(), folder());
    for dir in [&one, &two] {
        let storage = open(dir.path()).unwrap();
        fill(&storage.log(), 3).await;
        storage.close().await;
    }
    let mixed = kill_image(one.path());
    fs::remove_dir_all(mixed.path().join("log")).unwrap();
    copy(&two.path().join("log"), &mixed.path().join("log"));
    let error = refused(reopen(mixed.path()));
    assert!(matches!(error, StorageError::IdentityMismatch { .. }), "{error}");
    assert!(error.to_string().contains("put together from two"), "{error}");
}

#[tokio::test]
async fn a_node_that_took_part_and_lost_its_log_is_refused() {
    let dir = folder();
    let mut storage = open(dir.path()).unwrap();
    storage.mark_formed().await.unwrap();
    assert!(storage.identity().formed);
    storage.close().await;
    let error = refused(reopen(dir.path()));
    assert!(error.to_string().contains("has taken part in its cluster"), "{error}");
}

#[tokio::test]
async fn a_mark_that_was_cut_short_is_finished() {
    let dir = folder();
    let mut storage = open(dir.path()).unwrap();
    fill(&storage.log(), 2).await;
    let unmarked = fs::read(dir.path().join("identity.json")).unwrap();
    storage.mark_formed().await.unwrap();
    storage.close().await;

    // The database's copy was written, the file was not.
    fs::write(dir.path().join("identity.json"), unmarked).unwrap();
    let back = reopen(dir.path()).unwrap();
    assert!(back.identity().formed);
    assert!(fs::read_to_string(dir.path().join("identity.json")).unwrap().contains("true"));
    back.close().await;
}

#[test]
fn a_folder_with_other_things_in_it_is_refused() {
    let dir = folder();
    fs::write(dir.path().join("thesis.txt"), "").unwrap();
    let error = refused(open(dir.path()));
    assert!(matches!(&error, StorageError::NotOurs { found, .. } if found == "thesis.txt"));

    let fresh = folder();
    fs::create_dir(fresh.path().join("lost+found")).unwrap();
    assert!(open(fresh.path()).is_ok(), "the root of a fresh file system is as good as empty");
}

#[test]
fn a_path_that_cannot_be_a_folder_is_named() {
    let dir = folder();
    fs::write(dir.path().join("file"), "").unwrap();
    let path = dir.path().join("file/data");
    let error = refused(open(&path));
    assert!(matches!(&error, StorageError::Io { file, .. } if *file == path), "{error}");
}

#[test]
fn a_later_layout_is_refused_by_name() {
    let dir = folder();
    fs::write(dir.path().join("identity.json"), "{\"format\": 2, \"new\": 1}").unwrap();
    let error = refused(open(dir.path()));
    assert!(matches!(error, StorageError::UnknownFormat { found: 2, known: 1, .. }), "{error}");
}

#[tokio::test]
async fn a_purged_log_needs_the_snapshot_that_covers_it() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    fill(&storage.log(), 5).await;
    storage.log().purge(crate::support::id(1, 2)).await.unwrap();
    append(&storage.log(), [entry(1, 5)]).await;
    assert_eq!(all(&storage.log()).await.len(), 3);
    storage.close().await;
    let error = refused(reopen(dir.path()));
    assert!(error.to_string().contains("no snapshot reaches that far"), "{error}");
}

#[tokio::test]
async fn a_commit_index_beyond_the_log_betrays_a_lost_tail() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    fill(&storage.log(), 5).await;
    let mut log = storage.log();
    log.save_committed(Some(crate::support::id(1, 4))).await.unwrap();
    log.truncate_after(Some(crate::support::id(1, 2))).await.unwrap();
    assert_eq!(log.read_committed().await.unwrap().unwrap().index, 4);
    assert_eq!(log.try_get_log_entries(..).await.unwrap().len(), 3);
    storage.close().await;
    let error = refused(reopen(dir.path()));
    assert!(error.to_string().contains("entries up to 4 were committed"), "{error}");
}
