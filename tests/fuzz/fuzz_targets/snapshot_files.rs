//! Files of snapshots and backups, as they are and with right checksums.

#![no_main]

use std::io::{Read, Write};

use holdfast_api::backup;
use holdfast_api::blocks::{BlockReader, FormatError};
use holdfast_fuzz::{bounded, sum_blocks};
use holdfast_store::storage::snapshot::format;
use libfuzzer_sys::fuzz_target;

fn body(mut blocks: BlockReader<&[u8]>) -> Result<Vec<u8>, FormatError> {
    let mut body = Vec::new();
    blocks.read_to_end(&mut body)?;
    blocks.finish()?;
    Ok(body)
}

fn read_snapshot(file: &[u8]) {
    let Ok((header, blocks)) = format::open(file) else { return };
    let Ok(content) = body(blocks) else { return };
    let mut writer = format::begin(Vec::new(), &header).expect("a header that was read");
    writer.write_all(&content).expect("a Vec takes all");
    let again = writer.finish().expect("a Vec takes all");
    let (read, blocks) = format::open(&again[..]).expect("it was just written");
    assert_eq!((read, body(blocks).ok()), (header, Some(content)));
}

fn read_backup(file: &[u8]) {
    let Ok((header, blocks)) = backup::open(file) else { return };
    let Ok(content) = body(blocks) else { return };
    let mut writer = backup::begin(Vec::new(), &header).expect("a header that was read");
    writer.write_all(&content).expect("a Vec takes all");
    let again = writer.finish().expect("a Vec takes all");
    let (read, blocks) = backup::open(&again[..]).expect("it was just written");
    assert_eq!((read, body(blocks).ok()), (header, Some(content)));
}

fuzz_target!(|input: &[u8]| {
    let mut summed = input.to_vec();
    sum_blocks(&mut summed);
    for file in [input, &summed] {
        bounded(input, || (read_snapshot(file), read_backup(file)));
    }
});
