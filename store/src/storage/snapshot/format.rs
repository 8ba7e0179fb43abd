//! The bytes of a snapshot file.
//!
//! ```text
//! magic         8 bytes, "HFSNAP\r\n"
//! version       u32
//! header        u32 length, u32 crc32c, then MessagePack of `SnapshotHeader`
//! blocks        u32 length (1 to BLOCK_BYTES), u32 crc32c of its number and data, data
//! end           u32 0
//! trailer       u64 length of the body, u32 crc32c of the body,
//!               u32 crc32c of those 12 bytes
//! ```
//!
//! All numbers are little-endian, the body is the concatenation of the blocks,
//! and nothing follows the trailer. No byte of the body is handed out before
//! the checksum of its block was compared.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::raft::record::{self, SnapshotMetaRecord};

/// Version of this format.
pub const VERSION: u32 = 1;
/// Bytes of the body under one checksum.
pub const BLOCK_BYTES: usize = 256 << 10;
/// A header holds one membership and little else.
const HEADER_BYTES_MAX: usize = 2 << 20;
const MAGIC: &[u8; 8] = b"HFSNAP\r\n";

/// What stands in front of the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotHeader {
    /// The cluster whose state it is.
    pub cluster_id: String,
    /// What it covers.
    pub meta: SnapshotMetaRecord,
    /// When it was made, in milliseconds since 1970 by the wall clock of the
    /// node that made it; for people only.
    pub created_ms: u64,
}

/// Why bytes are not a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Reading failed.
    #[error("reading it failed: {0}")]
    Io(io::Error),
    /// It ends before its trailer.
    #[error("it is cut short")]
    Truncated,
    /// Not what was written.
    #[error("{0}")]
    Damaged(String),
    /// Written by a later version.
    #[error("it has version {0}")]
    Version(u32),
}

impl FormatError {
    fn damaged(what: impl Into<String>) -> FormatError {
        FormatError::Damaged(what.into())
    }
}

impl From<io::Error> for FormatError {
    fn from(error: io::Error) -> FormatError {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return FormatError::Truncated;
        }
        error.downcast::<FormatError>().unwrap_or_else(FormatError::Io)
    }
}

/// For readers that know only [`io::Error`].
impl From<FormatError> for io::Error {
    fn from(error: FormatError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

fn block_crc(number: u64, data: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), data)
}

/// Writes a snapshot: the header at once, then what is written to it, cut into
/// blocks.
pub struct SnapshotWriter<W: Write> {
    out: W,
    block: Vec<u8>,
    blocks: u64,
    bytes: u64,
    crc: u32,
}

impl<W: Write> SnapshotWriter<W> {
    /// Writes the header.
    pub fn new(mut out: W, header: &SnapshotHeader) -> io::Result<SnapshotWriter<W>> {
        let header = record::encode(header);
        let length = u32::try_from(header.len()).ok().filter(|l| *l as usize <= HEADER_BYTES_MAX);
        let length = length.ok_or_else(|| io::Error::other("the snapshot's header is too long"))?;
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&length.to_le_bytes())?;
        out.write_all(&crc32c::crc32c(&header).to_le_bytes())?;
        out.write_all(&header)?;
        Ok(SnapshotWriter {
            out,
            block: Vec::with_capacity(BLOCK_BYTES),
            blocks: 0,
            bytes: 0,
            crc: 0,
        })
    }

    fn end_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let length = u32::try_from(self.block.len()).expect("a block is short");
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(&block_crc(self.blocks, &self.block).to_le_bytes())?;
        self.out.write_all(&self.block)?;
        self.crc = crc32c::crc32c_append(self.crc, &self.block);
        self.bytes += u64::from(length);
        self.blocks += 1;
        self.block.clear();
        Ok(())
    }

    /// Writes the trailer.
    pub fn finish(mut self) -> io::Result<W> {
        self.end_block()?;
        let mut trailer = Vec::with_capacity(16);
        trailer.extend(self.bytes.to_le_bytes());
        trailer.extend(self.crc.to_le_bytes());
        trailer.extend(crc32c::crc32c(&trailer).to_le_bytes());
        self.out.write_all(&0u32.to_le_bytes())?;
        self.out.write_all(&trailer)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

impl<W: Write> Write for SnapshotWriter<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let taken = data.len().min(BLOCK_BYTES - self.block.len());
        self.block.extend_from_slice(&data[..taken]);
        if self.block.len() == BLOCK_BYTES {
            self.end_block()?;
        }
        Ok(taken)
    }

    /// Blocks stay whole; [`SnapshotWriter::finish`] flushes.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads and checks a snapshot: the header at once, then the body.
pub struct SnapshotReader<R: Read> {
    input: R,
    block: Vec<u8>,
    /// What of `block` was handed out.
    taken: usize,
    blocks: u64,
    bytes: u64,
    crc: u32,
    ended: bool,
}

fn read_u32(input: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    input.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

impl<R: Read> SnapshotReader<R> {
    /// Reads the header.
    pub fn open(mut input: R) -> Result<(SnapshotHeader, SnapshotReader<R>), FormatError> {
        let mut magic = [0; MAGIC.len()];
        input.read_exact(&mut magic)?;
        if &magic != MAGIC {
            return Err(FormatError::damaged("it does not begin as a snapshot does"));
        }
        let version = read_u32(&mut input)?;
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        let length = read_u32(&mut input)? as usize;
        let crc = read_u32(&mut input)?;
        if length > HEADER_BYTES_MAX {
            return Err(FormatError::damaged(format!("its header claims {length} bytes")));
        }
        let mut header = vec![0; length];
        input.read_exact(&mut header)?;
        if crc32c::crc32c(&header) != crc {
            return Err(FormatError::damaged("the checksum of its header does not match"));
        }
        let header = record::decode(&header)
            .map_err(|error| FormatError::damaged(format!("its header: {error}")))?;
        let (block, taken, blocks, bytes, crc, ended) = (Vec::new(), 0, 0, 0, 0, false);
        Ok((header, SnapshotReader { input, block, taken, blocks, bytes, crc, ended }))
    }

    fn next_block(&mut self) -> Result<(), FormatError> {
        let length = read_u32(&mut self.input)? as usize;
        if length == 0 {
            return self.end();
        }
        if length > BLOCK_BYTES {
            return Err(FormatError::damaged(format!(
                "block {} claims {length} bytes",
                self.blocks
            )));
        }
        let crc = read_u32(&mut self.input)?;
        self.block.resize(length, 0);
        self.taken = length;
        self.input.read_exact(&mut self.block)?;
        if block_crc(self.blocks, &self.block) != crc {
            return Err(FormatError::damaged(format!(
                "the checksum of block {} does not match",
                self.blocks
            )));
        }
        self.crc = crc32c::crc32c_append(self.crc, &self.block);
        self.bytes += length as u64;
        self.blocks += 1;
        self.taken = 0;
        Ok(())
    }

    fn end(&mut self) -> Result<(), FormatError> {
        let mut trailer = [0; 16];
        self.input.read_exact(&mut trailer)?;
        let mut expected = Vec::with_capacity(16);
        expected.extend(self.bytes.to_le_bytes());
        expected.extend(self.crc.to_le_bytes());
        expected.extend(crc32c::crc32c(&expected).to_le_bytes());
        if trailer[..] != expected[..] {
            return Err(FormatError::damaged("its trailer does not match its body"));
        }
        if self.input.read(&mut [0])? != 0 {
            return Err(FormatError::damaged("something follows its trailer"));
        }
        self.ended = true;
        self.block.clear();
        self.taken = 0;
        Ok(())
    }

    /// Checks that the whole body was read and that the trailer agrees.
    pub fn finish(mut self) -> Result<(), FormatError> {
        if self.read(&mut [0])? == 0 {
            return Ok(());
        }
        Err(FormatError::damaged("something follows the state in its body"))
    }

    /// Reads all the rest and checks it.
    pub fn verify(mut self) -> Result<(), FormatError> {
        while !self.ended {
            self.next_block()?;
        }
        Ok(())
    }
}

impl<R: Read> Read for SnapshotReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.block.len() && !self.ended {
            self.next_block()?;
        }
        let count = out.len().min(self.block.len() - self.taken);
        out[..count].copy_from_slice(&self.block[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> SnapshotHeader {
        SnapshotHeader {
            cluster_id: "c".into(),
            meta: SnapshotMetaRecord::default(),
            created_ms: 1,
        }
    }

    fn written(body: &[u8]) -> Vec<u8> {
        let mut writer = SnapshotWriter::new(Vec::new(), &header()).unwrap();
        writer.write_all(body).unwrap();
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<(SnapshotHeader, Vec<u8>), FormatError> {
        let (header, mut reader) = SnapshotReader::open(bytes)?;
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
        let (_, mut reader) = SnapshotReader::open(&bytes[..]).unwrap();
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
