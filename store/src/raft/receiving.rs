//! Snapshots that are being received: one at a time, from a sender that goes on
//! sending.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::network::SNAPSHOT_TIME_MAX;
use super::tcp::Wire;
use crate::storage::SnapshotFile;
use crate::storage::snapshot::SnapshotReceiver;

/// Longest silence of a sender: its disk may take seconds, a dead connection takes
/// for ever.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The snapshot that this node is receiving.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    /// Ends the latest.
    latest: Mutex<CancellationToken>,
}

impl Receiving {
    /// Receives the bytes of a snapshot, in place of one that is not complete: the sender
    /// of that one may be gone, or lead no more. An error deletes what was received.
    pub(super) async fn take<T>(
        &self,
        wire: &mut Wire<T>,
        receiver: SnapshotReceiver,
    ) -> Result<SnapshotFile, String>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let replaced = CancellationToken::new();
        std::mem::replace(&mut *self.latest.lock(), replaced.clone()).cancel();
        let taking = tokio::time::timeout(SNAPSHOT_TIME_MAX, whole(wire, receiver));
        match replaced.run_until_cancelled(taking).await {
            Some(Ok(taken)) => taken,
            Some(Err(_)) => Err(format!("it was not complete after {SNAPSHOT_TIME_MAX:?}")),
            None => Err("another snapshot came in its place".to_owned()),
        }
    }
}

async fn whole<T>(
    wire: &mut Wire<T>,
    mut receiver: SnapshotReceiver,
) -> Result<SnapshotFile, String>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(bytes) = chunk(wire).await? {
        receiver = receiver.write(bytes).await.map_err(|e| e.to_string())?;
    }
    receiver.finish().await.map_err(|e| e.to_string())
}

/// The next chunk; none after the last. It may come slowly, but not pause for long.
async fn chunk<T>(wire: &mut Wire<T>) -> Result<Option<Bytes>, String>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut come = wire.read_buffer().len();
    loop {
        match tokio::time::timeout(SILENCE_MAX, wire.next()).await {
            Ok(Some(Ok(bytes))) => {
                return Ok(Some(bytes.freeze()).filter(|bytes| !bytes.is_empty()));
            }
            Ok(Some(Err(error))) => return Err(error.to_string()),
            Ok(None) => return Err("the leader broke off".to_owned()),
            Err(_) if wire.read_buffer().len() > come => come = wire.read_buffer().len(),
            Err(_) => return Err(format!("the leader sent nothing for {SILENCE_MAX:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use futures::SinkExt;
    use tempfile::TempDir;
    use tokio::io::AsyncWriteExt;
    use tokio::time::Instant;

    use super::*;
    use crate::raft::tcp::framed;
    use crate::storage::SnapshotStore;
    use crate::storage::offload::Offload;
    use crate::storage::record::SnapshotMetaRecord;
    use crate::storage::snapshot::SnapshotOptions;
    use crate::storage::snapshot::directory::Directory;

    /// A folder, and the receiver of a snapshot into it.
    fn receiver() -> (TempDir, SnapshotReceiver) {
        let dir = tempfile::tempdir().unwrap();
        let backend = Box::new(Directory::open(dir.path()).unwrap());
        let options = SnapshotOptions { bytes_per_second: None, offload: Offload::Inline };
        let store = SnapshotStore::open(backend, "c".to_owned(), options, None).unwrap();
        let receiver = store.receive(SnapshotMetaRecord::default()).unwrap();
        (dir, receiver)
    }

    fn files(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_that_goes_silent_is_cut_off_and_its_draft_deleted() {
        let (dir, receiver) = receiver();
        let (there, here) = tokio::io::duplex(1 << 20);
        let (mut sender, mut wire) = (framed(there), framed(here));
        sender.send(Bytes::from_static(b"begun")).await.unwrap();
        assert_eq!(files(dir.path()), 1);
        let begun = Instant::now();
        let error = Receiving::default().take(&mut wire, receiver).await.unwrap_err();
        assert!(error.contains("sent nothing"), "{error}");
        assert_eq!(begun.elapsed(), SILENCE_MAX);
        assert_eq!(files(dir.path()), 0);
        drop(sender);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_that_is_slow_is_not_cut_off() {
        let (_dir, receiver) = receiver();
        let (mut there, here) = tokio::io::duplex(1 << 20);
        let mut wire = framed(here);
        let sending = async {
            there.write_all(&3_u32.to_le_bytes()).await.unwrap();
            for byte in *b"abc" {
                tokio::time::sleep(SILENCE_MAX - Duration::from_secs(1)).await;
                there.write_all(&[byte]).await.unwrap();
            }
            there.write_all(&0_u32.to_le_bytes()).await.unwrap();
        };
        let receiving = Receiving::default();
        let (taken, ()) = tokio::join!(receiving.take(&mut wire, receiver), sending);
        let error = taken.unwrap_err();
        assert!(error.contains("is damaged"), "it came to its end: {error}");
    }

    #[tokio::test]
    async fn the_newest_takes_the_place_of_one_that_is_not_complete() {
        let (dir, first) = receiver();
        let (_other_dir, second) = receiver();
        let (stalled, here) = tokio::io::duplex(1 << 20);
        let (ends, there) = tokio::io::duplex(1 << 20);
        drop(ends);
        let (mut first_wire, mut second_wire) = (framed(here), framed(there));
        let receiving = Receiving::default();
        let newest = async {
            tokio::task::yield_now().await;
            receiving.take(&mut second_wire, second).await
        };
        let (old, new) = tokio::join!(receiving.take(&mut first_wire, first), newest);
        assert!(old.unwrap_err().contains("in its place"));
        assert!(new.unwrap_err().contains("broke off"));
        assert_eq!(files(dir.path()), 0);
        drop(stalled);
    }
}
