//! The frames of an image, and the numbers and strings in them.
//!
//! A frame is its length (u32), the CRC-32C of its number and content (u32), and
//! the content; all numbers are little-endian. The number detects frames out of
//! order. Inside, integers are LEB128 and byte strings follow their length; both
//! may cross frames.

use std::io::{self, ErrorKind, Read, Write};

use holdfast_api::SecretId;

use crate::codec::DecodeError;

/// Content of a full frame, in bytes.
const FRAME_BYTES_MAX: usize = 64 * 1024;

/// Most room reserved for a byte string before its bytes were read.
const TRUSTED_BYTES_MAX: u64 = FRAME_BYTES_MAX as u64;

fn checksum(number: u64, content: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), content)
}

/// Writes content as frames.
pub(super) struct Writer<'o> {
    out: &'o mut dyn Write,
    frame: Vec<u8>,
    number: u64,
}

impl<'o> Writer<'o> {
    pub fn new(out: &'o mut dyn Write) -> Self {
        Writer { out, frame: Vec::with_capacity(FRAME_BYTES_MAX), number: 0 }
    }

    pub fn u64(&mut self, value: u64) -> io::Result<()> {
        self.u128(value.into())
    }

    pub fn id(&mut self, id: SecretId) -> io::Result<()> {
        self.u128(id.to_u128())
    }

    fn u128(&mut self, mut value: u128) -> io::Result<()> {
        let mut bytes = [0; 19];
        let mut length = 0;
        loop {
            let low = (value & 0x7f) as u8;
            value >>= 7;
            bytes[length] = if value == 0 { low } else { low | 0x80 };
            length += 1;
            if value == 0 {
                return self.raw(&bytes[..length]);
            }
        }
    }

    pub fn bool(&mut self, value: bool) -> io::Result<()> {
        self.u64(value.into())
    }

    pub fn length(&mut self, length: usize) -> io::Result<()> {
        self.u64(length as u64)
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.length(bytes.len())?;
        self.raw(bytes)
    }

    fn raw(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let fits = bytes.len().min(FRAME_BYTES_MAX - self.frame.len());
            self.frame.extend_from_slice(&bytes[..fits]);
            bytes = &bytes[fits..];
            if self.frame.len() == FRAME_BYTES_MAX {
                self.send()?;
            }
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        let length = self.frame.len() as u32;
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(&checksum(self.number, &self.frame).to_le_bytes())?;
        self.out.write_all(&self.frame)?;
        self.frame.clear();
        self.number += 1;
        Ok(())
    }

    /// Writes the rest, and the empty frame at the end.
    pub fn finish(mut self) -> io::Result<()> {
        if !self.frame.is_empty() {
            self.send()?;
        }
        self.send()
    }
}

/// Reads content from frames. Nothing is parsed before its checksum matched.
pub(super) struct Reader<'i> {
    input: &'i mut dyn Read,
    frame: Vec<u8>,
    /// Bytes of the frame already read.
    used: usize,
    number: u64,
}

impl<'i> Reader<'i> {
    pub fn new(input: &'i mut dyn Read) -> Self {
        Reader { input, frame: Vec::new(), used: 0, number: 0 }
    }

    /// One byte at a time is fast enough: the frame is in memory.
    fn u8(&mut self) -> Result<u8, DecodeError> {
        if self.used == self.frame.len() && !self.receive()? {
            return Err(DecodeError::Truncated);
        }
        let byte = self.frame[self.used];
        self.used += 1;
        Ok(byte)
    }

    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        let value = self.u128()?;
        value.try_into().map_err(|_| DecodeError::Invalid(format!("{value} exceeds 64 bits")))
    }

    pub fn id(&mut self) -> Result<SecretId, DecodeError> {
        self.u128().map(SecretId::from_u128)
    }

    fn u128(&mut self) -> Result<u128, DecodeError> {
        let mut value = 0u128;
        for shift in (0..u128::BITS).step_by(7) {
            let byte = self.u8()?;
            let low = u128::from(byte & 0x7f);
            if low << shift >> shift != low || (byte == 0 && shift > 0) {
                break;
            }
            value |= low << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Invalid("a number is not in its shortest form".to_owned()))
    }

    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        let value = self.u64()?;
        value.try_into().map_err(|_| DecodeError::Invalid(format!("{value} exceeds 32 bits")))
    }

    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        yes_or_no(self.u64()?)
    }

    pub fn bytes(&mut self) -> Result<Vec<u8>, DecodeError> {
        let length = self.u64()?;
        let mut bytes = Vec::with_capacity(length.min(TRUSTED_BYTES_MAX) as usize);
        while (bytes.len() as u64) < length {
            if self.used == self.frame.len() && !self.receive()? {
                return Err(DecodeError::Truncated);
            }
            let missing = length - bytes.len() as u64;
            let here = &self.frame[self.used..];
            let taken = &here[..missing.min(here.len() as u64) as usize];
            bytes.extend_from_slice(taken);
            self.used += taken.len();
        }
        Ok(bytes)
    }

    /// Reads the next frame; false if it is the empty one at the end.
    fn receive(&mut self) -> Result<bool, DecodeError> {
        let mut header = [0; 8];
        read_exact(self.input, &mut header)?;
        let [a, b, c, d, checksum @ ..] = header;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(DecodeError::Invalid(format!("frame {} is too long", self.number)));
        }
        self.frame.resize(length, 0);
        self.used = 0;
        read_exact(self.input, &mut self.frame)?;
        if u32::from_le_bytes(checksum) != self::checksum(self.number, &self.frame) {
            return Err(DecodeError::Checksum { frame: self.number });
        }
        self.number += 1;
        Ok(length > 0)
    }

    /// Checks that the content ends here, with the empty frame.
    pub fn finish(mut self) -> Result<(), DecodeError> {
        if self.used < self.frame.len() || self.receive()? {
            return Err(DecodeError::Invalid("the image goes on after its end".to_owned()));
        }
        Ok(())
    }
}

/// `read_exact` with errors of this crate.
pub(super) fn read_exact(input: &mut dyn Read, bytes: &mut [u8]) -> Result<(), DecodeError> {
    input.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => DecodeError::Truncated,
        _ => DecodeError::Io(error),
    })
}

/// Reads what [`Writer::bool`] wrote.
pub fn yes_or_no(number: u64) -> Result<bool, DecodeError> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(DecodeError::Invalid(format!("{other} is neither yes nor no"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(fill: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        fill(&mut writer);
        writer.finish().unwrap();
        bytes
    }

    #[test]
    fn numbers_and_long_strings_come_back() {
        let long = vec![7u8; 3 * FRAME_BYTES_MAX + 5];
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        let bytes = written(|out| {
            numbers.iter().for_each(|number| out.u64(*number).unwrap());
            out.bytes(&long).unwrap();
        });
        let mut input = &bytes[..];
        let mut reader = Reader::new(&mut input);
        for number in numbers {
            assert_eq!(reader.u64().unwrap(), number);
        }
        assert_eq!(reader.bytes().unwrap(), long);
        reader.finish().unwrap();
        assert!(input.is_empty());
    }

    #[test]
    fn content_that_fills_its_frame_exactly_still_has_an_end() {
        let bytes = written(|out| out.raw(&vec![1; FRAME_BYTES_MAX]).unwrap());
        assert_eq!(bytes.len(), 8 + FRAME_BYTES_MAX + 8);
    }

    #[test]
    fn frames_cannot_change_places_or_be_lost() {
        let bytes = written(|out| {
            out.raw(&vec![1; FRAME_BYTES_MAX]).unwrap();
            out.raw(&vec![2; FRAME_BYTES_MAX]).unwrap();
        });
        let (first, rest) = bytes.split_at(8 + FRAME_BYTES_MAX);
        let (second, end) = rest.split_at(8 + FRAME_BYTES_MAX);
        for wrong in [[second, first, end].concat(), [second, end].concat(), [first, end].concat()]
        {
            let mut input = &wrong[..];
            let mut reader = Reader::new(&mut input);
            let result = (0..2 * FRAME_BYTES_MAX).try_for_each(|_| reader.u8().map(drop));
            assert!(matches!(result, Err(DecodeError::Checksum { .. })), "{result:?}");
        }
    }

    #[test]
    fn only_the_shortest_form_of_a_number_is_read() {
        let forms: [&[u8]; 3] = [&[0x80, 0x00], &[0xff; 11], &[0xff; 10]];
        for form in forms {
            let bytes = written(|out| out.raw(form).unwrap());
            let mut input = &bytes[..];
            assert!(Reader::new(&mut input).u64().is_err(), "{form:?}");
        }
    }

    #[test]
    fn a_length_that_lies_costs_no_memory() {
        let bytes = written(|out| out.u64(u64::MAX).unwrap());
        let mut input = &bytes[..];
        assert!(matches!(Reader::new(&mut input).bytes(), Err(DecodeError::Truncated)));
    }
}
