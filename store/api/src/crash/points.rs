//! The points, by name.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, raise};

/// The environment variable that names the point at which a process ends.
pub const VARIABLE: &str = "HOLDFAST_CRASH";

macro_rules! steps {
    ($($step:ident = $name:literal, $about:literal;)*) => {
        /// A durable step of a node: something that it writes, renames or removes on its disk.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Step {
            $(#[doc = $about] $step,)*
        }

        /// All steps, in the order in which they are declared.
        pub const STEPS: &[Step] = &[$(Step::$step,)*];

        impl Step {
            /// What is done, for people.
            pub fn about(self) -> &'static str {
                match self { $(Step::$step => $about,)* }
            }
        }

        impl Point {
            /// The point's name, as `HOLDFAST_CRASH` gives it: `before-` or `after-`, and the step.
            pub fn as_str(self) -> &'static str {
                match (self.side, self.step) {
                    $((Side::Before, Step::$step) => concat!("before-", $name),
                    (Side::After, Step::$step) => concat!("after-", $name),)*
                }
            }
        }
    };
}

steps! {
    // The writer of the log; behind them those that wait are told.
    Append = "append", "entries are written to the log, and synced";
    Truncate = "truncate", "entries that another leader has replaced are removed";
    Purge = "purge", "entries that a snapshot covers are removed";
    Vote = "vote", "a vote is written, and synced";
    CommitIndex = "commit-index", "how far the log is committed is written";
    Witness = "witness", "how far another node's log was seen to reach is written";
    IdentityRecord = "identity-record", "the log's copy of the identity is written, and synced";
    Rewrite = "rewrite", "a log that is damaged is written anew";

    // The log in RocksDB.
    LogCreate = "log-create", "an empty log is made";
    WatermarkCreate = "watermark-create", "the watermark is made, and synced";
    WatermarkRaise = "watermark-raise", "the watermark is raised after a synced write";
    WatermarkSync = "watermark-sync", "the watermark of a log that was written anew is synced";
    RewriteName = "rewrite-name", "a log that was written anew counts from here on";
    RewriteRemove = "rewrite-remove", "the damaged log is deleted";
    RewriteMove = "rewrite-move", "the log that was written anew takes its place";
    RewriteSettle = "rewrite-settle", "its watermark takes the place of the other one";

    // Snapshots.
    SnapshotPublish = "snapshot-publish", "a snapshot becomes the newest one";
    SnapshotSync = "snapshot-sync", "the file of a snapshot is synced";
    SnapshotName = "snapshot-name", "the name that the file was given is synced";
    SnapshotRemove = "snapshot-remove", "the snapshot before it is deleted";
    SnapshotReceive = "snapshot-receive", "a piece of a leader's snapshot is written";
    SnapshotInstall = "snapshot-install", "a leader's snapshot takes the place of the state";
    SnapshotSetAside = "snapshot-set-aside", "a damaged snapshot that can be spared is renamed";

    // The data folder.
    IdentitySync = "identity-sync", "the file of the identity is synced";
    IdentityName = "identity-name", "the name that the file was given is synced";

    // `holdfast-store recover`.
    BackupSync = "backup-sync", "the file of a backup is synced";
    BackupName = "backup-name", "the name that the file was given is synced";
}

/// Whether a point comes before its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Nothing of it is done.
    Before,
    /// All of it is done, and nobody was told.
    After,
}

/// A point at which a process can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// The step that the point lies before or after.
    pub step: Step,
    /// Before or after it.
    pub side: Side,
}

impl Step {
    /// The point before it.
    pub fn before(self) -> Point {
        Point { step: self, side: Side::Before }
    }

    /// The point after it.
    pub fn after(self) -> Point {
        Point { step: self, side: Side::After }
    }
}

impl Point {
    /// All points: two for each step, the one before it first.
    pub fn all() -> impl Iterator<Item = Point> {
        STEPS.iter().flat_map(|step| [step.before(), step.after()])
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Point> {
        Point::all().find(|point| point.as_str() == name)
    }
}

/// The durable steps that one write makes, each once.
#[derive(Debug)]
pub struct Steps(BTreeSet<Step>);

impl Steps {
    /// Those of its operations.
    pub fn of(steps: impl Iterator<Item = Step>) -> Steps {
        Steps(steps.collect())
    }

    /// Passes the points before them.
    pub fn before(&self) {
        self.0.iter().for_each(|step| pass(step.before()));
    }

    /// Passes the points after them.
    pub fn after(&self) {
        self.0.iter().for_each(|step| pass(step.after()));
    }
}

/// The point that a thread looks at, and what is told when it is passed.
type Observed = (Point, Rc<dyn Fn()>);

thread_local! {
    static OBSERVED: RefCell<Option<Observed>> = const { RefCell::new(None) };
}

pub(super) fn observe(name: &str, passed: impl Fn() + 'static) -> Result<(), String> {
    let point = Point::named(name).ok_or_else(|| {
        let known: Vec<&str> = Point::all().map(Point::as_str).collect();
        format!("unknown crash point {name:?}; use one of {}", known.join(", "))
    })?;
    OBSERVED.set(Some((point, Rc::new(passed))));
    Ok(())
}

/// Where this process ends, and how often the point is still passed.
struct Armed {
    point: Point,
    left: AtomicU64,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

/// What the environment says.
///
/// # Panics
/// If it names no point: a run that passes none would prove nothing.
fn armed() -> Option<&'static Armed> {
    let from_environment = || {
        let text = std::env::var(VARIABLE).ok()?;
        let (name, times) = text.split_once(':').unwrap_or((&text, "1"));
        let point = Point::named(name).expect("HOLDFAST_CRASH names a crash point");
        let left = times.parse().expect("HOLDFAST_CRASH is NAME or NAME:TIMES");
        Some(Armed { point, left: AtomicU64::new(left) })
    };
    ARMED.get_or_init(from_environment).as_ref()
}

/// Ends the process with SIGKILL if it was told to end here: nothing is flushed, and no
/// other thread goes on.
pub fn pass(point: Point) {
    if let Some((observed, passed)) = OBSERVED.with_borrow(Clone::clone) {
        if observed == point {
            passed();
        }
        return;
    }
    let Some(armed) = armed().filter(|armed| armed.point == point) else { return };
    if armed.left.fetch_sub(1, Ordering::SeqCst) == 1 {
        eprintln!("crashed at {}", point.as_str());
        // It cannot be caught, and there is nothing to be done if it is not sent.
        let _ = raise(Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_point_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = Point::all().map(Point::as_str).collect();
        assert_eq!(names.len(), STEPS.len() * 2);
        assert_eq!(Point::named("after-vote"), Some(Step::Vote.after()));
        assert_eq!(Point::named("vote"), None);
    }
}
