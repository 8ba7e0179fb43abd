//! Keys and values on a command line.

use std::ffi::OsStr;
use std::io::Read;

use clap::builder::{OsStringValueParser, TypedValueParser};
use holdfast_api::{Blob, stream};

use crate::exit::Failure;

/// Longest value read from standard input: what fits into a frame. The
/// cluster's own limits are lower, and the cluster enforces them.
pub(crate) const INPUT_BYTES_MAX: u64 = stream::FRAME_BYTES_MAX as u64;

/// A value on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// `-`: the bytes of standard input.
    Input,
    Given(Blob),
}

impl Value {
    /// The bytes; reads standard input if it was asked for.
    pub(crate) fn read(&self) -> Result<Blob, Failure> {
        match self {
            Value::Given(blob) => Ok(blob.clone()),
            Value::Input => read_bounded(std::io::stdin().lock(), INPUT_BYTES_MAX),
        }
    }
}

fn read_bounded(input: impl Read, bytes_max: u64) -> Result<Blob, Failure> {
    let mut bytes = Vec::new();
    input
        .take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::Input(format!("cannot read standard input: {error}")))?;
    if bytes.len() as u64 > bytes_max {
        return Err(Failure::Input(format!(
            "standard input holds more than {bytes_max} bytes, the most that one value can have"
        )));
    }
    Ok(bytes.into())
}

/// Parses a key, a prefix or an expected value.
pub(crate) fn blob() -> impl TypedValueParser<Value = Blob> {
    OsStringValueParser::new().map(|text| unescape(&text))
}

/// Parses a value; `-` alone means standard input.
pub(crate) fn value() -> impl TypedValueParser<Value = Value> {
    OsStringValueParser::new()
        .map(|text| if text == "-" { Value::Input } else { Value::Given(unescape(&text)) })
}

/// Reads the escape of [`Blob::from_escaped`] in bytes that need not be text.
///
/// An escape consists of ASCII alone, so that no byte outside of UTF-8 can lie
/// within one: what lies between such bytes is read by itself.
fn unescape(text: &OsStr) -> Blob {
    let mut bytes = Vec::with_capacity(text.len());
    for chunk in text.as_encoded_bytes().utf8_chunks() {
        bytes.extend_from_slice(Blob::from_escaped(chunk.valid()).as_bytes());
        bytes.extend_from_slice(chunk.invalid());
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn arguments_are_unescaped_and_other_bytes_stand_for_themselves() {
        let os = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        assert_eq!(unescape(&os(b"plain")), Blob::from("plain"));
        assert_eq!(unescape(&os(br"\x00\\")), Blob::from(&b"\0\\"[..]));
        assert_eq!(unescape(&os(b"\xff\\x41\xfe")), Blob::from(&b"\xffA\xfe"[..]));
        assert_eq!(unescape(&os(b"\\\xff")), Blob::from(&b"\\\xff"[..]));
        assert_eq!(unescape(&os(b"\\x4\xff")), Blob::from(&b"\\x4\xff"[..]));
    }

    #[test]
    fn a_dash_alone_is_standard_input_and_its_escape_is_a_dash() {
        let parse = |text: &str| {
            let command = clap::Command::new("test");
            value().parse_ref(&command, None, OsStr::new(text)).unwrap()
        };
        assert_eq!(parse("-"), Value::Input);
        assert_eq!(parse(r"\x2d"), Value::Given(Blob::from("-")));
        assert_eq!(parse("-1"), Value::Given(Blob::from("-1")));
    }

    #[test]
    fn standard_input_is_taken_as_it_is_up_to_a_limit() {
        let raw = b"\\x41\n\xff";
        assert_eq!(read_bounded(&raw[..], 6).unwrap(), Blob::from(&raw[..]));
        assert!(matches!(read_bounded(&raw[..], 5), Err(Failure::Input(_))));
    }

    proptest! {
        #[test]
        fn what_is_printed_can_be_typed(bytes: Vec<u8>) {
            let blob = Blob::from(bytes);
            prop_assert_eq!(unescape(OsStr::new(&blob.escaped())), blob);
        }
    }
}
