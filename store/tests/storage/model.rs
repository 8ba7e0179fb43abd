//! Any sequence of operations has the result of the same operations on a plain
//! list.

use holdfast_store::storage::Identity;
use holdfast_store::storage::backend::{Batch, LogBackend, LogImage, Operation, WitnessRecord};
use holdfast_store::storage::record::{LogIdRecord, LogRecord, PayloadRecord, VoteRecord};
use holdfast_store::storage::rocks::RocksLog;
use holdfast_store::storage::watermark::Watermark;
use proptest::prelude::*;

use crate::support::folder;

/// The next step; made possible by [`operation`].
#[derive(Debug, Clone)]
enum Step {
    Append { count: u64, bytes: usize },
    Truncate { back: u64 },
    Purge { forward: u64 },
    Elect,
    Commit,
    Witness { node: u64, index: u64 },
    Rewrite,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..20u64, 0..2000usize).prop_map(|(count, bytes)| Step::Append { count, bytes }),
        1 => (1..10u64).prop_map(|back| Step::Truncate { back }),
        1 => (1..10u64).prop_map(|forward| Step::Purge { forward }),
        1 => Just(Step::Elect),
        1 => Just(Step::Commit),
        1 => (1..4u64, any::<u64>()).prop_map(|(node, index)| Step::Witness { node, index }),
        1 => Just(Step::Rewrite),
        2 => Just(Step::Reopen),
    ]
}

fn record(term: u64, index: u64, bytes: usize) -> LogRecord {
    let payload = PayloadRecord::Entry(vec![index as u8; bytes].into());
    LogRecord { index, term, node: 1, payload }
}

fn next_index(image: &LogImage) -> u64 {
    image.last_id().map_or(0, |last| last.index + 1)
}

/// The operations of a step that make sense after `image`.
fn operations(image: &LogImage, step: &Step) -> Vec<Operation> {
    let term = image.vote.map_or(1, |vote| vote.term);
    let next = next_index(image);
    match *step {
        Step::Append { count, bytes } => {
            (next..next + count).map(|i| Operation::Append(record(term, i, bytes))).collect()
        }
        Step::Truncate { back } => {
            vec![Operation::Truncate { from: next.saturating_sub(back).max(image.first_index()) }]
        }
        Step::Purge { forward } => {
            let upto = image.id_at(image.first_index() + forward).into_iter();
            upto.map(|upto| Operation::Purge { upto }).collect()
        }
        Step::Elect => {
            vec![Operation::Vote(VoteRecord { term: term + 1, node: 1, committed: true })]
        }
        Step::Commit => image.last_id().into_iter().map(Operation::Committed).collect(),
        Step::Witness { node, index } => {
            vec![Operation::Witness {
                node,
                witness: WitnessRecord { boot: 1, index, term: index },
            }]
        }
        Step::Rewrite => {
            // Entries after it count, what comes before it is in it.
            let rewrite = Operation::Rewrite(Box::new(image.clone()));
            vec![rewrite, Operation::Append(record(term, next, 100))]
        }
        Step::Reopen => Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn rocksdb_holds_what_the_operations_say(steps in proptest::collection::vec(step(), 1..40)) {
        let dir = folder();
        let (path, mark) = (dir.path().join("log"), dir.path().join("watermark"));
        let mut log = RocksLog::create(&path, Watermark::create(&mark).unwrap()).unwrap();
        let vote = Operation::Vote(VoteRecord { term: 1, node: 1, committed: true });
        let identity = Operation::Identity(Identity::new("c".into(), 1, 7));
        let mut model = LogImage::default();
        let first = vec![vote, identity];
        first.iter().for_each(|operation| model.apply(operation.clone()));
        log.write(Batch { operations: first, sync: true }).unwrap();
        let check = log.checker().unwrap();
        for step in &steps {
            check().unwrap();
            if matches!(step, Step::Reopen) {
                drop(log);
                log = RocksLog::open(&path, &mark).unwrap();
                prop_assert_eq!(&log.load().unwrap(), &model);
            }
            let operations = operations(&model, step);
            operations.iter().for_each(|operation| model.apply(operation.clone()));
            log.write(Batch { operations, sync: true }).unwrap();
        }
        prop_assert_eq!(&log.load().unwrap(), &model);
    }
}

fn bytes_under(dir: &std::path::Path) -> u64 {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter_map(|path| std::fs::metadata(path).ok()).map(|data| data.len()).sum()
}

#[test]
fn a_log_that_is_purged_does_not_grow_for_ever() {
    const ROUNDS: u64 = 150;
    const ENTRIES: u64 = 16;
    const ENTRY_BYTES: usize = 64 << 10;
    const MIB: u64 = 1 << 20;

    let dir = folder();
    let path = dir.path().join("log");
    let watermark = Watermark::create(&dir.path().join("watermark")).unwrap();
    let mut log = RocksLog::create(&path, watermark).unwrap();
    let mut most = 0;
    for round in 0..ROUNDS {
        let first = round * ENTRIES;
        let appends = (first..first + ENTRIES).map(|i| record(1, i, ENTRY_BYTES));
        let mut operations: Vec<_> = appends.map(Operation::Append).collect();
        if let Some(index) = first.checked_sub(1) {
            operations.push(Operation::Purge { upto: LogIdRecord { term: 1, node: 1, index } });
        }
        log.write(Batch { operations, sync: true }).unwrap();
        most = most.max(bytes_under(&path));
    }
    let written = ROUNDS * ENTRIES * ENTRY_BYTES as u64;
    assert!(written > 140 * MIB);
    assert!(most < 100 * MIB, "{} MiB on the disk for a log of 2 MiB", most / MIB);
}
