//! Proof that a life is alive, and files that only the living replace.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use holdfast_api::{Code, Fence, Generation, Name, Read, ReadOutcome};
use holdfast_client::Deadline;

use crate::error::Error;
use crate::host::unexpected;
use crate::process::Process;

impl Process {
    /// A token for `generation`, if it is certain that this incarnation still
    /// lives; nothing otherwise. Asks nobody.
    pub fn fence(&self, generation: Generation) -> Option<Fence> {
        let host = self.host();
        host.valid_for()?;
        let (process, incarnation) = (self.id(), self.incarnation());
        if host.shared.pending.lock().fenced(process, incarnation).is_some() {
            return None;
        }
        let (job, run): (Name, Name) = (host.scope().job.clone(), host.run()?.clone());
        Some(Fence { job, run, process, incarnation, generation })
    }

    /// Asks the cluster whether a token of any process holds. If not, the error
    /// is [`Error::Void`] and says why.
    pub async fn check(&self, fence: &Fence, deadline: Deadline) -> Result<(), Error> {
        let after = fence.process.checked_sub(1);
        let read = Read::Processes { scope: fence.scope(), after, limit: 1 };
        let found = match self.read(read, deadline).await {
            Ok(ReadOutcome::Processes { processes, .. }) => processes,
            Ok(_) => return Err(unexpected("processes")),
            // Nobody lives where there is no run.
            Err(error) if matches!(error.code(), Code::JobNotFound | Code::RunNotFound) => {
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        match fence.void(found.first()) {
            None => Ok(()),
            Some(why) => Err(Error::Void { fence: Box::new(fence.clone()), why }),
        }
    }

    /// Puts a file that was written beside `path` in its place: synced, and
    /// renamed only while a token of this life holds, by the cluster and by the
    /// clock of this host. Otherwise `path` stays as it was.
    ///
    /// A life that is ended between the look and the rename (superseded, evicted,
    /// or stopped for longer than its lease lasts) still renames. Who must exclude
    /// that names files by the token, and reads the one with the largest.
    pub async fn replace_file(
        &self,
        written: &Path,
        path: &Path,
        generation: Generation,
        deadline: Deadline,
    ) -> Result<Fence, Error> {
        let (source, target) = (written.to_owned(), path.to_owned());
        let failed = |path: &Path, error: io::Error| Error::File {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        blocking(move || File::open(&source)?.sync_all()).await.map_err(|e| failed(written, e))?;
        let fence = self.fence(generation).ok_or_else(|| self.not_alive())?;
        self.check(&fence, deadline).await?;
        let (process, source) = (self.clone(), written.to_owned());
        let renamed = blocking(move || {
            if process.fence(generation).is_none() {
                return Ok(false);
            }
            std::fs::rename(&source, &target)?;
            File::open(folder_of(&target))?.sync_all()?;
            Ok(true)
        });
        match renamed.await {
            Ok(true) => Ok(fence),
            Ok(false) => Err(self.not_alive()),
            Err(error) => Err(failed(path, error)),
        }
    }

    fn not_alive(&self) -> Error {
        let (process, incarnation) = (self.id(), self.incarnation());
        let fenced = self.host().shared.pending.lock().fenced(process, incarnation);
        let lease = self.host().lease();
        let whose = Some((process, incarnation));
        fenced.unwrap_or(Error::LeaseLost { whose, lease })
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_a_folder_is_in_this_one() {
        assert_eq!(folder_of(Path::new("ckpt.pt")), Path::new("."));
        assert_eq!(folder_of(Path::new("a/ckpt.pt")), Path::new("a"));
        assert_eq!(folder_of(Path::new("/ckpt.pt")), Path::new("/"));
    }
}
