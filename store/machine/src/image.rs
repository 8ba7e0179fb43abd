//! The whole state as bytes: the content of snapshot files and transfers.
//!
//! An image is `holdfast` and a version, then frames: length, checksum, up to 64
//! KiB of content each, and an empty one at the end ([`frame`]). The content is
//! the fields of the state in a fixed order ([`encode`], [`decode`]); what can be
//! derived is not written. Equal states give equal bytes.

use std::io::{self, Read, Write};

use crate::codec::DecodeError;
use crate::machine::Machine;
use holdfast_api::version::{COORDINATION_LEVEL, FAILED_EXITS_LEVEL, RUNS_LEVEL};

mod coordination;
mod decode;
mod encode;
mod frame;
mod held;
mod leases;
#[cfg(test)]
mod recount;
mod rounds;

/// Newest version of the image format that this build writes and reads. A
/// state is written in the version of its feature level, so that every node
/// that obeys the level can read it.
pub const IMAGE_VERSION: u32 = FAILED_EXITS_VERSION;

/// Version with the failures that were reported at exits of atomic blocks.
const FAILED_EXITS_VERSION: u32 = 6;

/// Version with the revisions since which processes are members, the jobs of sessions, and the
/// faults of those that were not in the latest advance. It is read, and not written any more.
const CLOSING_ORDER_VERSION: u32 = 5;

/// Version with revoked tokens and forgotten jobs. It is read, and not written any more.
const TOKENS_VERSION: u32 = 4;

/// Version with leases, processes and rounds.
const COORDINATION_VERSION: u32 = 3;

/// Version with what [`RUNS_LEVEL`] added.
const RUNS_VERSION: u32 = 2;

/// Version that can be written without what [`RUNS_LEVEL`] added.
const FIRST_VERSION: u32 = 1;

/// Magic bytes of every image.
const MAGIC: [u8; 8] = *b"holdfast";

/// Tags of the kinds of change.
const CHANGE_PUT: u64 = 0;
const CHANGE_DELETE: u64 = 1;
const CHANGE_PUSH: u64 = 2;
const CHANGE_POP: u64 = 3;

impl Machine {
    /// Writes the whole state. Streams: at most one frame is in memory.
    pub fn encode(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&MAGIC)?;
        let version = self.image_version();
        out.write_all(&version.to_le_bytes())?;
        let mut content = frame::Writer::new(out);
        encode::machine(self, version, &mut content)?;
        content.finish()
    }

    /// Reads what [`Machine::encode`] wrote, and nothing after it. Memory grows with
    /// the bytes that are really there, not with the lengths they claim; pass a
    /// buffered reader.
    pub fn decode(input: &mut dyn Read) -> Result<Machine, DecodeError> {
        let mut magic = [0; MAGIC.len()];
        frame::read_exact(input, &mut magic)?;
        if magic != MAGIC {
            return Err(DecodeError::Invalid("this is not an image of Holdfast".to_owned()));
        }
        let mut version = [0; 4];
        frame::read_exact(input, &mut version)?;
        let found = u32::from_le_bytes(version);
        if !(FIRST_VERSION..=IMAGE_VERSION).contains(&found) {
            return Err(DecodeError::Version { found, newest: IMAGE_VERSION });
        }
        let mut content = frame::Reader::new(input);
        let machine = decode::machine(found, &mut content)?;
        content.finish()?;
        let written = machine.image_version();
        let same_level = written == FAILED_EXITS_VERSION && found >= TOKENS_VERSION;
        if written != found && !same_level {
            let level = machine.feature_level();
            let why = format!("a state of feature level {level} is not written in version {found}");
            return Err(DecodeError::Invalid(why));
        }
        Ok(machine)
    }

    fn image_version(&self) -> u32 {
        match self.feature_level() {
            ..RUNS_LEVEL => FIRST_VERSION,
            RUNS_LEVEL..COORDINATION_LEVEL => RUNS_VERSION,
            COORDINATION_LEVEL..FAILED_EXITS_LEVEL => COORDINATION_VERSION,
            _ => FAILED_EXITS_VERSION,
        }
    }

    /// A hash of the image: equal on replicas that applied the same entries.
    /// The same in every build that writes the same image version.
    pub fn digest(&self) -> u64 {
        let mut hash = Fnv::default();
        self.encode(&mut hash).expect("hashing takes all bytes");
        hash.0
    }
}

/// FNV-1a, 64 bits: stable for ever, unlike the standard library's hasher.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Write for Fnv {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
