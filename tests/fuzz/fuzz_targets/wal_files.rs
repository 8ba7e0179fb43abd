//! RocksDB's own log files, as they are and with right checksums.

#![no_main]

use holdfast_fuzz::bounded;
use holdfast_store::fuzzing;
use libfuzzer_sys::fuzz_target;

/// Puts the right checksum into each record of the first block.
fn sum(file: &mut [u8]) {
    const HEADER_BYTES: usize = 7;
    let mut at = 0;
    while let Some([_, _, _, _, low, high, kind]) = file.get(at..at + HEADER_BYTES) {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let Some(data) = file.get(at + HEADER_BYTES..at + HEADER_BYTES + length) else { return };
        let crc = crc32c::crc32c_append(crc32c::crc32c(&[*kind]), data);
        let masked = crc.rotate_right(15).wrapping_add(0xa282_ead8);
        file[at..at + 4].copy_from_slice(&masked.to_le_bytes());
        at += HEADER_BYTES + length;
    }
}

fuzz_target!(|input: &[u8]| {
    bounded(input, || fuzzing::wal_file(input));
    let mut file = input.to_vec();
    sum(&mut file);
    bounded(input, || fuzzing::wal_file(&file));
});
