//! Bytes as people and machines see them.

use std::fmt;
use std::sync::Arc;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A key or a value: any bytes, the empty string included. Cloning is cheap.
///
/// In MessagePack a blob is `bin`. In JSON it is a string with a readable
/// escape: printable UTF-8 stands for itself, a backslash is doubled, every
/// other byte is `\xNN`. [`Blob::escaped`] and [`Blob::from_escaped`] are the
/// two directions.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Blob(Arc<[u8]>);

impl Blob {
    /// The bytes, without any escape.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// How many bytes it holds, without any escape.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text, if the bytes are UTF-8 without control characters other than
    /// newline and tab: what a terminal can show as it is.
    pub fn as_text(&self) -> Option<&str> {
        let text = std::str::from_utf8(&self.0).ok()?;
        let plain = |c: char| !c.is_control() || c == '\n' || c == '\t';
        text.chars().all(plain).then_some(text)
    }

    /// The escaped form; [`Blob::from_escaped`] gives the same bytes back.
    pub fn escaped(&self) -> String {
        let mut out = String::with_capacity(self.0.len());
        self.escape(&mut out).expect("a string takes whatever is written to it");
        out
    }

    /// Writes the escaped form in pieces, and no more once a piece is refused.
    fn escape(&self, out: &mut impl fmt::Write) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            let text = chunk.valid();
            let mut written = 0;
            for (at, c) in text.char_indices() {
                if c != '\\' && !acts_on_a_terminal(c) {
                    continue;
                }
                out.write_str(&text[written..at])?;
                written = at + c.len_utf8();
                match c {
                    '\\' => out.write_str("\\\\")?,
                    _ => text[at..written].bytes().try_for_each(|byte| write_hex(out, byte))?,
                }
            }
            out.write_str(&text[written..])?;
            chunk.invalid().iter().try_for_each(|byte| write_hex(out, *byte))?;
        }
        Ok(())
    }

    /// Reads the escaped form: `\\` is a backslash, `\xNN` a byte. Any other
    /// backslash stands for itself, so that ordinary text needs no escaping.
    pub fn from_escaped(text: &str) -> Blob {
        let mut out = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&first, tail)) = rest.split_first() {
            match (first, tail) {
                (b'\\', [b'\\', tail @ ..]) => {
                    out.push(b'\\');
                    rest = tail;
                }
                (b'\\', [b'x', high, low, tail @ ..])
                    if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
                {
                    out.push(hex_digit(*high) << 4 | hex_digit(*low));
                    rest = tail;
                }
                _ => {
                    out.push(first);
                    rest = tail;
                }
            }
        }
        Blob(out.into())
    }
}

/// Whether a terminal does more than show it: control characters, and those that
/// reverse the direction of text.
pub fn acts_on_a_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn write_hex(out: &mut impl fmt::Write, byte: u8) -> fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.write_str("\\x")?;
    out.write_char(DIGITS[usize::from(byte >> 4)].into())?;
    out.write_char(DIGITS[usize::from(byte & 15)].into())
}

fn hex_digit(c: u8) -> u8 {
    match c {
        b'0'..=b'9' => c - b'0',
        b'a'..=b'f' => c - b'a' + 10,
        _ => c - b'A' + 10,
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 64;
        if self.len() <= SHOWN {
            write!(f, "\"{}\"", self.escaped())
        } else {
            let head = Blob::from(&self.0[..SHOWN]);
            write!(f, "\"{}\"… {} bytes", head.escaped(), self.len())
        }
    }
}

impl fmt::Display for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.escape(f)
    }
}

impl From<&[u8]> for Blob {
    fn from(bytes: &[u8]) -> Self {
        Blob(bytes.into())
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Blob(bytes.into())
    }
}

/// The bytes of the text as they are, with no escape.
impl From<&str> for Blob {
    fn from(text: &str) -> Self {
        Blob(text.as_bytes().into())
    }
}

impl From<String> for Blob {
    fn from(text: String) -> Self {
        Blob(text.into_bytes().into())
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Ordered maps can be searched with plain bytes.
impl std::borrow::Borrow<[u8]> for Blob {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            // In pieces: a writer that takes no more ends it.
            serializer.collect_str(self)
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_str(EscapedVisitor)
        } else {
            deserializer.deserialize_bytes(BytesVisitor)
        }
    }
}

struct EscapedVisitor;

impl Visitor<'_> for EscapedVisitor {
    type Value = Blob;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r"a string; bytes that are not text as \xNN")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Blob, E> {
        Ok(Blob::from_escaped(text))
    }
}

struct BytesVisitor;

impl Visitor<'_> for BytesVisitor {
    type Value = Blob;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Blob, E> {
        Ok(bytes.into())
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Blob {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .description(Some(
                r"Bytes: printable UTF-8 as it is, a backslash doubled, other bytes as \xNN",
            ))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Blob {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escape_shows_text_as_it_is_and_bytes_as_hex() {
        assert_eq!(Blob::from("grüße").escaped(), "grüße");
        assert_eq!(Blob::from(&[0, 0xff, b'a'][..]).escaped(), r"\x00\xffa");
        assert_eq!(Blob::from(r"a\b").escaped(), r"a\\b");
        assert_eq!(Blob::from("a\nb").escaped(), r"a\x0ab");
        assert_eq!(Blob::from("a\u{202e}b").escaped(), r"a\xe2\x80\xaeb");
    }

    #[test]
    fn a_writer_that_takes_no_more_is_given_no_more() {
        struct Few(usize);
        impl std::io::Write for Few {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0 += bytes.len();
                if self.0 > 1_000 { Err(std::io::Error::other("full")) } else { Ok(bytes.len()) }
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let mut few = Few(0);
        let refused = serde_json::to_writer(&mut few, &Blob::from(vec![1; 1_000_000]));
        assert!(refused.unwrap_err().is_io());
        assert!(few.0 < 1_100, "{} bytes", few.0);
    }

    #[test]
    fn an_unknown_escape_stands_for_itself() {
        assert_eq!(Blob::from_escaped(r"C:\new"), Blob::from(r"C:\new"));
        assert_eq!(Blob::from_escaped(r"\x4"), Blob::from(r"\x4"));
        assert_eq!(Blob::from_escaped(r"\x41\\"), Blob::from(r"A\"));
    }

    proptest! {
        #[test]
        fn escape_round_trips(bytes: Vec<u8>) {
            let blob = Blob::from(bytes);
            prop_assert_eq!(Blob::from_escaped(&blob.escaped()), blob.clone());
            let json = serde_json::to_string(&blob).unwrap();
            prop_assert_eq!(serde_json::from_str::<Blob>(&json).unwrap(), blob.clone());
            let packed = rmp_serde::to_vec_named(&blob).unwrap();
            prop_assert_eq!(rmp_serde::from_slice::<Blob>(&packed).unwrap(), blob);
        }
    }
}
