//! Log entries as bytes: MessagePack with named fields (but for those of a few
//! commands on keys), read strictly. An old node that skipped what a newer one
//! obeys would diverge silently.

use holdfast_api::Entry;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Why bytes are not an entry or an image. On a node's own disk it means
/// damage or an older build, and the node must stop.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are truncated.
    #[error("the data ends too early")]
    Truncated,
    /// The bytes could not be read; a premature end is [`DecodeError::Truncated`].
    #[error("reading failed: {0}")]
    Io(#[source] std::io::Error),
    /// A newer build wrote them.
    #[error(
        "the format version is {found}, this build reads up to {newest}: start the newer build that wrote it"
    )]
    Version {
        /// Version of the bytes.
        found: u32,
        /// Newest version that this build reads.
        newest: u32,
    },
    /// A checksum does not match.
    #[error("the checksum of frame {frame} does not match: the data is damaged")]
    Checksum {
        /// Number of the part, from 0.
        frame: u64,
    },
    /// Their content is impossible.
    #[error("the data is not valid: {0}")]
    Invalid(String),
}

/// Deepest nesting that is read. Ours is about 20; an unknown field may hold
/// anything, and is parsed before it is refused.
const NESTING_MAX: usize = 64;

/// Encodes an entry for the log.
pub fn encode_entry(entry: &Entry) -> Vec<u8> {
    pack(entry)
}

/// Reads a logged entry. Unknown variants, unknown fields and trailing bytes are
/// errors.
pub fn decode_entry(bytes: &[u8]) -> Result<Entry, DecodeError> {
    unpack(bytes)
}

pub(crate) fn pack(value: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec_named(value).expect("a vector takes all bytes, and all lengths are known")
}

pub(crate) fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut input = rmp_serde::Deserializer::from_read_ref(bytes);
    input.set_max_depth(NESTING_MAX);
    let mut ignored = None;
    let value = serde_ignored::deserialize(&mut input, |path| {
        ignored.get_or_insert_with(|| path.to_string());
    });
    let value = value.map_err(|error| DecodeError::Invalid(error.to_string()))?;
    if let Some(field) = ignored {
        return Err(DecodeError::Invalid(format!("field {field} is unknown to this build")));
    }
    // The reader does not report its position. But at the end it cannot read even the
    // marker of another value, and a boolean is only a marker.
    match bool::deserialize(&mut input) {
        Err(rmp_serde::decode::Error::InvalidMarkerRead(_)) => Ok(value),
        _ => Err(DecodeError::Invalid("more bytes lie after the end".to_owned())),
    }
}
