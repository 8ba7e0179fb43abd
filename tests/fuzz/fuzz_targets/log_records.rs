//! Records of a node's log, as they are and under a right checksum.

#![no_main]

use std::fmt::Debug;

use holdfast_fuzz::bounded;
use holdfast_store::raft::types::{LogId, Vote};
use holdfast_store::storage::Identity;
use holdfast_store::storage::backend::WitnessRecord;
use holdfast_store::storage::record::{LogIdRecord, LogRecord, VoteRecord};
use holdfast_store::storage::seal::{seal, unseal};
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;

const KEY: &[u8] = b"log/7";

fn read<T: Serialize + DeserializeOwned + PartialEq + Debug>(sealed: &[u8]) -> Option<T> {
    let record: T = unseal(KEY, sealed).ok()?;
    assert_eq!(unseal(KEY, &seal(KEY, &record)).as_ref(), Ok(&record));
    Some(record)
}

fn read_all(sealed: &[u8]) {
    if let Some(record) = read::<LogRecord>(sealed)
        && let Ok(entry) = record.clone().into_entry()
    {
        assert_eq!(LogRecord::from(&entry), record);
    }
    if let Some(record) = read::<VoteRecord>(sealed)
        && let Ok(vote) = Vote::try_from(record)
    {
        assert_eq!(VoteRecord::from(&vote), record);
    }
    if let Some(record) = read::<LogIdRecord>(sealed)
        && let Ok(id) = LogId::try_from(record)
    {
        assert_eq!(LogIdRecord::from(&id), record);
    }
    read::<Identity>(sealed);
    read::<WitnessRecord>(sealed);
    read::<u64>(sealed);
}

fuzz_target!(|input: &[u8]| {
    bounded(input, || read_all(input));
    let Some((format, body)) = input.split_first() else { return };
    let sum = [KEY, &[*format], body].iter().fold(0, |sum, part| crc32c::crc32c_append(sum, part));
    let sealed = [&[*format][..], &sum.to_le_bytes(), body].concat();
    bounded(input, || read_all(&sealed));
});
