//! What remains after a killed process, a torn write or a damaged disk.

use std::fs;
use std::path::Path;

use holdfast_store::storage::StorageError;
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;

use crate::support::{
    Kept, all, append, copy, entry, fill, flip, folder, id, kill_image, open, refused, reopen,
    vote, wal,
};

fn is_damage(error: &StorageError) -> bool {
    matches!(error, StorageError::Damaged { .. })
}

/// Everything that was ever stored, read back.
async fn contents(storage: &Kept) -> String {
    let mut log = storage.log();
    let state = log.get_log_state().await.unwrap();
    format!(
        "{:?} {:?} {:?} {:?} {:?}",
        log.read_vote().await.unwrap(),
        log.read_committed().await.unwrap(),
        state,
        all(&log).await,
        storage.identity()
    )
}

#[tokio::test]
async fn every_acknowledged_operation_survives_a_kill() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    let mut log = storage.log();
    fill(&log, 3).await;
    let mut survived = 0;
    for index in 3..20 {
        append(&log, [entry(1, index)]).await;
        let image = kill_image(dir.path());
        let back = reopen(image.path()).unwrap();
        assert_eq!(all(&back.log()).await, all(&log).await);
        survived += 1;
        back.close().await;
    }
    assert_eq!(survived, 17);

    log.save_vote(&vote(7)).await.unwrap();
    let back = reopen(kill_image(dir.path()).path()).unwrap();
    assert_eq!(back.log().read_vote().await.unwrap(), Some(vote(7)));
    back.close().await;

    log.truncate_after(Some(id(1, 9))).await.unwrap();
    let back = reopen(kill_image(dir.path()).path()).unwrap();
    assert_eq!(all(&back.log()).await.last().unwrap().log_id, id(1, 9));
    back.close().await;

    append(&log, [entry(7, 10)]).await;
    let back = reopen(kill_image(dir.path()).path()).unwrap();
    assert_eq!(all(&back.log()).await.last().unwrap().log_id, id(7, 10));
    back.close().await;
    storage.close().await;
}

#[tokio::test]
async fn a_torn_write_that_nobody_was_told_of_is_dropped() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    fill(&storage.log(), 5).await;
    let before = kill_image(dir.path());
    append(&storage.log(), [entry(1, 5)]).await;
    let after = kill_image(dir.path());
    storage.close().await;

    let expected = {
        let back = reopen(kill_image(before.path()).path()).unwrap();
        let contents = contents(&back).await;
        back.close().await;
        contents
    };
    let whole = fs::read(wal(after.path())).unwrap();
    let start = fs::metadata(wal(before.path())).unwrap().len() as usize;
    assert!(start < whole.len());
    for end in (start..whole.len()).step_by(5) {
        let torn = kill_image(before.path());
        fs::write(wal(torn.path()), &whole[..end]).unwrap();
        let back = reopen(torn.path()).unwrap_or_else(|error| panic!("cut at {end}: {error}"));
        assert_eq!(contents(&back).await, expected, "cut at {end}");
        back.close().await;
    }
    // Blocks that the file system allocated and never filled.
    for tail in [vec![0; 100], vec![0xa5; 100], vec![5; 100]] {
        let torn = kill_image(before.path());
        fs::write(wal(torn.path()), [&whole[..start], &tail].concat()).unwrap();
        let back = reopen(torn.path()).unwrap();
        assert_eq!(contents(&back).await, expected);
        back.close().await;
    }
}

#[tokio::test]
async fn a_tail_that_was_acknowledged_and_is_gone_is_refused() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    fill(&storage.log(), 5).await;
    let image = kill_image(dir.path());
    storage.close().await;

    let whole = fs::read(wal(image.path())).unwrap();
    for cut in [1, 2, 50, whole.len() / 2, whole.len()] {
        let torn = kill_image(image.path());
        let file = wal(torn.path());
        fs::write(&file, &whole[..whole.len() - cut]).unwrap();
        let error = refused(reopen(torn.path()));
        assert!(is_damage(&error), "{cut} bytes cut: {error}");
        assert!(error.to_string().contains(".log is damaged"), "{cut} bytes cut: {error}");
        assert!(error.to_string().contains("holdfast node remove"), "{error}");
        // The refusal repeats, and leaves the evidence alone.
        assert_eq!(fs::read(&file).unwrap().len(), whole.len() - cut);
        assert!(is_damage(&refused(reopen(torn.path()))));
    }
    let gone = kill_image(image.path());
    fs::remove_file(wal(gone.path())).unwrap();
    assert!(is_damage(&refused(reopen(gone.path()))));
}

/// A bit is flipped in every so many bytes.
const STRIDE: usize = 11;

/// Flips bits all over a file. Each must be refused, or harmless: the same
/// contents, to the last bit. Returns how many were refused.
async fn flip_all_over(image: &Path, file: &str, stride: usize) -> usize {
    let expected = {
        let copy = kill_image(image);
        let back = reopen(copy.path()).unwrap();
        let contents = contents(&back).await;
        back.close().await;
        contents
    };
    let length = fs::metadata(image.join(file)).unwrap().len() as usize;
    let mut refusals = 0;
    for offset in (0..length).step_by(stride) {
        let bad = folder();
        copy(image, bad.path());
        flip(&bad.path().join(file), offset, 1 << (offset % 8));
        match reopen(bad.path()) {
            Err(error) => {
                assert!(is_damage(&error), "byte {offset} of {file}: {error}");
                assert!(error.file().is_some_and(|path| path.starts_with(bad.path())), "{error}");
                refusals += 1;
            }
            Ok(back) => {
                assert_eq!(contents(&back).await, expected, "byte {offset} of {file}");
                back.close().await;
            }
        }
    }
    refusals
}

#[tokio::test]
async fn a_flipped_bit_in_the_write_ahead_log_is_refused() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    fill(&storage.log(), 4).await;
    let image = kill_image(dir.path());
    storage.close().await;

    let file = wal(image.path());
    let length = fs::metadata(&file).unwrap().len() as usize;
    let name = file.strip_prefix(image.path()).unwrap().to_str().unwrap().to_owned();
    let refusals = flip_all_over(image.path(), &name, STRIDE).await;
    assert_eq!(refusals, length.div_ceil(STRIDE), "each flip in the log must be refused");
}

#[tokio::test]
async fn damage_that_would_hang_the_database_is_refused() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    fill(&storage.log(), 4).await;
    let image = kill_image(dir.path());
    storage.close().await;

    let database = fs::read_dir(image.path().join("log")).unwrap();
    let manifest = database.map(|file| file.unwrap().path());
    let mut manifest = manifest.filter(|path| path.to_str().unwrap().contains("MANIFEST"));
    for file in [wal(image.path()), manifest.next().unwrap()] {
        let name = file.strip_prefix(image.path()).unwrap();
        let bytes = fs::read(&file).unwrap();
        let second = 7 + usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
        let bad = kill_image(image.path());
        // From "a complete record" to "a complete record of a recycled file".
        flip(&bad.path().join(name), second + 6, 1 ^ 5);
        let error = refused(reopen(bad.path()));
        assert!(is_damage(&error), "{error}");
        assert_eq!(error.file(), Some(bad.path().join(name).as_path()), "{error}");
    }
}

#[tokio::test]
async fn a_flipped_bit_in_a_sorted_file_is_refused_or_harmless() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    fill(&storage.log(), 40).await;
    storage.close().await;
    // Opening moves the write-ahead log's content into sorted files.
    reopen(dir.path()).unwrap().close().await;

    let tables = crate::support::files(&dir.path().join("log"), "sst");
    assert!(!tables.is_empty());
    for table in tables {
        let name = table.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_owned();
        let refusals = flip_all_over(dir.path(), &name, 2 * STRIDE).await;
        assert!(refusals > 10, "only {refusals} flips of {name} were noticed");
    }
}

#[tokio::test]
async fn a_flipped_bit_in_the_database_s_own_files_is_refused_or_harmless() {
    let dir = folder();
    open(dir.path()).unwrap().close().await;
    // Each opening adds a step to the database's list of its files; a list that has
    // lost its last step must not restore an old vote.
    for term in 1..4 {
        let storage = reopen(dir.path()).unwrap();
        storage.log().save_vote(&vote(term)).await.unwrap();
        storage.close().await;
    }
    let image = kill_image(dir.path());
    reopen(image.path()).unwrap().close().await;
    let dir = image;
    for file in fs::read_dir(dir.path().join("log")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if name.starts_with("MANIFEST") || name == "CURRENT" {
            flip_all_over(dir.path(), &format!("log/{name}"), STRIDE).await;
        }
    }
}

#[tokio::test]
async fn a_missing_file_of_the_database_is_refused() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    fill(&storage.log(), 5).await;
    storage.close().await;
    reopen(dir.path()).unwrap().close().await;

    for extension in ["sst", "manifest", "current"] {
        let image = kill_image(dir.path());
        for file in fs::read_dir(image.path().join("log")).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_lowercase();
            if name.ends_with(extension) || name.starts_with(extension) {
                fs::remove_file(&path).unwrap();
            }
        }
        let error = refused(reopen(image.path()));
        assert!(is_damage(&error), "without its {extension}: {error}");
    }
}

#[tokio::test]
async fn a_log_from_an_older_copy_of_the_folder_is_refused() {
    let dir = folder();
    let storage = open(dir.path()).unwrap();
    fill(&storage.log(), 5).await;
    let older = kill_image(dir.path());
    append(&storage.log(), [entry(1, 5)]).await;
    storage.close().await;

    fs::remove_dir_all(dir.path().join("log")).unwrap();
    copy(&older.path().join("log"), &dir.path().join("log"));
    assert!(is_damage(&refused(reopen(dir.path()))));
}
