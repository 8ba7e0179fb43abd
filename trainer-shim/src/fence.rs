//! Proof that an incarnation is alive, and files that only a live one replaces.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use holdfast_api::{Code, Fence, Generation, Name, Read, ReadOutcome};
use holdfast_client::Deadline;

use crate::error::Error;
use crate::host::unexpected;
use crate::process::Process;

impl Process {
    /// A token for `generation`, while it is certain that this incarnation's
    /// lease holds. Sends no request. If it is not certain, the error says which:
    /// a decision in the log ([`Error::Fenced`], [`Error::LeaseLost`]), or a
    /// store that does not answer ([`Error::StoreLost`]).
    pub fn fence(&self, generation: Generation) -> Result<Fence, Error> {
        let host = self.host();
        let (process, incarnation) = (self.id(), self.incarnation());
        if let Some(fenced) = host.shared.pending.lock().fenced(process, incarnation) {
            return Err(fenced);
        }
        if *host.shared.over.borrow() {
            let whose = Some((process, incarnation));
            return Err(Error::LeaseLost { whose, lease: host.lease() });
        }
        if host.valid_for().is_none() {
            return Err(Error::StoreLost { process, incarnation });
        }
        let run: Name = host.run().cloned().ok_or(Error::Closed)?;
        let job: Name = host.scope().job.clone();
        Ok(Fence { job, run, process, incarnation, generation })
    }

    /// Asks the cluster whether a token of any process holds. If not, the error
    /// is [`Error::Void`] with the reason.
    pub async fn check(&self, fence: &Fence, deadline: Deadline) -> Result<(), Error> {
        let after = fence.process.checked_sub(1);
        let read = Read::Processes { scope: fence.scope(), after, limit: 1 };
        let found = match self.read(read, deadline).await {
            Ok(ReadOutcome::Processes { processes, .. }) => processes,
            Ok(_) => return Err(unexpected("processes")),
            // Without a run, no process is alive.
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
    /// renamed only while a token of this incarnation holds, by the cluster and by the
    /// clock of this host. Otherwise `path` stays as it was.
    ///
    /// An incarnation that is ended between the check and the rename (superseded, evicted, or
    /// stopped for longer than its lease lasts) still renames. To exclude that, name files by the
    /// token, and read the one with the largest.
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
        blocking(move || sync(&source)).await.map_err(|e| failed(written, e))?;
        let fence = self.fence(generation)?;
        self.check(&fence, deadline).await?;
        let (process, source) = (self.clone(), written.to_owned());
        let renamed = blocking(move || {
            if let Err(error) = process.fence(generation) {
                return Ok(Err(error));
            }
            std::fs::rename(&source, &target)?;
            File::open(folder_of(&target))?.sync_all()?;
            Ok(Ok(()))
        });
        match renamed.await {
            Ok(held) => held.map(|()| fence),
            Err(error) => Err(failed(path, error)),
        }
    }
}

/// Makes a file or a folder durable; a pipe could be opened for ever.
fn sync(path: &Path) -> io::Result<()> {
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(path)?.sync_all()
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
