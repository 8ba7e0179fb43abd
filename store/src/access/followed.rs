//! A file that is read again while the node runs.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::token::FILE_BYTES_MAX;
use holdfast_net::regular_file::open_regular;
use parking_lot::{RwLock, RwLockReadGuard};

use super::AccessError;

/// How often a file is read again.
pub(super) const READ_EVERY: Duration = Duration::from_secs(2);

/// What a file holds, and how it is read.
#[derive(Debug)]
pub(super) struct Followed<T> {
    flag: &'static str,
    path: PathBuf,
    /// What is in it, for people.
    what: &'static str,
    parse: fn(&[u8]) -> Result<T, String>,
    /// The file's permissions when it was first read.
    mode: u32,
    content: RwLock<T>,
}

impl<T: PartialEq + Send + Sync + 'static> Followed<T> {
    /// Reads it for the first time.
    pub(super) fn read(
        flag: &'static str,
        path: &Path,
        what: &'static str,
        parse: fn(&[u8]) -> Result<T, String>,
    ) -> Result<Arc<Followed<T>>, AccessError> {
        let (content, mode) = read(flag, path, parse)?;
        let content = RwLock::new(content);
        Ok(Arc::new(Followed { flag, path: path.to_owned(), what, parse, mode, content }))
    }

    /// What was read last.
    pub(super) fn get(&self) -> RwLockReadGuard<'_, T> {
        self.content.read()
    }

    /// The flag that names it.
    pub(super) fn flag(&self) -> &'static str {
        self.flag
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file's permissions when it was first read.
    pub(super) fn mode(&self) -> u32 {
        self.mode
    }

    /// Follows its changes. An invalid file changes nothing. Runs until it is dropped.
    pub(super) async fn follow(self: Arc<Self>) {
        let what = self.what;
        let mut complaint = String::new();
        loop {
            tokio::time::sleep(READ_EVERY).await;
            let (flag, path, parse) = (self.flag, self.path.clone(), self.parse);
            let said = match tokio::task::spawn_blocking(move || read(flag, &path, parse)).await {
                Ok(Ok((content, _))) => {
                    self.take_over(content);
                    String::new()
                }
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            if said != complaint && !said.is_empty() {
                tracing::warn!("{said}; the {what} read before stay in force");
            }
            complaint = said;
        }
    }

    fn take_over(&self, content: T) {
        if *self.content.read() != content {
            tracing::info!(file = %self.path.display(), "read new {}", self.what);
            *self.content.write() = content;
        }
    }
}

/// What is in a file, and its permissions.
fn read<T>(
    flag: &'static str,
    path: &Path,
    parse: fn(&[u8]) -> Result<T, String>,
) -> Result<(T, u32), AccessError> {
    let unreadable = |why| AccessError::Unreadable { flag, path: path.to_owned(), why };
    let file = open_regular(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode();
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(unreadable)?;
    let invalid = |why| AccessError::Invalid { flag, path: path.to_owned(), why };
    Ok((parse(&text).map_err(invalid)?, mode))
}
