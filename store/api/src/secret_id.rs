//! Ids that cannot be guessed: a client that knows one speaks for its holder.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::command::Nonce;

/// Letters of an id as text.
const TEXT_LENGTH: usize = 32;

/// 128 random bits, or a number from before feature level
/// [`SECRET_IDS_LEVEL`](crate::version::SECRET_IDS_LEVEL). As text, and in JSON, 32
/// hexadecimal digits, or that number.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretId {
    high: u64,
    low: u64,
}

impl SecretId {
    /// The least one; nothing has it.
    pub const MIN: SecretId = SecretId::from_u128(0);
    /// The greatest one, for the end of a range of ids.
    pub const MAX: SecretId = SecretId::from_u128(u128::MAX);

    /// The id of the `count`th holder, which chose this nonce: the first 128 bits of the
    /// SHA-256 of both. As hard to guess as the nonce; no nonce can be chosen to give an
    /// id of another count.
    pub fn of(nonce: Nonce, count: u64) -> SecretId {
        let parts = [nonce.0, nonce.1, count].map(u64::to_be_bytes);
        let digest = Sha256::digest(parts.as_flattened());
        let mut first = [0; 16];
        first.copy_from_slice(&digest[..16]);
        SecretId::from_u128(u128::from_be_bytes(first))
    }

    /// The id with this number.
    pub const fn from_u128(number: u128) -> SecretId {
        SecretId { high: (number >> 64) as u64, low: number as u64 }
    }

    /// The id with these 32 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<SecretId, SecretIdError> {
        let is_hex = text.len() == TEXT_LENGTH && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
        number.map(SecretId::from_u128).ok_or(SecretIdError)
    }

    /// The id as a number.
    pub fn to_u128(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }

    /// The number, if it is one from before there were secret ids.
    fn number(self) -> Option<u64> {
        (self.high == 0).then_some(self.low)
    }
}

impl From<u64> for SecretId {
    fn from(number: u64) -> SecretId {
        SecretId { high: 0, low: number }
    }
}

impl fmt::Display for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Some(number) => number.fmt(f),
            None => write!(f, "{:032x}", self.to_u128()),
        }
    }
}

impl fmt::Debug for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is no [`SecretId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an id is {TEXT_LENGTH} hexadecimal digits, or a whole number")]
pub struct SecretIdError;

impl FromStr for SecretId {
    type Err = SecretIdError;

    fn from_str(text: &str) -> Result<Self, SecretIdError> {
        let digits =
            |allowed: fn(&u8) -> bool| !text.is_empty() && text.as_bytes().iter().all(allowed);
        if text.len() == TEXT_LENGTH && digits(u8::is_ascii_hexdigit) {
            return u128::from_str_radix(text, 16)
                .map(SecretId::from_u128)
                .map_err(|_| SecretIdError);
        }
        let number = digits(u8::is_ascii_digit).then(|| text.parse::<u64>().ok()).flatten();
        number.map(SecretId::from).ok_or(SecretIdError)
    }
}

impl Serialize for SecretId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.number() {
            Some(number) => serializer.serialize_u64(number),
            None if serializer.is_human_readable() => serializer.collect_str(self),
            None => serializer.serialize_bytes(&self.to_u128().to_be_bytes()),
        }
    }
}

impl<'de> Deserialize<'de> for SecretId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyVisitor)
    }
}

struct AnyVisitor;

impl Visitor<'_> for AnyVisitor {
    type Value = SecretId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an id: {TEXT_LENGTH} hexadecimal digits, or a whole number")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<SecretId, E> {
        Ok(number.into())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<SecretId, E> {
        SecretId::from_hex(text).map_err(E::custom)
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<SecretId, E> {
        let bytes = bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))?;
        Ok(SecretId::from_u128(u128::from_be_bytes(bytes)))
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for SecretId {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, SchemaType, Type};
        ObjectBuilder::new()
            .schema_type(SchemaType::from_iter([Type::Integer, Type::String]))
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .minimum(Some(0))
            .pattern(Some("^[0-9a-fA-F]{32}$"))
            .description(Some("128 random bits as 32 hexadecimal digits; a number if it is older"))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for SecretId {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ids_round_trip(low: u64, high: u64) {
            for id in [SecretId::from(low), SecretId::of(Nonce(high, low), 7)] {
                prop_assert_eq!(id.to_string().parse(), Ok(id));
                let json = serde_json::to_string(&id).unwrap();
                prop_assert_eq!(serde_json::from_str::<SecretId>(&json).unwrap(), id);
                let packed = rmp_serde::to_vec_named(&id).unwrap();
                prop_assert_eq!(rmp_serde::from_slice::<SecretId>(&packed).unwrap(), id);
            }
        }
    }

    #[test]
    fn numbers_from_before_stay_numbers() {
        let id = SecretId::from(7);
        assert_eq!(id.to_string(), "7");
        assert_eq!(serde_json::to_string(&id).unwrap(), "7");
        assert_eq!(rmp_serde::to_vec_named(&id).unwrap(), rmp_serde::to_vec_named(&7_u64).unwrap());
        let random = SecretId::from_u128(1 << 64 | 5);
        assert_eq!(random.to_string(), "00000000000000010000000000000005");
    }

    #[test]
    fn each_count_and_each_nonce_has_an_id_of_its_own() {
        // `printf '%016x%016x%016x' 1 2 3 | xxd -r -p | sha256sum`
        let id = SecretId::of(Nonce(1, 2), 3);
        assert_eq!(id.to_string(), "ca73761ddabfffcbe51170be0b07f67b");
        for (nonce, count) in [(Nonce(1, 2), 4), (Nonce(1, 3), 3), (Nonce(2, 1), 3)] {
            assert_ne!(SecretId::of(nonce, count), id);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "x", "-1", "+1", "0x7", "18446744073709551616", "0000000000000001000000000000000g"]
        {
            assert_eq!(text.parse::<SecretId>(), Err(SecretIdError), "{text}");
        }
        for json in ["-1", "1.5", "null", "\"\"", "\"1\"", "[]", "18446744073709551616"] {
            assert!(serde_json::from_str::<SecretId>(json).is_err(), "{json}");
        }
        assert!(rmp_serde::from_slice::<SecretId>(&[0xc4, 2, 1, 1]).is_err());
    }
}
