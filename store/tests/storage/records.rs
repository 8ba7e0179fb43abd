//! Records of the log: they decode to what was encoded, for any input, and what
//! the first version wrote stays readable.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::PathBuf;

use bytes::Bytes;
use holdfast_store::raft::convert::{NODES_MAX, ORDINAL_MAX};
use holdfast_store::raft::types::{LogId, Membership, RaftEntry, SnapshotMeta, Vote};
use holdfast_store::storage::Identity;
use holdfast_store::storage::backend::WitnessRecord;
use holdfast_store::storage::record::{
    self, LogIdRecord, LogRecord, MembershipRecord, NodeRecord, PayloadRecord, SnapshotMetaRecord,
    StoredMembershipRecord, VoteRecord,
};
use holdfast_store::storage::seal::{seal, unseal};
use holdfast_store::storage::snapshot::format::{self, SnapshotHeader};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn ordinal() -> impl Strategy<Value = u64> {
    prop_oneof![0..5u64, 0..=ORDINAL_MAX, Just(ORDINAL_MAX)]
}

fn log_id() -> impl Strategy<Value = LogIdRecord> {
    (ordinal(), any::<u64>(), ordinal()).prop_map(|(term, node, index)| LogIdRecord {
        term,
        node,
        index,
    })
}

fn membership() -> impl Strategy<Value = MembershipRecord> {
    let voters = vec(btree_set(0..9u64, 1..4), 0..3);
    (voters, btree_map(any::<u64>(), ".{0,40}", 0..4)).prop_map(|(voters, learners)| {
        let voter_ids: BTreeSet<u64> = voters.iter().flatten().copied().collect();
        let voter = |id| (id, format!("node-{id}:21000"));
        let nodes: BTreeMap<u64, String> =
            learners.into_iter().chain(voter_ids.into_iter().map(voter)).collect();
        let nodes = nodes.into_iter().map(|(id, address)| (id, NodeRecord { address })).collect();
        MembershipRecord { voters, nodes }
    })
}

fn log_record() -> impl Strategy<Value = LogRecord> {
    let payload = prop_oneof![
        Just(PayloadRecord::Blank),
        vec(any::<u8>(), 0..300).prop_map(|bytes| PayloadRecord::Entry(Bytes::from(bytes))),
        membership().prop_map(PayloadRecord::Membership),
    ];
    (log_id(), payload).prop_map(|(LogIdRecord { term, node, index }, payload)| LogRecord {
        index,
        term,
        node,
        payload,
    })
}

proptest! {
    #[test]
    fn log_records_come_back(record in log_record()) {
        let entry: RaftEntry = record.clone().into_entry().unwrap();
        prop_assert_eq!(&LogRecord::from(&entry), &record);
        prop_assert_eq!(record::decode::<LogRecord>(&record::encode(&record)), Ok(record));
    }

    #[test]
    fn votes_come_back(term in ordinal(), node in any::<u64>(), committed in any::<bool>()) {
        let record = VoteRecord { term, node, committed };
        let vote = Vote::try_from(record).unwrap();
        prop_assert_eq!(VoteRecord::from(&vote), record);
        prop_assert_eq!(record::decode::<VoteRecord>(&record::encode(&record)), Ok(record));
    }

    #[test]
    fn snapshot_metas_come_back(
        last in proptest::option::of(log_id()),
        log_id in proptest::option::of(log_id()),
        membership in membership(),
    ) {
        let membership = StoredMembershipRecord { log_id, membership };
        let record = SnapshotMetaRecord { last, membership };
        let meta = SnapshotMeta::try_from(record.clone()).unwrap();
        prop_assert_eq!(&SnapshotMetaRecord::from(&meta), &record);
        let bytes = record::encode(&record);
        prop_assert_eq!(record::decode::<SnapshotMetaRecord>(&bytes), Ok(record));
    }

    #[test]
    fn any_bytes_are_a_record_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
        // It may say anything, but does not panic.
        drop(record::decode::<SnapshotMetaRecord>(&bytes).map(SnapshotMeta::try_from));
        drop(record::decode::<VoteRecord>(&bytes).map(Vote::try_from));
        drop(record::decode::<LogRecord>(&bytes).map(LogRecord::into_entry));
    }

    #[test]
    fn a_changed_byte_is_a_record_or_an_error(
        record in log_record(), place in any::<proptest::sample::Index>(), byte in any::<u8>()
    ) {
        let mut bytes = record::encode(&record);
        let place = place.index(bytes.len());
        bytes[place] = byte;
        drop(record::decode::<LogRecord>(&bytes).map(LogRecord::into_entry));
    }
}

#[test]
fn unknown_fields_and_trailing_bytes_are_refused() {
    #[derive(Serialize)]
    struct Later {
        term: u64,
        node: u64,
        index: u64,
        colour: u8,
    }
    let later = record::encode(&Later { term: 1, node: 1, index: 1, colour: 1 });
    let error = record::decode::<LogIdRecord>(&later).unwrap_err();
    assert!(error.to_string().contains("colour"), "{error}");

    let mut long = record::encode(&LogIdRecord { term: 1, node: 1, index: 1 });
    long.push(0);
    assert!(record::decode::<LogIdRecord>(&long).unwrap_err().to_string().contains("1 bytes"));
}

#[test]
fn what_no_cluster_can_reach_is_refused() {
    let id = |term, index| LogId::try_from(LogIdRecord { term, node: 1, index });
    assert!(id(ORDINAL_MAX, ORDINAL_MAX).is_ok());
    assert!(id(ORDINAL_MAX + 1, 1).is_err());
    assert!(id(1, u64::MAX).is_err());

    let members = |voters: &[u64], nodes: u64, address: &str| {
        let node = |id| (id, NodeRecord { address: address.to_owned() });
        let voters = vec![voters.iter().copied().collect()];
        Membership::try_from(MembershipRecord { voters, nodes: (1..=nodes).map(node).collect() })
    };
    assert!(members(&[1], 3, "a:1").is_ok());
    assert!(members(&[4], 3, "a:1").is_err(), "a voter without an address");
    assert!(members(&[], 3, "a:1").is_err(), "an empty set of voters");
    assert!(members(&[1], NODES_MAX as u64 + 1, "a:1").is_err());
    assert!(members(&[1], 1, &"a".repeat(10_000)).is_err());
    let many = MembershipRecord { voters: vec![[1].into(); 9], nodes: BTreeMap::new() };
    assert!(Membership::try_from(many).is_err());
}

fn fixture(name: &str, bytes: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/storage-v1");
    let file = path.join(name);
    if std::env::var_os("UPDATE_FIXTURES").is_some() && !file.exists() {
        fs::create_dir_all(&path).unwrap();
        fs::write(&file, bytes()).unwrap();
    }
    fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Records of the first version are read, and written in the same bytes: a node
/// of either version can follow the other.
fn keeps<T>(name: &str, key: &[u8], record: T)
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let bytes = fixture(name, || seal(key, &record));
    assert_eq!(unseal::<T>(key, &bytes).as_ref(), Ok(&record), "{name}");
    assert_eq!(seal(key, &record), bytes, "{name}");
}

fn three() -> MembershipRecord {
    let node = |id: u64| (id, NodeRecord { address: format!("10.0.0.{id}:21000") });
    MembershipRecord {
        voters: vec![[1, 2, 3].into(), [2, 3, 4].into()],
        nodes: [1, 2, 3, 4].map(node).into(),
    }
}

#[test]
fn records_of_version_1_are_read_for_ever() {
    let record = |payload| LogRecord { index: 300, term: 70_000, node: 2, payload };
    let last = LogIdRecord { term: 70_000, node: 2, index: 300 };
    keeps("entry-blank.bin", b"entry/300", record(PayloadRecord::Blank));
    let commands = PayloadRecord::Entry(Bytes::from_static(b"commands"));
    keeps("entry-commands.bin", b"entry/300", record(commands));
    keeps("entry-membership.bin", b"entry/300", record(PayloadRecord::Membership(three())));
    keeps("vote.bin", b"vote", VoteRecord { term: 70_000, node: 2, committed: true });
    keeps("log-id.bin", b"purged", last);
    let witness = WitnessRecord { boot: u64::MAX, index: 300, term: 0 };
    keeps("witness.bin", b"witness/1", witness);
    keeps("witness-term.bin", b"witness/1", WitnessRecord { term: 70_000, ..witness });
    let identity = Identity {
        format: 1,
        cluster_id: "c-1".into(),
        node_id: 2,
        generation: u64::MAX,
        formed: true,
    };
    keeps("identity.bin", b"identity", identity);
}

#[test]
fn a_snapshot_of_version_1_is_read_for_ever() {
    let last = Some(LogIdRecord { term: 70_000, node: 2, index: 300 });
    let membership = StoredMembershipRecord { log_id: last, membership: three() };
    let meta = SnapshotMetaRecord { last, membership };
    let header = SnapshotHeader { cluster_id: "c-1".into(), meta, created_ms: 1_700_000_000_000 };
    let bytes = fixture("snapshot.bin", || {
        let mut writer = format::begin(Vec::new(), &header).unwrap();
        std::io::Write::write_all(&mut writer, b"the state").unwrap();
        writer.finish().unwrap()
    });
    let (read, mut body) = format::open(&bytes[..]).unwrap();
    let mut state = Vec::new();
    body.read_to_end(&mut state).unwrap();
    assert_eq!((read, state.as_slice()), (header, &b"the state"[..]));
}
