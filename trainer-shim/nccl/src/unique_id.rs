//! The unique id of one generation.

use std::fmt;

use crate::sys::{RawUniqueId, UNIQUE_ID_BYTES};

/// Names the meeting point of one generation: a port of the process that minted
/// it, and a random number. Good for one generation: it is used up by it.
///
/// Who has it can join, and can spoil the generation: it is a secret, and
/// neither logged nor shown.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    bytes: [u8; UniqueId::BYTES],
}

impl UniqueId {
    /// Size of an id, in bytes.
    pub const BYTES: usize = UNIQUE_ID_BYTES;

    /// From the bytes that another process minted.
    pub fn from_bytes(bytes: [u8; UniqueId::BYTES]) -> UniqueId {
        UniqueId { bytes }
    }

    /// To hand it to the other members.
    pub fn as_bytes(&self) -> &[u8; UniqueId::BYTES] {
        &self.bytes
    }

    /// In 256 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        self.bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Parses 256 hexadecimal digits; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<UniqueId> {
        if text.len() != 2 * UniqueId::BYTES || !text.bytes().all(|digit| digit.is_ascii_hexdigit())
        {
            return None;
        }
        let mut bytes = [0; UniqueId::BYTES];
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        Some(UniqueId { bytes })
    }

    pub(crate) fn raw(&self) -> RawUniqueId {
        RawUniqueId { internal: self.bytes }
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_bytes_are_the_same_id() {
        let id = UniqueId::from_bytes(std::array::from_fn(|at| at as u8 * 2));
        assert_eq!(UniqueId::from_hex(&id.to_hex()), Some(id.clone()));
        assert_eq!(format!("{id:?}"), "UniqueId(secret)");
    }

    #[test]
    fn anything_else_is_no_id() {
        let id = UniqueId::from_bytes([7; UniqueId::BYTES]).to_hex();
        for wrong in ["", "07", &id[1..], &format!("{id}0"), &id.replace("07", "+7")] {
            assert_eq!(UniqueId::from_hex(wrong), None, "{wrong}");
        }
        // As long in bytes, with a character of two in the middle of a pair.
        assert_eq!(UniqueId::from_hex(&format!("0é{}", &id[3..])), None);
    }
}
