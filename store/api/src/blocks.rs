//! Bytes of any length under checksums: snapshots and backups hold them after their
//! headers.
//!
//! ```text
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

/// Bytes of the body under one checksum.
pub const BLOCK_BYTES: usize = 256 << 10;

/// Longest header in front of the blocks.
const HEADER_BYTES_MAX: usize = 2 << 20;

/// Why bytes are not in this format.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The input could not be read; a premature end is [`FormatError::Truncated`].
    #[error("reading it failed: {0}")]
    Io(io::Error),
    /// It ends before its trailer.
    #[error("it is cut short")]
    Truncated,
    /// Damaged: it is not what was written.
    #[error("{0}")]
    Damaged(String),
    /// Written by a later version.
    #[error("it has version {0}")]
    Version(u32),
}

impl FormatError {
    /// A [`FormatError::Damaged`] that says what does not fit.
    pub fn damaged(what: impl Into<String>) -> FormatError {
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

/// The head in front of the blocks: a magic, a version and a header.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    /// The first bytes of the file.
    pub magic: &'static [u8; 8],
    /// Version of the format.
    pub version: u32,
}

/// Cuts what is written to it into blocks.
pub struct BlockWriter<W: Write> {
    out: W,
    block: Vec<u8>,
    blocks: u64,
    bytes: u64,
    crc: u32,
}

impl<W: Write> BlockWriter<W> {
    /// Writes the head and the header.
    pub fn new(mut out: W, head: Head, header: &[u8]) -> io::Result<BlockWriter<W>> {
        let length = u32::try_from(header.len()).ok().filter(|l| *l as usize <= HEADER_BYTES_MAX);
        let length = length.ok_or_else(|| io::Error::other("the header is too long"))?;
        out.write_all(head.magic)?;
        out.write_all(&head.version.to_le_bytes())?;
        out.write_all(&length.to_le_bytes())?;
        out.write_all(&crc32c::crc32c(header).to_le_bytes())?;
        out.write_all(header)?;
        let block = Vec::with_capacity(BLOCK_BYTES);
        Ok(BlockWriter { out, block, blocks: 0, bytes: 0, crc: 0 })
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

    /// Ends the blocks and writes the trailer.
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

impl<W: Write> Write for BlockWriter<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let taken = data.len().min(BLOCK_BYTES - self.block.len());
        self.block.extend_from_slice(&data[..taken]);
        if self.block.len() == BLOCK_BYTES {
            self.end_block()?;
        }
        Ok(taken)
    }

    /// Blocks stay whole; [`BlockWriter::finish`] flushes.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads and checks blocks.
pub struct BlockReader<R: Read> {
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

impl<R: Read> BlockReader<R> {
    /// Reads the head and the header, and checks both.
    pub fn open(mut input: R, head: Head) -> Result<(Vec<u8>, BlockReader<R>), FormatError> {
        let mut magic = [0; 8];
        input.read_exact(&mut magic)?;
        if &magic != head.magic {
            return Err(FormatError::damaged("it does not begin as it should"));
        }
        let version = read_u32(&mut input)?;
        if version != head.version {
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
        let (block, taken, blocks, bytes, crc, ended) = (Vec::new(), 0, 0, 0, 0, false);
        Ok((header, BlockReader { input, block, taken, blocks, bytes, crc, ended }))
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

impl<R: Read> Read for BlockReader<R> {
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
