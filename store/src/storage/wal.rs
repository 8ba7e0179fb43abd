//! Checks RocksDB's own log files before RocksDB reads them.
//!
//! RocksDB's reader loops for ever on a record whose type is one of those that
//! recycled files have, in a file that did not begin with one (seen with 11.8.1;
//! facebook/rocksdb issue 13333). We never recycle files, so such a type is
//! always damage or a torn write. One flipped bit must give an error, not hang
//! the node at its start.
//!
//! The format is the one of RocksDB's wiki, "Write Ahead Log File Format":
//!
//! ```text
//! block    32 KiB of records; what is too short for a header at its end is empty
//! record   u32 masked crc32c of type and data, u16 length, u8 type, data
//! data     of a write-ahead log: u64 sequence number, u32 count, operations
//! ```

const BLOCK_BYTES: usize = 32 << 10;
const HEADER_BYTES: usize = 7;

const ZERO: u8 = 0;
const FULL: u8 = 1;
const FIRST: u8 = 2;
const LAST: u8 = 4;

/// Result of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Scan {
    /// Everything up to this byte is complete.
    pub whole: usize,
    /// The last sequence number in them, if the file is a write-ahead log.
    pub sequence: u64,
    /// RocksDB must not read the file as it is.
    pub(crate) hangs: bool,
}

fn is_recycled(kind: u8) -> bool {
    matches!(kind, 5..=8 | 11 | 131)
}

/// Masked as RocksDB stores checksums, so that a checksum of checksums works.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// One record, and what follows it in the block.
struct Record<'a> {
    kind: u8,
    data: &'a [u8],
    is_whole: bool,
    rest: &'a [u8],
}

/// The record at the beginning of the rest of a block; none if there is no more.
fn next_record(block: &[u8]) -> Option<Record<'_>> {
    let (header, rest) = block.split_first_chunk::<HEADER_BYTES>()?;
    let [c0, c1, c2, c3, l0, l1, kind] = *header;
    let length = usize::from(u16::from_le_bytes([l0, l1]));
    let broken = Record { kind, data: &[], is_whole: false, rest: &[] };
    let Some((data, rest)) = rest.split_at_checked(length) else { return Some(broken) };
    let crc = crc32c::crc32c_append(crc32c::crc32c(&[kind]), data);
    let is_whole = masked(crc) == u32::from_le_bytes([c0, c1, c2, c3]) && kind != ZERO;
    Some(Record { kind, data, is_whole, rest: if is_whole { rest } else { &[] } })
}

/// The last sequence number of a batch.
fn sequence_of(data: &[u8]) -> Option<u64> {
    let (first, rest) = data.split_first_chunk::<8>()?;
    let count = u64::from(u32::from_le_bytes(*rest.first_chunk::<4>()?));
    u64::from_le_bytes(*first).checked_add(count.checked_sub(1)?)
}

/// Walks a file the way RocksDB does.
pub(crate) fn scan(file: &[u8]) -> Scan {
    let mut scan = Scan::default();
    // The sequence number of a record that spans blocks.
    let mut begun = None;
    let mut all_whole = true;
    for (number, mut block) in file.chunks(BLOCK_BYTES).enumerate() {
        let end_of_block = number * BLOCK_BYTES + block.len();
        while let Some(Record { kind, data, is_whole, rest }) = next_record(block) {
            if is_recycled(kind) {
                return Scan { hangs: true, ..scan };
            }
            all_whole &= is_whole;
            block = rest;
            if !all_whole {
                continue;
            }
            let ended = match kind {
                FULL => sequence_of(data),
                FIRST => {
                    begun = sequence_of(data);
                    continue;
                }
                LAST => begun.take(),
                _ => continue,
            };
            scan.sequence = scan.sequence.max(ended.unwrap_or_default());
            scan.whole = end_of_block - rest.len();
        }
    }
    scan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, data: &[u8]) -> Vec<u8> {
        let crc = masked(crc32c::crc32c_append(crc32c::crc32c(&[kind]), data));
        let length = u16::try_from(data.len()).unwrap();
        [&crc.to_le_bytes()[..], &length.to_le_bytes(), &[kind], data].concat()
    }

    fn batch(sequence: u64, count: u32, bytes: usize) -> Vec<u8> {
        [&sequence.to_le_bytes()[..], &count.to_le_bytes(), &vec![7; bytes]].concat()
    }

    #[test]
    fn whole_records_are_counted() {
        let file = [record(FULL, &batch(1, 3, 20)), record(FULL, &batch(4, 2, 20))].concat();
        assert_eq!(scan(&file), Scan { whole: file.len(), sequence: 5, hangs: false });
        assert_eq!(scan(&[]), Scan::default());
    }

    #[test]
    fn a_record_that_spans_blocks_counts_when_its_last_part_is_there() {
        let data = batch(1, 9, BLOCK_BYTES);
        let (first, last) = data.split_at(BLOCK_BYTES - HEADER_BYTES);
        let file = [record(FIRST, first), record(LAST, last)].concat();
        assert_eq!(scan(&file), Scan { whole: file.len(), sequence: 9, hangs: false });
        let torn = &file[..file.len() - 1];
        assert_eq!(scan(torn), Scan::default());
    }

    #[test]
    fn what_follows_a_torn_record_does_not_count() {
        let good = record(FULL, &batch(1, 1, 20));
        let mut torn = record(FULL, &batch(2, 1, 20));
        torn.truncate(30);
        let file = [good.clone(), torn, record(FULL, &batch(3, 1, 20))].concat();
        assert_eq!(scan(&file), Scan { whole: good.len(), sequence: 1, hangs: false });
    }

    #[test]
    fn each_type_that_hangs_rocksdb_is_seen() {
        let good = record(FULL, &batch(1, 1, 20));
        for kind in 0..=u8::MAX {
            let mut bad = record(FULL, &batch(2, 1, 20));
            bad[6] = kind;
            let found = scan(&[good.clone(), bad].concat());
            assert_eq!(found.hangs, is_recycled(kind), "type {kind}");
            if kind != FULL {
                assert_eq!((found.whole, found.sequence), (good.len(), 1));
            }
        }
    }
}
