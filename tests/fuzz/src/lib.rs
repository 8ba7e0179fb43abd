//! What the fuzz targets share: checks that hold for every decoder, and checksums for bytes that
//! the engine made up.
//!
//! A target reads its input as one decoder, or as several, and checks more than that nothing
//! panics: memory grows with the bytes that are there, not with lengths that they claim
//! ([`bounded`]); what is read is read again as it is written ([`settles`], [`json_settles`]).

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes that may be allocated at a time for each byte of input.
const BYTES_PER_BYTE_MAX: u64 = 1024;
/// Most bytes that may be allocated beside: buffers, and the first guess at the length of lists.
const BYTES_BESIDE_MAX: u64 = 16 << 20;

/// Runs a decoder on an input, and checks how much it allocates at a time.
pub fn bounded<T>(input: &[u8], decode: impl FnOnce() -> T) -> T {
    let mut result = None;
    let allocated = allocation_counter::measure(|| result = Some(decode()));
    let most = BYTES_BESIDE_MAX + input.len() as u64 * BYTES_PER_BYTE_MAX;
    let (bytes, length) = (allocated.bytes_max, input.len());
    assert!(bytes <= most, "{bytes} bytes were allocated for {length} bytes of input");
    result.expect("it was measured")
}

/// Checks that a value which was read is read again as it is written in MessagePack.
pub fn settles<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
    let written = rmp_serde::to_vec_named(value).expect("what was read can be written");
    let again: T = rmp_serde::from_slice(&written).expect("what was written can be read");
    assert_eq!(&again, value);
}

/// Reads JSON, if it is a `T`, and checks that it is read again as it is written.
pub fn json_settles<T: Serialize + DeserializeOwned + PartialEq + Debug>(text: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(text).ok()?;
    let written = serde_json::to_vec(&value).expect("what was read can be written");
    let again: T = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(again, value);
    Some(value)
}

/// Cuts an input into pieces of which each begins with a kind and a length.
pub fn records(mut input: &[u8]) -> Vec<(u8, &[u8])> {
    let mut records = Vec::new();
    while let Some(([kind, low, high], rest)) = input.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        records.push((*kind, bytes));
        input = rest;
    }
    records
}

/// An image of the machine with this content: right lengths and checksums around it.
pub fn image(version: u8, content: &[u8]) -> Vec<u8> {
    const FRAME_BYTES_MAX: usize = 64 << 10;
    let mut image = b"holdfast".to_vec();
    image.extend(u32::from(version).to_le_bytes());
    for (number, frame) in (0_u64..).zip(content.chunks(FRAME_BYTES_MAX).chain([&[][..]])) {
        let sum = crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), frame);
        image.extend((frame.len() as u32).to_le_bytes());
        image.extend(sum.to_le_bytes());
        image.extend(frame);
    }
    image
}

/// Puts the right checksums into a snapshot file or a backup, as far as its lengths lead.
pub fn sum_blocks(file: &mut [u8]) {
    let header = 20;
    let Some(length) = length_at(file, 12) else { return };
    let Some(content) = file.get(header..).and_then(|rest| rest.get(..length)) else { return };
    let sum = crc32c::crc32c(content).to_le_bytes();
    file[16..header].copy_from_slice(&sum);
    let (mut at, mut number, mut bytes, mut crc) = (header + length, 0_u64, 0_u64, 0);
    while let Some(length) = length_at(file, at).filter(|length| *length > 0) {
        let Some(data) = file.get(at + 8..).and_then(|rest| rest.get(..length)) else { return };
        let sum = crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), data);
        crc = crc32c::crc32c_append(crc, data);
        file[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
        (at, number, bytes) = (at + 8 + length, number + 1, bytes + length as u64);
    }
    if let Some(trailer) = file.get_mut(at + 4..).and_then(|rest| rest.get_mut(..16)) {
        trailer[..8].copy_from_slice(&bytes.to_le_bytes());
        trailer[8..12].copy_from_slice(&crc.to_le_bytes());
        let sum = crc32c::crc32c(&trailer[..12]).to_le_bytes();
        trailer[12..].copy_from_slice(&sum);
    }
}

fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let length = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    Some(u32::from_le_bytes(length) as usize)
}
