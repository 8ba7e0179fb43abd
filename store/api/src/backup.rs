//! The bytes of a backup.
//!
//! ```text
//! magic         8 bytes, "HFBACKUP"
//! version       u32
//! header        u32 length, u32 crc32c, then MessagePack of `BackupHeader`
//! blocks        the image of the state, see `blocks`
//! ```
//!
//! All numbers are little-endian.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::blocks::{BlockReader, BlockWriter, FormatError, Head};
use crate::command::{LogTime, Revision};
use crate::name::NodeId;

/// Version of this format.
pub const VERSION: u32 = 1;

const HEAD: Head = Head { magic: b"HFBACKUP", version: VERSION };

/// The header in front of the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHeader {
    /// The cluster whose state it is.
    pub cluster_id: String,
    /// The node that made it.
    pub node: NodeId,
    /// The version of that node.
    pub version: String,
    /// The feature level of the cluster.
    pub feature_level: u32,
    /// The newest revision in it.
    pub revision: Revision,
    /// Log time at that revision, in milliseconds.
    pub log_time: LogTime,
    /// When it was made, in milliseconds since 1970 by the clock of that node; for
    /// people only.
    pub taken_at_ms: u64,
}

/// Writes the header. The caller writes the image to the returned writer.
pub fn begin<W: Write>(out: W, header: &BackupHeader) -> io::Result<BlockWriter<W>> {
    let header = rmp_serde::to_vec_named(header).map_err(io::Error::other)?;
    BlockWriter::new(out, HEAD, &header)
}

/// Reads the header. The caller reads the image from the returned reader.
pub fn open<R: Read>(input: R) -> Result<(BackupHeader, BlockReader<R>), FormatError> {
    let (header, blocks) = BlockReader::open(input, HEAD)?;
    let header = rmp_serde::from_slice(&header)
        .map_err(|error| FormatError::damaged(format!("its header: {error}")))?;
    Ok((header, blocks))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> BackupHeader {
        BackupHeader {
            cluster_id: "c".into(),
            node: 2,
            version: "0.1.0".into(),
            feature_level: 5,
            revision: 7,
            log_time: 8,
            taken_at_ms: 9,
        }
    }

    #[test]
    fn a_backup_comes_back_and_every_change_and_cut_is_noticed() {
        let mut writer = begin(Vec::new(), &header()).unwrap();
        writer.write_all(b"the image").unwrap();
        let good = writer.finish().unwrap();
        let read = |bytes: &[u8]| -> Result<(BackupHeader, Vec<u8>), FormatError> {
            let (header, mut blocks) = open(bytes)?;
            let mut image = Vec::new();
            blocks.read_to_end(&mut image)?;
            blocks.finish()?;
            Ok((header, image))
        };
        assert_eq!(read(&good).unwrap(), (header(), b"the image".to_vec()));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bad).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(matches!(read(&good[..length]), Err(FormatError::Truncated)), "{length}");
        }
    }
}
