//! The bytes of a snapshot file.
//!
//! ```text
//! magic         8 bytes, "HFSNAP\r\n"
//! version       u32
//! header        u32 length, u32 crc32c, then MessagePack of `SnapshotHeader`
//! blocks        see `holdfast_api::blocks`
//! ```
//!
//! All numbers are little-endian.

use std::io::{self, Read, Write};

pub(crate) use holdfast_api::blocks::FormatError;
use holdfast_api::blocks::{BlockReader, BlockWriter, Head};
use serde::{Deserialize, Serialize};

use crate::storage::record::{self, SnapshotMetaRecord};

/// Version of this format.
pub(crate) const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"HFSNAP\r\n";
const HEAD: Head = Head { magic: MAGIC, version: VERSION };

/// Header before the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotHeader {
    /// The cluster whose state it is.
    pub cluster_id: String,
    /// The last entry and membership in it.
    pub meta: SnapshotMetaRecord,
    /// When it was made, in milliseconds since 1970 by the wall clock of the
    /// node that made it; for people only.
    pub created_ms: u64,
}

/// Writes the header; write the state to the returned writer.
pub fn begin<W: Write>(out: W, header: &SnapshotHeader) -> io::Result<BlockWriter<W>> {
    BlockWriter::new(out, HEAD, &record::encode(header))
}

/// Reads the header; read the state from the returned reader.
pub fn open<R: Read>(input: R) -> Result<(SnapshotHeader, BlockReader<R>), FormatError> {
    let (header, blocks) = BlockReader::open(input, HEAD)?;
    let header = record::decode(&header)
        .map_err(|error| FormatError::damaged(format!("its header: {error}")))?;
    Ok((header, blocks))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use holdfast_api::blocks::BLOCK_BYTES;

    use super::*;

    fn header() -> SnapshotHeader {
        SnapshotHeader {
            cluster_id: "c".into(),
            meta: SnapshotMetaRecord::default(),
            created_ms: 1,
        }
    }

    fn written(body: &[u8]) -> Vec<u8> {
        let mut writer = begin(Vec::new(), &header()).unwrap();
        writer.write_all(body).unwrap();
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<(SnapshotHeader, Vec<u8>), FormatError> {
        let (header, mut reader) = open(bytes)?;
        let mut body = Vec::new();
        reader.read_to_end(&mut body)?;
        reader.finish()?;
        Ok((header, body))
    }

    #[test]
    fn bodies_of_all_sizes_around_a_block_come_back() {
        for size in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES] {
            let body: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let (read_header, read_body) = read(&written(&body)).unwrap();
            assert_eq!(read_header, header());
            assert!(read_body == body, "a body of {size} bytes");
        }
    }

    #[test]
    fn every_changed_bit_and_every_cut_is_noticed() {
        let good = written(b"the state of the machine");
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bad).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(matches!(read(&good[..length]), Err(FormatError::Truncated)), "{length}");
        }
    }

    #[test]
    fn blocks_in_another_order_are_noticed() {
        let body: Vec<u8> = [vec![1; BLOCK_BYTES], vec![2; BLOCK_BYTES]].concat();
        let good = written(&body);
        let blocks = good.len() - 20 - 2 * (BLOCK_BYTES + 8);
        let (first, second) = (blocks..blocks + BLOCK_BYTES + 8, blocks + BLOCK_BYTES + 8);
        let mut bad = good[..blocks].to_vec();
        bad.extend(&good[second..second + BLOCK_BYTES + 8]);
        bad.extend(&good[first]);
        bad.extend(&good[good.len() - 20..]);
        assert!(matches!(read(&bad), Err(FormatError::Damaged(_))));
    }

    #[test]
    fn what_a_reader_leaves_behind_is_noticed() {
        let bytes = written(b"state and more");
        let (_, mut reader) = open(&bytes[..]).unwrap();
        reader.read_exact(&mut [0; 5]).unwrap();
        assert!(matches!(reader.finish(), Err(FormatError::Damaged(_))));
    }

    proptest! {
        #[test]
        fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(&bytes).is_err());
            let valid_start = [&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat();
            prop_assert!(read(&valid_start).is_err());
        }
    }
}
