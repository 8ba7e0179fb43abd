use holdfast_api::Budget;
use holdfast_api::name::default_name;

use super::*;
use crate::node::parking::Parking;

/// The revision at which fresh waits are parked.
const SEEN: Revision = 10;

/// Parked waits, and how those ended that have.
#[derive(Default)]
struct Bench {
    waits: Waits,
    parking: Arc<Parking>,
    ended: Arc<Mutex<Vec<(&'static str, Revision)>>>,
}

impl Bench {
    /// Parks a wait for these keys, in byte order, under a name.
    fn wait(&mut self, name: &'static str, keys: &[&str], resumed: Option<Revision>) -> WaitId {
        let missing: Vec<Condition> = keys
            .iter()
            .map(|key| Condition { key: Blob::from(*key), until: Until::Exists })
            .collect();
        let ended = self.ended.clone();
        let id = self.waits.park(Parked {
            run: run(),
            named: true,
            seen: SEEN,
            since: SEEN,
            resumed,
            room: self.parking.take(None, bytes(&missing), &Budget::default()).unwrap(),
            missing,
            tells: Tells::default(),
            ended: Box::new(move |how| ended.lock().push((name, how.unwrap()))),
        });
        assert!(self.waits.enter(id, 0..keys.len()));
        id
    }

    fn changes(&mut self, key: &str, kind: ChangeKind, revision: Revision) {
        let RunKey { job, run } = run();
        let change = Change { job, run, key: Blob::from(key), kind };
        self.waits.changed(&change, revision).tell();
    }

    fn pushes(&mut self, key: &str, length: u64, revision: Revision) {
        self.changes(key, ChangeKind::Push { length }, revision);
    }

    /// The waits that have ended since the last call.
    fn ended(&self) -> Vec<(&'static str, Revision)> {
        std::mem::take(&mut *self.ended.lock())
    }
}

fn run() -> RunKey {
    RunKey { job: default_name(), run: default_name() }
}

#[test]
fn a_push_ends_one_wait_the_longest_waiting() {
    let mut bench = Bench::default();
    bench.wait("first", &["q"], None);
    bench.wait("second", &["q"], None);
    bench.pushes("q", 1, 11);
    assert_eq!(bench.ended(), [("first", 11)]);
    bench.pushes("q", 2, 12);
    assert_eq!(bench.ended(), [("second", 12)]);
}

#[test]
fn a_push_is_not_spent_on_a_wait_that_misses_another_key() {
    let mut bench = Bench::default();
    bench.wait("both", &["k", "q"], None);
    bench.wait("queue", &["q"], None);
    bench.pushes("q", 1, 11);
    assert_eq!(bench.ended(), [("queue", 11)]);
    bench.changes("k", ChangeKind::Put { value: "v".into(), version: 1 }, 12);
    assert_eq!(bench.ended(), [("both", 12)], "the queue held something meanwhile");
}

#[test]
fn of_the_waits_that_go_on_each_value_of_a_queue_ends_one() {
    let mut bench = Bench::default();
    let ids = [("a", 3), ("b", 2), ("c", 1)].map(|(name, since)| {
        let id = bench.wait(name, &["q"], Some(since));
        bench.waits.take_turn(id, 1, SEEN).tell();
        id
    });
    assert_eq!(bench.ended(), [("a", SEEN)], "there is one value");
    // What is pushed goes to the longest waiting, wherever it began.
    bench.pushes("q", 2, 11);
    assert_eq!(bench.ended(), [("c", 11)]);
    bench.waits.take_turn(ids[1], 2, 11).tell();
    assert!(bench.ended().is_empty(), "both values are promised");
    bench.changes("q", ChangeKind::Pop { length: 1 }, 12);
    bench.pushes("q", 2, 13);
    assert_eq!(bench.ended(), [("b", 13)]);
}

#[test]
fn who_found_all_values_promised_is_looked_at_again_the_longest_waiting_first() {
    let mut bench = Bench::default();
    let ids = [("a", 3), ("b", 2), ("c", 1)].map(|(name, since)| {
        let id = bench.wait(name, &["q"], Some(since));
        bench.waits.take_turn(id, 1, SEEN).tell();
        id
    });
    assert_eq!(bench.waits.take_turned_back(), [ids[2], ids[1]]);
    assert!(bench.waits.take_turned_back().is_empty(), "each once");
    // Where the queue is empty there is nothing to look for.
    bench.waits.take_turn(ids[1], 0, 11).tell();
    assert!(bench.waits.take_turned_back().is_empty());
}
