//! How a record is wrapped on disk: format version, checksum, body.
//!
//! ```text
//! offset 0      format version, u8
//! offset 1..5   crc32c of key, format version and body, little-endian
//! offset 5..    body: MessagePack, see `storage::record`
//! ```
//!
//! The checksum covers the key, so that a record under a wrong key is damage too.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::record;

/// Bytes before the body.
const HEADER_BYTES: usize = 5;

/// Why sealed bytes cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Shorter than its header.
    #[error("a record of {0} bytes is shorter than its header")]
    Short(usize),
    /// The bytes differ from what was written, or are in the wrong place.
    #[error("a record's checksum does not match")]
    Checksum,
    /// Written by a later version.
    #[error("a record has format {0}, this version reads up to {known}", known = record::FORMAT)]
    Format(u8),
    /// The checksum is right but the body is invalid.
    #[error(transparent)]
    Record(#[from] record::RecordError),
}

fn checksum(key: &[u8], format: u8, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(key), &[format]), body)
}

/// Wraps a record that is stored under `key`.
pub fn seal<T: Serialize>(key: &[u8], record: &T) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    rmp_serde::encode::write_named(&mut bytes, record).expect("a Vec takes all that is written");
    let (header, body) = bytes.split_at_mut(HEADER_BYTES);
    header[0] = record::FORMAT;
    header[1..].copy_from_slice(&checksum(key, record::FORMAT, body).to_le_bytes());
    bytes
}

/// Checks and reads what [`seal`] wrote under the same key.
pub fn unseal<T: DeserializeOwned>(key: &[u8], bytes: &[u8]) -> Result<T, SealError> {
    let Some(([format, crc @ ..], body)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(SealError::Short(bytes.len()));
    };
    if checksum(key, *format, body) != u32::from_le_bytes(*crc) {
        return Err(SealError::Checksum);
    }
    if *format == 0 || *format > record::FORMAT {
        return Err(SealError::Format(*format));
    }
    Ok(record::decode(body)?)
}

#[cfg(test)]
mod tests {
    use super::record::LogIdRecord;
    use super::*;

    const ID: LogIdRecord = LogIdRecord { term: 3, node: 1, index: 9 };

    #[test]
    fn any_changed_bit_is_noticed() {
        let sealed = seal(b"key", &ID);
        assert_eq!(unseal(b"key", &sealed), Ok(ID));
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unseal::<LogIdRecord>(b"key", &damaged), Err(SealError::Checksum));
        }
    }

    #[test]
    fn a_record_under_another_key_is_noticed() {
        let sealed = seal(b"key", &ID);
        assert_eq!(unseal::<LogIdRecord>(b"kez", &sealed), Err(SealError::Checksum));
    }

    #[test]
    fn a_later_format_is_named() {
        let mut sealed = seal(b"key", &ID);
        sealed[0] = record::FORMAT + 1;
        let crc = checksum(b"key", sealed[0], &sealed[HEADER_BYTES..]);
        sealed[1..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            unseal::<LogIdRecord>(b"key", &sealed),
            Err(SealError::Format(record::FORMAT + 1))
        );
    }

    #[test]
    fn short_records_are_refused() {
        for length in 0..HEADER_BYTES {
            let bytes = vec![0; length];
            assert_eq!(unseal::<LogIdRecord>(b"", &bytes), Err(SealError::Short(length)));
        }
    }
}
