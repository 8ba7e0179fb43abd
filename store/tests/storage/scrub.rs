//! Damage found while a node runs, and its repair.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{
    Kept, all, append, copy, entry, files, fill, flip, folder, kill_image, open, reopen,
};

/// The middle of a file's content; files may be allocated ahead.
fn damage(path: &Path) {
    let bytes = fs::read(path).unwrap();
    let content = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    flip(path, content / 2, 1);
}

/// The files of a log in use, by kind. The second start of a node leaves a table.
fn kinds(dir: &Path) -> Vec<(&'static str, PathBuf)> {
    let log = dir.join("log");
    let manifest = fs::read_to_string(log.join("CURRENT")).unwrap();
    vec![
        ("the write-ahead log", files(&log, "log").pop().unwrap()),
        ("a table", files(&log, "sst").pop().unwrap()),
        ("the list of files", log.join(manifest.trim())),
        ("the watermark", dir.join("watermark")),
    ]
}

async fn restarted(dir: &Path) -> Kept {
    let storage = open(dir).unwrap();
    fill(&storage.log(), 50).await;
    storage.close().await;
    let storage = reopen(dir).unwrap();
    append(&storage.log(), (50..80).map(|index| entry(1, index))).await;
    storage
}

#[tokio::test]
async fn damage_is_found_while_the_log_is_in_use_and_written_anew() {
    for kind in 0..4 {
        let dir = folder();
        let storage = restarted(dir.path()).await;
        let log = storage.log();
        log.disk().check().unwrap();
        let (name, path) = kinds(dir.path()).swap_remove(kind);
        damage(&path);
        let found = log.disk().check().unwrap_err();
        assert!(found.is_damage(), "{name}: {found}");

        log.rewrite().await.unwrap();
        log.disk().check().unwrap();
        append(&log, [entry(1, 80)]).await;
        let expected = all(&log).await;
        assert_eq!(expected.len(), 81);
        let back = reopen(kill_image(dir.path()).path()).unwrap();
        assert_eq!(all(&back.log()).await, expected, "{name}");
        assert_eq!(back.identity(), storage.identity());
        back.close().await;
        storage.close().await;
        let back = reopen(dir.path()).unwrap();
        assert_eq!(all(&back.log()).await, expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_appended_while_the_log_is_written_anew_is_in_it() {
    let dir = folder();
    let storage = restarted(dir.path()).await;
    let appended = storage.log();
    let appending = tokio::task::spawn_blocking(move || {
        tokio::runtime::Handle::current().block_on(async {
            for index in 80..400 {
                append(&appended, [entry(1, index)]).await;
            }
        });
    });
    let mut rewritten = 0;
    while !appending.is_finished() {
        storage.log().rewrite().await.unwrap();
        rewritten += 1;
    }
    appending.await.unwrap();
    assert!(rewritten > 0);
    let expected = all(&storage.log()).await;
    storage.close().await;
    let back = reopen(dir.path()).unwrap();
    assert_eq!(all(&back.log()).await, expected);
}

#[tokio::test]
async fn a_crash_while_a_log_takes_the_place_of_another_loses_neither() {
    let dir = folder();
    let storage = restarted(dir.path()).await;
    let expected = all(&storage.log()).await;
    storage.close().await;
    let sound = kill_image(dir.path());
    let path = |name: &str| dir.path().join(name);
    let reset = || {
        fs::remove_dir_all(dir.path()).unwrap();
        copy(sound.path(), dir.path());
    };
    let prepare = |name: &str| copy(&sound.path().join("log"), &path(name));

    // The new one was never complete: the old one counts.
    prepare("log.new");
    fs::remove_file(path("log.new/CURRENT")).unwrap();
    fs::write(path("watermark.part"), "").unwrap();
    let back = reopen(dir.path()).unwrap();
    assert_eq!(all(&back.log()).await, expected);
    back.close().await;
    assert!(!path("log.new").exists());

    // It is complete, and nothing, half or all of the old one is gone.
    for left in 0..3 {
        reset();
        prepare("log.new");
        fs::copy(path("watermark"), path("watermark.new")).unwrap();
        damage(&files(&path("log"), "log").pop().unwrap());
        fs::write(path("watermark"), "damaged").unwrap();
        match left {
            0 => {}
            1 => fs::remove_file(path("log/CURRENT")).unwrap(),
            _ => fs::remove_dir_all(path("log")).unwrap(),
        }
        let back = reopen(dir.path()).unwrap();
        assert_eq!(all(&back.log()).await, expected);
        back.close().await;
        assert!(!path("log.new").exists() && !path("watermark.new").exists());
    }

    // Only the watermark's name is missing.
    reset();
    fs::rename(path("watermark"), path("watermark.new")).unwrap();
    fs::write(path("watermark"), "damaged").unwrap();
    let back = reopen(dir.path()).unwrap();
    assert_eq!(all(&back.log()).await, expected);
}
