use holdfast_api::Budget;
use holdfast_api::name::default_name;

use super::*;
use crate::node::parking::Parking;

/// The revision at which waits are parked.
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
    fn wait(&mut self, name: &'static str, keys: &[&str]) {
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
            room: self.parking.take(None, bytes(&missing), &Budget::default()).unwrap(),
            missing,
            tells: Tells::default(),
            ended: Box::new(move |how| ended.lock().push((name, how.unwrap()))),
        });
        assert!(self.waits.enter(id, 0..keys.len()));
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
    bench.wait("first", &["q"]);
    bench.wait("second", &["q"]);
    bench.pushes("q", 1, 11);
    assert_eq!(bench.ended(), [("first", 11)]);
    bench.pushes("q", 2, 12);
    assert_eq!(bench.ended(), [("second", 12)]);
}

#[test]
fn a_push_is_not_spent_on_a_wait_that_misses_another_key() {
    let mut bench = Bench::default();
    bench.wait("both", &["k", "q"]);
    bench.wait("queue", &["q"]);
    bench.pushes("q", 1, 11);
    assert_eq!(bench.ended(), [("queue", 11)]);
    bench.changes("k", ChangeKind::Put { value: "v".into(), version: 1 }, 12);
    assert_eq!(bench.ended(), [("both", 12)], "the queue held something meanwhile");
}
