//! Bytes in, complete messages out.
//!
//! The decoder keeps what it has parsed of an incomplete message and never
//! looks at a byte twice, so that its work is linear in the bytes received
//! however they are cut. Bounds are checked on the announced length, before
//! the bytes themselves arrive, and nothing is allocated in advance.

use holdfast_api::{Blob, KeyValue};

use super::codec::{Message, Op, VALIDATE_MAGIC};
use super::limits::Limits;

/// Why the bytes are not the protocol, or exceed its limits. The next message
/// cannot be found after that: the connection ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Another protocol, or a client of torch 2.1 or older.
    #[error(
        "the first byte is {first:#04x}, not VALIDATE: no TCPStore client of torch 2.2 or newer"
    )]
    NotTcpStore {
        /// The first byte of the connection.
        first: u8,
    },
    /// VALIDATE with another number.
    #[error("VALIDATE carries {found:#010x} instead of {VALIDATE_MAGIC:#010x}: no TCPStore client")]
    BadMagic {
        /// Number that was sent.
        found: u32,
    },
    /// VALIDATE is the first message, once.
    #[error("a second VALIDATE")]
    SecondValidate,
    /// No operation has this byte.
    #[error("unknown operation {byte}")]
    UnknownOp {
        /// The byte in the place of an operation.
        byte: u8,
    },
    /// A field is longer than its limit.
    #[error("{op}: {what} is {size}, the limit is {limit} (limits.{name})")]
    TooLong {
        /// Operation of the message.
        op: Op,
        /// Name of the field that is too long.
        what: &'static str,
        /// Its size, at least.
        size: u64,
        /// The limit, in the unit of `size`.
        limit: usize,
        /// The limit's field in [`Limits`].
        name: &'static str,
    },
}

/// The decoder of one connection.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    buffer: Buffer,
    partial: Option<Partial>,
    /// Bytes received after the last complete message.
    undecoded: usize,
    validated: bool,
    failed: Option<WireError>,
}

/// An empty buffer larger than this is given back.
const IDLE_BUFFER_BYTES: usize = 1024;

/// Received bytes; the first `read` are decoded.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    read: usize,
}

impl Buffer {
    fn left(&self) -> usize {
        self.bytes.len() - self.read
    }

    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let taken = self.bytes.get(self.read..self.read.checked_add(count)?)?;
        self.read += count;
        Some(taken)
    }

    fn take_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// Moves the unread rest to the front. It is the beginning of one field,
    /// and moves once: after that `read` is 0 until the field is complete.
    fn compact(&mut self) {
        if self.read > 0 {
            self.bytes.drain(..self.read);
            self.read = 0;
        }
        if self.bytes.is_empty() && self.bytes.capacity() > IDLE_BUFFER_BYTES {
            self.bytes = Vec::new();
        }
    }
}

/// The field after the operation byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Key,
    Value,
    Number,
    Nonce,
    Keys,
    Pairs,
}

fn fields(op: Op) -> &'static [Field] {
    match op {
        Op::Validate | Op::Ping => &[Field::Nonce],
        Op::Set | Op::Append | Op::QueuePush => &[Field::Key, Field::Value],
        Op::CompareSet => &[Field::Key, Field::Value, Field::Value],
        Op::Get | Op::DeleteKey | Op::QueuePop | Op::QueueLen => &[Field::Key],
        Op::Add | Op::Barrier => &[Field::Key, Field::Number],
        Op::Check | Op::Wait | Op::MultiGet => &[Field::Keys],
        Op::MultiSet => &[Field::Pairs],
        Op::GetNumKeys | Op::CancelWait | Op::ListKeys => &[],
    }
}

/// A message that has arrived in part.
#[derive(Debug)]
struct Partial {
    op: Op,
    fields: std::slice::Iter<'static, Field>,
    current: Option<Field>,
    /// Blobs of a list still to come, once the count is known.
    remaining: Option<u64>,
    /// Length of a key or value, once it is known.
    length: Option<usize>,
    blobs: Vec<Blob>,
    number: u64,
    /// Bytes of the message so far, the announced ones included.
    size: usize,
    /// Bytes of the blobs so far.
    held: usize,
}

impl Decoder {
    /// A decoder for a new connection.
    pub fn new(limits: Limits) -> Decoder {
        let buffer = Buffer::default();
        Decoder { limits, buffer, partial: None, undecoded: 0, validated: false, failed: None }
    }

    /// Goes on with a connection whose beginning another decoder has read.
    pub(super) fn go_on(&mut self) {
        self.validated = true;
    }

    /// Bytes received after the last complete message.
    pub(super) fn undecoded_bytes(&self) -> usize {
        self.undecoded
    }

    /// Takes in bytes as they arrived. Nothing is kept after an error.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.buffer.bytes.extend_from_slice(bytes);
            self.undecoded += bytes.len();
        }
    }

    /// The next complete message; `None` if more bytes are needed. An error is
    /// final.
    pub fn next_message(&mut self) -> Result<Option<Message>, WireError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.decode();
        match &result {
            Ok(Some(_)) => self.undecoded = self.buffer.left(),
            Ok(None) => self.buffer.compact(),
            Err(error) => {
                self.failed = Some(error.clone());
                self.partial = None;
                self.buffer = Buffer::default();
            }
        }
        result
    }

    /// Bytes of an incomplete message that are held.
    pub fn held_bytes(&self) -> usize {
        self.buffer.left() + self.partial.as_ref().map_or(0, |partial| partial.held)
    }

    /// Whether a message has begun and is not complete.
    pub fn is_inside_message(&self) -> bool {
        self.partial.is_some() || self.buffer.left() > 0
    }

    fn decode(&mut self) -> Result<Option<Message>, WireError> {
        let mut partial = match self.partial.take() {
            Some(partial) => partial,
            None => match self.buffer.take_array() {
                Some([byte]) => Partial::new(self.operation(byte)?),
                None => return Ok(None),
            },
        };
        while let Some(field) = partial.current {
            if !partial.advance(field, &mut self.buffer, &self.limits)? {
                self.partial = Some(partial);
                return Ok(None);
            }
            partial.current = partial.fields.next().copied();
        }
        if partial.op == Op::Validate {
            // The number is four bytes on the wire.
            let found = partial.number as u32;
            if found != VALIDATE_MAGIC {
                return Err(WireError::BadMagic { found });
            }
            self.validated = true;
        }
        Ok(Some(partial.into_message()))
    }

    fn operation(&self, byte: u8) -> Result<Op, WireError> {
        match Op::from_byte(byte) {
            Some(Op::Validate) if self.validated => Err(WireError::SecondValidate),
            Some(Op::Validate) => Ok(Op::Validate),
            _ if !self.validated => Err(WireError::NotTcpStore { first: byte }),
            Some(op) => Ok(op),
            None => Err(WireError::UnknownOp { byte }),
        }
    }
}

impl Partial {
    fn new(op: Op) -> Partial {
        let mut fields = fields(op).iter();
        let current = fields.next().copied();
        Partial {
            op,
            fields,
            current,
            remaining: None,
            length: None,
            blobs: Vec::new(),
            number: 0,
            size: 1,
            held: 0,
        }
    }

    /// Takes the field, or as much of it as is there; true if it is complete.
    fn advance(
        &mut self,
        field: Field,
        buffer: &mut Buffer,
        limits: &Limits,
    ) -> Result<bool, WireError> {
        match field {
            Field::Key => self.key(buffer, limits),
            Field::Value => self.value(buffer, limits),
            Field::Number => match buffer.take_array() {
                Some(bytes) => {
                    self.number = u64::from_le_bytes(bytes);
                    Ok(true)
                }
                None => Ok(false),
            },
            Field::Nonce => match buffer.take_array() {
                Some(bytes) => {
                    self.number = u32::from_le_bytes(bytes).into();
                    Ok(true)
                }
                None => Ok(false),
            },
            Field::Keys => self.list(1, buffer, limits),
            Field::Pairs => self.list(2, buffer, limits),
        }
    }

    /// A count, then that many times a key, or a key and a value.
    fn list(
        &mut self,
        blobs_per_item: u64,
        buffer: &mut Buffer,
        limits: &Limits,
    ) -> Result<bool, WireError> {
        let mut remaining = match self.remaining {
            Some(remaining) => remaining,
            None => {
                let Some(bytes) = buffer.take_array() else { return Ok(false) };
                let count = u64::from_le_bytes(bytes);
                let (limit, name) = (limits.keys_per_message_max, "keys_per_message_max");
                self.check("the number of keys", count, limit, name)?;
                self.size += size_of::<u64>();
                // Cannot overflow: the count was checked against a usize.
                count * blobs_per_item
            }
        };
        while remaining > 0 {
            let is_value = blobs_per_item == 2 && remaining % 2 == 1;
            let complete =
                if is_value { self.value(buffer, limits)? } else { self.key(buffer, limits)? };
            if !complete {
                break;
            }
            remaining -= 1;
        }
        self.remaining = Some(remaining);
        Ok(remaining == 0)
    }

    fn key(&mut self, buffer: &mut Buffer, limits: &Limits) -> Result<bool, WireError> {
        let (limit, name) = (limits.key_bytes_max, "key_bytes_max");
        self.blob(buffer, limits, |partial, length| {
            partial.check("the length of a key", length, limit, name)
        })
    }

    fn value(&mut self, buffer: &mut Buffer, limits: &Limits) -> Result<bool, WireError> {
        let (limit, name) = (limits.value_bytes_max, "value_bytes_max");
        self.blob(buffer, limits, |partial, length| {
            partial.check("the length of a value", length, limit, name)
        })
    }

    fn blob(
        &mut self,
        buffer: &mut Buffer,
        limits: &Limits,
        check: impl Fn(&Partial, u64) -> Result<(), WireError>,
    ) -> Result<bool, WireError> {
        let length = match self.length {
            Some(length) => length,
            None => {
                let Some(bytes) = buffer.take_array() else { return Ok(false) };
                let announced = u64::from_le_bytes(bytes);
                check(self, announced)?;
                let whole = (self.size + size_of::<u64>()) as u64 + announced;
                let (limit, name) = (limits.message_bytes_max, "message_bytes_max");
                self.check("the length of the message", whole, limit, name)?;
                // Both fit: they were checked against limits of type usize.
                self.size = whole as usize;
                let length = announced as usize;
                self.length = Some(length);
                length
            }
        };
        let Some(bytes) = buffer.take(length) else { return Ok(false) };
        self.blobs.push(Blob::from(bytes));
        self.held += length + size_of::<Blob>();
        self.length = None;
        Ok(true)
    }

    fn check(
        &self,
        what: &'static str,
        size: u64,
        limit: usize,
        name: &'static str,
    ) -> Result<(), WireError> {
        if size > limit as u64 {
            return Err(WireError::TooLong { op: self.op, what, size, limit, name });
        }
        Ok(())
    }

    /// The fields in the order of [`fields`].
    fn into_message(self) -> Message {
        let number = self.number;
        let mut blobs = self.blobs.into_iter();
        let mut next = || blobs.next().expect("every field of the operation is complete");
        match self.op {
            Op::Validate => Message::Validate,
            Op::Set => Message::Set { key: next(), value: next() },
            Op::CompareSet => {
                Message::CompareSet { key: next(), expected: next(), desired: next() }
            }
            Op::Get => Message::Get { key: next() },
            Op::Add => Message::Add { key: next(), delta: number.cast_signed() },
            Op::Check => Message::Check { keys: blobs.collect() },
            Op::Wait => Message::Wait { keys: blobs.collect() },
            Op::GetNumKeys => Message::GetNumKeys,
            Op::DeleteKey => Message::DeleteKey { key: next() },
            Op::Append => Message::Append { key: next(), value: next() },
            Op::MultiGet => Message::MultiGet { keys: blobs.collect() },
            Op::MultiSet => Message::MultiSet { entries: pairs(blobs) },
            Op::CancelWait => Message::CancelWait,
            // The number is four bytes on the wire.
            Op::Ping => Message::Ping { nonce: number as u32 },
            Op::QueuePush => Message::QueuePush { key: next(), value: next() },
            Op::QueuePop => Message::QueuePop { key: next() },
            Op::QueueLen => Message::QueueLen { key: next() },
            Op::ListKeys => Message::ListKeys,
            Op::Barrier => Message::Barrier { key: next(), world_size: number.cast_signed() },
        }
    }
}

fn pairs(mut blobs: impl Iterator<Item = Blob>) -> Vec<KeyValue> {
    let mut entries = Vec::new();
    while let (Some(key), Some(value)) = (blobs.next(), blobs.next()) {
        entries.push(KeyValue { key, value });
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection past its VALIDATE.
    fn open(limits: Limits) -> Decoder {
        let mut decoder = Decoder::new(limits);
        decoder.feed(&encoded(&[Message::Validate]));
        assert_eq!(decoder.next_message(), Ok(Some(Message::Validate)));
        decoder
    }

    fn encoded(messages: &[Message]) -> Vec<u8> {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| message.encode(&mut bytes));
        bytes
    }

    fn error_of(decoder: &mut Decoder, bytes: &[u8]) -> WireError {
        decoder.feed(bytes);
        decoder.next_message().expect_err("these bytes are refused")
    }

    #[test]
    fn a_connection_that_does_not_begin_with_validate_is_refused_at_its_first_byte() {
        for first in [4, 12, 19, b'G', 0xff] {
            let error = error_of(&mut Decoder::new(Limits::default()), &[first]);
            assert_eq!(error, WireError::NotTcpStore { first });
        }
    }

    #[test]
    fn validate_needs_its_number_and_comes_once() {
        let error = error_of(&mut Decoder::new(Limits::default()), &[0, 1, 2, 3, 4]);
        assert_eq!(error, WireError::BadMagic { found: 0x0403_0201 });
        let error = error_of(&mut open(Limits::default()), &[0]);
        assert_eq!(error, WireError::SecondValidate);
    }

    #[test]
    fn an_unknown_operation_is_refused_and_the_error_is_final() {
        let mut decoder = open(Limits::default());
        assert_eq!(error_of(&mut decoder, &[19]), WireError::UnknownOp { byte: 19 });
        let ping = encoded(&[Message::Ping { nonce: 1 }]);
        assert_eq!(error_of(&mut decoder, &ping), WireError::UnknownOp { byte: 19 });
        assert_eq!(decoder.held_bytes(), 0);
    }

    #[test]
    fn every_length_is_refused_when_it_is_announced() {
        let limits = Limits {
            key_bytes_max: 4,
            value_bytes_max: 8,
            keys_per_message_max: 2,
            message_bytes_max: 40,
            ..Limits::default()
        };
        let length = |n: u64| n.to_le_bytes().to_vec();
        let cases = [
            ("key_bytes_max", [vec![3], length(5)].concat()),
            ("key_bytes_max", [vec![3], length(u64::MAX)].concat()),
            ("value_bytes_max", [vec![1], length(1), vec![b'k'], length(9)].concat()),
            ("keys_per_message_max", [vec![6], length(3)].concat()),
            ("keys_per_message_max", [vec![11], length(u64::MAX)].concat()),
            (
                "message_bytes_max",
                [vec![11], length(2), length(1), vec![b'k'], length(8), vec![0; 8], length(1)]
                    .concat(),
            ),
        ];
        for (expected, bytes) in cases {
            let WireError::TooLong { name, .. } = error_of(&mut open(limits.clone()), &bytes)
            else {
                panic!("{expected}: another error")
            };
            assert_eq!(name, expected);
        }
    }

    #[test]
    fn what_is_exactly_at_its_limit_passes() {
        let limits = Limits {
            key_bytes_max: 4,
            value_bytes_max: 8,
            keys_per_message_max: 2,
            message_bytes_max: 1 + 8 + 4 + 8 + 8,
            ..Limits::default()
        };
        let messages = [
            Message::Set { key: "/key".into(), value: "12345678".into() },
            Message::Check { keys: vec!["/a".into(), "/b".into()] },
        ];
        let mut decoder = open(limits);
        decoder.feed(&encoded(&messages));
        for message in messages {
            assert_eq!(decoder.next_message(), Ok(Some(message)));
        }
        assert_eq!(decoder.next_message(), Ok(None));
    }

    #[test]
    fn the_largest_multi_set_in_small_segments_is_decoded_once_and_whole() {
        let count = Limits::default().keys_per_message_max;
        let entries: Vec<_> = (0..count)
            .map(|i| KeyValue { key: format!("/{i}").into(), value: i.to_string().into() })
            .collect();
        let message = Message::MultiSet { entries };
        let mut decoder = open(Limits::default());
        let bytes = encoded(std::slice::from_ref(&message));
        let (last, most) = bytes.split_last().unwrap();
        for segment in most.chunks(7) {
            decoder.feed(segment);
            assert_eq!(decoder.next_message(), Ok(None), "nothing before the last byte");
        }
        assert!(decoder.is_inside_message());
        decoder.feed(&[*last]);
        assert_eq!(decoder.next_message(), Ok(Some(message)));
        assert!(!decoder.is_inside_message());
        assert_eq!(decoder.held_bytes(), 0);
    }

    #[test]
    fn an_idle_decoder_gives_its_buffer_back() {
        let mut decoder = open(Limits::default());
        let message = Message::Set { key: "/k".into(), value: vec![7; 100_000].into() };
        decoder.feed(&encoded(std::slice::from_ref(&message)));
        assert_eq!(decoder.next_message(), Ok(Some(message)));
        assert_eq!(decoder.next_message(), Ok(None));
        assert!(decoder.buffer.bytes.capacity() <= IDLE_BUFFER_BYTES);
    }
}
