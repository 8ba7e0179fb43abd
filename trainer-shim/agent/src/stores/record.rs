//! The record of a store in the run's keys.

use holdfast_api::{Blob, LeaseId, Name};
use serde::{Deserialize, Serialize};

/// Prefix of the notes that stores are over.
pub(super) const OVER_PREFIX: &str = "@store-over:";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Namespace of its keys.
    pub(super) namespace: Name,
    /// The agent of its master, and the lease with which that holds the run.
    pub(super) agent: String,
    pub(super) lease: Option<LeaseId>,
    /// Host in words, for the error of a program that cannot open it.
    pub(super) host: String,
    pub(super) pid: Option<i32>,
    pub(super) attempt: Option<u32>,
}

/// A record with this lease; `None` if it has it, or is no record.
pub(super) fn renewed(value: &Blob, lease: LeaseId) -> Option<Blob> {
    let record: Record = serde_json::from_slice(value.as_bytes()).ok()?;
    let is_old = record.lease != Some(lease);
    is_old.then(|| Blob::from(written(&Record { lease: Some(lease), ..record })))
}

pub(super) fn newest_key(address: &str) -> Blob {
    Blob::from(format!("@store:{address}:newest").into_bytes())
}

pub(super) fn record_key(address: &str, number: i64) -> Blob {
    Blob::from(format!("@store:{address}:{number}").into_bytes())
}

/// Key of the note that a store is over.
pub(super) fn over_key(namespace: &Name) -> Blob {
    Blob::from(format!("{OVER_PREFIX}{namespace}").into_bytes())
}

/// The store that such a key is of.
pub(super) fn name_of_over(key: &Blob) -> Option<Name> {
    std::str::from_utf8(key.as_bytes()).ok()?.strip_prefix(OVER_PREFIX)?.parse().ok()
}

pub(super) fn written(record: &Record) -> Vec<u8> {
    serde_json::to_vec(record).expect("names and numbers can be written")
}

pub(super) fn holder(record: &Record) -> String {
    format!("process {} of host {:?}", told(record.pid), record.host)
}

pub(super) fn told(pid: Option<i32>) -> String {
    pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_takes_another_lease_and_nothing_else_does() {
        let record = Record {
            namespace: "x.1.1".parse().unwrap(),
            agent: "a".to_owned(),
            lease: Some(1.into()),
            host: "h".to_owned(),
            pid: Some(7),
            attempt: None,
        };
        let value = Blob::from(written(&record));
        assert_eq!(renewed(&value, 1.into()), None);
        let read: Record =
            serde_json::from_slice(renewed(&value, 2.into()).unwrap().as_bytes()).unwrap();
        assert_eq!(read, Record { lease: Some(2.into()), ..record });
        // The count of openings is beside it.
        assert_eq!(renewed(&Blob::from("12"), 2.into()), None);
        let name: Name = "x.1.1".parse().unwrap();
        assert_eq!(name_of_over(&over_key(&name)), Some(name));
        assert_eq!(name_of_over(&newest_key("x:1")), None);
    }
}
