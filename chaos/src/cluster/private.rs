//! The folder of this user's runs: no other user may write the files that `heal` obeys.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// Makes a folder below the private one, or finds it.
pub(super) fn folder(name: &str) -> anyhow::Result<PathBuf> {
    let user = nix::unistd::getuid();
    // Not called as the nodes' folders are, which are deleted.
    let private = std::env::temp_dir().join(format!("holdfast-chaos.{user}"));
    let folder = own(&private)?.join(name);
    own(&folder)?;
    Ok(folder)
}

/// Makes a folder that no other user can read; refuses one of another user.
fn own(folder: &Path) -> anyhow::Result<&Path> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(folder);
    if let Err(error) = made
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(error).with_context(|| format!("cannot make {}", folder.display()));
    }
    let found = std::fs::symlink_metadata(folder).with_context(|| folder.display().to_string())?;
    ensure!(
        found.is_dir()
            && found.uid() == nix::unistd::getuid().as_raw()
            && found.permissions().mode() & 0o077 == 0,
        "{} is not a folder of this user alone, so it is not trusted; find out who made it, and delete it",
        folder.display()
    );
    Ok(folder)
}

/// Whether a folder lies where runs make theirs, is called so, and is a folder
/// of this user.
pub(super) fn is_of_a_run(folder: &Path) -> bool {
    let is_named = folder
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with(super::FOLDER_PREFIX));
    let is_there = folder.parent() == Some(&std::env::temp_dir());
    let is_own = std::fs::symlink_metadata(folder)
        .is_ok_and(|it| it.is_dir() && it.uid() == nix::unistd::getuid().as_raw());
    is_named && is_there && is_own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_others_reach_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("private");
        own(&path).unwrap();
        own(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o701)).unwrap();
        assert!(own(&path).unwrap_err().to_string().contains("not trusted"));
    }

    #[test]
    fn a_link_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let (folder, link) = (place.path().join("folder"), place.path().join("link"));
        own(&folder).unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(own(&link).is_err());
    }

    #[test]
    fn only_folders_of_runs_are_deleted() {
        let run = tempfile::Builder::new().prefix(super::super::FOLDER_PREFIX).tempdir().unwrap();
        assert!(is_of_a_run(run.path()));
        assert!(!is_of_a_run(&run.path().join("..")));
        let below = run.path().join("holdfast-chaos-x");
        std::fs::create_dir(&below).unwrap();
        assert!(!is_of_a_run(&below));
    }
}
